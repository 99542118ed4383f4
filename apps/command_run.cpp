// `coppice run`: one prompt, or the turns of a file, and out.

#include <unistd.h>

#include <fstream>
#include <iostream>
#include <memory>
#include <sstream>

#include "apps/commands.h"
#include "apps/conversation.h"
#include "apps/report.h"
#include "apps/usage.h"
#include "coppice/core/error.h"
#include "coppice/core/mapped_file.h"

namespace coppice {
namespace {

struct RunOptions {
  ModelOptions model;
  GenerationOptions generation;
  std::string prompt;
  std::string prompt_file;
  std::string turns_file;
  std::vector<std::string> images;
  bool raw = false;
};

std::string read_input(const std::string& path) {
  if (path != "-") return read_text_file(path);
  std::ostringstream text;
  text << std::cin.rdbuf();
  return text.str();
}

void print_text(std::string_view text) { std::cout << text << std::flush; }

// The prompt as it stands, without a template.
RequestOutput run_raw(const Runtime& runtime, const RunOptions& options, const std::string& text,
                      const std::function<void(std::string_view)>& on_text) {
  Request request;
  std::vector<ImageEncoder::Encoded> pictures;
  for (const std::string& image : options.images) pictures.push_back(runtime.encode_image(image));
  runtime.set_prompt(request,
                     runtime.tokenizer().encode(text, {.parse_special = true, .add_special = true}),
                     pictures);
  request.sampling = options.generation.sampling;
  request.sampling.seed = options.generation.seed;
  request.sampling.max_tokens = options.generation.max_tokens;
  const auto prompt_tokens = static_cast<int64_t>(request.prompt.size());
  const int64_t longest = runtime.longest_tokens(prompt_tokens, options.generation.max_tokens);
  const auto engine = runtime.make_engine(longest, longest);
  return from_flags([&] {
    return engine->run(request, [&on_text](const RequestOutput& part) {
      if (on_text) on_text(part.text);
      return true;
    });
  });
}

// Tokens of all turns with the answers they may get.
int64_t text_tokens(const Runtime& runtime, const std::vector<std::string>& turns,
                    const GenerationOptions& options) {
  int64_t total = 0;
  for (const std::string& turn : turns) {
    total += static_cast<int64_t>(runtime.tokenizer().encode(turn).size());
    if (options.max_tokens) total += *options.max_tokens;
  }
  return options.max_tokens ? total
                            : std::max(total, runtime.model()->args().max_position_embeddings);
}

void run(const RunOptions& options) {
  std::string text = options.prompt;
  if (!options.prompt_file.empty()) {
    text = read_input(options.prompt_file) + (text.empty() ? "" : "\n\n" + text);
  }
  const Runtime runtime(options.model);
  const bool json = options.model.json;
  const std::function<void(std::string_view)> on_text = json ? nullptr : print_text;
  if (options.raw) {
    print_answer(run_raw(runtime, options, text, on_text), runtime.load_seconds(), runtime.cache(),
                 json);
    return;
  }

  std::vector<std::string> turns;
  if (options.turns_file.empty()) {
    turns.push_back(text);
  } else {
    std::istringstream lines(read_input(options.turns_file));
    for (std::string line; std::getline(lines, line);) {
      if (!line.empty()) turns.push_back(line);
    }
    if (turns.empty()) fail_argument("--turns-file {} holds no turn", options.turns_file);
    if (!text.empty()) turns.front() = text + "\n\n" + turns.front();
  }
  int64_t tokens = text_tokens(runtime, turns, options.generation);
  for (const std::string& image : options.images)
    tokens += runtime.encode_image(image).embeddings.size(0);
  Conversation chat(runtime, options.generation, tokens);
  for (std::size_t i = 0; i < turns.size(); ++i) {
    if (!json && turns.size() > 1) {
      std::cout << "> "
                << (i == 0 && turns[0].size() > 300
                        ? "..." + turns[0].substr(turns[0].rfind("\n\n") + 2)
                        : turns[i])
                << "\n";
    }
    print_answer(chat.ask(turns[i], on_text, i == 0 ? options.images : std::vector<std::string>()),
                 runtime.load_seconds(), runtime.cache(), json);
  }
}

}  // namespace

void add_run_command(CLI::App& program) {
  auto options = std::make_shared<RunOptions>();
  CLI::App* command = program.add_subcommand("run", "answer a prompt, or the turns of a file");
  add_model_options(*command, options->model, "1024");
  add_generation_options(*command, options->generation);
  command->add_option("prompt", options->prompt, "prompt text; stands after --prompt-file");
  command->add_option("--prompt-file", options->prompt_file, "file with the prompt; - is stdin");
  CLI::Option* turns =
      command->add_option("--turns-file", options->turns_file, "one user turn a line");
  command
      ->add_option("--image", options->images,
                   "picture file (PNG, JPEG, WebP, GIF, TIFF) of the first turn; may be repeated")
      ->allow_extra_args(false);
  command->add_flag("--raw", options->raw, "no chat template: the text is continued")
      ->excludes(turns);
  command->callback([options] { run(*options); });
}

}  // namespace coppice
