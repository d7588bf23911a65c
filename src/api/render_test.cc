#include <gtest/gtest.h>

#include "api/response.h"

namespace medley::api {
namespace {

const ResponseHead kChat{.shape = Shape::kChat, .id = "chatcmpl-1", .model = "m", .created = 9};
const ResponseHead kCompletion{
    .shape = Shape::kCompletion, .id = "cmpl-1", .model = "m", .created = 9};

ResponseHead with_logprobs(ResponseHead head) {
  head.logprobs = true;
  return head;
}

TEST(RenderChat, WholeAnswer) {
  EXPECT_EQ(render_response(kChat, {{.index = 0, .text = "Hi \"you\"", .finish_reason = "stop"}},
                            {.prompt_tokens = 3, .completion_tokens = 2, .cached_tokens = 1}),
            R"({"id":"chatcmpl-1","object":"chat.completion","created":9,"model":"m","choices":)"
            R"([{"index":0,"message":{"role":"assistant","content":"Hi \"you\""},"logprobs":null,)"
            R"("finish_reason":"stop","stop_reason":null}],)"
            R"("usage":{"prompt_tokens":3,"total_tokens":5,"completion_tokens":2,)"
            R"("prompt_tokens_details":{"cached_tokens":1}}})");
}

TEST(RenderChat, Chunks) {
  EXPECT_EQ(render_first_chunk(kChat, {.index = 1}),
            R"(data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":9,"model":"m",)"
            R"("choices":[{"index":1,"delta":{"role":"assistant","content":""},"logprobs":null,)"
            R"("finish_reason":null}]})"
            "\n\n");
  EXPECT_EQ(render_chunk(kChat, {.index = 0, .text = "a"}, std::nullopt),
            R"(data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":9,"model":"m",)"
            R"("choices":[{"index":0,"delta":{"content":"a"},"logprobs":null,)"
            R"("finish_reason":null,"stop_reason":null}]})"
            "\n\n");
  EXPECT_EQ(render_usage_chunk(kChat, {.prompt_tokens = 1, .completion_tokens = 2}),
            R"(data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":9,"model":"m",)"
            R"("choices":[],"usage":{"prompt_tokens":1,"total_tokens":3,"completion_tokens":2,)"
            R"("prompt_tokens_details":{"cached_tokens":0}}})"
            "\n\n");
}

TEST(RenderChat, ReasoningStandsApart) {
  const std::string body =
      render_response(kChat, {{.text = "4", .reasoning = "2+2", .finish_reason = "stop"}}, {});
  EXPECT_NE(body.find(R"("message":{"role":"assistant","content":"4","reasoning":"2+2",)"
                      R"("reasoning_content":"2+2"})"),
            std::string::npos)
      << body;
  const std::string chunk = render_chunk(kChat, {.reasoning = "2"}, std::nullopt);
  EXPECT_NE(chunk.find(R"("delta":{"reasoning":"2","reasoning_content":"2"})"), std::string::npos)
      << chunk;
}

TEST(RenderChat, TokenIds) {
  ResponseHead head = kChat;
  head.return_token_ids = true;
  const Choice choice{.text = "x",
                      .token_ids = {5, 6},
                      .finish_reason = "stop",
                      .stop_reason = 6,
                      .prompt_token_ids = {1, 2}};
  const std::string body = render_response(head, {choice}, {});
  EXPECT_NE(body.find(R"("stop_reason":6,"token_ids":[5,6]}])"), std::string::npos) << body;
  EXPECT_NE(body.find(R"("prompt_token_ids":[1,2])"), std::string::npos) << body;
  EXPECT_NE(render_first_chunk(head, choice).find(R"(}],"prompt_token_ids":[1,2]})"),
            std::string::npos);
}

TEST(RenderChat, LogprobsShape) {
  const Choice choice{.text = "\xC3\xA9",
                      .logprobs = {{.token = {.token_id = 1, .logprob = -0.5f, .bytes = "\xC3"},
                                    .top = {{.token_id = 2, .logprob = -0.25f, .bytes = "a"}}}}};
  const std::string body = render_response(with_logprobs(kChat), {choice}, {});
  EXPECT_NE(body.find("\"logprobs\":{\"content\":[{\"token\":\"\xEF\xBF\xBD\",\"logprob\":-0.5,"
                      "\"bytes\":[195],\"top_logprobs\":[{\"token\":\"a\",\"logprob\":-0.25,"
                      "\"bytes\":[97]}]}]}"),
            std::string::npos)
      << body;
}

