#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "ffi/ffi.h"
#include "text/tokenizer_config.h"

namespace medley::text {

// The tokenizer of a model folder. Const members are thread-safe.
class TextTokenizer {
 public:
  // Needs `folder`/tokenizer.json (kNotFound names it); the other files of TokenizerConfig are
  // read where present. A compact summary of them stays in config().
  static Result<TextTokenizer> load(const std::string& folder);

  // For a prompt that the client wrote: `add_special_tokens` puts BOS first where this model wants
  // one. A rendered chat template already holds its special tokens: pass false.
  Result<std::vector<int32_t>> encode(std::string_view text, bool add_special_tokens) const;
  Result<std::string> decode(std::span<const int32_t> ids, bool skip_special_tokens) const;

  std::optional<int32_t> token_to_id(std::string_view token) const;
  std::optional<int32_t> bos_id() const { return bos_id_; }
  std::optional<int32_t> eos_id() const { return eos_id_; }
  // One more than the highest id. A model's lm_head may have more rows.
  size_t vocab_size() const { return tokenizer_.vocab_size(); }

  const ffi::TokenPieces& pieces() const { return tokenizer_.pieces(); }
  const TokenizerConfig& config() const { return config_; }

 private:
  TextTokenizer(ffi::Tokenizer tokenizer, TokenizerConfig config);

  ffi::Tokenizer tokenizer_;
  TokenizerConfig config_;
  std::optional<int32_t> bos_id_;
  std::optional<int32_t> eos_id_;
  bool prepend_bos_ = false;  // the config asks for BOS and tokenizer.json does not add it
};

}  // namespace medley::text
