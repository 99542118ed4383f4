// The studies of `coppice study`. Each adds itself, with its flags.
#pragma once

#include <CLI/CLI.hpp>

namespace coppice {

void add_study_rank(CLI::App& study);

}  // namespace coppice
