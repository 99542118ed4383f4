// Safetensors files: as they are, and once more with a header length that fits, since a random one
// seldom does.
#include <algorithm>

#include "coppice/core/error.h"
#include "coppice/loader/safetensors_file.h"
#include "coppice/ops/dequantize.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/support/gguf_builder.h"

namespace {

using namespace coppice;
using testing::ByteWriter;

void parse(std::string_view bytes) {
  try {
    const SafetensorsFile file =
        SafetensorsFile::parse(std::as_bytes(std::span(bytes)), nullptr, "input");
    for (const SafetensorsEntry& entry : file.entries()) {
      if (!weight_type_of_dtype(entry.dtype) || entry.bytes.empty()) continue;
      const StoredTensor tensor = file.weight(entry);
      std::vector<float> out(static_cast<std::size_t>(tensor.rows() * tensor.cols()));
      ops::dequantize_row(tensor.type, tensor.bytes, out);
    }
  } catch (const Error&) {
  }
}

std::string file_of(std::string_view header, std::size_t data) {
  return ByteWriter().text(header).raw(std::string(data, 'd')).bytes();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  parse(input);
  if (size > 8) {
    const std::string_view rest = input.substr(8);
    const std::size_t end = std::min(rest.rfind('}'), rest.size() - 1) + 1;
    const std::string fixed = ByteWriter().text(rest.substr(0, end)).raw(rest.substr(end)).bytes();
    parse(fixed);
  }
  return 0;
}

std::vector<std::string> fuzz_seeds() {
  return {
      file_of("{}", 0),
      file_of(R"({"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2,1],)"
              R"("data_offsets":[0,8]},"b":{"dtype":"BF16","shape":[2],"data_offsets":[8,12]}})",
              12),
      file_of(R"({"i":{"dtype":"I64","shape":[],"data_offsets":[0,8]},)"
              R"("z":{"dtype":"F16","shape":[0,4],"data_offsets":[8,8]}} )",
              8),
  };
}
