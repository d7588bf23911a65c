#include "api/render.h"

namespace medley::api {
namespace {

// OpenAI's older form: parallel lists. The sampled token is among `top_logprobs` even if it is not
// one of the best.
Json render_logprobs(const ResponseHead& head, const Choice& choice) {
  if (!head.logprobs) return nullptr;
  Json offsets = Json::array();
  Json logprobs = Json::array();
  Json tokens = Json::array();
  Json tops = Json::array();
  for (const TokenLogprobs& token : choice.logprobs) {
    offsets.push_back(token.text_offset);
    tokens.push_back(token_name(head, token.token));
    if (token.is_first) {
      logprobs.push_back(nullptr);
      tops.push_back(nullptr);
      continue;
    }
    logprobs.push_back(token.token.logprob);
    Json top{{token_name(head, token.token), token.token.logprob}};
    for (const LogprobEntry& entry : token.top) {
      if (entry.token_id != token.token.token_id) top[token_name(head, entry)] = entry.logprob;
    }
    tops.push_back(std::move(top));
  }
  return Json{{"text_offset", std::move(offsets)},
              {"token_logprobs", std::move(logprobs)},
              {"tokens", std::move(tokens)},
              {"top_logprobs", std::move(tops)}};
}

}  // namespace

Json render_completion_choice(const ResponseHead& head, const Choice& choice) {
  Json out{{"index", choice.index}, {"text", choice.text}};
  out["logprobs"] = render_logprobs(head, choice);
  out["finish_reason"] = optional_json(choice.finish_reason);
  out["stop_reason"] = render_stop_reason(choice.stop_reason);
  if (head.return_token_ids) {
    out["token_ids"] = choice.token_ids;
    out["prompt_token_ids"] =
        choice.prompt_token_ids.empty() ? Json(nullptr) : Json(choice.prompt_token_ids);
  }
  if (head.prompt_logprobs) {
    out["prompt_logprobs"] = render_prompt_logprobs(choice.prompt_logprobs);
  }
  return out;
}

}  // namespace medley::api
