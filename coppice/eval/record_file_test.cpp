#include "coppice/eval/record_file.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "coppice/core/error.h"

namespace coppice {
namespace {

class RecordFileTest : public ::testing::Test {
 protected:
  RecordFileTest()
      : path((std::filesystem::temp_directory_path() /
              fmt::format("coppice-records-{}.jsonl", ::getpid()))
                 .string()) {
    std::filesystem::remove(path);
  }
  ~RecordFileTest() override { std::filesystem::remove(path); }

  std::string text() const {
    std::ifstream in(path, std::ios::binary);
    std::stringstream all;
    all << in.rdbuf();
    return all.str();
  }
  void put(const std::string& content) const {
    std::ofstream(path, std::ios::binary | std::ios::trunc) << content;
  }
  std::string refused(const Json& with, bool restart = false) const {
    const std::string before = text();
    try {
      RecordFile::open(path, with, restart);
    } catch (const Error& error) {
      EXPECT_EQ(text(), before);  // as it was
      return error.what();
    }
    ADD_FAILURE() << "no error was thrown";
    return {};
  }

  const Json config = {{"model", "abc"}, {"chunk", 128}};
  const std::string path;
};

TEST_F(RecordFileTest, rows_come_back_in_order) {
  {
    RecordFile file = RecordFile::open(path, config);
    EXPECT_TRUE(file.rows().empty());
    file.append({{"n", 1}});
    file.append({{"n", 2}, {"text", "two\nlines"}});
  }
  RecordFile file = RecordFile::open(path, config);
  ASSERT_EQ(file.rows().size(), 2u);
  EXPECT_EQ(file.rows()[1]["text"], "two\nlines");
  file.append({{"n", 3}});
  EXPECT_EQ(file.rows().size(), 3u);
  EXPECT_EQ(text(),
            "{\"evaluation\":{\"chunk\":128,\"model\":\"abc\"}}\n{\"n\":1}\n"
            "{\"n\":2,\"text\":\"two\\nlines\"}\n{\"n\":3}\n");
}

// Killed at any byte: the rows before are there, the torn one is not, and what follows is whole.
TEST_F(RecordFileTest, a_torn_last_line_is_cut_off_wherever_it_was_torn) {
  {
    RecordFile file = RecordFile::open(path, config);
    file.append({{"n", 1}});
    file.append({{"n", 2}});
  }
  const std::string whole = text();
  const std::size_t head = whole.find('\n') + 1;
  for (std::size_t cut = 0; cut <= whole.size(); ++cut) {
    put(whole.substr(0, cut));
    RecordFile file = RecordFile::open(path, config);
    const std::size_t rows = cut == whole.size() ? 2 : cut >= head + 8 ? 1 : 0;
    ASSERT_EQ(file.rows().size(), rows) << cut;
    for (std::size_t n = rows; n < 2; ++n) file.append({{"n", n + 1}});
    ASSERT_EQ(text(), whole) << cut;
  }
}

TEST_F(RecordFileTest, another_configuration_is_refused_and_told) {
  RecordFile::open(path, config).append({{"n", 1}});
  const std::string message = refused({{"model", "abc"}, {"chunk", 64}, {"seed", 1}});
  EXPECT_NE(message.find("chunk is 128 there and 64 now"), std::string::npos) << message;
  EXPECT_NE(message.find("seed is null there and 1 now"), std::string::npos) << message;
  EXPECT_EQ(message.find("model"), std::string::npos) << message;
  RecordFile anew = RecordFile::open(path, {{"chunk", 64}}, /*restart=*/true);
  EXPECT_TRUE(anew.rows().empty());
  EXPECT_EQ(text(), "{\"evaluation\":{\"chunk\":64}}\n");
}

TEST_F(RecordFileTest, files_that_are_something_else_are_never_touched) {
  for (const char* content : {"a letter\nto a friend\n", "no line end", "{\"n\": 1}\n", "[1]\n",
                              "{\"evaluation\": 3}\n"}) {
    put(content);
    EXPECT_NE(refused(config).find("no file of evaluation results"), std::string::npos) << content;
    EXPECT_NE(refused(config, true).find("left as it is"), std::string::npos) << content;
  }
  put("{\"evaluation\":{\"chunk\":128,\"model\":\"abc\"}}\n{\"n\":1}\nnot json\n{\"n\":2}\n");
  EXPECT_NE(refused(config).find(":3"), std::string::npos);
  put("{\"evaluation\":{\"chunk\":128,\"model\":\"abc\"}}\n[1]\n");
  EXPECT_NE(refused(config).find("object"), std::string::npos);
  EXPECT_THROW(RecordFile::open("/no/such/folder/file", config), Error);
  EXPECT_THROW(RecordFile::open(std::filesystem::temp_directory_path().string(), config), Error);
}

TEST_F(RecordFileTest, a_second_writer_is_refused) {
  RecordFile file = RecordFile::open(path, config);
  EXPECT_NE(refused(config).find("another evaluation"), std::string::npos);
}

}  // namespace
}  // namespace coppice
