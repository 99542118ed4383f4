// Each command adds itself to the program: its flags, and what it runs.
#pragma once

#include <CLI/CLI.hpp>

namespace coppice {

void add_chat_command(CLI::App& program);
void add_run_command(CLI::App& program);
void add_serve_command(CLI::App& program);
void add_eval_command(CLI::App& program);
void add_study_command(CLI::App& program);
void add_train_command(CLI::App& program);
void add_inspect_command(CLI::App& program);
void add_bench_command(CLI::App& program);
void add_plan_command(CLI::App& program);
void add_convert_gate_command(CLI::App& program);

}  // namespace coppice
