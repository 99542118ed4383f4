// What a client is told when a request is refused or fails: an HTTP status and OpenAI's error
// object. Thrown by everything between the socket and the engine; caught at the server's border.
#pragma once

#include <string>
#include <string_view>

#include "coppice/core/error.h"
#include "coppice/core/json.h"

namespace coppice {

class ApiError final : public Error {
 public:
  // `param` names the field at fault, `code` is for programs; both may be empty (null on the wire).
  ApiError(int status, const std::string& message, std::string param = {}, std::string code = {});

  int status() const { return status_; }
  const std::string& param() const { return param_; }
  const std::string& code_name() const { return code_name_; }
  // {"error": {"message", "type", "param", "code"}}
  Json to_json() const;

 private:
  int status_;
  std::string param_;
  std::string code_name_;
};

// A fault of the engine or the tokenizer as the client sees it: a bad value or an unknown name is a
// 400, what can never fit is a 400 with code context_length_exceeded, a bug of ours a 500.
ApiError api_error(ErrorCode code, const std::string& message, const std::string& param = {});

// 400 naming the field.
template <typename... Args>
[[noreturn]] void refuse_field(const std::string& param, fmt::format_string<Args...> format,
                               Args&&... args) {
  throw ApiError(400, param + ": " + fmt::format(format, std::forward<Args>(args)...), param,
                 "invalid_value");
}

// A client's text for a message: quoted, cut to some dozen bytes, never half a character.
std::string in_quotes(std::string_view text);

}  // namespace coppice
