#include "api/parse_request.h"

#include <gtest/gtest.h>

namespace medley::api {
namespace {

GenerationRequest chat(const std::string& body) {
  Result<GenerationRequest> request = parse_request(Shape::kChat, body);
  EXPECT_TRUE(request.ok()) << (request.ok() ? "" : request.error().message);
  return request.ok() ? *request : GenerationRequest{};
}

GenerationRequest completion(const std::string& body) {
  Result<GenerationRequest> request = parse_request(Shape::kCompletion, body);
  EXPECT_TRUE(request.ok()) << (request.ok() ? "" : request.error().message);
  return request.ok() ? *request : GenerationRequest{};
}

Error chat_error(const std::string& fields) {
  Result<GenerationRequest> request =
      parse_request(Shape::kChat, R"({"messages":[{"role":"user","content":"hi"}])" + fields + "}");
  EXPECT_FALSE(request.ok()) << fields;
  return request.ok() ? Error{} : request.error();
}

Error completion_error(const std::string& body) {
  Result<GenerationRequest> request = parse_request(Shape::kCompletion, body);
  EXPECT_FALSE(request.ok()) << body;
  return request.ok() ? Error{} : request.error();
}

TEST(ParseChat, AllFields) {
  const GenerationRequest request = chat(R"({
    "model": "triage", "messages": [{"role": "user", "content": "hi"}],
    "stream": true, "stream_options": {"include_usage": true, "continuous_usage_stats": true},
    "n": 2, "max_tokens": 5, "max_completion_tokens": 7, "min_tokens": 3, "temperature": 0.5,
    "top_p": 0.9, "top_k": 40, "min_p": 0.25, "seed": 12345678901234, "stop": ["a", "bc"],
    "stop_token_ids": [7, 8], "ignore_eos": true, "logprobs": true, "top_logprobs": 4,
    "return_token_ids": true, "include_stop_str_in_output": true, "skip_special_tokens": false,
    "add_generation_prompt": false, "chat_template_kwargs": {"x": 1}, "reasoning_effort": "low",
    "add_special_tokens": true, "request_id": "r-1", "user": "u"})");
  EXPECT_EQ(request.model, "triage");
  EXPECT_EQ(request.chat.messages.dump(), R"([{"role":"user","content":"hi"}])");
  EXPECT_EQ(request.chat.template_kwargs.dump(), R"({"x":1,"reasoning_effort":"low"})");
  EXPECT_FALSE(request.chat.add_generation_prompt);
  EXPECT_TRUE(request.stream);
  EXPECT_TRUE(request.include_usage);
  EXPECT_TRUE(request.continuous_usage_stats);
  EXPECT_EQ(request.n, 2);
  EXPECT_EQ(request.max_tokens, 7);
  EXPECT_EQ(request.min_tokens, 3);
  EXPECT_EQ(request.temperature, 0.5f);
  EXPECT_EQ(request.top_p, 0.9f);
  EXPECT_EQ(request.top_k, 40);
  EXPECT_EQ(request.min_p, 0.25f);
  EXPECT_EQ(request.seed, 12345678901234u);
  EXPECT_EQ(request.stop, (std::vector<std::string>{"a", "bc"}));
  EXPECT_EQ(request.stop_token_ids, (std::vector<int32_t>{7, 8}));
  EXPECT_TRUE(request.ignore_eos);
  EXPECT_EQ(request.num_top_logprobs, 4);
  EXPECT_TRUE(request.return_token_ids);
  EXPECT_TRUE(request.include_stop_str_in_output);
  EXPECT_FALSE(request.skip_special_tokens);
  EXPECT_TRUE(request.add_special_tokens);
  EXPECT_EQ(request.request_id, "r-1");
  EXPECT_TRUE(request.unknown_fields.empty());
}

TEST(ParseChat, AbsentAndNullAreTheSame) {
  const GenerationRequest request = chat(
      R"({"messages":[{"role":"user","content":"hi"}],"temperature":null,"stop":null,"n":null,
          "tools":null,"logprobs":null,"seed":null,"stream":null,"response_format":null})");
  EXPECT_FALSE(request.temperature.has_value());
  EXPECT_FALSE(request.seed.has_value());
  EXPECT_FALSE(request.max_tokens.has_value());
  EXPECT_EQ(request.num_top_logprobs, -1);
  EXPECT_EQ(request.n, 1);
  EXPECT_FALSE(request.stream);
  EXPECT_FALSE(request.add_special_tokens);  // the template writes them
}

