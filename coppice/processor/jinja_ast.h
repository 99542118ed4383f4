// The syntax tree of a template: one node type, whose fields each kind uses as listed.
//
// Immutable once parsed; holds no pointers into the source. Trees may be high (long chains of
// operators): they free themselves without recursion, and evaluation bounds its own depth.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "coppice/processor/jinja_value.h"

namespace coppice::jinja {

enum class NodeKind : uint8_t {
  // Expressions
  kConstant,   // constant
  kName,       // name
  kList,       // children
  kTuple,      // children
  kDict,       // children: key, value, key, value, ...
  kAttribute,  // children[0] . name
  kItem,       // children[0] [ children[1] ]
  kSlice,      // children: start, stop, step (null where absent); only inside kItem
  kCall,       // children[0] ( call )
  kFilter,     // children[0] (null in a filter block) | name ( call )
  kTest,       // children[0] is name ( call )
  kBinary,     // children[0] name children[1]: + - * / // % **
  kConcat,     // children, joined by ~
  kNegative,   // - children[0]
  kPositive,   // + children[0]
  kNot,        // not children[0]
  kAnd,        // children, from the left
  kOr,         // children, from the left
  kCompare,    // children[0] operators[0] children[1] operators[1] children[2] ...
  kCondition,  // children[1] if children[0] else children[2] (null where absent)
  // Statements
  kData,         // constant
  kPrint,        // children, one after the other
  kIf,           // children: conditions; branches[i] their bodies, one more for else
  kFor,          // children[0] targets in children[1] if children[2] (may be null); body, other;
                 // flag: recursive
  kSet,          // children[0] = children[1]
  kSetBlock,     // children[0] = body, through the filter children[1] (may be null)
  kMacro,        // name, parameters, defaults, body
  kCallBlock,    // children[0], a kCall, with a caller of parameters, defaults, body
  kFilterBlock,  // children[0], a kFilter, over body
  kWith,         // children: target, value, target, value, ...; body
  kScope,        // body in a scope of its own (generation)
  kBreak,
  kContinue,
  // Targets of assignments, besides kName and kTuple
  kNamespaceTarget,  // name . text
};

struct Node;
using NodePtr = std::unique_ptr<Node>;

struct CallSyntax {
  std::vector<NodePtr> positional;
  std::vector<std::pair<std::string, NodePtr>> named;
  NodePtr star;         // *args
  NodePtr double_star;  // **kwargs
};

// Names in the body of a macro that stand for what its caller passed beyond the parameters.
struct MacroNames {
  bool caller = false;
  bool varargs = false;
  bool kwargs = false;
};

struct Node {
  Node() = default;
  ~Node();  // frees the tree without recursion
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;

  NodeKind kind = NodeKind::kConstant;
  bool flag = false;
  MacroNames uses;  // kMacro, kCallBlock
  int line = 1;
  std::string name;
  std::string text;
  Value constant;
  std::vector<NodePtr> children;
  std::vector<std::string> operators;
  CallSyntax call;
  std::vector<std::string> parameters;
  std::vector<NodePtr> defaults;  // of the last parameters
  std::vector<NodePtr> body;
  std::vector<NodePtr> other;
  std::vector<std::vector<NodePtr>> branches;
};

// Parses a whole template. Throws kInvalidArgument with the line on a syntax error, an unknown tag,
// or nesting deeper than the parser allows.
std::vector<NodePtr> parse_template(std::string_view source);

}  // namespace coppice::jinja
