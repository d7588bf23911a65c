#pragma once

#include "api/json.h"
#include "api/response.h"

// Shared by the two response shapes; for this folder's own files only.
namespace medley::api {

Json render_usage(const Usage& usage);
Json render_stop_reason(const StopReason& reason);
Json render_head(const ResponseHead& head, const char* object);
Json optional_json(const std::optional<std::string>& value);
std::string render_event(const Json& json);
// The token as text, or "token_id:N" where the client asked for that.
std::string token_name(const ResponseHead& head, const LogprobEntry& entry);

// vLLM's form: null for the first token, else {"ID": {"logprob", "rank", "decoded_token"}, ...}
// with the prompt's token and the best.
Json render_prompt_logprobs(const std::vector<TokenLogprobs>& tokens);

Json render_chat_choice(const ResponseHead& head, const Choice& choice);
Json render_chat_delta(const ResponseHead& head, const Choice& choice);
Json render_completion_choice(const ResponseHead& head, const Choice& choice);

}  // namespace medley::api
