#include "api/parse_request.h"

#include <charconv>

#include "api/object_reader.h"
#include "api/unsupported_fields.h"

namespace medley::api {
namespace {

// The renderer checks what is inside the messages; here only that they are messages.
void read_messages(ObjectReader& reader, GenerationRequest& request) {
  const Json* messages = reader.find("messages");
  if (messages == nullptr) return reader.fail("messages", "is required");
  if (!messages->is_array()) return reader.fail_type("messages", "a list", *messages);
  if (messages->empty()) return reader.fail("messages", "must not be empty");
  for (size_t i = 0; i < messages->size(); ++i) {
    const Json& message = (*messages)[i];
    const std::string name = fmt::format("messages[{}]", i);
    if (!message.is_object()) return reader.fail_type(name, "an object", message);
    const auto role = message.find("role");
    if (role == message.end()) return reader.fail(name + ".role", "is required");
    if (!role->is_string()) return reader.fail_type(name + ".role", "a string", *role);
  }
  request.chat.messages = *messages;
}

void read_template_kwargs(ObjectReader& reader, GenerationRequest& request) {
  Json kwargs = Json::object();
  if (const Json* value = reader.find("chat_template_kwargs")) {
    if (!value->is_object()) return reader.fail_type("chat_template_kwargs", "an object", *value);
    kwargs = *value;
  }
  std::string effort;
  reader.read("reasoning_effort", effort);
  if (!effort.empty() && !kwargs.contains("reasoning_effort")) kwargs["reasoning_effort"] = effort;
  request.chat.template_kwargs = std::move(kwargs);
}

void read_chat_logprobs(ObjectReader& reader, GenerationRequest& request) {
  bool wanted = false;
  std::optional<int> num_top;
  reader.read("logprobs", wanted);
  reader.read("top_logprobs", num_top, {.min = 0, .max = kMaxTopLogprobs});
  if (num_top.value_or(0) > 0 && !wanted) {
    return reader.fail("top_logprobs", "needs `logprobs` to be true");
  }
  if (wanted) request.num_top_logprobs = num_top.value_or(0);
}

void read_prompts(ObjectReader& reader, GenerationRequest& request) {
  const Json* prompt = reader.find("prompt");
  constexpr const char* kExpected =
      "a string, a list of strings, a list of token ids, or a list of lists of token ids";
  if (prompt == nullptr) return reader.fail("prompt", "is required");
  if (prompt->is_string()) {
    request.prompts.emplace_back(prompt->get<std::string>());
    return;
  }
  if (!prompt->is_array()) return reader.fail_type("prompt", kExpected, *prompt);
  if (prompt->empty()) return reader.fail("prompt", "must not be empty");
  if (prompt->front().is_number()) {
    std::optional<std::vector<int32_t>> ids = as_token_ids(*prompt);
    if (!ids) return reader.fail("prompt", "must hold token ids only");
    request.prompts.emplace_back(std::move(*ids));
    return;
  }
  for (size_t i = 0; i < prompt->size(); ++i) {
    const Json& element = (*prompt)[i];
    if (element.is_string()) {
      request.prompts.emplace_back(element.get<std::string>());
    } else if (element.is_array()) {
      std::optional<std::vector<int32_t>> ids = as_token_ids(element);
      if (!ids) return reader.fail(fmt::format("prompt[{}]", i), "must hold token ids only");
      request.prompts.emplace_back(std::move(*ids));
    } else {
      return reader.fail_type(fmt::format("prompt[{}]", i), "a string or a list of token ids",
                              element);
    }
  }
}

void read_stop(ObjectReader& reader, GenerationRequest& request) {
  const Json* stop = reader.find("stop");
  if (stop == nullptr) return;
  if (stop->is_string()) {
    request.stop.push_back(stop->get<std::string>());
  } else if (stop->is_array()) {
    for (const Json& element : *stop) {
      if (!element.is_string()) {
        return reader.fail_type("stop", "a string or a list of strings", element);
      }
      request.stop.push_back(element.get<std::string>());
    }
  } else {
    return reader.fail_type("stop", "a string or a list of strings", *stop);
  }
  for (const std::string& text : request.stop) {
    if (text.empty()) return reader.fail("stop", "must not contain an empty string");
  }
}

// {"token id": bias}, as in OpenAI's API reference.
void read_logit_bias(ObjectReader& reader, GenerationRequest& request) {
  const Json* biases = reader.find("logit_bias");
  if (biases == nullptr) return;
  if (!biases->is_object()) return reader.fail_type("logit_bias", "an object", *biases);
  for (const auto& [key, value] : biases->items()) {
    const std::string name = fmt::format("logit_bias.{}", key);
    LogitBias entry;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), entry.token_id);
    if (error != std::errc() || end != key.data() + key.size() || entry.token_id < 0) {
      return reader.fail("logit_bias",
                         fmt::format("has the key \"{}\", which is no token id", key));
    }
    if (!value.is_number()) return reader.fail_type(name, "a number", value);
    const double bias = value.get<double>();
    if (!(bias >= -kMaxLogitBias && bias <= kMaxLogitBias)) {
      return reader.fail(name, fmt::format("must be from {} to {}, got {}", -kMaxLogitBias,
                                           kMaxLogitBias, value.dump()));
    }
    entry.bias = static_cast<float>(bias);
    request.logit_bias.push_back(entry);
  }
}