TEST(ParseChat, WrongTypesNameTheField) {
  EXPECT_EQ(chat_error(R"(,"temperature":"hot")").message,
            "`temperature` must be a number, got a string");
  EXPECT_EQ(chat_error(R"(,"temperature":"hot")").param, "temperature");
  EXPECT_EQ(chat_error(R"(,"stream":1)").param, "stream");
  EXPECT_EQ(chat_error(R"(,"max_tokens":1.5)").param, "max_tokens");
  EXPECT_EQ(chat_error(R"(,"max_tokens":0)").message,
            "`max_tokens` must be from 1 to 2147483647, got 0");
  EXPECT_EQ(chat_error(R"(,"seed":1e300)").param, "seed");
  EXPECT_EQ(chat_error(R"(,"seed":18446744073709551615)").param, "seed");
  EXPECT_EQ(chat_error(R"(,"stop":[1])").param, "stop");
  EXPECT_EQ(chat_error(R"(,"stop":"")").param, "stop");
  EXPECT_EQ(chat_error(R"(,"stop_token_ids":[-1])").param, "stop_token_ids");
  EXPECT_EQ(chat_error(R"(,"model":3)").param, "model");
  EXPECT_EQ(chat_error(R"(,"top_p":0)").param, "top_p");
  EXPECT_EQ(chat_error(R"(,"top_p":1.1)").param, "top_p");
  EXPECT_EQ(chat_error(R"(,"temperature":-0.1)").param, "temperature");
  EXPECT_EQ(chat_error(R"(,"logprobs":2)").param, "logprobs");
  EXPECT_EQ(chat_error(R"(,"top_logprobs":2)").message,
            "`top_logprobs` needs `logprobs` to be true");
  EXPECT_EQ(chat_error(R"(,"logprobs":true,"top_logprobs":21)").param, "top_logprobs");
  EXPECT_EQ(chat_error(R"(,"stream_options":{})").param, "stream_options");
  EXPECT_EQ(chat_error(R"(,"stream":true,"stream_options":{"include_usage":1})").message,
            "`stream_options.include_usage` must be a boolean, got an integer");
  EXPECT_EQ(chat_error(R"(,"min_tokens":6,"max_tokens":5)").param, "min_tokens");
  EXPECT_EQ(chat_error(R"(,"n":257)").param, "n");
}

TEST(ParseChat, Messages) {
  const auto error = [](const std::string& body) {
    return parse_request(Shape::kChat, body).error();
  };
  EXPECT_EQ(error("{}").message, "`messages` is required");
  EXPECT_EQ(error(R"({"messages":[]})").param, "messages");
  EXPECT_EQ(error(R"({"messages":{"role":"user"}})").message,
            "`messages` must be a list, got an object");
  EXPECT_EQ(error(R"({"messages":["hi"]})").param, "messages[0]");
  EXPECT_EQ(error(R"({"messages":[{"role":"user"},{"content":"x"}]})").param, "messages[1].role");
}

TEST(ParseChat, UnsupportedFieldsWithAMeaningAreRefused) {
  for (const char* field :
       {R"("tools":[{"type":"function"}])", R"("response_format":{"type":"json_object"})",
        R"("use_beam_search":true)", R"("length_penalty":0.5)", R"("tool_choice":"required")",
        R"("guided_json":{})", R"("structured_outputs":{})", R"("chat_template":"x")",
        R"("continue_final_message":true)", R"("echo":true)", R"("best_of":2)",
        R"("allowed_token_ids":[1])", R"("priority":1)", R"("truncate_prompt_tokens":5)"}) {
    const std::string name = std::string(field).substr(1, std::string(field).find('"', 1) - 1);
    EXPECT_EQ(chat_error("," + std::string(field)).param, name);
  }
}

TEST(ParseChat, NeutralValuesOfUnsupportedFieldsPass) {
  const GenerationRequest request = chat(
      R"({"messages":[{"role":"user","content":"hi"}],"tools":[],"tool_choice":"auto",
          "response_format":{"type":"text"},"length_penalty":1.0,"best_of":1,"priority":0,
          "store":true})");
  EXPECT_TRUE(request.unknown_fields.empty());
}

TEST(ParseChat, UnknownFieldsAreReported) {
  EXPECT_EQ(chat(R"({"messages":[{"role":"user","content":""}],"colour":1,"x":{}})").unknown_fields,
            (std::vector<std::string>{"colour", "x"}));
}

TEST(ParseCompletion, FourKindsOfPrompt) {
  EXPECT_EQ(std::get<std::string>(completion(R"({"prompt":"ab"})").prompts.at(0)), "ab");
  EXPECT_EQ(completion(R"({"prompt":["ab","c"]})").prompts.size(), 2u);
  EXPECT_EQ(std::get<std::vector<int32_t>>(completion(R"({"prompt":[1,2,3]})").prompts.at(0)),
            (std::vector<int32_t>{1, 2, 3}));
  const GenerationRequest lists = completion(R"({"prompt":[[1],[2,3]]})");
  ASSERT_EQ(lists.prompts.size(), 2u);
  EXPECT_EQ(std::get<std::vector<int32_t>>(lists.prompts[1]), (std::vector<int32_t>{2, 3}));
}

TEST(ParseCompletion, BadPrompts) {
  EXPECT_EQ(completion_error("{}").param, "prompt");
  EXPECT_EQ(completion_error(R"({"prompt":[]})").param, "prompt");
  EXPECT_EQ(completion_error(R"({"prompt":{}})").param, "prompt");
  EXPECT_EQ(completion_error(R"({"prompt":[1,"a"]})").param, "prompt");
  EXPECT_EQ(completion_error(R"({"prompt":["a",1]})").param, "prompt[1]");
  EXPECT_EQ(completion_error(R"({"prompt":[-1]})").param, "prompt");
  EXPECT_EQ(completion_error(R"({"prompt":[4294967296]})").param, "prompt");
  EXPECT_EQ(completion_error(R"({"prompt":["a","b"],"n":200})").param, "n");
}

