#include "text/tokenizer.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>

#include "ffi/testing.h"
#include "text/testing.h"

namespace medley::text {
namespace {

using ffi::testing::byte_level_json;
using testing::TempFolder;

TEST(TextTokenizerTest, ReadsTheFolder) {
  TempFolder folder;
  folder.write("tokenizer.json", byte_level_json());
  folder.write("special_tokens_map.json", R"({"bos_token": "b", "pad_token": {"content": "a"}})");
  folder.write("tokenizer_config.json",
               R"({"bos_token": {"content": "<s>"}, "eos_token": "<call>", "unk_token": null,
                   "chat_template": [{"name": "default", "template": "D"},
                                     {"name": "tool_use", "template": "T"}]})");
  const auto tokenizer = TextTokenizer::load(folder.path());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.error().message;
  EXPECT_EQ(tokenizer->bos_id(), 5);
  EXPECT_EQ(tokenizer->eos_id(), 8);
  EXPECT_EQ(tokenizer->vocab_size(), 14u);
  EXPECT_EQ(tokenizer->token_to_id("ab"), 4);
  const auto& config = tokenizer->config();
  EXPECT_EQ(config.special_tokens,
            (std::map<std::string, std::string>{
                {"bos_token", "<s>"}, {"eos_token", "<call>"}, {"pad_token", "a"}}));
  EXPECT_EQ(config.chat_templates,
            (std::map<std::string, std::string>{{"default", "D"}, {"tool_use", "T"}}));
}

TEST(TextTokenizerTest, AddsBosOnceWhoeverAsksForIt) {
  TempFolder folder;
  folder.write("tokenizer.json", byte_level_json());  // its post-processor adds <s>
  folder.write("tokenizer_config.json", R"({"bos_token": "<s>", "add_bos_token": true})");
  const auto by_both = TextTokenizer::load(folder.path());
  EXPECT_EQ(by_both->encode("a", true).value(), (std::vector<int32_t>{5, 0}));
  EXPECT_EQ(by_both->encode("a", false).value(), (std::vector<int32_t>{0}));

  std::string json = byte_level_json();
  const std::string post = "\"post_processor\": ";
  const size_t begin = json.find(post) + post.size();
  json.replace(begin, json.find("\"decoder\"") - begin, "null, ");
  folder.write("tokenizer.json", json);
  const auto by_config = TextTokenizer::load(folder.path());
  ASSERT_TRUE(by_config.ok()) << by_config.error().message;
  EXPECT_EQ(by_config->encode("a", true).value(), (std::vector<int32_t>{5, 0}));

  folder.write("tokenizer_config.json", R"({"bos_token": "<s>", "add_bos_token": false})");
  EXPECT_EQ(TextTokenizer::load(folder.path())->encode("a", true).value(),
            (std::vector<int32_t>{0}));
}

TEST(TextTokenizerTest, TakesTheTemplateFileBeforeTheConfig) {
  TempFolder folder;
  folder.write("tokenizer_config.json", R"({"chat_template": "config"})");
  EXPECT_EQ(read_tokenizer_config(folder.path())->chat_templates.at("default"), "config");
  folder.write("chat_template.json", R"({"chat_template": "json"})");
  EXPECT_EQ(read_tokenizer_config(folder.path())->chat_templates.at("default"), "json");
  folder.write("chat_template.jinja", "jinja");
  EXPECT_EQ(read_tokenizer_config(folder.path())->chat_templates.at("default"), "jinja");
}

TEST(TextTokenizerTest, NamesTheFileThatIsWrong) {
  TempFolder folder;
  const auto missing = TextTokenizer::load(folder.path());
  ASSERT_FALSE(missing.ok());
  EXPECT_EQ(missing.error().code, ErrorCode::kNotFound);
  EXPECT_NE(missing.error().message.find(folder.path() + "/tokenizer.json"), std::string::npos);

  folder.write("tokenizer_config.json", "{");
  const auto broken = TextTokenizer::load(folder.path());
  ASSERT_FALSE(broken.ok());
  EXPECT_NE(broken.error().message.find("tokenizer_config.json"), std::string::npos);

  folder.write("tokenizer_config.json", R"({"chat_template": 3})");
  const auto number = TextTokenizer::load(folder.path());
  ASSERT_FALSE(number.ok());
  EXPECT_NE(number.error().message.find("found number"), std::string::npos);
}

}  // namespace
}  // namespace medley::text
