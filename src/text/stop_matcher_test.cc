#include "text/stop_matcher.h"

#include <random>

#include <gtest/gtest.h>

#include "text/utf8.h"

namespace medley::text {
namespace {

TEST(StopMatcherTest, PassesTextOnAtOnceWithoutStops) {
  StopMatcher matcher({});
  EXPECT_EQ(matcher.push("abc").text, "abc");
  EXPECT_EQ(matcher.finish(), "");
}

TEST(StopMatcherTest, HoldsBackWhatMayBecomeAStop) {
  StopMatcher matcher({"\n\nUser:"});
  EXPECT_EQ(matcher.push("hi\n").text, "hi");
  EXPECT_EQ(matcher.push("\nUs").text, "");
  EXPECT_EQ(matcher.push("ual\n").text, "\n\nUsual");
  EXPECT_EQ(matcher.finish(), "\n");
}

TEST(StopMatcherTest, CutsAtTheStopAndDropsTheRest) {
  StopMatcher matcher({"zzz", "END"});
  EXPECT_EQ(matcher.push("one E").text, "one ");
  EXPECT_EQ(matcher.push("N").text, "");
  const StopOutput last = matcher.push("D two");
  EXPECT_EQ(last.text, "");
  EXPECT_EQ(last.stop_idx, 1u);
  EXPECT_EQ(matcher.push("three").text, "");
  EXPECT_EQ(matcher.finish(), "");
}

TEST(StopMatcherTest, KeepsTheStopWhenAsked) {
  StopMatcher matcher({"END"}, /*include_stop=*/true);
  EXPECT_EQ(matcher.push("one E").text, "one ");
  const StopOutput last = matcher.push("ND two");
  EXPECT_EQ(last.text, "END");
  EXPECT_EQ(last.stop_idx, 0u);
}

TEST(StopMatcherTest, TakesTheFirstToEndAndThenTheLongest) {
  StopMatcher first({"bcd", "c"});
  const StopOutput by_end = first.push("abcd");
  EXPECT_EQ(by_end.text, "ab");
  EXPECT_EQ(by_end.stop_idx, 1u);

  StopMatcher longest({"c", "bc", ""});
  const StopOutput by_length = longest.push("abcd");
  EXPECT_EQ(by_length.text, "a");
  EXPECT_EQ(by_length.stop_idx, 1u);
}

TEST(StopMatcherTest, FindsAStopThatOverlapsItself) {
  StopMatcher matcher({"aabaac"});
  EXPECT_EQ(matcher.push("xaabaabaa").text, "xaab");
  const StopOutput last = matcher.push("c");
  EXPECT_EQ(last.text, "");
  EXPECT_EQ(last.stop_idx, 0u);
}

TEST(StopMatcherTest, LetsStopsThroughBelowTheMinimum) {
  StopMatcher matcher({"ab", "bc"});
  const StopOutput early = matcher.push("xab", /*may_stop=*/false);
  EXPECT_FALSE(early.stop_idx);
  EXPECT_EQ(early.text, "xa");
  const StopOutput late = matcher.push("c");
  EXPECT_EQ(late.text, "");
  EXPECT_EQ(late.stop_idx, 1u);
}

// The reference searches the whole text.
TEST(StopMatcherTest, AgreesWithASearchOfTheWholeText) {
  std::mt19937 random(11);
  const std::vector<std::string> alphabet = {"a", "b", "é", "漢"};
  const auto word = [&](size_t max_size) {
    std::string text;
    for (size_t n = random() % (max_size + 1); n > 0; --n) text += alphabet[random() % 4];
    return text;
  };
  int num_stopped = 0;
  for (int round = 0; round < 20000; ++round) {
    std::vector<std::string> stops = {word(3), word(4)};
    if (random() % 4 == 0 && stops[0].size() > 1) stops[0].erase(0, 1);
    const bool include = random() % 2 == 0;
    std::vector<std::string> chunks;
    std::string whole;
    for (int i = 0; i < 6; ++i) whole += chunks.emplace_back(word(3));

    std::string expected = whole;
    bool expect_stop = false;
    for (size_t end = 1; end <= whole.size() && !expect_stop; ++end) {
      size_t longest = 0;
      for (const std::string& stop : stops) {
        if (!stop.empty() && std::string_view(whole).substr(0, end).ends_with(stop)) {
          longest = std::max(longest, stop.size());
        }
      }
      if (longest == 0) continue;
      expect_stop = true;
      expected = whole.substr(0, include ? end : end - longest);
    }

    StopMatcher matcher(stops, include);
    std::string text;
    bool stopped = false;
    for (const std::string& chunk : chunks) {
      const StopOutput output = matcher.push(chunk);
      if (is_utf8(expected)) {
        EXPECT_TRUE(is_utf8(output.text));
      }
      text += output.text;
      stopped = stopped || output.stop_idx.has_value();
    }
    text += matcher.finish();
    ASSERT_EQ(text, expected) << whole << " | " << stops[0] << " | " << stops[1];
    ASSERT_EQ(stopped, expect_stop);
    num_stopped += stopped;
  }
  EXPECT_GT(num_stopped, 5000);
  EXPECT_LT(num_stopped, 19000);
}

}  // namespace
}  // namespace medley::text
