// `coppice study`: declared grids of evaluations, each turned into tables and a report by one
// command. A study is a file of its own that adds itself here.

#include "apps/commands.h"
#include "apps/study.h"

namespace coppice {

void add_study_command(CLI::App& program) {
  CLI::App* study = program.add_subcommand("study", "whole studies, with tables and a report");
  study->require_subcommand(1);
  add_study_rank(*study);
}

}  // namespace coppice
