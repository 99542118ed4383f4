// Arithmetic and concatenation as Python's.
#include <cmath>
#include <limits>

#include "coppice/core/error.h"
#include "coppice/processor/jinja_runtime.h"

namespace coppice::jinja {
namespace {

[[noreturn]] void fail_types(std::string_view op, const Value& a, const Value& b) {
  fail_argument("chat template: unsupported operand types for {}: '{}' and '{}'", op, type_name(a),
                type_name(b));
}

[[noreturn]] void fail_overflow(std::string_view op) {
  fail_argument("chat template: the result of {} does not fit into 64 bits", op);
}

void check_divisor(double divisor, std::string_view op) {
  if (divisor == 0) fail_argument("chat template: division by zero in {}", op);
}

double floor_modulo(double a, double b) {
  double rest = std::fmod(a, b);
  if (rest != 0 && (rest < 0) != (b < 0)) rest += b;
  return rest == 0 ? std::copysign(0.0, b) : rest;
}

int64_t integer_power(int64_t base, int64_t exponent) {
  int64_t result = 1;
  while (exponent > 0) {
    if ((exponent & 1) != 0 && __builtin_mul_overflow(result, base, &result)) fail_overflow("**");
    exponent >>= 1;
    if (exponent > 0 && __builtin_mul_overflow(base, base, &base)) fail_overflow("**");
  }
  return result;
}

Value integer_operation(std::string_view op, int64_t a, int64_t b) {
  int64_t result = 0;
  if (op == "+") {
    if (__builtin_add_overflow(a, b, &result)) fail_overflow(op);
  } else if (op == "-") {
    if (__builtin_sub_overflow(a, b, &result)) fail_overflow(op);
  } else if (op == "*") {
    if (__builtin_mul_overflow(a, b, &result)) fail_overflow(op);
  } else if (op == "/") {
    check_divisor(static_cast<double>(b), op);
    return Value::of(static_cast<double>(a) / static_cast<double>(b));
  } else if (op == "**") {
    if (b < 0) {
      check_divisor(static_cast<double>(a), op);
      return Value::of(std::pow(static_cast<double>(a), static_cast<double>(b)));
    }
    result = integer_power(a, b);
  } else {
    check_divisor(static_cast<double>(b), op);
    if (b == -1) {
      if (op == "//" && __builtin_sub_overflow(int64_t{0}, a, &result)) fail_overflow(op);
      return Value::of(op == "//" ? result : int64_t{0});
    }
    const int64_t rest = a % b;
    const bool adjust = rest != 0 && (rest < 0) != (b < 0);
    if (op == "//") return Value::of(a / b - (adjust ? 1 : 0));
    result = adjust ? rest + b : rest;
  }
  return Value::of(result);
}

Value real_operation(std::string_view op, double a, double b) {
  if (op == "+") return Value::of(a + b);
  if (op == "-") return Value::of(a - b);
  if (op == "*") return Value::of(a * b);
  if (op == "**") {
    if (a == 0 && b < 0) check_divisor(a, op);
    if (a < 0 && b != std::floor(b)) fail_argument("chat template: the result of ** is complex");
    const double result = std::pow(a, b);
    if (std::isinf(result) && std::isfinite(a) && std::isfinite(b)) {
      fail_argument("chat template: the result of ** is too large");
    }
    return Value::of(result);
  }
  check_divisor(b, op);
  if (op == "/") return Value::of(a / b);
  const double rest = floor_modulo(a, b);
  return op == "%" ? Value::of(rest) : Value::of(std::round((a - rest) / b));
}

Value add_texts(Runtime& runtime, const Text& a, const Text& b) {
  runtime.use_bytes(static_cast<int64_t>(a.bytes.size()) + static_cast<int64_t>(b.bytes.size()));
  TextBuilder out;
  // Markup escapes what it is added to, unless that is markup too.
  out.append(b.markup && !a.markup ? escape_html(a) : a);
  out.append(a.markup && !b.markup ? escape_html(b) : b);
  Text result = out.take();
  result.markup = a.markup || b.markup;
  return Value::of(std::move(result));
}

bool is_list(const Value& value, ListKind kind) {
  return value.kind == Kind::kList && value.list().kind == kind;
}

Value repeat(Runtime& runtime, const Value& value, int64_t count) {
  if (count < 0) count = 0;
  if (value.is_string()) {
    const auto size = static_cast<int64_t>(value.text->bytes.size());
    runtime.check_product(size, count);
    runtime.step(count);
    TextBuilder out;
    for (int64_t i = 0; i < count && size > 0; ++i) out.append(*value.text);
    Text result = out.take();
    result.markup = value.text->markup;
    return runtime.text(std::move(result));
  }
  const auto& items = value.list().items;
  if (items.empty()) count = 0;
  runtime.check_product(static_cast<int64_t>(items.size() * sizeof(Value)), count);
  runtime.step(count);
  std::vector<Value> all;
  for (int64_t i = 0; i < count; ++i) all.insert(all.end(), items.begin(), items.end());
  return runtime.list(std::move(all), value.list().kind);
}

bool repeatable(const Value& value) {
  return value.is_string() || is_list(value, ListKind::kList) || is_list(value, ListKind::kTuple);
}

}  // namespace

Value Runtime::binary(std::string_view op, const Value& left, const Value& right) {
  const bool signed_value = op == "neg" || op == "pos";
  const Value a = hardened(left);
  const Value b = signed_value ? right : hardened(right);
  if (a.is_undefined()) fail_undefined(a);
  if (op == "%" && a.is_string()) return text(format_percent(*this, *a.text, b));
  if (b.is_undefined()) fail_undefined(b);
  if (signed_value) {
    if (!a.is_number())
      fail_argument("chat template: bad operand type for a sign: '{}'", type_name(a));
    if (op == "pos") return a.kind == Kind::kFloat ? a : Value::of(a.as_integer());
    if (a.kind == Kind::kFloat) return Value::of(-a.real);
    return integer_operation("-", 0, a.as_integer());
  }
  if (a.is_integral() && b.is_integral()) {
    return integer_operation(op, a.as_integer(), b.as_integer());
  }
  if (a.is_number() && b.is_number()) return real_operation(op, a.as_real(), b.as_real());
  if (op == "+") {
    if (a.is_string() && b.is_string()) return add_texts(*this, *a.text, *b.text);
    for (const ListKind kind : {ListKind::kList, ListKind::kTuple}) {
      if (!is_list(a, kind) || !is_list(b, kind)) continue;
      const auto& x = a.list().items;
      const auto& y = b.list().items;
      step(static_cast<int64_t>(x.size() + y.size()));
      std::vector<Value> all(x);
      all.insert(all.end(), y.begin(), y.end());
      return list(std::move(all), kind);
    }
  }
  if (op == "*") {
    if (repeatable(a) && b.is_integral()) return repeat(*this, a, b.as_integer());
    if (repeatable(b) && a.is_integral()) return repeat(*this, b, a.as_integer());
  }
  fail_types(op, a, b);
}

}  // namespace coppice::jinja
