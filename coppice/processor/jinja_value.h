// Values of the template interpreter: what Jinja templates see of Python.
//
// Strings are shared and immutable. Containers are owned by the Heap of one render and freed all at
// once at its end, so that neither cycles nor deep nesting cost anything when they go.
// Integers have 64 bits where Python's have no bound: results that do not fit are an Error.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "coppice/processor/jinja_text.h"

namespace coppice::jinja {

struct Node;
struct Scope;
struct Object;
struct ListObject;
struct DictObject;
struct CallableObject;
struct LoopObject;

enum class Kind : uint8_t {
  kUndefined,
  kNone,
  kBool,
  kInt,
  kFloat,
  kString,
  kList,  // list, tuple, range and the iterators that filters return
  kDict,
  kNamespace,  // a dict with attributes that templates may set
  kCallable,
  kLoop,
};

// Why a value is undefined; together with `text` the message when it is used.
enum class Missing : uint8_t { kName, kAttribute, kUnsafe, kParameter };

struct Value {
  Kind kind = Kind::kUndefined;
  bool boolean = false;
  // None or undefined that reads as empty text instead of failing or printing "None": the content
  // of an assistant turn that has none.
  bool soft = false;
  Missing missing = Missing::kName;
  union {
    int64_t integer = 0;
    double real;
    Object* object;
  };
  std::shared_ptr<const Text> text;  // of a string; of an undefined value: what was asked for

  static Value undefined(std::string what, Missing why);
  static Value none() { return of_kind(Kind::kNone); }
  static Value of(bool value);
  static Value of(int64_t value);
  static Value of(double value);
  static Value of(Text text);
  static Value of(std::shared_ptr<const Text> text);
  static Value string(std::string_view trusted) {
    return of(Text{std::string(trusted), {}, false});
  }
  static Value of(ListObject* list);
  static Value of(DictObject* dict, Kind kind = Kind::kDict);
  static Value of(CallableObject* callable);
  static Value of(LoopObject* loop);

  bool is_undefined() const { return kind == Kind::kUndefined; }
  bool is_none() const { return kind == Kind::kNone; }
  bool is_string() const { return kind == Kind::kString; }
  bool is_integral() const { return kind == Kind::kInt || kind == Kind::kBool; }
  bool is_number() const { return is_integral() || kind == Kind::kFloat; }
  // REQUIRES: is_integral() / is_number().
  int64_t as_integer() const { return kind == Kind::kBool ? int64_t{boolean} : integer; }
  double as_real() const { return kind == Kind::kFloat ? real : static_cast<double>(as_integer()); }
  ListObject& list() const;
  DictObject& dict() const;
  CallableObject& callable() const;
  LoopObject& loop() const;

 private:
  static Value of_kind(Kind kind);
};

struct Object {
  virtual ~Object() = default;
};

enum class ListKind : uint8_t { kList, kTuple, kRange, kIterator, kKeys, kValues, kItems };

struct ListObject final : Object {
  ListKind kind = ListKind::kList;
  std::vector<Value> items;
};

// Insertion-ordered, as Python's. Keys are strings, numbers, bools, None or tuples of such.
struct DictObject final : Object {
  const std::vector<std::pair<Value, Value>>& entries() const { return entries_; }
  const Value* find(std::string_view key) const;
  // Throws kInvalidArgument for a key that cannot be hashed.
  const Value* find(const Value& key) const;
  void set(Value key, Value value);

  bool soft_content = false;  // a missing "content" is soft (see Value::soft)

 private:
  std::optional<size_t> index_of(const Value& key) const;

  std::vector<std::pair<Value, Value>> entries_;
  std::unordered_map<std::string_view, size_t> strings_;  // views into the keys of entries_
  std::vector<size_t> others_;                            // entries whose key is no string
};

struct CallableObject final : Object {
  enum class Type : uint8_t { kMacro, kCaller, kGlobal, kMethod };
  Type type = Type::kGlobal;
  std::string name;
  const Node* macro = nullptr;  // kMacro, kCaller
  Scope* scope = nullptr;       // where the macro was defined
  Value self;                   // kMethod: the receiver
};

struct LoopObject final : Object {
  const std::vector<Value>* items = nullptr;
  int64_t index0 = 0;
  int64_t depth0 = 0;
  const Node* node = nullptr;       // for recursive loops
  Scope* scope = nullptr;           // the scope around the loop
  std::vector<Value> last_changed;  // arguments of the last loop.changed()
  bool changed_called = false;
};

// Python's bool(), == and the order of <. Nesting deeper than 200 levels is an Error.
bool truthy(const Value& value);
bool equal(const Value& a, const Value& b, int depth = 0);
// -1, 0, 1, or 2 for numbers without an order (NaN). Throws for types that Python does not order.
int compare(const Value& a, const Value& b, int depth = 0);
// `needle in haystack`.
bool contains(const Value& haystack, const Value& needle);
// The type's name in messages: "str", "dict".
std::string_view type_name(const Value& value);
// The Error of using an undefined value: "'x' is undefined".
[[noreturn]] void fail_undefined(const Value& value);

// Python's str() and repr(), with provenance.
Text to_text(const Value& value);
void append_repr(const Value& value, TextBuilder& out, int depth = 0);
std::string float_repr(double value);

struct JsonFormat {
  bool ensure_ascii = false;
  bool sort_keys = false;
  bool indented = false;
  std::string indent;  // of one level, where indented
  std::string item_separator = ", ";
  std::string key_separator = ": ";
};
// Python's json.dumps. Throws for values that JSON cannot hold.
Text to_json(const Value& value, const JsonFormat& format);

}  // namespace coppice::jinja
