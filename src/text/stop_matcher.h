#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace medley::text {

struct StopOutput {
  std::string text;                // final: no later text can make it part of a stop string
  std::optional<size_t> stop_idx;  // which stop string ended the output
};

// Finds stop strings in a stream of text, however it is cut into pieces, and holds back what may
// turn out to be the beginning of one. The stop string that ends first wins; of several that end
// at the same byte, the longest. Cost per byte: amortised constant per stop string (Knuth, Morris,
// Pratt). Not thread-safe.
class StopMatcher {
 public:
  // Empty strings in `stops` are ignored. The text ends before the stop string, or after it with
  // `include_stop`.
  explicit StopMatcher(std::vector<std::string> stops, bool include_stop = false);

  // After a stop was found everything further is dropped. With `may_stop` false (min_tokens) a stop
  // string that ends in `text` is let through.
  StopOutput push(std::string_view text, bool may_stop = true);
  // What was held back, when no text follows.
  std::string finish();

 private:
  struct Pattern {
    std::string text;
    size_t stop_idx;
    std::vector<size_t> borders;  // borders[n]: longest proper border of the first n bytes
    size_t num_matched = 0;       // bytes of `text` that the stream ends with
  };

  std::vector<Pattern> patterns_;
  bool include_stop_;
  bool stopped_ = false;
  std::string held_;
};

}  // namespace medley::text
