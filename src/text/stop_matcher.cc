#include "text/stop_matcher.h"

#include <algorithm>
#include <utility>

namespace medley::text {
namespace {

size_t advance(const std::string& pattern, const std::vector<size_t>& borders, size_t num_matched,
               char c) {
  while (num_matched > 0 && (num_matched == pattern.size() || pattern[num_matched] != c)) {
    num_matched = borders[num_matched];
  }
  return pattern[num_matched] == c ? num_matched + 1 : 0;
}

}  // namespace

StopMatcher::StopMatcher(std::vector<std::string> stops, bool include_stop)
    : include_stop_(include_stop) {
  for (size_t i = 0; i < stops.size(); ++i) {
    if (stops[i].empty()) continue;
    Pattern pattern{.text = std::move(stops[i]), .stop_idx = i, .borders = {0, 0}};
    for (size_t n = 1; n < pattern.text.size(); ++n) {
      pattern.borders.push_back(
          advance(pattern.text, pattern.borders, pattern.borders[n], pattern.text[n]));
    }
    patterns_.push_back(std::move(pattern));
  }
}

StopOutput StopMatcher::push(std::string_view text, bool may_stop) {
  if (stopped_) return {};
  for (const char c : text) {
    held_ += c;
    const Pattern* found = nullptr;
    for (Pattern& pattern : patterns_) {
      pattern.num_matched = advance(pattern.text, pattern.borders, pattern.num_matched, c);
      if (pattern.num_matched == pattern.text.size() &&
          (found == nullptr || pattern.text.size() > found->text.size())) {
        found = &pattern;
      }
    }
    if (found != nullptr && may_stop) {
      stopped_ = true;
      if (!include_stop_) held_.resize(held_.size() - found->text.size());
      return {std::exchange(held_, {}), found->stop_idx};
    }
  }
  size_t num_held = 0;
  for (const Pattern& pattern : patterns_) {
    const bool whole = pattern.num_matched == pattern.text.size();
    num_held = std::max(num_held, whole ? pattern.borders.back() : pattern.num_matched);
  }
  // A character is never cut: if a stop string begins with a part of one, all of it waits.
  size_t end = held_.size() - num_held;
  while (end > 0 && end < held_.size() && (held_[end] & 0xC0) == 0x80) --end;
  StopOutput output{.text = held_.substr(0, end), .stop_idx = std::nullopt};
  held_.erase(0, end);
  return output;
}

std::string StopMatcher::finish() { return std::exchange(held_, {}); }

}  // namespace medley::text
