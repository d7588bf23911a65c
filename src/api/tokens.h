#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "api/request.h"
#include "base/error.h"

namespace medley::api {

// Body of POST /tokenize: vLLM's, with a prompt (text) or with messages as in a chat request.
struct TokenizeRequest {
  std::string model;
  Shape shape = Shape::kCompletion;
  std::string prompt;    // kCompletion
  text::ChatInput chat;  // kChat
  bool add_special_tokens = true;
  bool return_token_strs = false;
};

// Body of POST /detokenize.
struct DetokenizeRequest {
  std::string model;
  std::vector<int32_t> tokens;
};

// kInvalidArgument for a malformed body or a wrong type; the error names the field.
Result<TokenizeRequest> parse_tokenize(std::string_view body);
Result<DetokenizeRequest> parse_detokenize(std::string_view body);

struct TokenizeAnswer {
  std::vector<int32_t> tokens;
  int64_t max_model_len = 0;
  bool has_strings = false;
  std::vector<std::string> strings;  // one a token, where asked for
};

std::string render_tokenize(const TokenizeAnswer& answer);
std::string render_detokenize(const std::string& prompt);

}  // namespace medley::api
