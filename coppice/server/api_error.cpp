#include "coppice/server/api_error.h"

#include <utility>

namespace coppice {
namespace {

constexpr std::size_t kQuotedBytes = 60;

ErrorCode code_of(int status) {
  if (status == 404) return ErrorCode::kNotFound;
  if (status == 413 || status == 429) return ErrorCode::kCapacity;
  return status >= 500 ? ErrorCode::kInternal : ErrorCode::kInvalidArgument;
}

std::string_view type_of(int status) {
  if (status == 401) return "authentication_error";
  if (status == 429) return "rate_limit_error";
  return status >= 500 ? "server_error" : "invalid_request_error";
}

Json text_or_null(const std::string& text) { return text.empty() ? Json(nullptr) : Json(text); }

}  // namespace

ApiError::ApiError(int status, const std::string& message, std::string param, std::string code)
    : Error(code_of(status), message),
      status_(status),
      param_(std::move(param)),
      code_name_(std::move(code)) {}

Json ApiError::to_json() const {
  return {{"error",
           {{"message", what()},
            {"type", type_of(status_)},
            {"param", text_or_null(param_)},
            {"code", text_or_null(code_name_)}}}};
}

ApiError api_error(ErrorCode code, const std::string& message, const std::string& param) {
  switch (code) {
    case ErrorCode::kInvalidArgument:
    case ErrorCode::kNotFound:
      return ApiError(400, message, param, "invalid_value");
    case ErrorCode::kCapacity:
      return ApiError(400, message, param, "context_length_exceeded");
    case ErrorCode::kInternal:
      break;
  }
  return ApiError(500, message, param, "internal_error");
}

std::string in_quotes(std::string_view text) {
  if (text.size() <= kQuotedBytes) return fmt::format("\"{}\"", text);
  std::size_t end = kQuotedBytes;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  return fmt::format("\"{}...\" ({} bytes)", text.substr(0, end), text.size());
}

}  // namespace coppice