TEST(ParseCompletion, LogprobsAreANumber) {
  EXPECT_EQ(completion(R"({"prompt":"a","logprobs":3})").num_top_logprobs, 3);
  EXPECT_EQ(completion(R"({"prompt":"a","logprobs":0})").num_top_logprobs, 0);
  EXPECT_EQ(completion_error(R"({"prompt":"a","logprobs":true})").param, "logprobs");
  EXPECT_TRUE(completion(R"({"prompt":"a"})").add_special_tokens);
  EXPECT_EQ(completion(R"({"prompt":"a","top_k":-1})").top_k, 0);
}

TEST(ParseCompletion, EchoMayStandAlone) {
  const GenerationRequest request =
      completion(R"({"prompt":"a","echo":true,"logprobs":1,"max_tokens":0})");
  EXPECT_TRUE(request.echo && request.is_prompt_only() && request.has_echoed_logprobs());
  EXPECT_EQ(completion_error(R"({"prompt":"a","logprobs":1,"max_tokens":0})").param, "max_tokens");
}

TEST(ParseCompletion, PromptLogprobs) {
  EXPECT_EQ(completion(R"({"prompt":"a"})").num_prompt_logprobs, -1);
  EXPECT_EQ(completion(R"({"prompt":"a","prompt_logprobs":20})").num_prompt_logprobs, 20);
  EXPECT_EQ(completion_error(R"({"prompt":"a","prompt_logprobs":21})").param, "prompt_logprobs");
  EXPECT_EQ(completion_error(R"({"prompt":"a","prompt_logprobs":-1})").param, "prompt_logprobs");
  EXPECT_EQ(chat_error(R"(,"prompt_logprobs":0,"stream":true)").message,
            "`prompt_logprobs` is not available in a stream");
}

TEST(ParseCompletion, Penalties) {
  const GenerationRequest request = completion(
      R"({"prompt":"a","repetition_penalty":1.1,"frequency_penalty":-2,"presence_penalty":2})");
  EXPECT_EQ(request.repetition_penalty, 1.1f);
  EXPECT_EQ(request.frequency_penalty, -2.0f);
  EXPECT_EQ(request.presence_penalty, 2.0f);
  EXPECT_EQ(chat_error(R"(,"repetition_penalty":0)").param, "repetition_penalty");
  EXPECT_EQ(chat_error(R"(,"frequency_penalty":2.1)").param, "frequency_penalty");
  EXPECT_EQ(chat_error(R"(,"presence_penalty":-2.1)").param, "presence_penalty");
}

TEST(ParseCompletion, LogitBias) {
  const std::vector<LogitBias> bias =
      completion(R"({"prompt":"a","logit_bias":{"7":-100,"50256":1.5}})").logit_bias;
  ASSERT_EQ(bias.size(), 2u);
  EXPECT_EQ(bias[0].token_id, 7);
  EXPECT_EQ(bias[0].bias, -100.0f);
  EXPECT_EQ(bias[1].token_id, 50256);
  EXPECT_EQ(bias[1].bias, 1.5f);
  EXPECT_TRUE(completion(R"({"prompt":"a","logit_bias":{}})").logit_bias.empty());
  EXPECT_EQ(chat_error(R"(,"logit_bias":[7])").message,
            "`logit_bias` must be an object, got a list");
  for (const char* key : {"", "x", "7x", "-1", " 7", "7.0", "99999999999"}) {
    EXPECT_EQ(chat_error(fmt::format(R"(,"logit_bias":{{"{}":1}})", key)).message,
              fmt::format("`logit_bias` has the key \"{}\", which is no token id", key));
  }
  EXPECT_EQ(chat_error(R"(,"logit_bias":{"7":100.5})").message,
            "`logit_bias.7` must be from -100 to 100, got 100.5");
  EXPECT_EQ(chat_error(R"(,"logit_bias":{"7":"1"})").param, "logit_bias.7");
}

TEST(ParseBody, MalformedJsonNamesTheByte) {
  const Error error = completion_error(R"({"prompt": "a",})");
  EXPECT_EQ(error.code, ErrorCode::kInvalidArgument);
  EXPECT_NE(error.message.find("byte 16"), std::string::npos) << error.message;
  completion_error("");
  completion_error("[]");
  completion_error("nul");
  completion_error("{\"prompt\":\"\xff\"}");
}

TEST(ParseBody, HostileShapesAreRefused) {
  EXPECT_NE(completion_error(R"({"prompt":)" + std::string(100000, '[')).message.find("nested"),
            std::string::npos);
  std::string many = R"({"prompt":"a")";
  for (int i = 0; i < 2000; ++i) many += fmt::format(R"(,"k{}":0)", i);
  EXPECT_NE(completion_error(many + "}").message.find("keys"), std::string::npos);
}

}  // namespace
}  // namespace medley::api
