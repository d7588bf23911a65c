#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "ffi/ffi.h"
#include "text/utf8.h"

namespace medley::text {

struct DetokenizerOptions {
  bool skip_special_tokens = true;
  // The ids are a text of their own rather than the continuation of a prompt: the tokenizer's rule
  // for the very start (dropping the space that SentencePiece puts there) applies.
  bool at_text_start = false;
};

// Turns one sequence of token ids into text, piece by piece. A piece is well-formed UTF-8 and
// final: whatever comes later, the concatenation of all pieces equals the decoding of the whole
// sequence. Cost per token: its own bytes. Not thread-safe; `pieces` must outlive it.
class IncrementalDetokenizer {
 public:
  explicit IncrementalDetokenizer(const ffi::TokenPieces& pieces, DetokenizerOptions options = {});

  // The text that has become final; may be empty. An id without token adds nothing.
  std::string push(int32_t token_id);
  // The rest, when no token follows.
  std::string finish();

 private:
  void end_byte_run(std::string& out);
  void append_text(std::string_view text, std::string& out);

  const ffi::TokenPieces* pieces_;
  bool skip_special_tokens_;
  uint32_t num_to_strip_;  // characters still to be dropped while they lead the text
  Utf8Stream utf8_;        // without byte fallback
  std::string byte_run_;   // with byte fallback: bytes of the current run
};

}  // namespace medley::text
