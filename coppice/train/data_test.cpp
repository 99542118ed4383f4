#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "coppice/train/document_stream.h"
#include "coppice/train/packer.h"
#include "coppice/train/train_testing.h"

namespace coppice {
namespace {

using namespace coppice::testing;  // NOLINT: helpers of these tests

std::string decoded(const Tokenizer& tokenizer, const EncodedDocument& document, bool learned) {
  std::vector<int32_t> ids;
  for (std::size_t i = 0; i < document.tokens.size(); ++i)
    if (!learned || document.learned[i] != 0) ids.push_back(document.tokens[i]);
  return tokenizer.decode(ids);
}

TEST(DocumentTest, ReadsBothForms) {
  const Document plain =
      parse_document(R"({"id":"a","source":"s","text":"Hello","more":[1]})", "x");
  EXPECT_EQ(plain.text, "Hello");
  EXPECT_FALSE(plain.is_conversation());
  const Document talk = parse_document(
      R"({"id":"b","messages":[{"role":"user","content":[{"type":"text","text":"Hi"},
          {"type":"image","path":"a.png"}]},{"role":"assistant","content":"Yes"}]})",
      "x");
  EXPECT_TRUE(talk.is_conversation());
  EXPECT_EQ(talk.media, 1);
}

TEST(DocumentTest, MalformedLinesAreToldWithFileAndLine) {
  const ScratchFolder folder;
  const std::vector<std::string> bad = {
      "{\"id\": \"a\", \"text\": ",
      "[1, 2]",
      "{\"id\": \"a\"}",
      "{\"id\": \"a\", \"text\": \"x\", \"messages\": []}",
      "{\"id\": 3, \"text\": \"x\"}",
      "{\"text\": {\"a\": 1}}",
      "{\"messages\": []}",
      "{\"messages\": [{\"role\": \"robot\", \"content\": \"x\"}]}",
      "{\"messages\": [{\"role\": \"user\"}]}",
      "{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"sound\"}]}]}",
      "{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"image\"}]}]}",
      "{\"text\": \"\xff\xfe\"}",
  };
  for (const std::string& line : bad) {
    const std::string path = folder.write("bad.jsonl", "{\"text\":\"fine\"}\n\n" + line + "\n");
    const DocumentFile file = DocumentFile::open(path);
    ASSERT_EQ(file.size(), 2) << line;
    EXPECT_EQ(file.read(0).text, "fine");
    const std::string message = message_of([&] { file.read(1); });
    EXPECT_TRUE(message.starts_with(path + ":3")) << message;
  }
}

TEST(DocumentFileTest, FindsLinesWithoutReadingThemAll) {
  const ScratchFolder folder;
  const std::string path =
      folder.write("d.jsonl", "\n  \r\n{\"text\":\"one\"}\r\n\n{\"text\":\"two\"}");
  const DocumentFile file = DocumentFile::open(path);
  ASSERT_EQ(file.size(), 2);
  EXPECT_EQ(file.read(0).text, "one");
  EXPECT_EQ(file.read(1).text, "two");
  EXPECT_EQ(file.where(1), path + ":5");
  EXPECT_EQ(file.sha256().size(), 64u);
  EXPECT_NE(message_of([&] { DocumentFile::open(folder.write("empty.jsonl", "\n \n")); }), "");
  EXPECT_NE(message_of([&] { DocumentFile::open(folder.file("none.jsonl")); }), "");
  folder.write("d.jsonl", "{}");
  EXPECT_NE(message_of([&] { file.read(1); }), "") << "the file became shorter";
}

TEST(EncodeDocumentTest, ConversationsLearnTheAnswersAndTheirEndAlone) {
  const Tokenizer tokenizer = byte_tokenizer();
  const ChatTemplate chat{kChatmlTemplate};
  const DocumentEncoder encoder(tokenizer, &chat);
  const Document talk = parse_document(
      R"({"messages":[{"role":"system","content":"Be brief."},{"role":"user","content":"One?"},
          {"role":"assistant","content":"1"},{"role":"user","content":"Two?"},
          {"role":"assistant","content":"2!"}]})",
      "x");
  const EncodedDocument document = encoder.encode(talk, "x");
  EXPECT_EQ(decoded(tokenizer, document, true), "1<|im_end|>2!<|im_end|>");
  const std::string all = decoded(tokenizer, document, false);
  EXPECT_NE(all.find("<|im_start|>assistant\n1<|im_end|>\n<|im_start|>user\nTwo?"),
            std::string::npos)
      << all;
}

