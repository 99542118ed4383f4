#include "coppice/loader/torch_archive.h"

#include <gtest/gtest.h>

#include "coppice/core/error.h"
#include "coppice/core/mapped_file.h"
#include "tests/support/gguf_builder.h"

namespace coppice {
namespace {

using testing::ByteWriter;

#define EXPECT_MENTIONS(text, part) EXPECT_NE((text).find(part), std::string::npos) << (text)

template <typename Call>
std::string refusal_of(const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    return error.what();
  }
  ADD_FAILURE() << "accepted";
  return "";
}

std::string golden(const char* name) {
  return read_text_file(std::string(COPPICE_SOURCE_DIR "/tests/golden/") + name);
}

std::vector<StoredTensor> read(const std::string& bytes) {
  return read_torch_archive(std::as_bytes(std::span(bytes)), nullptr, "test.pth");
}

std::vector<StoredTensor> read_pickle(const std::string& pickle) {
  static const std::string storage(64, '\0');
  return read_tensor_pickle(std::as_bytes(std::span(pickle)), "r",
                            {{"r/data/0", std::as_bytes(std::span(storage))}}, nullptr, "test.pth");
}

std::string text_op(std::string_view text) {
  return "X" + ByteWriter().put<uint32_t>(static_cast<uint32_t>(text.size())).raw(text).bytes();
}

// {"t": a float32 tensor over storage 0}, with the instructions for offset, shape and strides
// given.
std::string tensor_pickle(const std::string& offset, const std::string& shape,
                          const std::string& strides, std::string_view storage = "0") {
  return "\x80\x02}(" + text_op("t") + "ctorch._utils\n_rebuild_tensor_v2\n((" +
         text_op("storage") + "ctorch\nFloatStorage\n" + text_op(storage) + text_op("cpu") +
         "K\x10tQ" + offset + shape + strides + "\x89" + "ccollections\nOrderedDict\n)RtRu.";
}

TEST(TorchArchive, reads_dictionaries_as_torch_save_writes_them) {
  const std::string plain = golden("gate_rg10.pth");
  const std::vector<StoredTensor> rg10 = read(plain);
  ASSERT_EQ(rg10.size(), 12u);
  EXPECT_EQ(rg10[0].name, "model.layers.0.self_attn.retention_gate.linear1.weight");
  EXPECT_EQ(rg10[0].type, StorageType::kBF16);
  EXPECT_EQ(rg10[0].shape, (std::vector<int64_t>{4, 6}));
  EXPECT_EQ(rg10[0].bytes.size(), 48u);
  const std::string ordered = golden("gate_rg.pth");
  const std::vector<StoredTensor> rg = read(ordered);
  ASSERT_EQ(rg.size(), 8u);
  EXPECT_EQ(rg[0].type, StorageType::kF32);
}

TEST(TorchArchive, a_tensor_must_lie_in_its_storage) {
  const std::string zero = "K" + std::string(1, '\0');
  EXPECT_EQ(read_pickle(tensor_pickle(zero, "K\x10\x85", "K\x01\x85"))[0].bytes.size(), 64u);
  EXPECT_EQ(read_pickle(tensor_pickle("K\x08", "K\x04K\x02\x86", "K\x02K\x01\x86"))[0].bytes.size(),
            32u);
  const auto refused = [](const std::string& pickle) {
    return refusal_of([&] { read_pickle(pickle); });
  };
  EXPECT_MENTIONS(refused(tensor_pickle(zero, "K\x11\x85", "K\x01\x85")), "passes the end");
  EXPECT_MENTIONS(refused(tensor_pickle("K\x01", "K\x10\x85", "K\x01\x85")), "passes the end");
  EXPECT_MENTIONS(refused(tensor_pickle(zero, "K\x02K\x08\x86", "K\x01K\x02\x86")), "contiguous");
  EXPECT_MENTIONS(refused(tensor_pickle(zero, "J\xff\xff\xff\xff\x85", "K\x01\x85")), "negative");
  EXPECT_MENTIONS(refused(tensor_pickle(zero, "K\x10\x85", "K\x01\x85", "9")), "storage 9");
  const std::string huge = "\x8a\x08" + ByteWriter().put<int64_t>(INT64_MAX / 2).bytes();
  EXPECT_MENTIONS(refused(tensor_pickle(zero, huge + "\x85", "K\x01\x85")), "passes the end");
  EXPECT_MENTIONS(refused(tensor_pickle(zero, huge + huge + "\x86", huge + "K\x01\x86")),
                  "impossible size");
  EXPECT_MENTIONS(refused(tensor_pickle(huge, "K\x01\x85", "K\x01\x85")), "passes the end");
}

TEST(TorchArchive, pickles_that_do_anything_else_are_refused) {
  const auto refused = [](const std::string& pickle) {
    return refusal_of([&] { read_pickle(pickle); });
  };
  EXPECT_MENTIONS(refused("\x80\x02"
                          "cos\nsystem\n" +
                          text_op("true") + "\x85R."),
                  "os.system");
  EXPECT_MENTIONS(refused("\x80\x02"
                          "cbuiltins\neval\n."),
                  "builtins.eval");
  EXPECT_MENTIONS(refused("\x80\x04}."), "protocol 2");
  EXPECT_MENTIONS(refused("\x80\x02]."), "instruction 0x5d");
  EXPECT_MENTIONS(refused("\x80\x02}"), "a pickle instruction");
  EXPECT_MENTIONS(refused("\x80\x02."), "empty stack");
  EXPECT_MENTIONS(refused("\x80\x02}(."), "empty stack");
  EXPECT_MENTIONS(refused("\x80\x02u."), "no mark");
  EXPECT_MENTIONS(refused("\x80\x02h\x05."), "never stored");
  EXPECT_MENTIONS(refused("\x80\x02}}."), "one dictionary");
  EXPECT_MENTIONS(refused("\x80\x02}(" + text_op("a") + "K\x01u."), "one tensor for each name");
  EXPECT_MENTIONS(refused("\x80\x02}(K\x01u."), "without a value");
  EXPECT_MENTIONS(refused("\x80\x02)(K\x01K\x01u."), "no dictionary");
  EXPECT_MENTIONS(refused("\x80\x02"
                          "K\x01Q."),
                  "no storage");
  EXPECT_MENTIONS(refused("\x80\x02"
                          "K\x01K\x01R."),
                  "no function");
  EXPECT_MENTIONS(refused("\x80\x02"
                          "cos\nsys"),
                  "a class name");
  EXPECT_MENTIONS(refused(std::string(std::size_t{1} << 20, 'N')), "at most");
  // Nesting and self-reference cost no stack and leak nothing.
  EXPECT_MENTIONS(refused("\x80\x02)" + std::string(100000, '\x85') + "."), "one dictionary");
  EXPECT_MENTIONS(refused("\x80\x02}q\x01(" + text_op("a") + "h\x01u."), "one tensor");
}

TEST(TorchArchive, damaged_archives_are_refused) {
  const std::string whole = golden("gate_rg10.pth");
  for (std::size_t size = 0; size < whole.size(); size += 7) {
    refusal_of([&] { read(whole.substr(0, size)); });
  }
  // One bit anywhere: read as before (padding, times), or refused; never a crash.
  for (std::size_t i = 0; i < whole.size(); ++i) {
    std::string flipped = whole;
    flipped[i] = static_cast<char>(flipped[i] ^ 0x10);
    try {
      EXPECT_EQ(read(flipped).size(), 12u);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    }
  }
  EXPECT_MENTIONS(refusal_of([&] { read("PK not a zip"); }), "not a zip archive");
  std::string data = whole;
  const std::size_t pickle = data.find("linear1");
  data[pickle] = 'L';
  EXPECT_MENTIONS(refusal_of([&] { read(data); }), "checksum");
}

}  // namespace
}  // namespace coppice
