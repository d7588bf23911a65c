#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

struct MedleyTokenizer;
struct MedleyChatTemplate;
struct MedleyHasher;

// The C++ face of the Rust library: Hugging Face tokenizers, Jinja chat templates, BLAKE3.
// Const members of all classes here may be called from several threads at once.
namespace medley::ffi {

// The text form of every token id, and the rule by which the forms join to text.
//
// The text of a sequence is the concatenation of its pieces. Without `byte_fallback` the
// concatenation is bytes, of which each maximal invalid part becomes U+FFFD (as a byte-level BPE
// decodes). With it, pieces are text, save that a run of kByte pieces is decoded as a whole: as
// UTF-8 if all of it is valid, else as one U+FFFD per byte. At the very start of a text up to
// `strip_start` characters `strip_char` are dropped.
class TokenPieces {
 public:
  enum Flag : uint8_t { kSpecial = 1, kByte = 2, kAbsent = 4 };

  // One more than the highest id; ids from here on have no token.
  size_t num_ids() const { return flags_.size(); }
  // Empty for an id that has no token.
  std::string_view bytes(int32_t id) const;
  bool has(int32_t id, Flag flag) const;

  bool byte_fallback() const { return byte_fallback_; }
  char32_t strip_char() const { return strip_char_; }
  uint32_t strip_start() const { return strip_start_; }

 private:
  friend class Tokenizer;
  std::string bytes_;
  std::vector<uint32_t> ends_;
  std::vector<uint8_t> flags_;
  bool byte_fallback_ = false;
  char32_t strip_char_ = 0;
  uint32_t strip_start_ = 0;
};

// A tokenizer.json of the Hugging Face tokenizers library. Truncation and padding settings in the
// file are ignored.
class Tokenizer {
 public:
  // kNotFound: no such file. kInvalidArgument: not a tokenizer. Takes about a second for a
  // vocabulary of 200,000.
  static Result<Tokenizer> load(const std::string& path);

  // kInvalidArgument: `text` is not UTF-8. Special tokens that appear in the text are recognised
  // either way; `add_special_tokens` adds those of the file's post-processor (usually BOS).
  Result<std::vector<int32_t>> encode(std::string_view text, bool add_special_tokens) const;
  // Ids that have no token add nothing.
  Result<std::string> decode(std::span<const int32_t> ids, bool skip_special_tokens) const;
  std::optional<int32_t> token_to_id(std::string_view token) const;
  // The token as the vocabulary spells it, not its text; bytes are in pieces().
  std::optional<std::string> id_to_token(int32_t id) const;
  // One more than the highest id, added tokens included.
  size_t vocab_size() const { return pieces_->num_ids(); }
  const TokenPieces& pieces() const { return *pieces_; }

 private:
  struct Free {
    void operator()(MedleyTokenizer* handle) const;
  };
  using Handle = std::unique_ptr<MedleyTokenizer, Free>;

  Tokenizer(Handle handle, std::unique_ptr<TokenPieces> pieces)
      : handle_(std::move(handle)), pieces_(std::move(pieces)) {}

  Handle handle_;
  std::unique_ptr<TokenPieces> pieces_;
};

// A Jinja chat template, with the environment that transformers' apply_chat_template gives it.
class ChatTemplate {
 public:
  // kInvalidArgument with the line of the syntax error.
  static Result<ChatTemplate> compile(std::string_view source);

  // `variables_json`: an object of the names that the template sees (messages, tools,
  // add_generation_prompt, bos_token, ...). `now_seconds` since the epoch is what strftime_now
  // prints, in local time. kInvalidArgument: the template failed or called raise_exception, whose
  // text is in the message.
  Result<std::string> render(std::string_view variables_json, int64_t now_seconds) const;

 private:
  struct Free {
    void operator()(MedleyChatTemplate* handle) const;
  };
  using Handle = std::unique_ptr<MedleyChatTemplate, Free>;

  explicit ChatTemplate(Handle handle) : handle_(std::move(handle)) {}

  Handle handle_;
};

using Blake3Digest = std::array<uint8_t, 32>;

// Incremental BLAKE3. Large updates are hashed on all cores.
class Blake3Hasher {
 public:
  Blake3Hasher();

  void update(std::span<const std::byte> bytes);
  // Reads the file through a memory map. On an error the hasher's state is unspecified.
  Result<void> update_file(const std::string& path);
  // The digest of all bytes so far; more may follow.
  Blake3Digest finish() const;

 private:
  struct Free {
    void operator()(MedleyHasher* handle) const;
  };
  std::unique_ptr<MedleyHasher, Free> handle_;
};

Blake3Digest blake3(std::span<const std::byte> bytes);
// kNotFound, or kInvalidArgument for a file that cannot be read.
Result<Blake3Digest> blake3_file(const std::string& path);
// 64 lower-case hexadecimal digits.
std::string to_hex(const Blake3Digest& digest);

}  // namespace medley::ffi
