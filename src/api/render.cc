#include "api/render.h"

namespace medley::api {
namespace {

bool is_chat(const ResponseHead& head) { return head.shape == Shape::kChat; }

}  // namespace

Json render_usage(const Usage& usage) {
  return Json{{"prompt_tokens", usage.prompt_tokens},
              {"total_tokens", usage.prompt_tokens + usage.completion_tokens},
              {"completion_tokens", usage.completion_tokens},
              {"prompt_tokens_details", {{"cached_tokens", usage.cached_tokens}}}};
}

Json render_stop_reason(const StopReason& reason) {
  if (const int32_t* id = std::get_if<int32_t>(&reason)) return *id;
  if (const std::string* text = std::get_if<std::string>(&reason)) return *text;
  return nullptr;
}

Json render_head(const ResponseHead& head, const char* object) {
  return Json{
      {"id", head.id}, {"object", object}, {"created", head.created}, {"model", head.model}};
}

Json optional_json(const std::optional<std::string>& value) {
  return value ? Json(*value) : Json(nullptr);
}

std::string render_event(const Json& json) { return "data: " + dump_json(json) + "\n\n"; }

std::string token_name(const ResponseHead& head, const LogprobEntry& entry) {
  return head.return_tokens_as_token_ids ? fmt::format("token_id:{}", entry.token_id) : entry.bytes;
}

Json render_prompt_logprobs(const std::vector<TokenLogprobs>& tokens) {
  Json out = Json::array();
  for (const TokenLogprobs& token : tokens) {
    if (token.is_first) {
      out.push_back(nullptr);
      continue;
    }
    Json entries = Json::object();
    const auto add = [&](const LogprobEntry& entry) {
      entries[fmt::format("{}", entry.token_id)] = {
          {"logprob", entry.logprob}, {"rank", entry.rank}, {"decoded_token", entry.bytes}};
    };
    add(token.token);
    for (const LogprobEntry& top : token.top) add(top);
    out.push_back(std::move(entries));
  }
  return out;
}

std::string render_response(const ResponseHead& head, const std::vector<Choice>& choices,
                            const Usage& usage) {
  Json json = render_head(head, is_chat(head) ? "chat.completion" : "text_completion");
  json["choices"] = Json::array();
  for (const Choice& choice : choices) {
    json["choices"].push_back(is_chat(head) ? render_chat_choice(head, choice)
                                            : render_completion_choice(head, choice));
  }
  json["usage"] = render_usage(usage);
  if (is_chat(head) && head.return_token_ids && !choices.empty()) {
    json["prompt_token_ids"] = choices.front().prompt_token_ids;
  }
  if (is_chat(head) && head.prompt_logprobs && !choices.empty()) {
    json["prompt_logprobs"] = render_prompt_logprobs(choices.front().prompt_logprobs);
  }
  return dump_json(json);
}

std::string render_chunk(const ResponseHead& head, const Choice& choice,
                         const std::optional<Usage>& usage) {
  Json json = render_head(head, is_chat(head) ? "chat.completion.chunk" : "text_completion");
  json["choices"] = Json::array(
      {is_chat(head) ? render_chat_delta(head, choice) : render_completion_choice(head, choice)});
  if (usage) json["usage"] = render_usage(*usage);
  return render_event(json);
}

std::string render_usage_chunk(const ResponseHead& head, const Usage& usage) {
  Json json = render_head(head, is_chat(head) ? "chat.completion.chunk" : "text_completion");
  json["choices"] = Json::array();
  json["usage"] = render_usage(usage);
  return render_event(json);
}

std::string render_error_event(const std::string& error_body) {
  return "data: " + error_body + "\n\n";
}

}  // namespace medley::api
