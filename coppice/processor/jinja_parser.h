// The parser of templates: token stream and expressions. Statements build on it in
// jinja_parser.cpp; parse_template (jinja_ast.h) is the way in.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "coppice/processor/jinja_ast.h"
#include "coppice/processor/jinja_lexer.h"

namespace coppice::jinja {

class ExpressionParser {
 public:
  explicit ExpressionParser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

 protected:
  using Words = std::initializer_list<std::string_view>;

  const Token& current() const { return tokens_[position_]; }
  const Token& ahead() const;
  void skip();
  bool is_name(std::string_view name) const;
  bool is_operator(std::string_view text) const;
  bool skip_name(std::string_view name);
  bool skip_operator(std::string_view text);
  std::string expect_name();
  void expect_name(std::string_view name);
  void expect_operator(std::string_view text);
  void expect_kind(TokenKind kind, std::string_view what);
  [[noreturn]] void error(std::string_view what) const;
  // What the current token is, for messages.
  std::string describe() const;

  NodePtr make(NodeKind kind) const;
  NodePtr make(NodeKind kind, NodePtr first, NodePtr second = nullptr) const;

  // `simplified`: names and literals only, as targets have them. `ends` are names that end it.
  NodePtr tuple(bool simplified, bool with_condition, Words ends, bool parentheses);
  NodePtr expression(bool with_condition = true);
  // A name, a tuple of names, or (where `with_namespace`) name.attribute.
  NodePtr target(bool with_tuple, bool with_namespace, Words ends);
  NodePtr filters(NodePtr node);
  NodePtr one_filter(NodePtr node);
  CallSyntax call_arguments();

  // Which of the names that change a macro's signature its body uses.
  MacroNames names_;

  // Counts nesting while it lives; too deep is an Error, so recursion is bounded.
  class Nested final {
   public:
    explicit Nested(ExpressionParser& parser);
    ~Nested() { --parser_.depth_; }
    Nested(const Nested&) = delete;
    Nested& operator=(const Nested&) = delete;

   private:
    ExpressionParser& parser_;
  };

 private:
  void note_name(std::string_view name);
  NodePtr condition();
  NodePtr logical_or();
  NodePtr logical_and();
  NodePtr logical_not();
  NodePtr comparison();
  NodePtr binary(int level);
  NodePtr concatenation();
  NodePtr unary(bool with_filter);
  NodePtr primary(bool with_namespace);
  NodePtr list_literal();
  NodePtr dict_literal();
  NodePtr postfix(NodePtr node);
  NodePtr subscript(NodePtr node);
  NodePtr subscribed();
  NodePtr test(NodePtr node);
  void check_target(const Node& node) const;
  // A chain such as a.b.c or a + b + c grows the tree by one level each time.
  void grow(int& chain) const;

  std::vector<Token> tokens_;
  size_t position_ = 0;
  int depth_ = 0;
};

}  // namespace coppice::jinja
