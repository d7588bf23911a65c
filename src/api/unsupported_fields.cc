#include "api/unsupported_fields.h"

#include <initializer_list>

namespace medley::api {
namespace {

struct UnsupportedField {
  const char* name;
  const char* neutral;  // JSON of the value that asks for nothing; empty: only null does
};

// Of OpenAI's API reference and vLLM's protocol, those with a meaning.
constexpr UnsupportedField kUnsupported[] = {
    {"length_penalty", "1"},
    {"use_beam_search", "false"},
    {"best_of", "1"},
    {"suffix", "\"\""},
    {"tools", "[]"},
    {"functions", "[]"},
    {"function_call", "\"none\""},
    {"response_format", R"({"type":"text"})"},
    {"structured_outputs", ""},
    {"guided_json", ""},
    {"guided_regex", ""},
    {"guided_choice", ""},
    {"guided_grammar", ""},
    {"guided_decoding_backend", ""},
    {"guided_whitespace_pattern", ""},
    {"structural_tag", ""},
    {"prompt_embeds", ""},
    {"truncate_prompt_tokens", ""},
    {"truncation_side", ""},
    {"allowed_token_ids", "[]"},
    {"logprob_token_ids", "[]"},
    {"bad_words", "[]"},
    {"thinking_token_budget", "-1"},
    {"repetition_detection", ""},
    {"logits_processors", "[]"},
    {"priority", "0"},
    {"audio", ""},
    {"modalities", R"(["text"])"},
    {"prediction", ""},
    {"web_search_options", ""},
    {"verbosity", "\"medium\""},
    {"documents", "[]"},
    {"chat_template", ""},
    {"continue_final_message", "false"},
    {"return_prompt_text", "false"},
    {"media_io_kwargs", "{}"},
    {"mm_processor_kwargs", "{}"},
    {"kv_transfer_params", "{}"},
    {"ec_transfer_params", "{}"},
    {"vllm_xargs", "{}"},
    {"watermarking", "false"},
    {"adapters", "[]"},
};

// These change nothing in an answer of this server.
constexpr const char* kWithoutEffect[] = {
    "user",
    "metadata",
    "store",
    "service_tier",
    "safety_identifier",
    "parallel_tool_calls",
    "session_id",
    "prompt_cache_key",
    "cache_salt",
    "prompt_cache_retention",
    "spaces_between_special_tokens",
    "stream_interval",
};

bool is_neutral(const Json& value, const char* neutral) {
  if (*neutral == '\0') return false;
  return value == Json::parse(neutral);  // numbers compare by value: 0 equals 0.0
}

}  // namespace

void refuse_unsupported_fields(ObjectReader& reader) {
  for (const UnsupportedField& field : kUnsupported) {
    const Json* value = reader.find(field.name);
    if (value == nullptr || is_neutral(*value, field.neutral)) continue;
    reader.fail(field.name, *field.neutral == '\0'
                                ? std::string("is not supported")
                                : fmt::format("is not supported, except as {}", field.neutral));
  }
  if (const Json* choice = reader.find("tool_choice");
      choice != nullptr && *choice != "none" && *choice != "auto") {
    reader.fail("tool_choice", "is not supported, except as \"none\" or \"auto\"");
  }
  for (const char* name : kWithoutEffect) reader.find(name);
}

}  // namespace medley::api
