// The program: `coppice chat | run | serve | eval | study | train | bench | inspect | plan |
// convert-gate`. Exit codes: 0 done, 1 failed, 2 wrong usage.

#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>

#include "apps/commands.h"
#include "apps/usage.h"

namespace {

int fail_with(int code, const char* message) {
  std::fprintf(stderr, "coppice: %s\n", message);
  return code;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App program("Language models with a KV cache that keeps one bound.", "coppice");
  program.require_subcommand(1);
  program.set_version_flag("--version", "coppice " COPPICE_VERSION);
  coppice::add_chat_command(program);
  coppice::add_run_command(program);
  coppice::add_serve_command(program);
  coppice::add_eval_command(program);
  coppice::add_study_command(program);
  coppice::add_train_command(program);
  coppice::add_inspect_command(program);
  coppice::add_bench_command(program);
  coppice::add_plan_command(program);
  coppice::add_convert_gate_command(program);
  try {
    program.parse(argc, argv);
    return 0;
  } catch (const CLI::ParseError& error) {
    return program.exit(error) == 0 ? 0 : 2;  // help and version are no errors
  } catch (const coppice::UsageError& error) {
    return fail_with(2, error.what());
  } catch (const coppice::Error& error) {
    return fail_with(1, error.what());
  } catch (const std::exception& error) {
    return fail_with(1, error.what());
  }
}