void read_penalties(ObjectReader& reader, GenerationRequest& request) {
  reader.read("repetition_penalty", request.repetition_penalty,
              {.min = 0.0, .max = 1e6, .above_min = true});
  reader.read("frequency_penalty", request.frequency_penalty, {.min = -2.0, .max = 2.0});
  reader.read("presence_penalty", request.presence_penalty, {.min = -2.0, .max = 2.0});
}

void read_sampling(ObjectReader& reader, GenerationRequest& request) {
  reader.read("temperature", request.temperature, {.min = 0.0, .max = 100.0});
  reader.read("top_p", request.top_p, {.min = 0.0, .max = 1.0, .above_min = true});
  reader.read("min_p", request.min_p, {.min = 0.0, .max = 1.0});
  reader.read("top_k", request.top_k, {.min = -1});
  if (request.top_k == -1) request.top_k = 0;
  std::optional<int64_t> seed;
  reader.read(
      "seed", seed,
      {.min = std::numeric_limits<int64_t>::min(), .max = std::numeric_limits<int64_t>::max()});
  if (seed) request.seed = static_cast<uint64_t>(*seed);
  std::optional<int> max_completion_tokens;
  reader.read("max_tokens", request.max_tokens, {.min = request.echo ? 0 : 1});
  reader.read("max_completion_tokens", max_completion_tokens, {.min = 1});
  if (max_completion_tokens) request.max_tokens = max_completion_tokens;
  reader.read("min_tokens", request.min_tokens, {.min = 0});
  if (request.max_tokens && request.min_tokens > *request.max_tokens) {
    reader.fail("min_tokens", fmt::format("must not exceed max_tokens, got {} and {}",
                                          request.min_tokens, *request.max_tokens));
  }
  read_penalties(reader, request);
  read_logit_bias(reader, request);
  reader.read("ignore_eos", request.ignore_eos);
  reader.read("stop_token_ids", request.stop_token_ids);
  read_stop(reader, request);
  reader.read("include_stop_str_in_output", request.include_stop_str_in_output);
  reader.read("skip_special_tokens", request.skip_special_tokens);
  reader.read("n", request.n, {.min = 1, .max = kMaxChoices});
}

void read_output(ObjectReader& reader, GenerationRequest& request) {
  reader.read("stream", request.stream);
  reader.read("prompt_logprobs", request.num_prompt_logprobs, {.min = 0, .max = kMaxTopLogprobs});
  if (request.stream && request.num_prompt_logprobs >= 0) {
    reader.fail("prompt_logprobs", "is not available in a stream");
  }
  if (const Json* options = reader.find("stream_options")) {
    if (!options->is_object()) return reader.fail_type("stream_options", "an object", *options);
    if (!request.stream) return reader.fail("stream_options", "needs `stream` to be true");
    ObjectReader sub(*options, "stream_options.");
    sub.read("include_usage", request.include_usage);
    sub.read("continuous_usage_stats", request.continuous_usage_stats);
    reader.adopt_error(sub);
  }
  reader.read("return_token_ids", request.return_token_ids);
  reader.read("return_tokens_as_token_ids", request.return_tokens_as_token_ids);
  reader.read("request_id", request.request_id);
  if (request.request_id.size() > 256) reader.fail("request_id", "is longer than 256 bytes");
}

}  // namespace

Result<GenerationRequest> parse_request(Shape shape, std::string_view body) {
  MEDLEY_TRY_ASSIGN(const Json json, parse_json(body));
  if (!json.is_object()) {
    return invalid_argument(fmt::format("the body must be an object, got {}", kind_of(json)));
  }
  ObjectReader reader(json);
  GenerationRequest request;
  request.shape = shape;
  reader.read("model", request.model);
  if (shape == Shape::kChat) {
    read_messages(reader, request);
    read_template_kwargs(reader, request);
    read_chat_logprobs(reader, request);
    reader.read("add_generation_prompt", request.chat.add_generation_prompt);
    reader.read("include_reasoning", request.include_reasoning);
    reader.read("echo", request.echo);
    if (request.echo) reader.fail("echo", "is not supported for chat, except as false");
  } else {
    request.add_special_tokens = true;
    read_prompts(reader, request);
    reader.read("echo", request.echo);
    reader.read("logprobs", request.num_top_logprobs, {.min = 0, .max = kMaxTopLogprobs});
  }
  reader.read("add_special_tokens", request.add_special_tokens);
  read_sampling(reader, request);
  read_output(reader, request);
  refuse_unsupported_fields(reader);
  if (reader.error()) return *reader.error();
  if (request.num_choices() > static_cast<size_t>(kMaxChoices)) {
    return invalid_argument(fmt::format("prompts times n must be at most {}, got {} times {}",
                                        kMaxChoices, request.num_prompts(), request.n),
                            "n");
  }
  request.unknown_fields = reader.unread();
  return request;
}

}  // namespace medley::api
