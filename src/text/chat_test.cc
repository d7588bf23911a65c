#include "text/chat.h"

#include <gtest/gtest.h>

namespace medley::text {
namespace {

ChatRenderer renderer(const std::string& source) {
  auto made = ChatRenderer::create({.special_tokens = {{"bos_token", "<s>"}},
                                    .add_bos_token = {},
                                    .chat_templates = {{"default", source}}});
  EXPECT_TRUE(made.ok()) << made.error().message;
  return std::move(made).value();
}

constexpr const char* kPlain =
    "{{ bos_token }}{% for m in messages %}[{{ m.role }}] {{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}";

std::string render(const std::string& source, const char* messages) {
  const auto text = renderer(source).render({.messages = Json::parse(messages)});
  return text.ok() ? *text : "error: " + text.error().message;
}

TEST(ChatTest, RendersMessages) {
  EXPECT_EQ(
      render(kPlain, R"([{"role": "system", "content": "S"}, {"role": "user", "content": "U"}])"),
      "<s>[system] S\n[user] U\n[assistant]");
}

TEST(ChatTest, JoinsTextPartsUnlessTheTemplateWalksThem) {
  const char* messages =
      R"([{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "input_text", "text": "b"}]}])";
  EXPECT_EQ(render(kPlain, messages), "<s>[user] a\nb\n[assistant]");
  EXPECT_EQ(render("{% for m in messages %}{% for part in m['content'] %}<{{ part.type }}:"
                   "{{ part.text }}>{% endfor %}{% endfor %}",
                   messages),
            "<text:a><text:b>");
}

TEST(ChatTest, NullContentIsEmptyUnlessTheTemplateTestsForNone) {
  const char* messages = R"([{"role": "assistant", "content": null}, {"role": "assistant"}])";
  EXPECT_EQ(render("{% for m in messages %}<{{ m.content }}>{% endfor %}", messages), "<><>");
  EXPECT_EQ(render("{% for m in messages %}{% if m['content'] is none %}N{% endif %}{% endfor %}",
                   messages),
            "NN");
}

TEST(ChatTest, ArgumentsOfToolCallsFitTheTemplate) {
  const char* messages = R"([{"role": "assistant", "content": "", "tool_calls": [
      {"type": "function", "function": {"name": "f", "arguments": "{\"b\":1, \"a\":[]}"}}]}])";
  EXPECT_EQ(render("{% for m in messages %}{% for c in m.tool_calls %}"
                   "{{ c.function.arguments | tojson }}{% endfor %}{% endfor %}",
                   messages),
            R"({"b": 1, "a": []})");
  EXPECT_EQ(render("{% for m in messages %}{% for c in m.tool_calls %}"
                   "{{ '<' + c.function.arguments + '>' }}{% endfor %}{% endfor %}",
                   messages),
            R"(<{"b":1, "a":[]}>)");
}

TEST(ChatTest, ToolsAndFurtherNamesReachTheTemplate) {
  const auto made = ChatRenderer::create(
      {.special_tokens = {},
       .add_bos_token = {},
       .chat_templates = {{"default", "{{ tools is none }} {{ enable_thinking }}"},
                          {"tool_use", "{{ tools[0] | tojson }}"}}});
  ASSERT_TRUE(made.ok());
  const Json messages = Json::parse(R"([{"role": "user", "content": "x"}])");
  EXPECT_EQ(made->render({.messages = messages,
                          .template_kwargs = Json::parse(R"({"enable_thinking": false})")})
                .value(),
            "True False");
  EXPECT_EQ(
      made->render({.messages = messages, .tools = Json::parse(R"([{"z": 1, "a": "é"}])")}).value(),
      R"({"z": 1, "a": "é"})");
}

TEST(ChatTest, TheTimeCanBeGiven) {
  const auto text = renderer("{{ strftime_now('%Y') }}")
                        .render({.messages = Json::parse(R"([{"role": "user", "content": ""}])"),
                                 .now_seconds = 1000000000});
  EXPECT_EQ(text.value(), "2001");
}

TEST(ChatTest, NamesWhatIsWrong) {
  const auto param = [](const char* source, const char* messages) {
    const auto text = renderer(source).render({.messages = Json::parse(messages)});
    return text.ok() ? "fine" : text.error().param + " | " + text.error().message;
  };
  EXPECT_EQ(param(kPlain, "[]"), "messages | messages: expected a list with at least one message");
  EXPECT_EQ(param(kPlain, "[3]"),
            "messages[0] | messages[0]: expected an object with a role, found number");
  EXPECT_EQ(param(kPlain, R"([{"role": "user", "content": 3}])"),
            "messages[0].content | messages[0].content: expected a string, a list of parts or "
            "null, found number");
  EXPECT_EQ(param(kPlain, R"([{"role": "user", "content": [{"type": "image_url"}]}])"),
            "messages[0].content[0] | messages[0].content[0]: content of type 'image_url' is not "
            "supported, only text");
  EXPECT_EQ(param(kPlain, R"([{"role": "user", "content": [{"type": "text"}]}])"),
            "messages[0].content[0] | messages[0].content[0]: expected a string in 'text'");
  EXPECT_EQ(
      param(kPlain, R"([{"role": "assistant", "tool_calls": [{"function": {"arguments": "{"}}]}])"),
      "messages[0].tool_calls[0].function.arguments | "
      "messages[0].tool_calls[0].function.arguments: not valid JSON");
  EXPECT_EQ(param("{{ raise_exception('no') }}", R"([{"role": "user"}])"),
            "messages | the chat template refused the messages: no");
}

TEST(ChatTest, AModelWithoutTemplateSaysSo) {
  const auto made = ChatRenderer::create({});
  ASSERT_TRUE(made.ok());
  EXPECT_FALSE(made->has_template());
  const auto text =
      made->render({.messages = Json::parse(R"([{"role": "user", "content": "x"}])")});
  ASSERT_FALSE(text.ok());
  EXPECT_EQ(text.error().code, ErrorCode::kInvalidArgument);
  EXPECT_NE(text.error().message.find("no chat template"), std::string::npos);

  const auto broken = ChatRenderer::create({}, "{% for %}");
  ASSERT_FALSE(broken.ok());
  EXPECT_EQ(broken.error().param, "chat_template");
}

}  // namespace
}  // namespace medley::text
