#include "text/incremental_detokenizer.h"

namespace medley::text {
namespace {

std::string encode_utf8(char32_t c) {
  const auto tail = [&](int shift) { return static_cast<char>(0x80 | ((c >> shift) & 0x3F)); };
  if (c < 0x80) return {static_cast<char>(c)};
  if (c < 0x800) return {static_cast<char>(0xC0 | (c >> 6)), tail(0)};
  if (c < 0x10000) return {static_cast<char>(0xE0 | (c >> 12)), tail(6), tail(0)};
  return {static_cast<char>(0xF0 | (c >> 18)), tail(12), tail(6), tail(0)};
}

}  // namespace

IncrementalDetokenizer::IncrementalDetokenizer(const ffi::TokenPieces& pieces,
                                               DetokenizerOptions options)
    : pieces_(&pieces),
      skip_special_tokens_(options.skip_special_tokens),
      num_to_strip_(options.at_text_start ? pieces.strip_start() : 0) {}

std::string IncrementalDetokenizer::push(int32_t token_id) {
  using ffi::TokenPieces;
  std::string out;
  if (pieces_->has(token_id, TokenPieces::kAbsent)) return out;
  if (skip_special_tokens_ && pieces_->has(token_id, TokenPieces::kSpecial)) return out;
  const std::string_view bytes = pieces_->bytes(token_id);
  if (!pieces_->byte_fallback()) {
    std::string text;
    utf8_.push(bytes, text);
    append_text(text, out);
  } else if (pieces_->has(token_id, TokenPieces::kByte)) {
    byte_run_ += bytes;
  } else {
    end_byte_run(out);
    append_text(bytes, out);
  }
  return out;
}

std::string IncrementalDetokenizer::finish() {
  std::string out;
  end_byte_run(out);
  std::string text;
  utf8_.finish(text);
  append_text(text, out);
  return out;
}

void IncrementalDetokenizer::end_byte_run(std::string& out) {
  if (byte_run_.empty()) return;
  if (is_utf8(byte_run_)) {
    append_text(byte_run_, out);
  } else {
    for (size_t i = 0; i < byte_run_.size(); ++i) append_text(kReplacementCharacter, out);
  }
  byte_run_.clear();
}

void IncrementalDetokenizer::append_text(std::string_view text, std::string& out) {
  if (num_to_strip_ > 0 && !text.empty()) {
    const std::string strip = encode_utf8(pieces_->strip_char());
    while (num_to_strip_ > 0 && text.starts_with(strip)) {
      text.remove_prefix(strip.size());
      --num_to_strip_;
    }
    if (!text.empty()) num_to_strip_ = 0;
  }
  out += text;
}

}  // namespace medley::text
