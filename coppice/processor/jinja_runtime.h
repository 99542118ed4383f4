// Evaluates a parsed template. One Runtime serves one render, on one thread.
//
// Follows Jinja2 as chat templates are rendered with it elsewhere: the immutable sandbox (methods
// that change lists or dicts cannot be called), default undefined values, no autoescape. Work and
// memory are bounded by Limits; going over is an Error (kInvalidArgument), never a crash.
#pragma once

#include <ctime>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "coppice/processor/jinja_ast.h"
#include "coppice/processor/jinja_value.h"

namespace coppice::jinja {

struct Limits {
  int64_t max_steps = 20'000'000;                // nodes evaluated, and elements touched
  int64_t max_bytes = int64_t{1} << 30;          // of all values that one render makes
  int64_t max_output_bytes = int64_t{64} << 20;  // of the result
  int max_depth = 1500;                          // of evaluation, macro calls included
};

// The local time that strftime_now formats.
using Clock = std::function<std::tm()>;

// What a call passes.
struct Args {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;
};

// Takes arguments in the order of a signature: by position first, then by name.
class ArgReader final {
 public:
  // `function` is for messages.
  ArgReader(std::string_view function, const Args& args) : function_(function), args_(args) {}
  // The next parameter; nullptr when it was not passed.
  const Value* next(std::string_view name);
  const Value& require(std::string_view name);
  int64_t integer(std::string_view name, int64_t absent);
  bool boolean(std::string_view name, bool absent);
  Text text(std::string_view name, std::string_view absent);
  // Throws when arguments are left that no parameter took.
  void finish() const;

 private:
  std::string_view function_;
  const Args& args_;
  size_t position_ = 0;
  size_t named_used_ = 0;
};

struct Scope {
  Scope* parent = nullptr;
  std::vector<std::pair<std::string, Value>> names;

  const Value* find(std::string_view name) const;  // in this scope alone
  void set(std::string_view name, Value value);
};

class Runtime final {
 public:
  Runtime(const Limits& limits, const Clock& clock);
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  // A variable that the template can read.
  void define(std::string_view name, Value value) { context_.set(name, std::move(value)); }
  Text render(const std::vector<NodePtr>& body);

  // What a loop writes for these dicts, where each is the item itself: pieces of the result, in
  // order. Loops inside such a piece, and text that a macro or a block catches first, are not
  // looked at. REQUIRES: called before render().
  void watch(const std::vector<Value>& dicts);
  struct Written {
    std::size_t dict = 0;  // which of them
    TextRange range;
  };
  const std::vector<Written>& written() const { return written_; }

  // Objects live as long as the Runtime.
  ListObject& new_list(ListKind kind, std::vector<Value> items = {});
  DictObject& new_dict();
  CallableObject& new_callable(CallableObject::Type type, std::string name);
  Value list(std::vector<Value> items, ListKind kind = ListKind::kList) {
    return Value::of(&new_list(kind, std::move(items)));
  }
  Value text(Text text);
  Value texts(std::vector<Text> texts);  // a list of strings

  // Count work against the limits.
  void step(int64_t count = 1);
  void use_bytes(int64_t count);
  // Throws for a result of `count` elements of `size` bytes that would be over the limit.
  void check_product(int64_t size, int64_t count);

  Value attribute(const Value& object, std::string_view name);
  Value item(const Value& object, const Value& key);
  Value slice(const Value& object, const Value& start, const Value& stop, const Value& step);
  Value call(const Value& callee, const Args& args);
  Value filter(std::string_view name, const Value& input, const Args& args);
  bool test(std::string_view name, const Value& input, const Args& args);
  Value binary(std::string_view op, const Value& a, const Value& b);
  // The elements that iterating gives: of a list, the keys of a dict, characters of a string.
  const std::vector<Value>& elements(const Value& value);
  int64_t length(const Value& value);
  const Clock& clock() const { return clock_; }

 private:
  enum class Flow : uint8_t { kNormal, kBreak, kContinue };
  class Depth;

  Value evaluate(const Node& node);
  Value evaluate_item(const Node& node);
  Value evaluate_call(const Node& node);
  Value evaluate_filter(const Node& node, const Value& input);
  // The filters of a filter or set block, applied to its text.
  Value filter_chain(const Node& node, const Value& input);
  Value evaluate_compare(const Node& node);
  Value evaluate_concat(const Node& node);
  Value evaluate_collection(const Node& node);
  Value name(const Node& node);
  Args arguments(const CallSyntax& call);

  Flow execute(const std::vector<NodePtr>& body);
  Flow execute(const Node& node);
  Flow if_statement(const Node& node);
  Flow for_statement(const Node& node);
  Flow loop_over(const Node& node, const Value& iterable, int64_t depth0);
  Flow loop_body(const Node& node, const Value& item);
  std::vector<Value> filtered(const Node& node, const std::vector<Value>& items);
  void assign(const Node& target, const Value& value);
  Flow with_statement(const Node& node);
  void print(const Value& value);
  Text captured(const std::vector<NodePtr>& body);
  void define_macro(const Node& node);
  void call_block(const Node& node);
  void bind_parameters(const Node& node, const Args& args);
  Value call_macro(const CallableObject& macro, const Args& args);
  Value call_method(const Value& self, std::string_view name, const Args& args);
  Value loop_attribute(const Value& loop, std::string_view name);
  Value loop_changed(LoopObject& loop, const Args& args);
  Value recurse(const Value& loop, const Args& args);
  Scope& push_scope(Scope* parent);

  template <typename T>
  T& own(std::unique_ptr<T> object) {
    T& result = *object;
    heap_.push_back(std::move(object));
    use_bytes(static_cast<int64_t>(sizeof(T)));
    return result;
  }

  const Limits limits_;
  const Clock& clock_;
  int64_t steps_ = 0;
  int64_t bytes_ = 0;
  int depth_ = 0;
  int line_ = 0;
  std::vector<std::unique_ptr<Object>> heap_;
  std::vector<std::unique_ptr<Scope>> scopes_;
  Scope context_;
  Scope* scope_ = nullptr;
  TextBuilder* out_ = nullptr;
  TextBuilder* result_ = nullptr;
  std::unordered_map<const Object*, std::size_t> watched_;
  std::vector<Written> written_;
  bool in_watched_ = false;
};

// Families of built-in functions. Each answers whether it knows `name`.
using FilterFunction = Value (*)(Runtime&, const Value&, const Args&);
FilterFunction find_text_filter(std::string_view name);
FilterFunction find_list_filter(std::string_view name);
using TestFunction = bool (*)(Runtime&, const Value&, const Args&);
TestFunction find_test(std::string_view name);
using GlobalFunction = Value (*)(Runtime&, const Args&);
GlobalFunction find_global(std::string_view name);
using MethodFunction = Value (*)(Runtime&, const Value& self, const Args&);
MethodFunction find_text_method(std::string_view name);
// Of lists and dicts; `unsafe` is set for methods that would change them.
MethodFunction find_container_method(const Value& self, std::string_view name, bool& unsafe);

// A soft value as the empty text it stands for; others as they are.
Value hardened(const Value& value);
// str(value), as a shared text.
std::shared_ptr<const Text> text_of(const Value& value);
// The string itself. Throws when `value` is not one; `what` is for the message.
const Text& require_text(const Value& value, std::string_view what);
// Python's formats: "..." % arguments, and "...".format(arguments).
Text format_percent(Runtime& runtime, const Text& format, const Value& arguments);
Text format_braces(Runtime& runtime, const Text& format, const Args& args);

}  // namespace coppice::jinja
