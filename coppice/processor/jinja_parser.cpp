#include "coppice/processor/jinja_parser.h"

#include <utility>

#include "coppice/core/error.h"

namespace coppice::jinja {
namespace {

class TemplateParser final : public ExpressionParser {
 public:
  using ExpressionParser::ExpressionParser;

  std::vector<NodePtr> run() {
    std::vector<NodePtr> body = statements({});
    if (current().kind != TokenKind::kEnd) error(fmt::format("unexpected {}", describe()));
    return body;
  }

 private:
  // Up to a tag whose name is among `ends` (the name is then current) or the end of the source.
  std::vector<NodePtr> statements(Words ends) {
    const Nested nested(*this);
    std::vector<NodePtr> body;
    while (current().kind != TokenKind::kEnd) {
      if (current().kind == TokenKind::kData) {
        NodePtr node = make(NodeKind::kData);
        node->constant = Value::string(current().text);
        body.push_back(std::move(node));
        skip();
      } else if (current().kind == TokenKind::kVariableBegin) {
        skip();
        NodePtr node = make(NodeKind::kPrint);
        node->children.push_back(tuple(false, true, {}, false));
        body.push_back(std::move(node));
        expect_kind(TokenKind::kVariableEnd, "'}}'");
      } else {
        expect_kind(TokenKind::kBlockBegin, "a tag");
        for (const std::string_view end : ends) {
          if (is_name(end)) return body;
        }
        body.push_back(statement());
        expect_kind(TokenKind::kBlockEnd, "'%}'");
      }
    }
    if (ends.size() != 0) {
      error(fmt::format("the template ends inside a block, expected '{}'", *(ends.end() - 1)));
    }
    return body;
  }

  // The body of a tag that is current at its end, up to and with the name of its end tag.
  std::vector<NodePtr> body_until(std::string_view end) {
    expect_kind(TokenKind::kBlockEnd, "'%}'");
    std::vector<NodePtr> body = statements({end});
    expect_name(end);
    return body;
  }

  NodePtr statement() {
    if (skip_name("if")) return if_statement();
    if (skip_name("for")) return for_statement();
    if (skip_name("set")) return set_statement();
    if (skip_name("macro")) return macro_statement();
    if (skip_name("call")) return call_statement();
    if (skip_name("filter")) return filter_statement();
    if (skip_name("with")) return with_statement();
    if (skip_name("generation")) {
      NodePtr node = make(NodeKind::kScope);
      node->body = body_until("endgeneration");
      return node;
    }
    if (is_name("break") || is_name("continue")) {
      NodePtr node = make(is_name("break") ? NodeKind::kBreak : NodeKind::kContinue);
      if (loops_ == 0) error(fmt::format("'{}' outside of a loop", current().text));
      skip();
      return node;
    }
    if (skip_name("print")) {
      NodePtr node = make(NodeKind::kPrint);
      do {
        node->children.push_back(expression());
      } while (skip_operator(","));
      return node;
    }
    error(fmt::format("unknown tag {}", describe()));
  }

  NodePtr if_statement() {
    NodePtr node = make(NodeKind::kIf);
    while (true) {
      node->children.push_back(tuple(false, false, {}, false));
      expect_kind(TokenKind::kBlockEnd, "'%}'");
      node->branches.push_back(statements({"elif", "else", "endif"}));
      if (skip_name("elif")) continue;
      if (skip_name("else")) {
        node->branches.push_back(body_until("endif"));
      } else {
        expect_name("endif");
      }
      return node;
    }
  }

  NodePtr for_statement() {
    NodePtr node = make(NodeKind::kFor);
    node->children.push_back(target(true, false, {"in"}));
    expect_name("in");
    node->children.push_back(tuple(false, false, {"recursive"}, false));
    node->children.push_back(skip_name("if") ? expression() : nullptr);
    node->flag = skip_name("recursive");
    expect_kind(TokenKind::kBlockEnd, "'%}'");
    ++loops_;
    node->body = statements({"else", "endfor"});
    --loops_;
    if (skip_name("else")) {
      node->other = body_until("endfor");
    } else {
      expect_name("endfor");
    }
    return node;
  }

