// JSON texts, as every parser of JSON files and request bodies starts.
#include <string_view>

#include "coppice/core/error.h"
#include "coppice/core/json.h"
#include "tests/fuzz/fuzz_target.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  for (const bool strict : {false, true}) {
    try {
      const coppice::Json value =
          coppice::parse_json(text, "input", {.max_depth = 32, .reject_duplicate_keys = strict});
      // What was read can be written and read again.
      coppice::parse_json(coppice::dump_json(value), "output");
    } catch (const coppice::Error&) {
    }
  }
  return 0;
}

std::vector<std::string> fuzz_seeds() {
  return {R"({"a":[1,-2,3.5e7,true,false,null],"b":{"c":"\u00e9\ud83d\ude00\n"},"a":""})",
          "[[[[[[[[]]]]]]]]", "\"\\ud83d\"", "18446744073709551616", std::string(200, '[')};
}
