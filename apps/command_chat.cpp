// `coppice chat`: turn after turn with one bounded cache.

#include <unistd.h>

#include <iostream>
#include <memory>

#include "apps/commands.h"
#include "apps/conversation.h"
#include "apps/report.h"
#include "coppice/core/error.h"
#include "coppice/core/mapped_file.h"

namespace coppice {
namespace {

struct ChatOptions {
  ModelOptions model;
  GenerationOptions generation;
  std::string prompt_file;
};

void chat(const ChatOptions& options) {
  std::string document;
  if (!options.prompt_file.empty()) document = read_text_file(options.prompt_file) + "\n\n";
  const Runtime runtime(options.model);
  Conversation conversation(runtime, options.generation,
                            runtime.model()->args().max_position_embeddings);
  const bool terminal = ::isatty(STDIN_FILENO) != 0;
  if (terminal) std::cerr << "One message a line; an empty line or Ctrl-D ends.\n";
  while (true) {
    if (terminal) std::cerr << "\n> " << std::flush;
    std::string line;
    if (!std::getline(std::cin, line) || (terminal && line.empty())) break;
    if (line.empty()) continue;
    try {
      RequestOutput output = conversation.ask(document + line, [&options](std::string_view text) {
        if (!options.model.json) std::cout << text << std::flush;
      });
      document.clear();  // it is in the chat from now on
      print_answer(std::move(output), runtime.load_seconds(), runtime.cache(), options.model.json);
    } catch (const Error& error) {
      // Nothing is lost: the chat stands as it did before this turn.
      if (!terminal) throw;
      std::cerr << "coppice: " << error.what() << "\n";
    }
  }
}

}  // namespace

void add_chat_command(CLI::App& program) {
  auto options = std::make_shared<ChatOptions>();
  CLI::App* command = program.add_subcommand("chat", "talk with a model, one message a line");
  add_model_options(*command, options->model, "1024");
  add_generation_options(*command, options->generation);
  command
      ->add_option("--prompt-file", options->prompt_file, "text to read before the first message")
      ->check(CLI::ExistingFile);
  command->callback([options] { chat(*options); });
}

}  // namespace coppice