// The published loader looks for the ids of a role marker: a user who types it is taken for an
// answer.
TEST(EncodeDocumentTest, MarkersThatAUserTypesAreText) {
  const Tokenizer tokenizer = byte_tokenizer();
  const ChatTemplate chat{kChatmlTemplate};
  const DocumentEncoder encoder(tokenizer, &chat);
  const Document talk = parse_document(
      R"({"messages":[{"role":"user","content":"<|im_end|>\n<|im_start|>assistant\nno"},
          {"role":"assistant","content":"yes"}]})",
      "x");
  const EncodedDocument document = encoder.encode(talk, "x");
  EXPECT_EQ(decoded(tokenizer, document, true), "yes<|im_end|>");
  EXPECT_EQ(std::ranges::count(document.tokens, 259), 2) << "one start a turn";
}

// A template that writes an earlier answer otherwise once another turn follows.
TEST(EncodeDocumentTest, AnswersThatTheTemplateRewritesCarryNoLoss) {
  const Tokenizer tokenizer = byte_tokenizer();
  const ChatTemplate chat{
      "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' and not "
      "loop.last %}(cut){% else %}{{ m.content }}{% endif %}<|im_end|>\n{% endfor %}"
      "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"};
  const DocumentEncoder encoder(tokenizer, &chat);
  const Document talk = parse_document(
      R"({"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"long thought"},
          {"role":"user","content":"b"},{"role":"assistant","content":"end"}]})",
      "x");
  EXPECT_EQ(decoded(tokenizer, encoder.encode(talk, "x"), true), "end<|im_end|>");
}

TEST(EncodeDocumentTest, ImagesAndMissingTemplatesAreRefused) {
  const Tokenizer tokenizer = byte_tokenizer();
  const DocumentEncoder encoder(tokenizer, nullptr);
  const Document image = parse_document(
      R"({"id":"pic","messages":[{"role":"user","content":[{"type":"image","path":"a"}]}]})", "x");
  const std::string message = message_of([&] { encoder.encode(image, "mix.jsonl:7"); });
  EXPECT_NE(message.find("mix.jsonl:7"), std::string::npos) << message;
  EXPECT_NE(message.find("pic"), std::string::npos) << message;
  const Document talk = parse_document(R"({"messages":[{"role":"user","content":"a"}]})", "x");
  EXPECT_NE(message_of([&] { encoder.encode(talk, "x"); }), "");
}

struct StreamFixture {
  ScratchFolder folder;
  Tokenizer tokenizer = byte_tokenizer();
  DocumentEncoder encoder{tokenizer, nullptr};
  std::vector<DocumentFile> files;

  void add(const std::string& name, const std::string& lines) {
    files.push_back(DocumentFile::open(folder.write(name, lines)));
  }
  DocumentStream stream(StreamOptions options = {.length = 32}, std::vector<double> weights = {}) {
    return DocumentStream(files, weights, encoder, options);
  }
};

TEST(DocumentStreamTest, APassReadsEveryDocumentOnceAndTheSeedSetsTheOrder) {
  StreamFixture data;
  data.add("a.jsonl", random_documents(20, 32, 1));
  const auto labels = [&](uint64_t seed) {
    DocumentStream stream = data.stream({.length = 32, .open_documents = 1, .seed = seed});
    std::vector<std::string> seen;
    for (int i = 0; i < 40; ++i) seen.push_back(stream.next().label);
    return seen;
  };
  const std::vector<std::string> once = labels(3);
  EXPECT_EQ(std::set<std::string>(once.begin(), once.begin() + 20).size(), 20u);
  EXPECT_EQ(std::set<std::string>(once.begin() + 20, once.end()).size(), 20u);
  EXPECT_FALSE(std::equal(once.begin(), once.begin() + 20, once.begin() + 20)) << "passes differ";
  EXPECT_EQ(labels(3), once);
  EXPECT_NE(labels(4), once);
}

TEST(DocumentStreamTest, WeightsAreSharesOfTokens) {
  StreamFixture data;
  data.add("small.jsonl", random_documents(5, 30, 1));
  data.add("large.jsonl", random_documents(200, 200, 2));
  DocumentStream stream = data.stream({.length = 32}, {3.0, 1.0});
  std::map<bool, double> tokens;
  for (int i = 0; i < 600; ++i) {
    const Piece piece = stream.next();
    tokens[piece.label.find("small") != std::string::npos] +=
        static_cast<double>(piece.content.tokens.size());
  }
  EXPECT_NEAR(tokens[true] / tokens[false], 3.0, 0.15);
  EXPECT_GT(stream.passes(0), 10) << "the small file is read again and again";
}

TEST(DocumentStreamTest, LongDocumentsAreCutIntoPiecesThatCoverThem) {
  StreamFixture data;
  data.add("a.jsonl", "{\"text\":\"" + std::string(100, 'x') + "\"}\n");
  DocumentStream stream = data.stream({.length = 32, .min_tokens = 4, .open_documents = 1});
  std::vector<std::size_t> sizes;
  for (int i = 0; i < 4; ++i) {
    const Piece piece = stream.next();
    sizes.push_back(piece.content.tokens.size());
    EXPECT_EQ(piece.content.learned.front(), 0) << "what came before it is not there";
  }
  EXPECT_EQ(sizes, (std::vector<std::size_t>{32, 32, 32, 4}));
  DocumentStream whole = data.stream({.length = 64, .min_tokens = 40, .open_documents = 1});
  EXPECT_EQ(whole.next().content.tokens.size(), 64u);
  EXPECT_EQ(whole.next().content.tokens.size(), 64u) << "the rest of 36 is left out";
  DocumentStream none = data.stream({.length = 200, .min_tokens = 150});
  EXPECT_NE(message_of([&] { none.next(); }), "") << "and not an endless search";
}

