// The pickle of a torch.save archive; torch_archive.h says what is read and what is refused.
#include "coppice/loader/torch_archive.h"

#include <algorithm>
#include <array>
#include <set>
#include <unordered_map>

#include "coppice/core/error.h"
#include "coppice/loader/byte_reader.h"

namespace coppice {
namespace {

constexpr std::size_t kMaxPickleBytes = std::size_t{1} << 19;

// Objects live in one array and name each other by index: no cycle leaks, nothing nests on the
// stack.
using Ref = uint32_t;

enum class Kind : uint8_t { kNone, kInt, kText, kTuple, kDict, kGlobal, kStorage, kTensor };

struct Object {
  Kind kind = Kind::kNone;
  StorageType type = StorageType::kF32;  // of a storage or tensor
  int64_t number = 0;                    // an integer; of a tensor its offset in values
  std::string_view text;                 // a text; a global's "module\nname"; a storage's key
  std::vector<Ref> items;                // of a tuple; of a dictionary key, value, key, value, ...
  std::vector<int64_t> shape;            // of a tensor
};

struct KnownGlobal {
  std::string_view text;
  bool storage;
  StorageType type;
};
constexpr std::string_view kDictClass = "collections\nOrderedDict";
constexpr std::string_view kTensorBuilder = "torch._utils\n_rebuild_tensor_v2";
constexpr std::string_view kParameterBuilder = "torch._utils\n_rebuild_parameter";
constexpr std::array<KnownGlobal, 6> kGlobals = {{
    {kDictClass, false, StorageType::kF32},
    {kTensorBuilder, false, StorageType::kF32},
    {kParameterBuilder, false, StorageType::kF32},
    {"torch\nFloatStorage", true, StorageType::kF32},
    {"torch\nHalfStorage", true, StorageType::kF16},
    {"torch\nBFloat16Storage", true, StorageType::kBF16},
}};

class PickleMachine final {
 public:
  PickleMachine(std::span<const std::byte> pickle, const std::string& what)
      : reader_(pickle, what), what_(what) {}

  // Runs to the end; returns the dictionary that is left.
  const Object& run() {
    while (true) {
      const auto code = reader_.read<uint8_t>("a pickle instruction");
      if (code == '.') break;
      step(code);
    }
    const Object& result = objects_[pop()];
    if (result.kind != Kind::kDict || !stack_.empty()) refuse("does not end in one dictionary");
    return result;
  }
  const Object& at(Ref ref) const { return objects_[ref]; }

 private:
  [[noreturn]] void refuse(std::string_view reason) const {
    fail_argument("{}: the pickle {}; only a dictionary of tensors can be read", what_, reason);
  }

  Object& push(Kind kind) {
    stack_.push_back(static_cast<Ref>(objects_.size()));
    objects_.emplace_back().kind = kind;
    return objects_.back();
  }
  void push_number(int64_t value) { push(Kind::kInt).number = value; }

  Ref pop() {
    if (stack_.empty() || (!marks_.empty() && marks_.back() == stack_.size())) {
      refuse("takes from an empty stack");
    }
    const Ref top = stack_.back();
    stack_.pop_back();
    return top;
  }

  std::vector<Ref> pop_to_mark() {
    if (marks_.empty()) refuse("has no mark to return to");
    const auto begin = stack_.begin() + static_cast<std::ptrdiff_t>(marks_.back());
    std::vector<Ref> items(begin, stack_.end());
    stack_.erase(begin, stack_.end());
    marks_.pop_back();
    return items;
  }

  void push_tuple(std::size_t count) {
    std::vector<Ref> items(count);
    for (std::size_t i = count; i-- > 0;) items[i] = pop();
    push(Kind::kTuple).items = std::move(items);
  }

  void remember(uint32_t slot) {
    const Ref top = pop();
    stack_.push_back(top);
    memo_[slot] = top;
  }
  void recall(uint32_t slot) {
    const auto found = memo_.find(slot);
    if (found == memo_.end()) refuse("recalls what it never stored");
    stack_.push_back(found->second);
  }

  void step(uint8_t code) {
    switch (code) {
      case 0x80:  // PROTO
        if (reader_.read<uint8_t>("the pickle protocol") != 2) refuse("is not of protocol 2");
        return;
      case '}':
        push(Kind::kDict);
        return;
      case ')':
        push(Kind::kTuple);
        return;
      case '(':
        marks_.push_back(stack_.size());
        return;
      case 't':
        return push_marked_tuple();
      case 0x85:
      case 0x86:
      case 0x87:
        return push_tuple(static_cast<std::size_t>(code - 0x84));
      case 'q':
        return remember(reader_.read<uint8_t>("a memo slot"));
      case 'r':
        return remember(reader_.read<uint32_t>("a memo slot"));
      case 'h':
        return recall(reader_.read<uint8_t>("a memo slot"));
      case 'j':
        return recall(reader_.read<uint32_t>("a memo slot"));
      case 'R':
        return reduce();
      case 'Q':
        return push_storage();
      case 'u':
        return set_items(pop_to_mark());
      case 's': {
        const Ref value = pop();
        return set_items({pop(), value});
      }
      case 'b':  // BUILD: the attributes of an OrderedDict, of no use here
        if (objects_[pop()].kind != Kind::kDict) refuse("sets attributes");
        return check_dict(top());
      default:
        push_constant(code);
    }
  }