TEST(RenderCompletion, WholeAnswerAndChunk) {
  EXPECT_EQ(
      render_response(kCompletion,
                      {{.index = 0, .text = "a", .finish_reason = "length"},
                       {.index = 1, .text = "b", .finish_reason = "stop", .stop_reason = "END"}},
                      {.prompt_tokens = 1, .completion_tokens = 2}),
      R"({"id":"cmpl-1","object":"text_completion","created":9,"model":"m","choices":)"
      R"([{"index":0,"text":"a","logprobs":null,"finish_reason":"length",)"
      R"("stop_reason":null},{"index":1,"text":"b","logprobs":null,)"
      R"("finish_reason":"stop","stop_reason":"END"}],)"
      R"("usage":{"prompt_tokens":1,"total_tokens":3,"completion_tokens":2,)"
      R"("prompt_tokens_details":{"cached_tokens":0}}})");
  EXPECT_EQ(render_chunk(kCompletion, {.text = "a"}, Usage{.prompt_tokens = 1}),
            R"(data: {"id":"cmpl-1","object":"text_completion","created":9,"model":"m","choices":)"
            R"([{"index":0,"text":"a","logprobs":null,"finish_reason":null,"stop_reason":null}],)"
            R"("usage":{"prompt_tokens":1,"total_tokens":1,"completion_tokens":0,)"
            R"("prompt_tokens_details":{"cached_tokens":0}}})"
            "\n\n");
}

TEST(RenderCompletion, LogprobsAreParallelLists) {
  const Choice choice{.text = "ab",
                      .logprobs = {{.token = {.token_id = 1, .logprob = -1.0f, .bytes = "a"},
                                    .top = {{.token_id = 3, .logprob = -0.5f, .bytes = "c"}}},
                                   {.token = {.token_id = 2, .logprob = -0.25f, .bytes = "b"},
                                    .top = {{.token_id = 2, .logprob = -0.25f, .bytes = "b"}},
                                    .text_offset = 1}}};
  const std::string body = render_response(with_logprobs(kCompletion), {choice}, {});
  EXPECT_NE(body.find(R"("logprobs":{"text_offset":[0,1],"token_logprobs":[-1.0,-0.25],)"
                      R"("tokens":["a","b"],"top_logprobs":[{"a":-1.0,"c":-0.5},{"b":-0.25}]})"),
            std::string::npos)
      << body;
  ResponseHead head = with_logprobs(kCompletion);
  head.return_tokens_as_token_ids = true;
  EXPECT_NE(render_response(head, {choice}, {}).find(R"("tokens":["token_id:1","token_id:2"])"),
            std::string::npos);
}

// The first token of a prompt has no log-probability.
TEST(RenderCompletion, EchoedLogprobs) {
  const Choice choice{
      .text = "ab",
      .logprobs = {{.token = {.token_id = 1, .bytes = "a"}, .is_first = true},
                   {.token = {.token_id = 2, .logprob = -0.25f, .bytes = "b"}, .text_offset = 1}}};
  const std::string body = render_response(with_logprobs(kCompletion), {choice}, {});
  EXPECT_NE(body.find(R"("logprobs":{"text_offset":[0,1],"token_logprobs":[null,-0.25],)"
                      R"("tokens":["a","b"],"top_logprobs":[null,{"b":-0.25}]})"),
            std::string::npos)
      << body;
}

TEST(RenderPromptLogprobs, BothShapes) {
  const Choice choice{
      .text = "x",
      .prompt_logprobs = {{.token = {.token_id = 9, .bytes = "I"}, .is_first = true},
                          {.token = {.token_id = 7, .logprob = -2.5f, .bytes = "am", .rank = 4},
                           .top = {{.token_id = 5, .logprob = -0.5f, .bytes = "do", .rank = 1}}}}};
  const std::string wanted =
      R"("prompt_logprobs":[null,{"7":{"logprob":-2.5,"rank":4,"decoded_token":"am"},)"
      R"("5":{"logprob":-0.5,"rank":1,"decoded_token":"do"}}])";
  for (ResponseHead head : {kChat, kCompletion}) {
    EXPECT_EQ(render_response(head, {choice}, {}).find("prompt_logprobs"), std::string::npos);
    head.prompt_logprobs = true;
    const std::string body = render_response(head, {choice}, {});
    // In a completion each choice has its own; a chat has one prompt.
    const std::string end = head.shape == Shape::kChat ? "}" : "}],";
    EXPECT_NE(body.find(wanted + end), std::string::npos) << body;
  }
}

}  // namespace
}  // namespace medley::api
