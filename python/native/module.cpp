// The Python module's native part: types and calls of apps/ and engine/, one to one. What users see
// is made of it in python/coppice/*.py.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <limits>

#include "coppice/core/json.h"
#include "python/native/arrays.h"
#include "python/native/python_policy.h"
#include "python/native/session.h"

namespace coppice::python {
namespace {

namespace py = pybind11;

std::string_view code_name(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument:
      return "invalid_argument";
    case ErrorCode::kNotFound:
      return "not_found";
    case ErrorCode::kCapacity:
      return "capacity";
    case ErrorCode::kInternal:
      break;
  }
  return "internal";
}

void bind_error(py::module_& module) {
  static PYBIND11_CONSTINIT py::gil_safe_call_once_and_store<py::object> storage;
  storage.call_once_and_store_result(
      [&] { return py::object(py::exception<Error>(module, "Error")); });
  storage.get_stored().attr("__module__") = "coppice";
  storage.get_stored().attr("__doc__") =
      "What coppice refuses or fails at: what was wrong, what was expected, what was got.\n\n"
      "code: invalid_argument, not_found, capacity or internal.";
  py::register_local_exception_translator([](std::exception_ptr thrown) {
    try {
      if (thrown) std::rethrow_exception(thrown);
    } catch (const Error& error) {
      const py::object& type = storage.get_stored();
      const py::object raised = type(error.what());
      raised.attr("code") = code_name(error.code());
      PyErr_SetObject(type.ptr(), raised.ptr());
    }
  });
}

std::vector<int32_t> token_ids(const py::array_t<int64_t>& ids) {
  if (ids.ndim() != 1) fail_argument("token ids: expected one dimension, got {}", ids.ndim());
  std::vector<int32_t> narrow;
  for (py::ssize_t i = 0; i < ids.shape(0); ++i) {
    const int64_t id = ids.at(i);
    if (id < 0 || id > std::numeric_limits<int32_t>::max())
      fail_argument("token {} is {}, expected an id of the vocabulary", i, id);
    narrow.push_back(static_cast<int32_t>(id));
  }
  return narrow;
}

template <typename Number>
py::array_t<Number> array_of(const std::vector<Number>& numbers) {
  return py::array_t<Number>(static_cast<py::ssize_t>(numbers.size()), numbers.data());
}

void bind_options(py::module_& module) {
  py::class_<ModelOptions>(module, "ModelOptions")
      .def(py::init<>())
      .def("copy", [](const ModelOptions& options) { return options; })
      .def_readwrite("model", &ModelOptions::model)
      .def_readwrite("gate", &ModelOptions::gate)
      .def_readwrite("policy", &ModelOptions::policy)
      .def_property(
          "budget", [](const ModelOptions& options) { return options.budget.to_string(); },
          [](ModelOptions& options, const std::string& text) {
            options.budget = KvBudget::parse(text);
          })
      .def_readwrite("sinks", &ModelOptions::sinks)
      .def_readwrite("recent", &ModelOptions::recent)
      .def_readwrite("floor", &ModelOptions::floor)
      .def_readwrite("lookahead", &ModelOptions::lookahead)
      .def_readwrite("policy_options", &ModelOptions::policy_options)
      .def_readwrite("chunk", &ModelOptions::chunk)
      .def_readwrite("positions", &ModelOptions::positions)
      .def_readwrite("weights", &ModelOptions::weights)
      .def_readwrite("kv_dtype", &ModelOptions::kv_dtype)
      .def_readwrite("threads", &ModelOptions::threads)
      .def("set_python_policy",
           [](ModelOptions& options, const PolicyTraits& traits, const py::object& score) {
             options.custom_policy = make_python_policy(traits, score);
           })
      .def("set_no_python_policy", [](ModelOptions& options) { options.custom_policy.reset(); });
  py::class_<SamplingParams>(module, "SamplingParams")
      .def(py::init<>())
      .def_readwrite("temperature", &SamplingParams::temperature)
      .def_readwrite("top_k", &SamplingParams::top_k)
      .def_readwrite("top_p", &SamplingParams::top_p)
      .def_readwrite("min_p", &SamplingParams::min_p)
      .def_readwrite("repetition_penalty", &SamplingParams::repetition_penalty)
      .def_readwrite("presence_penalty", &SamplingParams::presence_penalty)
      .def_readwrite("frequency_penalty", &SamplingParams::frequency_penalty)
      .def_readwrite("logit_bias", &SamplingParams::logit_bias)
      .def_readwrite("seed", &SamplingParams::seed)
      .def_readwrite("max_tokens", &SamplingParams::max_tokens)
      .def_readwrite("stop", &SamplingParams::stop)
      .def_readwrite("stop_token_ids", &SamplingParams::stop_token_ids)
      .def_readwrite("ignore_eos", &SamplingParams::ignore_eos)
      .def_readwrite("logprobs", &SamplingParams::logprobs);
}

void bind_policies(py::module_& module) {
  py::class_<PolicyNeeds>(module, "PolicyNeeds")
      .def(py::init<>())
      .def_readwrite("keys", &PolicyNeeds::keys)
      .def_readwrite("values", &PolicyNeeds::values)
      .def_readwrite("queries", &PolicyNeeds::queries)
      .def_readwrite("attention", &PolicyNeeds::attention)
      .def_readwrite("log_beta", &PolicyNeeds::log_beta);
  py::class_<PolicyTraits>(module, "PolicyTraits")
      .def(py::init<>())
      .def_readwrite("name", &PolicyTraits::name)
      .def_readwrite("scope", &PolicyTraits::scope)
      .def_readwrite("sinks", &PolicyTraits::sinks)
      .def_readwrite("recent", &PolicyTraits::recent)
      .def_readwrite("floor", &PolicyTraits::floor)
      .def_readwrite("window", &PolicyTraits::window)
      .def_readwrite("needs", &PolicyTraits::needs);
  module.def("policies", [] {
    py::dict table;
    for (const PolicyInfo& info : policies()) table[py::str(info.name)] = info.summary;
    return table;
  });
}

void bind_model(py::module_& module) {
  py::class_<LoadedModel, std::shared_ptr<LoadedModel>>(module, "Model")
      .def(py::init([](const ModelOptions& options) {
        const py::gil_scoped_release release;
        return std::make_shared<LoadedModel>(options);
      }))
      .def("encode",
           [](const LoadedModel& model, const std::string& text, bool special, bool begin) {
             return array_of(model.runtime().tokenizer().encode(
                 text, {.parse_special = special, .add_special = begin}));
           })
      .def("decode",
           [](const LoadedModel& model, const py::array_t<int64_t>& ids) {
             return model.runtime().tokenizer().decode(token_ids(ids));
           })
      .def_property_readonly("path", [](const LoadedModel& m) { return m.runtime().path(); })
      .def_property_readonly("load_seconds",
                             [](const LoadedModel& m) { return m.runtime().load_seconds(); })
      .def_property_readonly("gate_kind",
                             [](const LoadedModel& m) { return m.runtime().gate_kind(); })
      .def_property_readonly("end_token_ids",
                             [](const LoadedModel& m) { return m.runtime().end_token_ids(); })
      .def_property_readonly(
          "has_chat_template",
          [](const LoadedModel& m) { return m.runtime().find_chat_template() != nullptr; })
      .def_property_readonly("sizes", [](const LoadedModel& m) {
        const ModelArgs& args = m.runtime().model()->args();
        py::dict sizes;
        sizes["architecture"] = args.model_type;
        sizes["layers"] = args.num_hidden_layers;
        sizes["heads"] = args.num_attention_heads;
        sizes["kv_heads"] = args.num_key_value_heads;
        sizes["head_dim"] = args.head_dim;
        sizes["hidden_size"] = args.hidden_size;
        sizes["vocab_size"] = args.vocab_size;
        sizes["context"] = args.max_position_embeddings;
        return sizes;
      });
}

std::string_view finish_name(const RequestOutput& output) {
  return output.finished() ? to_string(output.finish_reason) : std::string_view();
}

// (ids, log-probabilities, [(id, log-probability), ...] of the best)
py::tuple sampled(const std::vector<SampledToken>& tokens) {
  std::vector<int32_t> ids;
  std::vector<float> logprobs;
  py::list tops;
  for (const SampledToken& token : tokens) {
    ids.push_back(token.id);
    logprobs.push_back(token.logprob);
    py::list best;
    for (const TokenLogprob& other : token.top)
      best.append(py::make_tuple(other.id, other.logprob));
    tops.append(std::move(best));
  }
  return py::make_tuple(array_of(ids), array_of(logprobs), std::move(tops));
}

std::shared_ptr<Session> open_session(std::shared_ptr<LoadedModel> model, const ModelOptions& cache,
                                      std::optional<int64_t> tokens, int64_t sequences) {
  return std::make_shared<Session>(
      std::move(model),
      SessionOptions{.cache = cache, .tokens = tokens, .sequences = sequences, .chat = {}});
}

std::shared_ptr<Session> open_chat(std::shared_ptr<LoadedModel> model, const ModelOptions& cache,
                                   std::optional<int64_t> tokens, const std::string& system,
                                   bool keep_system, std::optional<bool> think) {
  GenerationOptions chat;
  chat.system = system;
  chat.keep_system = keep_system;
  chat.think_given = think.has_value();
  chat.think = think.value_or(true);
  return std::make_shared<Session>(
      std::move(model),
      SessionOptions{.cache = cache, .tokens = tokens, .sequences = 1, .chat = std::move(chat)});
}

void bind_session(py::module_& module) {
  py::class_<RequestOutput>(module, "Output")
      .def_readonly("text", &RequestOutput::text)
      .def_property_readonly("tokens", [](const RequestOutput& o) { return sampled(o.tokens); })
      .def_property_readonly("prompt_scores",
                             [](const RequestOutput& o) { return sampled(o.prompt_scores); })
      .def_property_readonly("finish_reason", finish_name)
      .def_property_readonly("usage",
                             [](const RequestOutput& o) { return dump_json(to_json(o.usage)); });
  py::class_<Session, std::shared_ptr<Session>>(module, "Session")
      .def(py::init(&open_session))
      .def_static("chat", &open_chat)
      .def("start",
           [](Session& session, const py::array_t<int64_t>& ids, const SamplingParams& sampling,
              bool score_prompt, const std::vector<std::string>& images) {
             session.start(token_ids(ids), sampling, score_prompt, images);
           })
      .def("start_turn", &Session::start_turn)
      .def("next", &Session::next)
      .def("stop", &Session::stop)
      .def_property_readonly("running", &Session::running)
      .def("fork", &Session::fork)
      .def("tokens", [](Session& session) { return array_of(session.tokens()); })
      .def("kept",
           [](Session& session) {
             const KeptEntries kept = session.kept();
             return py::make_tuple(kept.layers, kept.kv_heads, kept.tokens_seen, kept.bytes,
                                   array_of(kept.cu_entries), array_of(kept.positions),
                                   array_of(kept.scores));
           })
      .def("row",
           [](Session& session, int64_t layer, int64_t head) {
             const RowEntries row = session.row(layer, head);
             return py::make_tuple(to_numpy(row.positions), to_numpy(row.keys),
                                   to_numpy(row.values), to_numpy(row.log_beta));
           })
      .def("messages", &Session::messages)
      .def("eviction", [](Session& session) {
        const EvictionConfig config = session.eviction();
        const bool bounded = config.budget_entries != EvictionConfig::kUnbounded;
        static constexpr const char* kScopes[] = {"head", "layer", "global"};
        py::dict in_force;
        in_force["policy"] = config.policy;
        in_force["budget_entries"] =
            bounded ? py::object(py::int_(config.budget_entries)) : py::none();
        in_force["scope"] = kScopes[static_cast<int>(*config.scope)];
        in_force["sinks"] = *config.sinks;
        in_force["recent"] = *config.recent;
        in_force["floor"] = *config.floor;
        in_force["lookahead"] = config.lookahead;
        in_force["options"] = config.options;
        return in_force;
      });
}

}  // namespace

PYBIND11_MODULE(_native, module) {
  module.doc() = "The native part of coppice; use the package's own names.";
  module.attr("version") = COPPICE_VERSION;
  bind_error(module);
  bind_options(module);
  bind_policies(module);
  bind_model(module);
  bind_session(module);
}

}  // namespace coppice::python
