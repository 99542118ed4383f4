// The rest of the expressions: subscripts, calls, tests and targets of assignments.
#include "coppice/core/error.h"
#include "coppice/processor/jinja_parser.h"

namespace coppice::jinja {

NodePtr ExpressionParser::subscript(NodePtr node) {
  if (skip_operator(".")) {
    if (current().kind == TokenKind::kName) {
      node = make(NodeKind::kAttribute, std::move(node));
      node->name = expect_name();
      return node;
    }
    if (current().kind != TokenKind::kInteger) error("expected a name or a number behind '.'");
    NodePtr index = make(NodeKind::kConstant);
    index->constant = Value::of(current().integer);
    skip();
    return make(NodeKind::kItem, std::move(node), std::move(index));
  }
  const Nested nested(*this);
  expect_operator("[");
  std::vector<NodePtr> indices;
  while (!is_operator("]")) {
    if (!indices.empty()) expect_operator(",");
    indices.push_back(subscribed());
  }
  expect_operator("]");
  NodePtr index;
  if (indices.size() == 1) {
    index = std::move(indices.front());
  } else {
    index = make(NodeKind::kTuple);
    for (const NodePtr& part : indices) {
      if (part->kind == NodeKind::kSlice) error("a slice cannot be part of a list of subscripts");
    }
    index->children = std::move(indices);
  }
  return make(NodeKind::kItem, std::move(node), std::move(index));
}

NodePtr ExpressionParser::subscribed() {
  NodePtr slice = make(NodeKind::kSlice);
  slice->children.resize(3);
  if (!is_operator(":")) {
    NodePtr node = expression();
    if (!is_operator(":")) return node;
    slice->children[0] = std::move(node);
  }
  for (size_t part = 1; part < 3 && skip_operator(":"); ++part) {
    if (!is_operator(":") && !is_operator("]") && !is_operator(",")) {
      slice->children[part] = expression();
    }
  }
  return slice;
}

CallSyntax ExpressionParser::call_arguments() {
  CallSyntax call;
  const Nested nested(*this);
  expect_operator("(");
  bool comma = false;
  const auto ensure = [&](bool condition) {
    if (!condition) error("arguments of a call are in a wrong order");
  };
  while (!is_operator(")")) {
    if (comma) {
      expect_operator(",");
      if (is_operator(")")) break;
    }
    comma = true;
    if (skip_operator("*")) {
      ensure(call.star == nullptr && call.double_star == nullptr);
      call.star = expression();
    } else if (skip_operator("**")) {
      ensure(call.double_star == nullptr);
      call.double_star = expression();
    } else if (current().kind == TokenKind::kName && ahead().kind == TokenKind::kOperator &&
               ahead().text == "=") {
      ensure(call.double_star == nullptr);
      std::string name = expect_name();
      skip();
      call.named.emplace_back(std::move(name), expression());
    } else {
      ensure(call.star == nullptr && call.double_star == nullptr && call.named.empty());
      call.positional.push_back(expression());
    }
  }
  expect_operator(")");
  return call;
}

NodePtr ExpressionParser::test(NodePtr input) {
  expect_name("is");
  const bool negated = skip_name("not");
  NodePtr node = make(NodeKind::kTest, std::move(input));
  node->name = expect_name();
  const TokenKind kind = current().kind;
  if (is_operator("(")) {
    node->call = call_arguments();
  } else if ((kind == TokenKind::kName || kind == TokenKind::kString ||
              kind == TokenKind::kInteger || kind == TokenKind::kFloat || is_operator("[") ||
              is_operator("{")) &&
             !is_name("else") && !is_name("or") && !is_name("and")) {
    if (is_name("is")) error("tests with 'is' cannot be chained");
    node->call.positional.push_back(postfix(primary(false)));
  }
  return negated ? make(NodeKind::kNot, std::move(node)) : std::move(node);
}

void ExpressionParser::check_target(const Node& node) const {
  if (node.kind == NodeKind::kTuple) {
    for (const NodePtr& part : node.children) check_target(*part);
    return;
  }
  if (node.kind != NodeKind::kName && node.kind != NodeKind::kNamespaceTarget) {
    error("this cannot be assigned to");
  }
}

NodePtr ExpressionParser::target(bool with_tuple, bool with_namespace, Words ends) {
  NodePtr node = with_tuple ? tuple(true, true, ends, false) : primary(with_namespace);
  check_target(*node);
  if (!with_namespace && node->kind == NodeKind::kNamespaceTarget) {
    error("an attribute cannot be assigned to here");
  }
  return node;
}

}  // namespace coppice::jinja