  NodePtr set_statement() {
    NodePtr node = make(NodeKind::kSet);
    node->children.push_back(target(true, true, {}));
    if (skip_operator("=")) {
      node->children.push_back(tuple(false, true, {}, false));
      return node;
    }
    node->kind = NodeKind::kSetBlock;
    node->children.push_back(is_operator("|") ? filter_chain() : nullptr);
    node->body = body_until("endset");
    return node;
  }

  NodePtr filter_chain() {
    NodePtr node = one_filter(nullptr);
    for (int chain = 0; is_operator("|"); ++chain) {
      if (chain > 100) error("more than 100 filters in a row");
      node = one_filter(std::move(node));
    }
    return node;
  }

  void signature(Node& node) {
    expect_operator("(");
    while (!is_operator(")")) {
      if (!node.parameters.empty()) expect_operator(",");
      node.parameters.push_back(expect_name());
      if (skip_operator("=")) {
        node.defaults.push_back(expression());
      } else if (!node.defaults.empty()) {
        error("a parameter without default follows one with a default");
      }
    }
    expect_operator(")");
  }

  // The body of a macro or call block: loops around it do not reach inside.
  void macro_body(Node& node, std::string_view end) {
    const int loops = std::exchange(loops_, 0);
    const MacroNames outer = std::exchange(names_, MacroNames{});
    node.body = body_until(end);
    node.uses = names_;
    names_ = {outer.caller || node.uses.caller, outer.varargs || node.uses.varargs,
              outer.kwargs || node.uses.kwargs};
    loops_ = loops;
  }

  NodePtr macro_statement() {
    NodePtr node = make(NodeKind::kMacro);
    node->name = expect_name();
    signature(*node);
    macro_body(*node, "endmacro");
    return node;
  }

  NodePtr call_statement() {
    NodePtr node = make(NodeKind::kCallBlock);
    node->name = "caller";
    if (is_operator("(")) signature(*node);
    node->children.push_back(expression());
    if (node->children.front()->kind != NodeKind::kCall) error("expected a call");
    macro_body(*node, "endcall");
    return node;
  }

  NodePtr filter_statement() {
    NodePtr node = make(NodeKind::kFilterBlock);
    node->children.push_back(filter_chain());
    node->body = body_until("endfilter");
    return node;
  }

  NodePtr with_statement() {
    NodePtr node = make(NodeKind::kWith);
    while (current().kind != TokenKind::kBlockEnd) {
      if (!node->children.empty()) expect_operator(",");
      node->children.push_back(target(false, false, {}));
      expect_operator("=");
      node->children.push_back(expression());
    }
    node->body = body_until("endwith");
    return node;
  }

  int loops_ = 0;
};

// Moves all that hangs below `node` into `pending`.
void take_children(Node& node, std::vector<NodePtr>& pending) {
  const auto take = [&](std::vector<NodePtr>& nodes) {
    for (NodePtr& child : nodes) {
      if (child != nullptr) pending.push_back(std::move(child));
    }
    nodes.clear();
  };
  take(node.children);
  take(node.defaults);
  take(node.body);
  take(node.other);
  for (auto& branch : node.branches) take(branch);
  take(node.call.positional);
  for (auto& [name, child] : node.call.named) pending.push_back(std::move(child));
  node.call.named.clear();
  if (node.call.star != nullptr) pending.push_back(std::move(node.call.star));
  if (node.call.double_star != nullptr) pending.push_back(std::move(node.call.double_star));
}

}  // namespace

Node::~Node() {
  std::vector<NodePtr> pending;
  take_children(*this, pending);
  while (!pending.empty()) {
    const NodePtr node = std::move(pending.back());
    pending.pop_back();
    take_children(*node, pending);
  }
}

std::vector<NodePtr> parse_template(std::string_view source) {
  return TemplateParser(tokenize(source)).run();
}

}  // namespace coppice::jinja
