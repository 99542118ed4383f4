// The one exception type of the library, and the one check macro.
//
// Throw Error through fail(): the message says what was wrong, what was expected and what was got.
// COPPICE_CHECK guards what only a bug of ours can break; it throws kInternal and never aborts.
#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <utility>

namespace coppice {

enum class ErrorCode {
  kInvalidArgument,  // a caller's or user's mistake: a bad flag, a malformed file
  kNotFound,         // a file, tensor, policy or architecture that is not there
  kCapacity,         // a bound (KV budget, context, memory) that cannot hold
  kInternal,         // a bug of ours
};

class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  ErrorCode code() const { return code_; }

 private:
  ErrorCode code_;
};

template <typename... Args>
[[noreturn]] void fail(ErrorCode code, fmt::format_string<Args...> format, Args&&... args) {
  throw Error(code, fmt::format(format, std::forward<Args>(args)...));
}

// Shorthand for the most frequent kind.
template <typename... Args>
[[noreturn]] void fail_argument(fmt::format_string<Args...> format, Args&&... args) {
  throw Error(ErrorCode::kInvalidArgument, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace coppice

// COPPICE_CHECK(condition, "format", args...)
#define COPPICE_CHECK(condition, ...)                                                           \
  do {                                                                                          \
    if (!(condition)) [[unlikely]]                                                              \
      ::coppice::fail(::coppice::ErrorCode::kInternal, "internal error at {}:{}: {}", __FILE__, \
                      __LINE__, ::fmt::format(__VA_ARGS__));                                    \
  } while (false)
