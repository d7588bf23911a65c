#include "api/tokens.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace medley::api {
namespace {

using nlohmann::json;

TEST(ParseTokenizeTest, PromptOrMessages) {
  const auto prompt = parse_tokenize(R"({"model":"m","prompt":"x"})");
  ASSERT_TRUE(prompt.ok());
  EXPECT_EQ(prompt->prompt, "x");
  EXPECT_TRUE(prompt->add_special_tokens);
  const auto chat = parse_tokenize(R"({"messages":[{"role":"user","content":"x"}]})");
  ASSERT_TRUE(chat.ok());
  EXPECT_EQ(chat->shape, Shape::kChat);
  EXPECT_FALSE(chat->add_special_tokens);  // the template writes them
  EXPECT_TRUE(chat->chat.add_generation_prompt);
}

TEST(ParseTokenizeTest, ErrorsNameTheField) {
  for (const auto& [body, param] : std::vector<std::pair<std::string, std::string>>{
           {"[", ""},
           {"3", ""},
           {"{}", "prompt"},
           {R"({"prompt":"x","messages":[]})", "prompt"},
           {R"({"prompt":["x"]})", "prompt"},
           {R"({"messages":"x"})", "messages"},
           {R"({"messages":[],"chat_template":"x"})", "chat_template"},
           {R"({"messages":[],"continue_final_message":true})", "continue_final_message"},
           {R"({"messages":[],"tools":{}})", "tools"}}) {
    const auto request = parse_tokenize(body);
    ASSERT_FALSE(request.ok()) << body;
    EXPECT_EQ(request.error().param, param) << body;
  }
}

TEST(ParseDetokenizeTest, NeedsTokens) {
  EXPECT_EQ(parse_detokenize(R"({"tokens":[1,2]})")->tokens, (std::vector<int32_t>{1, 2}));
  EXPECT_TRUE(parse_detokenize(R"({"tokens":[]})").ok());
  EXPECT_EQ(parse_detokenize("{}").error().param, "tokens");
  EXPECT_EQ(parse_detokenize(R"({"tokens":[-1]})").error().param, "tokens");
}

TEST(RenderTokenizeTest, VllmsShape) {
  EXPECT_EQ(json::parse(render_tokenize({.tokens = {5, 6}, .max_model_len = 9})),
            json::parse(R"({"count":2,"max_model_len":9,"tokens":[5,6],"token_strs":null})"));
  EXPECT_EQ(json::parse(render_detokenize("x")), json::parse(R"({"prompt":"x"})"));
}

}  // namespace
}  // namespace medley::api
