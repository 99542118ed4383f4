// Statements, loops and macros.
#include <algorithm>

#include "coppice/core/error.h"
#include "coppice/processor/jinja_runtime.h"

namespace coppice::jinja {

Runtime::Flow Runtime::execute(const std::vector<NodePtr>& body) {
  for (const NodePtr& node : body) {
    const Flow flow = execute(*node);
    if (flow != Flow::kNormal) return flow;
  }
  return Flow::kNormal;
}

void Runtime::print(const Value& value) {
  const auto text = text_of(value);
  const auto size = static_cast<int64_t>(text->bytes.size());
  use_bytes(size);
  if (size > limits_.max_output_bytes - static_cast<int64_t>(out_->size())) {
    fail_argument("chat template: the result is longer than {} bytes", limits_.max_output_bytes);
  }
  out_->append(*text);
}

Text Runtime::captured(const std::vector<NodePtr>& body) {
  TextBuilder out;
  TextBuilder* outer_out = std::exchange(out_, &out);
  Scope* outer = scope_;
  scope_ = &push_scope(outer);
  execute(body);
  scope_ = outer;
  out_ = outer_out;
  return out.take();
}

Value Runtime::filter_chain(const Node& node, const Value& input) {
  std::vector<const Node*> chain;
  for (const Node* link = &node; link != nullptr; link = link->children[0].get()) {
    chain.push_back(link);
  }
  Value value = input;
  for (auto link = chain.rbegin(); link != chain.rend(); ++link) {
    value = evaluate_filter(**link, value);
  }
  return value;
}

Runtime::Flow Runtime::if_statement(const Node& node) {
  for (size_t i = 0; i < node.children.size(); ++i) {
    if (truthy(evaluate(*node.children[i]))) return execute(node.branches[i]);
  }
  return node.branches.size() > node.children.size() ? execute(node.branches.back())
                                                     : Flow::kNormal;
}

void Runtime::assign(const Node& target, const Value& value) {
  if (target.kind == NodeKind::kName) {
    scope_->set(target.name, value);
    return;
  }
  if (target.kind == NodeKind::kNamespaceTarget) {
    const Value space = name(target);
    if (space.kind != Kind::kNamespace) {
      fail_argument("chat template: cannot assign attribute on non-namespace object '{}'",
                    target.name);
    }
    if (target.text.starts_with('_')) {
      fail_argument("chat template: a namespace holds no attribute '{}' that begins with '_'",
                    target.text);
    }
    space.dict().set(Value::string(target.text), value);
    return;
  }
  const auto& items = elements(value);
  if (items.size() != target.children.size()) {
    fail_argument("chat template: cannot unpack {} values into {} names", items.size(),
                  target.children.size());
  }
  for (size_t i = 0; i < items.size(); ++i) assign(*target.children[i], items[i]);
}

std::vector<Value> Runtime::filtered(const Node& node, const std::vector<Value>& items) {
  std::vector<Value> kept;
  Scope* outer = scope_;
  for (const Value& item : items) {
    scope_ = &push_scope(outer);
    assign(*node.children[0], item);
    if (truthy(evaluate(*node.children[2]))) kept.push_back(item);
  }
  scope_ = outer;
  return kept;
}

Runtime::Flow Runtime::for_statement(const Node& node) {
  return loop_over(node, evaluate(*node.children[1]), 0);
}

Runtime::Flow Runtime::loop_over(const Node& node, const Value& iterable, int64_t depth0) {
  const std::vector<Value>* items = &elements(iterable);
  if (node.children[2] != nullptr) items = &new_list(ListKind::kList, filtered(node, *items)).items;
  Scope* outer = scope_;
  LoopObject& loop = own(std::make_unique<LoopObject>());
  loop.items = items;
  loop.depth0 = depth0;
  loop.node = &node;
  loop.scope = outer;
  for (size_t i = 0; i < items->size(); ++i) {
    loop.index0 = static_cast<int64_t>(i);
    scope_ = &push_scope(outer);
    scope_->set("loop", Value::of(&loop));
    assign(*node.children[0], (*items)[i]);
    if (loop_body(node, (*items)[i]) == Flow::kBreak) break;
  }
  Flow flow = Flow::kNormal;
  if (items->empty() && !node.other.empty()) {
    scope_ = &push_scope(outer);
    flow = execute(node.other);
  }
  scope_ = outer;
  return flow;
}

// One round of a loop; notes what it writes for a watched item.
Runtime::Flow Runtime::loop_body(const Node& node, const Value& item) {
  if (watched_.empty() || in_watched_ || out_ != result_ || item.kind != Kind::kDict)
    return execute(node.body);
  const auto found = watched_.find(item.object);
  if (found == watched_.end()) return execute(node.body);
  const auto begin = static_cast<int64_t>(out_->size());
  in_watched_ = true;
  const Flow flow = execute(node.body);
  in_watched_ = false;
  written_.push_back({found->second, {begin, static_cast<int64_t>(out_->size())}});
  return flow;
}

Value Runtime::loop_attribute(const Value& value, std::string_view name) {
  const LoopObject& loop = value.loop();
  const auto size = static_cast<int64_t>(loop.items->size());
  const int64_t i = loop.index0;
  if (name == "index") return Value::of(i + 1);
  if (name == "index0") return Value::of(i);
  if (name == "revindex") return Value::of(size - i);
  if (name == "revindex0") return Value::of(size - i - 1);
  if (name == "first") return Value::of(i == 0);
  if (name == "last") return Value::of(i + 1 >= size);
  if (name == "length") return Value::of(size);
  if (name == "depth") return Value::of(loop.depth0 + 1);
  if (name == "depth0") return Value::of(loop.depth0);
  if (name == "previtem") {
    if (i == 0) return Value::undefined("there is no previous item", Missing::kAttribute);
    return (*loop.items)[static_cast<size_t>(i - 1)];
  }
  if (name == "nextitem") {
    if (i + 1 >= size) return Value::undefined("there is no next item", Missing::kAttribute);
    return (*loop.items)[static_cast<size_t>(i + 1)];
  }
  if (name == "cycle" || name == "changed") {
    CallableObject& method = new_callable(CallableObject::Type::kMethod, std::string(name));
    method.self = value;
    return Value::of(&method);
  }
  return Value::undefined(fmt::format("'loop' has no attribute '{}'", name), Missing::kAttribute);
}

Value Runtime::loop_changed(LoopObject& loop, const Args& args) {
  const auto& now = args.positional;
  const auto same = [](const Value& a, const Value& b) { return equal(a, b); };
  const bool unchanged =
      loop.changed_called &&
      std::equal(now.begin(), now.end(), loop.last_changed.begin(), loop.last_changed.end(), same);
  loop.changed_called = true;
  loop.last_changed = now;
  return Value::of(!unchanged);
}

Value Runtime::recurse(const Value& value, const Args& args) {
  const LoopObject& loop = value.loop();
  if (!loop.node->flag) {
    fail_argument("chat template: the loop must have the 'recursive' marker to be called");
  }
  if (args.positional.size() != 1) {
    fail_argument("chat template: loop() takes 1 argument, got {}", args.positional.size());
  }
  TextBuilder out;
  TextBuilder* outer_out = std::exchange(out_, &out);
  Scope* outer = std::exchange(scope_, loop.scope);
  loop_over(*loop.node, args.positional[0], loop.depth0 + 1);
  scope_ = outer;
  out_ = outer_out;
  return Value::of(out.take());
}

Runtime::Flow Runtime::with_statement(const Node& node) {
  std::vector<Value> values;
  for (size_t i = 1; i < node.children.size(); i += 2)
    values.push_back(evaluate(*node.children[i]));
  Scope* outer = scope_;
  scope_ = &push_scope(outer);
  for (size_t i = 0; i < values.size(); ++i) assign(*node.children[2 * i], values[i]);
  const Flow flow = execute(node.body);
  scope_ = outer;
  return flow;
}

void Runtime::define_macro(const Node& node) {
  CallableObject& macro = new_callable(CallableObject::Type::kMacro, node.name);
  macro.macro = &node;
  macro.scope = scope_;
  scope_->set(node.name, Value::of(&macro));
}

void Runtime::call_block(const Node& node) {
  CallableObject& caller = new_callable(CallableObject::Type::kCaller, "caller");
  caller.macro = &node;
  caller.scope = scope_;
  const Node& syntax = *node.children[0];
  const Value function = evaluate(*syntax.children[0]);
  Args args = arguments(syntax.call);
  args.named.emplace_back("caller", Value::of(&caller));
  print(call(function, args));
}

// Puts what the caller passed into the new scope, and what it did not into defaults.
void Runtime::bind_parameters(const Node& node, const Args& args) {
  const auto& names = node.parameters;
  const size_t given = std::min(args.positional.size(), names.size());
  for (size_t i = 0; i < given; ++i) scope_->set(names[i], args.positional[i]);
  DictObject* rest = nullptr;
  bool has_caller = false;
  for (const auto& [name, value] : args.named) {
    const auto found = std::find(names.begin(), names.end(), name);
    if (found != names.end()) {
      if (found - names.begin() < static_cast<int64_t>(given)) {
        fail_argument("chat template: macro '{}' got two values for '{}'", node.name, name);
      }
      scope_->set(name, value);
    } else if (name == "caller" && node.uses.caller) {
      scope_->set(name, value);
      has_caller = true;
    } else if (node.uses.kwargs) {
      if (rest == nullptr) rest = &new_dict();
      rest->set(Value::string(name), value);
    } else {
      fail_argument("chat template: macro '{}' takes no keyword argument '{}'", node.name, name);
    }
  }
  const size_t first_default = names.size() - node.defaults.size();
  for (size_t i = 0; i < names.size(); ++i) {
    if (scope_->find(names[i]) != nullptr) continue;
    scope_->set(names[i], i < first_default ? Value::undefined(names[i], Missing::kParameter)
                                            : evaluate(*node.defaults[i - first_default]));
  }
  const bool takes_caller = std::find(names.begin(), names.end(), "caller") != names.end();
  if (node.uses.caller && !has_caller && !takes_caller) {
    scope_->set("caller", Value::undefined("caller", Missing::kName));
  }
  if (node.uses.kwargs) scope_->set("kwargs", Value::of(rest != nullptr ? rest : &new_dict()));
  if (node.uses.varargs) {
    std::vector<Value> extra(args.positional.begin() + static_cast<int64_t>(given),
                             args.positional.end());
    scope_->set("varargs", list(std::move(extra), ListKind::kTuple));
  } else if (args.positional.size() > names.size()) {
    fail_argument("chat template: macro '{}' takes not more than {} arguments, got {}", node.name,
                  names.size(), args.positional.size());
  }
}

Value Runtime::call_macro(const CallableObject& macro, const Args& args) {
  const Node& node = *macro.macro;
  TextBuilder out;
  TextBuilder* outer_out = std::exchange(out_, &out);
  Scope* outer = std::exchange(scope_, &push_scope(macro.scope));
  const int line = line_;
  bind_parameters(node, args);
  execute(node.body);
  line_ = line;
  scope_ = outer;
  out_ = outer_out;
  return Value::of(out.take());
}

}  // namespace coppice::jinja
