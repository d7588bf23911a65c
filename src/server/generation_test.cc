#include "server/generation.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "text/tokenizer.h"

namespace medley::server {
namespace {

// GPT-OSS's published tokenizer, as `make test` fetches it.
class ChoiceTextTest : public ::testing::Test {
 protected:
  ChoiceTextTest()
      : tokenizer_(text::TextTokenizer::load(std::string(std::getenv("MEDLEY_TOKENIZERS_DIR")) +
                                             "/gpt-oss")
                       .value()) {}

  // Everything that a client sees of `output`, cut where a stop string ends it.
  ChoiceText::Delta read(const std::string& output, ChoiceText::Options options) {
    ChoiceText text(tokenizer_.pieces(), std::move(options));
    ChoiceText::Delta all;
    for (const int32_t id : tokenizer_.encode(output, /*add_special_tokens=*/false).value()) {
      add(text.push(id, /*may_stop=*/true), all);
      if (all.stop_idx) return all;
    }
    add(text.finish(), all);
    return all;
  }

  static void add(const ChoiceText::Delta& delta, ChoiceText::Delta& all) {
    all.text += delta.text;
    all.reasoning += delta.reasoning;
    if (delta.stop_idx) all.stop_idx = delta.stop_idx;
  }

  ChoiceText::Options harmony() { return {.harmony = text::HarmonyTokens::find(tokenizer_)}; }

  const text::TextTokenizer tokenizer_;
};

const std::string kOutput =
    "<|channel|>analysis<|message|>The user greets me. Paris is fine.<|end|>"
    "<|start|>assistant<|channel|>commentary<|message|>One moment. <|end|>"
    "<|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{\"a\":1}"
    "<|call|><|start|>assistant<|channel|>final<|message|>Hello from Paris, né?<|return|>";

TEST_F(ChoiceTextTest, ReasoningAndAnswerStandApartWithoutMarkers) {
  const ChoiceText::Delta all = read(kOutput, harmony());
  EXPECT_EQ(all.text, "One moment. Hello from Paris, né?");
  EXPECT_EQ(all.reasoning, "The user greets me. Paris is fine.{\"a\":1}");
}

TEST_F(ChoiceTextTest, StopStringsConcernTheAnswerAlone) {
  ChoiceText::Options options = harmony();
  options.stop = {"never", "Paris"};
  const ChoiceText::Delta all = read(kOutput, options);
  EXPECT_EQ(all.text, "One moment. Hello from ");
  EXPECT_EQ(all.stop_idx, 1u);
  EXPECT_EQ(all.reasoning, "The user greets me. Paris is fine.{\"a\":1}");
}

TEST_F(ChoiceTextTest, OutputCutOffInTheReasoningIsNotLost) {
  const ChoiceText::Delta all = read("<|channel|>analysis<|message|>Let me think", harmony());
  EXPECT_EQ(all.text, "");
  EXPECT_EQ(all.reasoning, "Let me think");
}

TEST_F(ChoiceTextTest, WithoutHarmonySpecialTokensFollowTheRequest) {
  EXPECT_EQ(read("a<|end|>b", {}).text, "ab");
  EXPECT_EQ(read("a<|end|>b", {.skip_special_tokens = false}).text, "a<|end|>b");
}

TEST_F(ChoiceTextTest, StopStringHeldBackComesOutAtTheEnd) {
  EXPECT_EQ(read("one two th", {.stop = {"three"}}).text, "one two th");
}

}  // namespace
}  // namespace medley::server
