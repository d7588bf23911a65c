#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "api/request.h"
#include "api/response.h"
#include "core/request.h"
#include "server/http.h"
#include "text/harmony.h"
#include "text/incremental_detokenizer.h"
#include "text/stop_matcher.h"

namespace medley::server {

// Turns the tokens of one choice into the text that its client sees: detokenised, cut at stop
// strings, reasoning and answer apart. Not thread-safe.
class ChoiceText {
 public:
  struct Options {
    bool skip_special_tokens = true;
    std::vector<std::string> stop;
    bool include_stop = false;
    std::optional<text::HarmonyTokens> harmony;  // GPT-OSS chat
  };
  ChoiceText(const ffi::TokenPieces& pieces, Options options);

  struct Delta {
    std::string text;
    std::string reasoning;
    std::optional<size_t> stop_idx;  // the stop string that has ended the answer
  };
  // With `may_stop` false (min_tokens) stop strings are let through.
  Delta push(int32_t token_id, bool may_stop);
  // The rest, when no token follows.
  Delta finish();

 private:
  void add_pieces(std::vector<text::HarmonyPiece> pieces, bool may_stop, Delta& delta);
  void add_text(std::string_view text, bool may_stop, Delta& delta);

  text::IncrementalDetokenizer detokenizer_;
  text::StopMatcher stop_matcher_;
  std::optional<text::HarmonyParser> harmony_;
};

// One choice of an answer while it is being generated. Belongs to one output worker.
struct Sequence {
  RequestId id = 0;
  size_t prompt_idx = 0;
  ChoiceText text;
  api::Choice choice;  // so far; of a stream only what has not been sent
  int num_tokens = 0;
  size_t num_characters = 0;  // of the tokens so far whose log-probabilities are shown
  bool first_sent = false;
  bool finished = false;
  int64_t scheduled_ns = 0;       // its first step
  int64_t num_cached_tokens = 0;  // of its prompt
  int64_t first_token_ns = 0;     // 0: no token yet
  int64_t last_token_ns = 0;
};

// One request of a client, from its acceptance to its answer. After it has been handed to its
// output worker only that touches it, save for `cancelled` and what is const.
struct Generation {
  const api::GenerationRequest request;
  const api::ResponseHead head;
  const std::string adapter = {};  // empty: the base model
  const std::shared_ptr<Exchange> exchange;
  const int64_t arrival_ns;
  const std::vector<std::vector<int32_t>> prompts;
  std::vector<std::string> echoes;  // one per prompt, where asked for
  std::vector<Sequence> sequences;
  size_t num_unfinished = 0;
  std::atomic<bool> cancelled = false;  // the client is gone, or has been told of an error

  int64_t num_prompt_tokens() const;
};

}  // namespace medley::server
