// Expressions.
#include <cmath>

#include "coppice/core/error.h"
#include "coppice/processor/jinja_runtime.h"

namespace coppice::jinja {

// Counts the depth of evaluation while it lives.
class Runtime::Depth final {
 public:
  explicit Depth(Runtime& runtime) : runtime_(runtime) {
    if (runtime_.depth_ >= runtime_.limits_.max_depth) {
      fail_argument("chat template: evaluation nested deeper than {} levels",
                    runtime_.limits_.max_depth);
    }
    ++runtime_.depth_;
  }
  ~Depth() { --runtime_.depth_; }
  Depth(const Depth&) = delete;
  Depth& operator=(const Depth&) = delete;

 private:
  Runtime& runtime_;
};

Value Runtime::name(const Node& node) {
  for (const Scope* scope = scope_; scope != nullptr; scope = scope->parent) {
    if (const Value* found = scope->find(node.name)) return *found;
  }
  if (const Value* found = context_.find(node.name)) return *found;
  if (find_global(node.name) != nullptr) {
    return Value::of(&new_callable(CallableObject::Type::kGlobal, node.name));
  }
  return node.constant;
}

Args Runtime::arguments(const CallSyntax& call) {
  Args args;
  for (const NodePtr& node : call.positional) args.positional.push_back(evaluate(*node));
  if (call.star != nullptr) {
    const auto& items = elements(evaluate(*call.star));
    args.positional.insert(args.positional.end(), items.begin(), items.end());
    use_bytes(static_cast<int64_t>(items.size() * sizeof(Value)));
  }
  for (const auto& [name, node] : call.named) args.named.emplace_back(name, evaluate(*node));
  if (call.double_star != nullptr) {
    const Value value = evaluate(*call.double_star);
    if (value.kind != Kind::kDict) {
      fail_argument("chat template: arguments behind ** must be a mapping, got '{}'",
                    type_name(value));
    }
    for (const auto& [key, item] : value.dict().entries()) {
      args.named.emplace_back(require_text(key, "keywords").bytes, item);
    }
  }
  return args;
}

Value Runtime::evaluate_call(const Node& node) {
  const Node& callee = *node.children[0];
  if (callee.kind == NodeKind::kAttribute) {
    const Value self = hardened(evaluate(*callee.children[0]));
    MethodFunction method = nullptr;
    bool unsafe = false;
    if (self.is_string()) method = find_text_method(callee.name);
    if (self.kind == Kind::kDict || self.kind == Kind::kList) {
      method = find_container_method(self, callee.name, unsafe);
    }
    if (method != nullptr) return method(*this, self, arguments(node.call));
    const Value function = attribute(self, callee.name);
    return call(function, arguments(node.call));
  }
  const Value function = evaluate(callee);
  return call(function, arguments(node.call));
}

Value Runtime::call(const Value& callee, const Args& args) {
  if (callee.kind == Kind::kLoop) return recurse(callee, args);
  if (callee.is_undefined()) fail_undefined(callee);
  if (callee.kind != Kind::kCallable) {
    fail_argument("chat template: '{}' object is not callable", type_name(callee));
  }
  const CallableObject& object = callee.callable();
  switch (object.type) {
    case CallableObject::Type::kMacro:
    case CallableObject::Type::kCaller:
      return call_macro(object, args);
    case CallableObject::Type::kGlobal:
      return find_global(object.name)(*this, args);
    case CallableObject::Type::kMethod:
      break;
  }
  return call_method(object.self, object.name, args);
}

Value Runtime::call_method(const Value& self, std::string_view name, const Args& args) {
  if (self.kind == Kind::kLoop) {
    LoopObject& loop = self.loop();
    if (name == "changed") return loop_changed(loop, args);
    if (args.positional.empty()) fail_argument("chat template: loop.cycle() needs arguments");
    return args.positional[static_cast<size_t>(loop.index0) % args.positional.size()];
  }
  bool unsafe = false;
  const MethodFunction method =
      self.is_string() ? find_text_method(name) : find_container_method(self, name, unsafe);
  return method(*this, self, args);
}

Value Runtime::evaluate_filter(const Node& node, const Value& input) {
  return filter(node.name, input, arguments(node.call));
}

Value Runtime::filter(std::string_view name, const Value& input, const Args& args) {
  step();
  FilterFunction function = find_text_filter(name);
  if (function == nullptr) function = find_list_filter(name);
  if (function == nullptr) fail_argument("chat template: no filter named '{}'", name);
  if (input.is_undefined() && input.missing == Missing::kUnsafe && name != "default") {
    fail_undefined(input);
  }
  const bool keep = !input.soft || name == "default" || name == "d" || name == "tojson";
  return function(*this, keep ? input : hardened(input), args);
}

bool Runtime::test(std::string_view name, const Value& input, const Args& args) {
  step();
  const TestFunction function = find_test(name);
  if (function == nullptr) fail_argument("chat template: no test named '{}'", name);
  return function(*this, input, args);
}

Value Runtime::evaluate_item(const Node& node) {
  const Value object = evaluate(*node.children[0]);
  const Node& index = *node.children[1];
  if (index.kind != NodeKind::kSlice) return item(object, evaluate(index));
  Value bounds[3] = {Value::none(), Value::none(), Value::none()};
  for (size_t i = 0; i < 3; ++i) {
    if (index.children[i] != nullptr) bounds[i] = evaluate(*index.children[i]);
  }
  return slice(object, bounds[0], bounds[1], bounds[2]);
}

Value Runtime::evaluate_compare(const Node& node) {
  Value left = evaluate(*node.children[0]);
  for (size_t i = 0; i < node.operators.size(); ++i) {
    Value right = evaluate(*node.children[i + 1]);
    const std::string_view op = node.operators[i];
    bool result = false;
    if (op == "==" || op == "!=") {
      const Value& unsafe = left.is_undefined() ? left : right;
      if (unsafe.is_undefined() && unsafe.missing == Missing::kUnsafe) fail_undefined(unsafe);
      result = equal(left, right) == (op == "==");
    } else if (op == "in" || op == "not in") {
      if (right.is_string()) step(static_cast<int64_t>(right.text->bytes.size() / 256));
      if (right.kind == Kind::kList) step(static_cast<int64_t>(right.list().items.size()));
      result = contains(right, left) == (op == "in");
    } else {
      const int order = compare(hardened(left), hardened(right));
      if (order != 2) {
        result = op == "<"    ? order < 0
                 : op == ">"  ? order > 0
                 : op == "<=" ? order <= 0
                              : order >= 0;
      }
    }
    if (!result) return Value::of(false);
    left = std::move(right);
  }
  return Value::of(true);
}

Value Runtime::evaluate_collection(const Node& node) {
  if (node.kind == NodeKind::kDict) {
    DictObject& dict = new_dict();
    for (size_t i = 0; i < node.children.size(); i += 2) {
      Value key = evaluate(*node.children[i]);
      dict.set(std::move(key), evaluate(*node.children[i + 1]));
      use_bytes(static_cast<int64_t>(4 * sizeof(Value)));
    }
    return Value::of(&dict);
  }
  std::vector<Value> items;
  for (const NodePtr& child : node.children) items.push_back(evaluate(*child));
  return list(std::move(items), node.kind == NodeKind::kList ? ListKind::kList : ListKind::kTuple);
}

Value Runtime::evaluate_concat(const Node& node) {
  TextBuilder out;
  for (const NodePtr& child : node.children) {
    const auto part = text_of(evaluate(*child));
    use_bytes(static_cast<int64_t>(part->bytes.size()));
    out.append(*part);
  }
  return Value::of(out.take());
}

Value Runtime::evaluate(const Node& node) {
  const Depth depth(*this);
  step();
  switch (node.kind) {
    case NodeKind::kConstant:
      return node.constant;
    case NodeKind::kName:
      return name(node);
    case NodeKind::kList:
    case NodeKind::kTuple:
    case NodeKind::kDict:
      return evaluate_collection(node);
    case NodeKind::kAttribute:
      return attribute(evaluate(*node.children[0]), node.name);
    case NodeKind::kItem:
      return evaluate_item(node);
    case NodeKind::kCall:
      return evaluate_call(node);
    case NodeKind::kFilter:
      return evaluate_filter(node, evaluate(*node.children[0]));
    case NodeKind::kTest: {
      const Value input = evaluate(*node.children[0]);
      return Value::of(test(node.name, input, arguments(node.call)));
    }
    case NodeKind::kBinary: {
      const Value left = evaluate(*node.children[0]);
      return binary(node.name, left, evaluate(*node.children[1]));
    }
    case NodeKind::kConcat:
      return evaluate_concat(node);
    case NodeKind::kNegative:
    case NodeKind::kPositive: {
      const Value value = evaluate(*node.children[0]);
      return binary(node.kind == NodeKind::kNegative ? "neg" : "pos", value, Value::none());
    }
    case NodeKind::kNot:
      return Value::of(!truthy(evaluate(*node.children[0])));
    case NodeKind::kAnd:
    case NodeKind::kOr: {
      Value value;
      for (const NodePtr& child : node.children) {
        value = evaluate(*child);
        if (truthy(value) == (node.kind == NodeKind::kOr)) break;
      }
      return value;
    }
    case NodeKind::kCompare:
      return evaluate_compare(node);
    case NodeKind::kCondition:
      if (truthy(evaluate(*node.children[0]))) return evaluate(*node.children[1]);
      if (node.children[2] != nullptr) return evaluate(*node.children[2]);
      return Value::undefined("the inline if-expression without else", Missing::kName);
    default:
      break;
  }
  fail(ErrorCode::kInternal, "chat template: a statement where an expression belongs");
}

Runtime::Flow Runtime::execute(const Node& node) {
  const Depth depth(*this);
  step();
  line_ = node.line;
  switch (node.kind) {
    case NodeKind::kData:
      print(node.constant);
      break;
    case NodeKind::kPrint:
      for (const NodePtr& child : node.children) print(evaluate(*child));
      break;
    case NodeKind::kIf:
      return if_statement(node);
    case NodeKind::kFor:
      return for_statement(node);
    case NodeKind::kSet:
      assign(*node.children[0], evaluate(*node.children[1]));
      break;
    case NodeKind::kSetBlock: {
      Value value = Value::of(captured(node.body));
      if (node.children[1] != nullptr) value = filter_chain(*node.children[1], value);
      assign(*node.children[0], value);
      break;
    }
    case NodeKind::kMacro:
      define_macro(node);
      break;
    case NodeKind::kCallBlock:
      call_block(node);
      break;
    case NodeKind::kFilterBlock: {
      const Value value = Value::of(captured(node.body));
      print(filter_chain(*node.children[0], value));
      break;
    }
    case NodeKind::kWith:
      return with_statement(node);
    case NodeKind::kScope: {
      Scope* outer = scope_;
      scope_ = &push_scope(outer);
      const Flow flow = execute(node.body);
      scope_ = outer;
      return flow;
    }
    case NodeKind::kBreak:
      return Flow::kBreak;
    case NodeKind::kContinue:
      return Flow::kContinue;
    default:
      fail(ErrorCode::kInternal, "chat template: an expression where a statement belongs");
  }
  return Flow::kNormal;
}

}  // namespace coppice::jinja