  void push_marked_tuple() {
    std::vector<Ref> items = pop_to_mark();
    push(Kind::kTuple).items = std::move(items);
  }

  void push_constant(uint8_t code) {
    switch (code) {
      case 'N':
        push(Kind::kNone);
        return;
      case 0x88:
      case 0x89:
        return push_number(code == 0x88);
      case 'K':
        return push_number(reader_.read<uint8_t>("an integer"));
      case 'M':
        return push_number(reader_.read<uint16_t>("an integer"));
      case 'J':
        return push_number(reader_.read<int32_t>("an integer"));
      case 0x8a:
        return push_long();
      case 'X': {
        const auto length = reader_.read<uint32_t>("a text");
        const std::string_view text = reader_.text(length, "a text");
        push(Kind::kText).text = text;
        return;
      }
      case 'c':
        return push_global();
      default:
        refuse(fmt::format("uses instruction {:#04x}", code));
    }
  }

  void push_long() {
    const auto length = reader_.read<uint8_t>("an integer");
    if (length > 8) refuse("holds an integer of more than 8 bytes");
    const auto bytes = reader_.take(length, "an integer");
    uint64_t value = 0;
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      value |= static_cast<uint64_t>(bytes[i]) << (8 * i);
    }
    if (length > 0 && length < 8 && (value >> (8 * length - 1) & 1))
      value |= ~uint64_t{0} << 8 * length;
    push_number(static_cast<int64_t>(value));
  }

  void push_global() {
    std::size_t length = 0;
    ByteReader ahead = reader_;
    for (int lines = 0; lines < 2; ++length) {
      if (ahead.read<char>("a class name") == '\n') ++lines;
    }
    const std::string_view text = reader_.text(length, "a class name").substr(0, length - 1);
    const auto known = std::ranges::find(kGlobals, text, &KnownGlobal::text);
    if (known == kGlobals.end()) {
      std::string name(text.substr(0, 100));
      std::ranges::replace(name, '\n', '.');
      refuse(fmt::format("asks for \"{}\"", name));
    }
    Object& made = push(Kind::kGlobal);
    made.text = known->text;
    made.type = known->type;
    made.number = known->storage;
  }

  Ref top() const {
    if (stack_.empty()) refuse("takes from an empty stack");
    return stack_.back();
  }
  void check_dict(Ref ref) const {
    if (objects_[ref].kind != Kind::kDict) refuse("sets items of what is no dictionary");
  }

  void set_items(const std::vector<Ref>& items) {
    const Ref target = top();
    check_dict(target);
    if (items.size() % 2 != 0) refuse("sets a key without a value");
    auto& all = objects_[target].items;
    all.insert(all.end(), items.begin(), items.end());
  }

  // ("storage", class, key, location, values): what the persistent ids of torch.save are.
  void push_storage() {
    const Object& id = objects_[pop()];
    if (id.kind != Kind::kTuple || id.items.size() != 5) refuse("names no storage");
    const Object& type = objects_[id.items[1]];
    const Object& key = objects_[id.items[2]];
    const bool good = objects_[id.items[0]].text == "storage" && type.kind == Kind::kGlobal &&
                      type.number == 1 && key.kind == Kind::kText;
    if (!good) refuse("names a storage of another kind than float32, float16 or bfloat16");
    Object storage;
    storage.kind = Kind::kStorage;
    storage.type = type.type;
    storage.text = key.text;
    push(Kind::kStorage) = std::move(storage);
  }

  void reduce() {
    const Ref arguments = pop();
    const Ref callee = pop();
    if (objects_[callee].kind != Kind::kGlobal || objects_[arguments].kind != Kind::kTuple) {
      refuse("calls what is no function");
    }
    const std::vector<Ref> items = objects_[arguments].items;
    const std::string_view name = objects_[callee].text;
    if (name == kDictClass && items.empty()) {
      push(Kind::kDict);
    } else if (name == kParameterBuilder && !items.empty() &&
               objects_[items[0]].kind == Kind::kTensor) {
      stack_.push_back(items[0]);
    } else if (name == kTensorBuilder && items.size() >= 4) {
      push_tensor(items);
    } else {
      refuse("calls a function with other arguments than torch.save writes");
    }
  }

