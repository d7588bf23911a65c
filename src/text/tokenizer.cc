#include "text/tokenizer.h"

#include <filesystem>
#include <utility>

namespace medley::text {
namespace {

std::optional<int32_t> id_of(const ffi::Tokenizer& tokenizer, const TokenizerConfig& config,
                             const char* name) {
  const auto token = config.special_tokens.find(name);
  if (token == config.special_tokens.end()) return std::nullopt;
  return tokenizer.token_to_id(token->second);
}

}  // namespace

Result<TextTokenizer> TextTokenizer::load(const std::string& folder) {
  const std::string path = (std::filesystem::path(folder) / "tokenizer.json").string();
  MEDLEY_TRY_ASSIGN(TokenizerConfig config, read_tokenizer_config(folder));
  MEDLEY_TRY_ASSIGN(ffi::Tokenizer tokenizer, ffi::Tokenizer::load(path));
  return TextTokenizer(std::move(tokenizer), std::move(config));
}

TextTokenizer::TextTokenizer(ffi::Tokenizer tokenizer, TokenizerConfig config)
    : tokenizer_(std::move(tokenizer)),
      config_(std::move(config)),
      bos_id_(id_of(tokenizer_, config_, "bos_token")),
      eos_id_(id_of(tokenizer_, config_, "eos_token")) {
  if (config_.add_bos_token.value_or(false) && bos_id_) {
    const auto empty = tokenizer_.encode("", /*add_special_tokens=*/true);
    prepend_bos_ = empty.ok() && (empty->empty() || empty->front() != *bos_id_);
  }
}

Result<std::vector<int32_t>> TextTokenizer::encode(std::string_view text,
                                                   bool add_special_tokens) const {
  MEDLEY_TRY_ASSIGN(std::vector<int32_t> ids, tokenizer_.encode(text, add_special_tokens));
  if (add_special_tokens && prepend_bos_) ids.insert(ids.begin(), *bos_id_);
  return ids;
}

Result<std::string> TextTokenizer::decode(std::span<const int32_t> ids,
                                          bool skip_special_tokens) const {
  return tokenizer_.decode(ids, skip_special_tokens);
}

std::optional<int32_t> TextTokenizer::token_to_id(std::string_view token) const {
  return tokenizer_.token_to_id(token);
}

}  // namespace medley::text
