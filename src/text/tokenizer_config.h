#pragma once

#include <map>
#include <optional>
#include <string>

#include "base/error.h"

namespace medley::text {

// What a model folder says about its tokenizer beside tokenizer.json: tokenizer_config.json,
// special_tokens_map.json, chat_template.jinja and chat_template.json, as transformers reads them.
struct TokenizerConfig {
  std::map<std::string, std::string> special_tokens;  // "bos_token" -> "<s>"; only those set
  std::optional<bool> add_bos_token;
  // By name: "default", and where the file has a list also "tool_use" and others. Empty if none.
  std::map<std::string, std::string> chat_templates;
};

// A missing file says nothing; kInvalidArgument for one that is not what it should be.
Result<TokenizerConfig> read_tokenizer_config(const std::string& folder);

}  // namespace medley::text
