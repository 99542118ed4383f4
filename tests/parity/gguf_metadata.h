// The tokenizer fields of a GGUF file, read in the plainest way for tests: trusts the file.
#pragma once

#include <cstring>
#include <fstream>
#include <stdexcept>
#include <string>

#include "coppice/processor/tokenizer.h"

namespace coppice::testing {

class GgufMetadata final {
 public:
  explicit GgufMetadata(const std::string& path) : in_(path, std::ios::binary) {
    if (!in_) throw std::runtime_error("cannot open " + path);
    number<uint32_t>();  // magic
    number<uint32_t>();  // version
    number<uint64_t>();  // tensors
    for (auto n = number<uint64_t>(); n > 0; --n) entry();
  }
  const GgufTokenizerFields& fields() const { return fields_; }

 private:
  template <typename T>
  T number() {
    T value{};
    in_.read(reinterpret_cast<char*>(&value), sizeof(value));
    if (!in_) throw std::runtime_error("GGUF metadata ends early");
    return value;
  }
  std::string string() {
    std::string value(number<uint64_t>(), '\0');
    in_.read(value.data(), static_cast<std::streamsize>(value.size()));
    return value;
  }
  int64_t scalar(uint32_t type) {
    switch (type) {
      case 0:
      case 1:
      case 7:
        return number<int8_t>();
      case 2:
      case 3:
        return number<int16_t>();
      case 4:
        return number<uint32_t>();
      case 5:
        return number<int32_t>();
      case 6:
        return static_cast<int64_t>(number<float>());
      case 12:
        return static_cast<int64_t>(number<double>());
      default:
        return number<int64_t>();
    }
  }
  void entry() {
    const std::string key = string();
    const auto type = number<uint32_t>();
    const bool mine = key.starts_with("tokenizer.ggml.");
    const std::string name = mine ? key.substr(15) : std::string();
    if (type == 8) {
      std::string value = string();
      if (name == "model") fields_.model = value;
      if (name == "pre") fields_.pre = value;
    } else if (type == 9) {
      array(name);
    } else {
      const int64_t value = scalar(type);
      if (name == "bos_token_id") fields_.bos_id = value;
      if (name == "eos_token_id") fields_.eos_id = value;
      if (name == "unknown_token_id") fields_.unk_id = value;
      if (name == "padding_token_id") fields_.pad_id = value;
      if (name == "add_bos_token") fields_.add_bos = value != 0;
      if (name == "add_eos_token") fields_.add_eos = value != 0;
      if (name == "add_space_prefix") fields_.add_space_prefix = value != 0;
    }
  }
  void array(const std::string& name) {
    const auto type = number<uint32_t>();
    for (auto n = number<uint64_t>(); n > 0; --n) {
      if (type == 8) {
        std::string value = string();
        if (name == "tokens") fields_.tokens.push_back(std::move(value));
        if (name == "merges") fields_.merges.push_back(std::move(value));
      } else if (type == 6) {
        const auto value = number<float>();
        if (name == "scores") fields_.scores.push_back(value);
      } else {
        const int64_t value = scalar(type);
        if (name == "token_type") fields_.types.push_back(static_cast<int32_t>(value));
      }
    }
  }

  std::ifstream in_;
  GgufTokenizerFields fields_;
};

}  // namespace coppice::testing
