// Bodies of requests to the server: read, or refused with an ApiError of status 400. The first byte
// says which endpoint.
#include <string_view>

#include "coppice/server/api_error.h"
#include "coppice/server/requests.h"
#include "tests/fuzz/fuzz_target.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view body(reinterpret_cast<const char*>(data) + 1, size - 1);
  try {
    switch (data[0] % 4) {
      case 0:
        coppice::read_chat_body(body);
        break;
      case 1:
        coppice::read_completion_body(body);
        break;
      case 2:
        coppice::read_tokenize_body(body);
        break;
      default:
        coppice::read_detokenize_body(body);
    }
  } catch (const coppice::ApiError& error) {
    if (error.status() != 400) throw;
    coppice::parse_json(coppice::dump_json(error.to_json()), "error");
  }
  return 0;
}

std::vector<std::string> fuzz_seeds() {
  return {
      R"(0{"messages":[{"role":"user","content":[{"type":"image_url","image_url":)"
      R"({"url":"data:image/png;base64,aGVsbG8="}},{"type":"text","text":"a"}]}]})",
      R"(0{"messages":[{"role":"user","content":[{"type":"text","text":"a"}]}],"n":2,"stop":["x"],
         "kv":{"budget":"12.5%","policy":"knorm","sinks":1,"recent":2},"logit_bias":{"5":-1.5},
         "stream":true,"stream_options":{"include_usage":true},"logprobs":true,"top_logprobs":2})",
      R"(0{"messages":[{"role":"assistant","tool_calls":[{"function":{"name":"f",
         "arguments":"{\"a\":[1]}"}}]}],"chat_template_kwargs":{"enable_thinking":false}})",
      R"(1{"prompt":[[1,2],[3]],"max_tokens":0,"echo":true,"seed":-1,"best_of":1,"suffix":null})",
      R"(1{"prompt":["a","b"],"logprobs":3,"temperature":1e-300,"kv":{"budget":64}})",
      R"(2{"messages":[{"role":"user","content":"x"}],"add_generation_prompt":false})",
      R"(2{"prompt":"x","add_special_tokens":false,"model":"m"})",
      R"(3{"tokens":[1,2,2147483647]})",
      "1" + std::string(300, '['),
  };
}
