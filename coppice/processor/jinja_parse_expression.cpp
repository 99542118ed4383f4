#include <algorithm>

#include "coppice/core/error.h"
#include "coppice/processor/jinja_parser.h"

namespace coppice::jinja {
namespace {

constexpr int kMaxDepth = 150;  // of brackets, statements and prefix operators
constexpr int kMaxChain = 500;  // of links in one chain of operators or postfixes

}  // namespace

ExpressionParser::Nested::Nested(ExpressionParser& parser) : parser_(parser) {
  if (++parser_.depth_ > kMaxDepth) {
    --parser_.depth_;
    parser_.error(fmt::format("nested deeper than {} levels", kMaxDepth));
  }
}

const Token& ExpressionParser::ahead() const {
  return tokens_[std::min(position_ + 1, tokens_.size() - 1)];
}

void ExpressionParser::skip() {
  if (position_ + 1 < tokens_.size()) ++position_;
}

bool ExpressionParser::is_name(std::string_view name) const {
  return current().kind == TokenKind::kName && current().text == name;
}

bool ExpressionParser::is_operator(std::string_view text) const {
  return current().kind == TokenKind::kOperator && current().text == text;
}

bool ExpressionParser::skip_name(std::string_view name) {
  if (!is_name(name)) return false;
  skip();
  return true;
}

bool ExpressionParser::skip_operator(std::string_view text) {
  if (!is_operator(text)) return false;
  skip();
  return true;
}

std::string ExpressionParser::expect_name() {
  if (current().kind != TokenKind::kName) {
    error(fmt::format("expected a name, got {}", describe()));
  }
  std::string name = current().text;
  skip();
  return name;
}

void ExpressionParser::expect_name(std::string_view name) {
  if (!skip_name(name)) error(fmt::format("expected '{}', got {}", name, describe()));
}

void ExpressionParser::expect_operator(std::string_view text) {
  if (!skip_operator(text)) error(fmt::format("expected '{}', got {}", text, describe()));
}

void ExpressionParser::expect_kind(TokenKind kind, std::string_view what) {
  if (current().kind != kind) error(fmt::format("expected {}, got {}", what, describe()));
  skip();
}

void ExpressionParser::error(std::string_view what) const {
  fail_argument("chat template, line {}: {}", current().line, what);
}

std::string ExpressionParser::describe() const {
  switch (current().kind) {
    case TokenKind::kEnd:
      return "the end of the template";
    case TokenKind::kBlockEnd:
      return "the end of the tag";
    case TokenKind::kVariableEnd:
      return "the end of the print tag";
    case TokenKind::kString:
      return "a string";
    case TokenKind::kInteger:
    case TokenKind::kFloat:
      return "a number";
    default:
      return fmt::format("'{}'", current().text);
  }
}

NodePtr ExpressionParser::make(NodeKind kind) const {
  auto node = std::make_unique<Node>();
  node->kind = kind;
  node->line = current().line;
  return node;
}

NodePtr ExpressionParser::make(NodeKind kind, NodePtr first, NodePtr second) const {
  NodePtr node = make(kind);
  node->line = first->line;
  node->children.push_back(std::move(first));
  if (second != nullptr) node->children.push_back(std::move(second));
  return node;
}

void ExpressionParser::grow(int& chain) const {
  if (++chain > kMaxChain) error(fmt::format("more than {} operations in a row", kMaxChain));
}

void ExpressionParser::note_name(std::string_view name) {
  names_.caller |= name == "caller";
  names_.varargs |= name == "varargs";
  names_.kwargs |= name == "kwargs";
}

NodePtr ExpressionParser::expression(bool with_condition) {
  const Nested nested(*this);
  return with_condition ? condition() : logical_or();
}

NodePtr ExpressionParser::condition() {
  NodePtr node = logical_or();
  int chain = 0;
  while (skip_name("if")) {
    grow(chain);
    NodePtr choice = make(NodeKind::kCondition, logical_or(), std::move(node));
    if (skip_name("else")) {
      const Nested nested(*this);
      choice->children.push_back(condition());
    } else {
      choice->children.push_back(nullptr);
    }
    node = std::move(choice);
  }
  return node;
}

NodePtr ExpressionParser::logical_or() {
  NodePtr node = logical_and();
  if (!is_name("or")) return node;
  node = make(NodeKind::kOr, std::move(node));
  while (skip_name("or")) node->children.push_back(logical_and());
  return node;
}

NodePtr ExpressionParser::logical_and() {
  NodePtr node = logical_not();
  if (!is_name("and")) return node;
  node = make(NodeKind::kAnd, std::move(node));
  while (skip_name("and")) node->children.push_back(logical_not());
  return node;
}

NodePtr ExpressionParser::logical_not() {
  if (!skip_name("not")) return comparison();
  const Nested nested(*this);
  return make(NodeKind::kNot, logical_not());
}

NodePtr ExpressionParser::comparison() {
  NodePtr first = binary(0);
  NodePtr node;
  while (true) {
    std::string name;
    for (const std::string_view text : {"==", "!=", "<=", ">=", "<", ">"}) {
      if (name.empty() && skip_operator(text)) name = text;
    }
    if (name.empty() && skip_name("in")) name = "in";
    if (name.empty() && is_name("not") && ahead().kind == TokenKind::kName &&
        ahead().text == "in") {
      skip();
      skip();
      name = "not in";
    }
    if (name.empty()) break;
    if (node == nullptr) node = make(NodeKind::kCompare, std::move(first));
    node->operators.push_back(std::move(name));
    node->children.push_back(binary(0));
  }
  return node == nullptr ? std::move(first) : std::move(node);
}

// Level 0: + and -, level 1: * / // %, level 2: **. Between 0 and 1 stands ~.
NodePtr ExpressionParser::binary(int level) {
  static constexpr std::string_view kOperators[3][4] = {
      {"+", "-", "", ""}, {"*", "/", "//", "%"}, {"**", "", "", ""}};
  const auto operand = [&] {
    return level == 0 ? concatenation() : (level == 1 ? binary(2) : unary(true));
  };
  NodePtr node = operand();
  int chain = 0;
  while (current().kind == TokenKind::kOperator) {
    std::string name;
    for (const std::string_view text : kOperators[level]) {
      if (!text.empty() && current().text == text) name = text;
    }
    if (name.empty()) break;
    skip();
    grow(chain);
    node = make(NodeKind::kBinary, std::move(node), operand());
    node->name = std::move(name);
  }
  return node;
}

NodePtr ExpressionParser::concatenation() {
  NodePtr node = binary(1);
  if (!is_operator("~")) return node;
  node = make(NodeKind::kConcat, std::move(node));
  while (skip_operator("~")) node->children.push_back(binary(1));
  return node;
}

NodePtr ExpressionParser::unary(bool with_filter) {
  NodePtr node;
  if (is_operator("-") || is_operator("+")) {
    const Nested nested(*this);
    const NodeKind kind = is_operator("-") ? NodeKind::kNegative : NodeKind::kPositive;
    skip();
    node = make(kind, unary(false));
  } else {
    node = primary(false);
  }
  node = postfix(std::move(node));
  return with_filter ? filters(std::move(node)) : std::move(node);
}

NodePtr ExpressionParser::primary(bool with_namespace) {
  NodePtr node = make(NodeKind::kConstant);
  const Token token = current();
  switch (token.kind) {
    case TokenKind::kName:
      skip();
      if (token.text == "true" || token.text == "True") {
        node->constant = Value::of(true);
      } else if (token.text == "false" || token.text == "False") {
        node->constant = Value::of(false);
      } else if (token.text == "none" || token.text == "None") {
        node->constant = Value::none();
      } else {
        note_name(token.text);
        node->kind = NodeKind::kName;
        node->name = token.text;
        if (with_namespace && skip_operator(".")) {
          node->kind = NodeKind::kNamespaceTarget;
          node->text = expect_name();
        }
        node->constant = Value::undefined(node->name, Missing::kName);
      }
      return node;
    case TokenKind::kString: {
      std::string text;
      for (; current().kind == TokenKind::kString; skip()) text += current().text;
      node->constant = Value::string(text);
      return node;
    }
    case TokenKind::kInteger:
      skip();
      node->constant = Value::of(token.integer);
      return node;
    case TokenKind::kFloat:
      skip();
      node->constant = Value::of(token.real);
      return node;
    default:
      break;
  }
  const Nested nested(*this);
  if (skip_operator("(")) {
    node = tuple(false, true, {}, true);
    expect_operator(")");
    return node;
  }
  if (is_operator("[")) return list_literal();
  if (is_operator("{")) return dict_literal();
  error(fmt::format("unexpected {}", describe()));
}

NodePtr ExpressionParser::tuple(bool simplified, bool with_condition, Words ends,
                                bool parentheses) {
  NodePtr node = make(NodeKind::kTuple);
  bool is_tuple = false;
  const auto ended = [&] {
    if (current().kind == TokenKind::kVariableEnd || current().kind == TokenKind::kBlockEnd ||
        current().kind == TokenKind::kEnd || is_operator(")")) {
      return true;
    }
    for (const std::string_view name : ends) {
      if (is_name(name)) return true;
    }
    return false;
  };
  while (!ended()) {
    node->children.push_back(simplified ? primary(true) : expression(with_condition));
    if (!skip_operator(",")) break;
    is_tuple = true;
  }
  if (is_tuple) return node;
  if (!node->children.empty()) return std::move(node->children.front());
  if (!parentheses) error(fmt::format("expected an expression, got {}", describe()));
  return node;
}

NodePtr ExpressionParser::list_literal() {
  NodePtr node = make(NodeKind::kList);
  expect_operator("[");
  while (!is_operator("]")) {
    if (!node->children.empty()) expect_operator(",");
    if (is_operator("]")) break;
    node->children.push_back(expression());
  }
  expect_operator("]");
  return node;
}

NodePtr ExpressionParser::dict_literal() {
  NodePtr node = make(NodeKind::kDict);
  expect_operator("{");
  while (!is_operator("}")) {
    if (!node->children.empty()) expect_operator(",");
    if (is_operator("}")) break;
    node->children.push_back(expression());
    expect_operator(":");
    node->children.push_back(expression());
  }
  expect_operator("}");
  return node;
}

NodePtr ExpressionParser::postfix(NodePtr node) {
  int chain = 0;
  while (true) {
    if (is_operator(".") || is_operator("[")) {
      node = subscript(std::move(node));
    } else if (is_operator("(")) {
      node = make(NodeKind::kCall, std::move(node));
      node->call = call_arguments();
    } else {
      return node;
    }
    grow(chain);
  }
}

NodePtr ExpressionParser::filters(NodePtr node) {
  int chain = 0;
  while (true) {
    if (is_operator("|")) {
      node = one_filter(std::move(node));
    } else if (is_name("is")) {
      node = test(std::move(node));
    } else if (is_operator("(")) {
      node = make(NodeKind::kCall, std::move(node));
      node->call = call_arguments();
    } else {
      return node;
    }
    grow(chain);
  }
}

NodePtr ExpressionParser::one_filter(NodePtr input) {
  skip_operator("|");
  NodePtr node = make(NodeKind::kFilter);
  node->children.push_back(std::move(input));
  node->name = expect_name();
  if (is_operator("(")) node->call = call_arguments();
  return node;
}

}  // namespace coppice::jinja
