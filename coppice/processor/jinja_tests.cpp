// The tests behind `is`.
#include <array>

#include "coppice/core/error.h"
#include "coppice/processor/jinja_runtime.h"

namespace coppice::jinja {
namespace {

template <bool (*predicate)(const Value&)>
bool unary_test(Runtime&, const Value& input, const Args&) {
  return predicate(input);
}

bool is_none(const Value& value) { return value.is_none(); }
bool is_boolean(const Value& value) { return value.kind == Kind::kBool; }
bool is_true(const Value& value) { return is_boolean(value) && value.boolean; }
bool is_false(const Value& value) { return is_boolean(value) && !value.boolean; }
bool is_integer(const Value& value) { return value.kind == Kind::kInt; }
bool is_float(const Value& value) { return value.kind == Kind::kFloat; }
bool is_number(const Value& value) { return value.is_number(); }
bool is_string(const Value& value) { return value.is_string(); }
bool is_mapping(const Value& value) { return value.kind == Kind::kDict; }
bool is_defined(const Value& value) { return !value.is_undefined(); }
bool is_undefined(const Value& value) { return value.is_undefined(); }
bool is_callable(const Value& value) {
  // An undefined value has a call operator, which fails.
  return value.kind == Kind::kCallable || value.kind == Kind::kLoop || value.is_undefined();
}

// Has a length and subscripts, as undefined values do. Views of dicts and iterators have no
// subscripts.
bool is_sequence(const Value& value) {
  if (value.kind == Kind::kList) {
    const ListKind kind = value.list().kind;
    return kind == ListKind::kList || kind == ListKind::kTuple || kind == ListKind::kRange;
  }
  return value.is_string() || value.kind == Kind::kDict || value.is_undefined();
}

bool is_iterable(const Value& value) {
  return value.kind == Kind::kList || value.is_string() || value.kind == Kind::kDict ||
         value.is_undefined() || value.kind == Kind::kLoop;
}

bool is_escaped(const Value& value) { return value.is_string() && value.text->markup; }

template <bool upper>
bool is_case(const Value& value) {
  bool cased = false;
  const auto text = text_of(value);
  for (size_t i = 0; i < text->bytes.size();) {
    const char32_t c = next_char(text->bytes, i);
    if (!is_cased(c)) continue;
    if (upper ? !is_upper(c) : !is_lower(c)) return false;
    cased = true;
  }
  return cased;
}

const Value& operand(const Args& args, std::string_view test) {
  if (args.positional.size() != 1 || !args.named.empty()) {
    fail_argument("chat template: the test '{}' takes one argument, got {}", test,
                  args.positional.size() + args.named.size());
  }
  return args.positional[0];
}

bool test_equal(Runtime&, const Value& input, const Args& args) {
  return equal(input, operand(args, "eq"));
}
bool test_not_equal(Runtime&, const Value& input, const Args& args) {
  return !equal(input, operand(args, "ne"));
}
bool test_less(Runtime&, const Value& input, const Args& args) {
  return compare(input, operand(args, "lt")) == -1;
}
bool test_greater(Runtime&, const Value& input, const Args& args) {
  return compare(input, operand(args, "gt")) == 1;
}
bool test_less_equal(Runtime&, const Value& input, const Args& args) {
  const int order = compare(input, operand(args, "le"));
  return order == -1 || order == 0;
}
bool test_greater_equal(Runtime&, const Value& input, const Args& args) {
  const int order = compare(input, operand(args, "ge"));
  return order == 1 || order == 0;
}

bool test_in(Runtime& runtime, const Value& input, const Args& args) {
  const Value& haystack = operand(args, "in");
  if (haystack.kind == Kind::kList) {
    runtime.step(static_cast<int64_t>(haystack.list().items.size()));
  }
  return contains(haystack, input);
}

bool test_same_as(Runtime&, const Value& input, const Args& args) {
  const Value& other = operand(args, "sameas");
  if (input.kind != other.kind) return false;
  if (input.is_string()) return input.text == other.text || equal(input, other);
  return equal(input, other);
}

int64_t remainder(Runtime& runtime, const Value& input, const Value& divisor) {
  const Value rest = runtime.binary("%", input, divisor);
  if (!rest.is_number()) fail_argument("chat template: a test of remainders needs numbers");
  return rest.kind == Kind::kFloat ? (rest.real == 0 ? 0 : (rest.real == 1 ? 1 : 2))
                                   : rest.as_integer();
}

bool test_odd(Runtime& runtime, const Value& input, const Args&) {
  return remainder(runtime, input, Value::of(int64_t{2})) == 1;
}
bool test_even(Runtime& runtime, const Value& input, const Args&) {
  return remainder(runtime, input, Value::of(int64_t{2})) == 0;
}
bool test_divisible_by(Runtime& runtime, const Value& input, const Args& args) {
  return remainder(runtime, input, operand(args, "divisibleby")) == 0;
}

bool test_filter(Runtime&, const Value& input, const Args&) {
  const auto name = text_of(input);
  return find_text_filter(name->bytes) != nullptr || find_list_filter(name->bytes) != nullptr;
}
bool test_test(Runtime&, const Value& input, const Args&) {
  return find_test(text_of(input)->bytes) != nullptr;
}

struct Entry {
  std::string_view name;
  TestFunction function;
};

constexpr std::array kTests = {
    Entry{"defined", unary_test<is_defined>},
    Entry{"undefined", unary_test<is_undefined>},
    Entry{"none", unary_test<is_none>},
    Entry{"string", unary_test<is_string>},
    Entry{"mapping", unary_test<is_mapping>},
    Entry{"sequence", unary_test<is_sequence>},
    Entry{"iterable", unary_test<is_iterable>},
    Entry{"number", unary_test<is_number>},
    Entry{"integer", unary_test<is_integer>},
    Entry{"float", unary_test<is_float>},
    Entry{"boolean", unary_test<is_boolean>},
    Entry{"true", unary_test<is_true>},
    Entry{"false", unary_test<is_false>},
    Entry{"callable", unary_test<is_callable>},
    Entry{"escaped", unary_test<is_escaped>},
    Entry{"lower", unary_test<is_case<false>>},
    Entry{"upper", unary_test<is_case<true>>},
    Entry{"odd", test_odd},
    Entry{"even", test_even},
    Entry{"divisibleby", test_divisible_by},
    Entry{"in", test_in},
    Entry{"sameas", test_same_as},
    Entry{"filter", test_filter},
    Entry{"test", test_test},
    Entry{"==", test_equal},
    Entry{"eq", test_equal},
    Entry{"equalto", test_equal},
    Entry{"!=", test_not_equal},
    Entry{"ne", test_not_equal},
    Entry{"<", test_less},
    Entry{"lt", test_less},
    Entry{"lessthan", test_less},
    Entry{"<=", test_less_equal},
    Entry{"le", test_less_equal},
    Entry{">", test_greater},
    Entry{"gt", test_greater},
    Entry{"greaterthan", test_greater},
    Entry{">=", test_greater_equal},
    Entry{"ge", test_greater_equal},
};

}  // namespace

TestFunction find_test(std::string_view name) {
  for (const Entry& entry : kTests) {
    if (entry.name == name) return entry.function;
  }
  return nullptr;
}

}  // namespace coppice::jinja
