#include "api/render.h"

namespace medley::api {
namespace {

Json render_entry(const ResponseHead& head, const LogprobEntry& entry) {
  Json bytes = Json::array();
  for (const char byte : entry.bytes) bytes.push_back(static_cast<unsigned char>(byte));
  return Json{
      {"token", token_name(head, entry)}, {"logprob", entry.logprob}, {"bytes", std::move(bytes)}};
}

Json render_logprobs(const ResponseHead& head, const Choice& choice) {
  if (!head.logprobs) return nullptr;
  Json content = Json::array();
  for (const TokenLogprobs& token : choice.logprobs) {
    Json entry = render_entry(head, token.token);
    entry["top_logprobs"] = Json::array();
    for (const LogprobEntry& top : token.top) {
      entry["top_logprobs"].push_back(render_entry(head, top));
    }
    content.push_back(std::move(entry));
  }
  return Json{{"content", std::move(content)}};
}

void add_ends(const ResponseHead& head, const Choice& choice, Json& out) {
  out["logprobs"] = render_logprobs(head, choice);
  out["finish_reason"] = optional_json(choice.finish_reason);
  out["stop_reason"] = render_stop_reason(choice.stop_reason);
  if (head.return_token_ids) out["token_ids"] = choice.token_ids;
}

}  // namespace

Json render_chat_choice(const ResponseHead& head, const Choice& choice) {
  Json message{{"role", "assistant"}, {"content", choice.text}};
  if (choice.reasoning) {
    // vLLM's present name, and the one that it and others used before.
    message["reasoning"] = *choice.reasoning;
    message["reasoning_content"] = *choice.reasoning;
  }
  Json out{{"index", choice.index}, {"message", std::move(message)}};
  add_ends(head, choice, out);
  return out;
}

Json render_chat_delta(const ResponseHead& head, const Choice& choice) {
  Json delta = Json::object();
  if (choice.reasoning) {
    delta["reasoning"] = *choice.reasoning;
    delta["reasoning_content"] = *choice.reasoning;
  }
  if (!choice.text.empty() || !choice.reasoning) delta["content"] = choice.text;
  Json out{{"index", choice.index}, {"delta", std::move(delta)}};
  add_ends(head, choice, out);
  return out;
}

std::string render_first_chunk(const ResponseHead& head, const Choice& choice) {
  Json out{{"index", choice.index},
           {"delta", {{"role", "assistant"}, {"content", ""}}},
           {"logprobs", nullptr},
           {"finish_reason", nullptr}};
  Json json = render_head(head, "chat.completion.chunk");
  json["choices"] = Json::array({std::move(out)});
  if (head.return_token_ids) json["prompt_token_ids"] = choice.prompt_token_ids;
  return render_event(json);
}

}  // namespace medley::api
