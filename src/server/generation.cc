#include "server/generation.h"

namespace medley::server {

ChoiceText::ChoiceText(const ffi::TokenPieces& pieces, Options options)
    : detokenizer_(pieces, {.skip_special_tokens = options.skip_special_tokens}),
      stop_matcher_(std::move(options.stop), options.include_stop) {
  if (options.harmony) harmony_.emplace(pieces, *options.harmony);
}

ChoiceText::Delta ChoiceText::push(int32_t token_id, bool may_stop) {
  Delta delta;
  if (harmony_) {
    add_pieces(harmony_->push(token_id), may_stop, delta);
  } else {
    add_text(detokenizer_.push(token_id), may_stop, delta);
  }
  return delta;
}

ChoiceText::Delta ChoiceText::finish() {
  Delta delta;
  if (harmony_) {
    add_pieces(harmony_->finish(), /*may_stop=*/true, delta);
  } else {
    add_text(detokenizer_.finish(), /*may_stop=*/true, delta);
  }
  if (!delta.stop_idx) delta.text += stop_matcher_.finish();
  return delta;
}

// The answer is what speaks to the user: the final channel, and commentary without a recipient.
void ChoiceText::add_pieces(std::vector<text::HarmonyPiece> pieces, bool may_stop, Delta& delta) {
  for (const text::HarmonyPiece& piece : pieces) {
    const bool to_user =
        piece.recipient.empty() && piece.channel != text::HarmonyChannel::kAnalysis;
    if (to_user) {
      add_text(piece.text, may_stop, delta);
    } else {
      delta.reasoning += piece.text;
    }
  }
}

void ChoiceText::add_text(std::string_view text, bool may_stop, Delta& delta) {
  if (delta.stop_idx) return;
  text::StopOutput out = stop_matcher_.push(text, may_stop);
  delta.text += out.text;
  delta.stop_idx = out.stop_idx;
}

int64_t Generation::num_prompt_tokens() const {
  int64_t num_tokens = 0;
  for (const std::vector<int32_t>& prompt : prompts) {
    num_tokens += static_cast<int64_t>(prompt.size());
  }
  return num_tokens;
}

}  // namespace medley::server