  std::vector<int64_t> sizes(Ref ref) const {
    const Object& tuple = objects_[ref];
    if (tuple.kind != Kind::kTuple || tuple.items.size() > 8)
      refuse("has a tensor without a shape");
    std::vector<int64_t> result;
    for (const Ref item : tuple.items) {
      const Object& size = objects_[item];
      if (size.kind != Kind::kInt || size.number < 0) refuse("has a tensor of a negative size");
      result.push_back(size.number);
    }
    return result;
  }

  // (storage, offset, shape, strides, ...): the tensor must be contiguous.
  void push_tensor(const std::vector<Ref>& items) {
    const Object& storage = objects_[items[0]];
    const Object& offset = objects_[items[1]];
    if (storage.kind != Kind::kStorage || offset.kind != Kind::kInt || offset.number < 0) {
      refuse("has a tensor without a storage");
    }
    Object tensor;
    tensor.kind = Kind::kTensor;
    tensor.type = storage.type;
    tensor.text = storage.text;
    tensor.number = offset.number;
    tensor.shape = sizes(items[2]);
    const std::vector<int64_t> strides = sizes(items[3]);
    if (strides.size() != tensor.shape.size()) refuse("has a tensor with too few strides");
    int64_t expected = 1;
    for (std::size_t i = strides.size(); i-- > 0;) {
      if (tensor.shape[i] != 1 && strides[i] != expected)
        refuse("has a tensor that is not contiguous");
      if (__builtin_mul_overflow(expected, tensor.shape[i], &expected)) {
        refuse("has a tensor of an impossible size");
      }
    }
    push(Kind::kTensor) = std::move(tensor);
  }

  ByteReader reader_;
  std::string what_;
  std::vector<Object> objects_;
  std::vector<Ref> stack_;
  std::vector<std::size_t> marks_;  // heights of the stack
  std::unordered_map<uint32_t, Ref> memo_;
};

}  // namespace

std::vector<StoredTensor> read_tensor_pickle(
    std::span<const std::byte> pickle, const std::string& root,
    const std::map<std::string, std::span<const std::byte>, std::less<>>& members,
    std::shared_ptr<const void> owner, const std::string& what) {
  if (pickle.size() > kMaxPickleBytes) {
    fail_argument("{}: a pickle of {} bytes; at most {} are allowed", what, pickle.size(),
                  kMaxPickleBytes);
  }
  PickleMachine machine(pickle, what);
  const Object& dict = machine.run();
  std::vector<StoredTensor> tensors;
  std::set<std::string_view> names;
  for (std::size_t i = 0; i + 1 < dict.items.size(); i += 2) {
    const Object& key = machine.at(dict.items[i]);
    const Object& value = machine.at(dict.items[i + 1]);
    if (key.kind != Kind::kText || value.kind != Kind::kTensor || !names.insert(key.text).second) {
      fail_argument("{}: expected one tensor for each name", what);
    }
    const auto member = members.find(fmt::format("{}/data/{}", root, value.text));
    if (member == members.end()) {
      fail_argument("{}: tensor {} is in storage {}, which is missing", what, key.text, value.text);
    }
    const auto value_bytes = static_cast<uint64_t>(storage_traits(value.type).block_bytes);
    uint64_t values = 1;
    for (const int64_t dim : value.shape) values *= static_cast<uint64_t>(dim);  // checked before
    const uint64_t available = member->second.size();
    const auto offset = static_cast<uint64_t>(value.number);
    if (values > available / value_bytes || offset > available / value_bytes - values) {
      fail_argument("{}: tensor {} of [{}] passes the end of its storage of {} bytes", what,
                    key.text, fmt::join(value.shape, ", "), available);
    }
    StoredTensor tensor;
    tensor.name = std::string(key.text);
    tensor.type = value.type;
    tensor.shape = value.shape;
    tensor.bytes = member->second.subspan(offset * value_bytes, values * value_bytes);
    tensor.owner = owner;
    tensors.push_back(std::move(tensor));
  }
  return tensors;
}

std::vector<StoredTensor> read_torch_archive(std::span<const std::byte> bytes,
                                             std::shared_ptr<const void> owner,
                                             const std::string& what) {
  const auto members = read_zip(bytes, what);
  constexpr std::string_view kPickle = "/data.pkl";
  const auto pickle = std::ranges::find_if(
      members, [&](const auto& member) { return member.first.ends_with(kPickle); });
  if (pickle == members.end()) fail_argument("{}: not a torch.save archive: no data.pkl", what);
  const std::string root = pickle->first.substr(0, pickle->first.size() - kPickle.size());
  if (const auto order = members.find(root + "/byteorder"); order != members.end()) {
    const std::string_view text(reinterpret_cast<const char*>(order->second.data()),
                                order->second.size());
    if (text != "little") fail_argument("{}: big-endian tensors cannot be read", what);
  }
  return read_tensor_pickle(pickle->second, root, members, std::move(owner), what);
}

}  // namespace coppice