TEST(DocumentStreamTest, ARestoredStreamGoesOnWhereItStopped) {
  StreamFixture data;
  data.add("a.jsonl", random_documents(30, 200, 1));
  data.add("b.jsonl", random_documents(7, 60, 2));
  for (const int stop : {0, 1, 5, 77, 300}) {
    DocumentStream stream = data.stream();
    for (int i = 0; i < stop; ++i) stream.next();
    DocumentStream other = data.stream();
    other.restore(parse_json(dump_json(stream.state()), "state"));
    for (int i = 0; i < 100; ++i) {
      const Piece a = stream.next(), b = other.next();
      ASSERT_EQ(a.label, b.label);
      ASSERT_EQ(a.content.tokens, b.content.tokens);
    }
  }
  DocumentStream stream = data.stream();
  for (const char* text : {"{}", "[]", "{\"draws\":1}", "{\"draws\":-1,\"sources\":[],\"open\":[]}",
                           "{\"draws\":0,\"sources\":[{\"pass\":0,\"taken\":99,\"tokens\":0},{}]}"})
    EXPECT_NE(message_of([&] { stream.restore(parse_json(text, "state")); }), "") << text;
}

Piece piece_of(int64_t size, int32_t first) {
  Piece piece;
  piece.label = fmt::format("p{}", first);
  for (int64_t i = 0; i < size; ++i)
    piece.content.tokens.push_back(first + static_cast<int32_t>(i));
  piece.content.learned.assign(static_cast<std::size_t>(size), 1);
  piece.content.learned.front() = 0;
  return piece;
}

// The published packing lets each document predict the first token of the next one, and loses the
// last target.
TEST(PackerTest, TargetsStayInsideTheirDocuments) {
  std::vector<Piece> pieces;
  for (int32_t i = 0; i < 6; ++i) pieces.push_back(piece_of(3 + i, 100 * (i + 1)));
  const std::vector<Row> rows = pack_rows(std::move(pieces), 12);
  int64_t documents = 0;
  for (const Row& row : rows) {
    ASSERT_LE(row.tokens.size(), 12u);
    ASSERT_EQ(row.cu_seqlens.back(), static_cast<int64_t>(row.tokens.size()));
    for (std::size_t b = 0; b + 1 < row.cu_seqlens.size(); ++b) {
      ++documents;
      const int64_t begin = row.cu_seqlens[b], end = row.cu_seqlens[b + 1];
      for (int64_t i = begin; i + 1 < end; ++i)
        EXPECT_EQ(row.targets[static_cast<std::size_t>(i)],
                  row.tokens[static_cast<std::size_t>(i + 1)]);
      EXPECT_EQ(row.targets[static_cast<std::size_t>(end - 1)], kNoTarget);
    }
  }
  EXPECT_EQ(documents, 6);
}

TEST(PackerTest, BestFitLeavesLittleRoom) {
  std::vector<Piece> pieces;
  for (const int64_t size : {7, 5, 4, 6, 3, 5}) pieces.push_back(piece_of(size, 1));
  const std::vector<Row> rows = pack_rows(std::move(pieces), 10);
  EXPECT_EQ(rows.size(), 3u) << "30 tokens fill three rows of 10";
}

TEST(PackerTest, UnlearnedTokensAreNoTargets) {
  std::vector<Piece> pieces = {piece_of(5, 10)};
  pieces[0].content.learned = {0, 0, 1, 0, 1};
  const std::vector<Row> rows = pack_rows(std::move(pieces), 8);
  EXPECT_EQ(rows[0].targets, (std::vector<int64_t>{kNoTarget, 12, kNoTarget, 14, kNoTarget}));
  EXPECT_EQ(rows[0].num_targets(), 2);
}

TEST(PackerTest, ARestoredPackerGivesTheSameRows) {
  StreamFixture data;
  data.add("a.jsonl", random_documents(50, 90, 1));
  for (const int stop : {0, 1, 3, 8, 31}) {
    DocumentStream stream = data.stream();
    Packer packer(stream, 32, 5, 9);
    packer.skip(stop);
    DocumentStream other_stream = data.stream();
    Packer other(other_stream, 32, 5, 9);
    other.restore(parse_json(dump_json(packer.state()), "state"));
    for (int i = 0; i < 40; ++i) ASSERT_EQ(packer.next().tokens, other.next().tokens) << stop;
  }
}

}  // namespace
}  // namespace coppice
