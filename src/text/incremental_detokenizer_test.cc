#include "text/incremental_detokenizer.h"

#include <random>

#include <gtest/gtest.h>

#include "ffi/testing.h"

namespace medley::text {
namespace {

using ffi::testing::byte_fallback_json;
using ffi::testing::byte_level_json;

ffi::Tokenizer load(std::string_view json) {
  ffi::testing::TempFile file("tokenizer.json", json);
  auto tokenizer = ffi::Tokenizer::load(file.path());
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.error().message;
  return std::move(tokenizer).value();
}

std::vector<std::string> pieces_of(const ffi::Tokenizer& tokenizer, const std::vector<int32_t>& ids,
                                   DetokenizerOptions options = {}) {
  IncrementalDetokenizer detokenizer(tokenizer.pieces(), options);
  std::vector<std::string> pieces;
  for (const int32_t id : ids) pieces.push_back(detokenizer.push(id));
  pieces.push_back(detokenizer.finish());
  return pieces;
}

using Pieces = std::vector<std::string>;

TEST(IncrementalDetokenizerTest, HoldsIncompleteCharacters) {
  const auto tokenizer = load(byte_level_json());
  EXPECT_EQ(pieces_of(tokenizer, {4, 2, 3, 6}), (Pieces{"ab", "", "é", " ", ""}));
  EXPECT_EQ(pieces_of(tokenizer, {9, 10, 11, 12}), (Pieces{"", "", "", "\U0001F600", ""}));
  EXPECT_EQ(pieces_of(tokenizer, {13}), (Pieces{"é", ""}));
}

TEST(IncrementalDetokenizerTest, ReplacesBytesThatAreNotUtf8) {
  const auto tokenizer = load(byte_level_json());
  EXPECT_EQ(pieces_of(tokenizer, {2, 0}), (Pieces{"", "\uFFFDa", ""}));
  EXPECT_EQ(pieces_of(tokenizer, {9, 10, 0}), (Pieces{"", "", "\uFFFDa", ""}));
  EXPECT_EQ(pieces_of(tokenizer, {9, 10, 11}), (Pieces{"", "", "", "\uFFFD"}));
  EXPECT_EQ(pieces_of(tokenizer, {3, 3}), (Pieces{"\uFFFD", "\uFFFD", ""}));
}

TEST(IncrementalDetokenizerTest, SkipsSpecialTokensAndUnknownIds) {
  const auto tokenizer = load(byte_level_json());
  EXPECT_EQ(pieces_of(tokenizer, {5, 0, 8, 900, -1, 7}),
            (Pieces{"", "a", "<call>", "", "", "", ""}));
  EXPECT_EQ(pieces_of(tokenizer, {5, 0}, {.skip_special_tokens = false}), (Pieces{"<s>", "a", ""}));
}

TEST(IncrementalDetokenizerTest, DecodesRunsOfFallbackBytesWhole) {
  const auto tokenizer = load(byte_fallback_json());
  EXPECT_EQ(pieces_of(tokenizer, {6, 7, 4}), (Pieces{"", "", "éb", ""}));
  EXPECT_EQ(pieces_of(tokenizer, {6, 7, 6, 4}), (Pieces{"", "", "", "\uFFFD\uFFFD\uFFFDb", ""}));
  EXPECT_EQ(pieces_of(tokenizer, {8, 6, 7}), (Pieces{"", "", "", "Aé"}));
}

TEST(IncrementalDetokenizerTest, DropsTheLeadingSpaceOnlyAtTheStartOfAText) {
  const auto tokenizer = load(byte_fallback_json());
  EXPECT_EQ(pieces_of(tokenizer, {3, 3}), (Pieces{" a", " a", ""}));
  EXPECT_EQ(pieces_of(tokenizer, {3, 3}, {.at_text_start = true}), (Pieces{"a", " a", ""}));
  EXPECT_EQ(pieces_of(tokenizer, {5, 5, 4}, {.at_text_start = true}), (Pieces{"", " ", "b", ""}));
}

// The reference is the tokenizers library's decoding of the whole sequence.
TEST(IncrementalDetokenizerTest, PiecesJoinToTheWholeDecoding) {
  std::mt19937 random(7);
  for (const std::string& json : {byte_level_json(), byte_fallback_json()}) {
    const auto tokenizer = load(json);
    for (int round = 0; round < 3000; ++round) {
      std::vector<int32_t> ids(random() % 12);
      for (int32_t& id : ids) id = static_cast<int32_t>(random() % (tokenizer.vocab_size() + 1));
      const bool skip = random() % 2 == 0;
      std::string joined;
      for (const std::string& piece :
           pieces_of(tokenizer, ids, {.skip_special_tokens = skip, .at_text_start = true})) {
        EXPECT_TRUE(is_utf8(piece));
        joined += piece;
      }
      ASSERT_EQ(joined, tokenizer.decode(ids, skip).value()) << ::testing::PrintToString(ids);
    }
  }
}

// Examples of Unicode 15, section 3.9, tables 3-8 to 3-11.
TEST(Utf8StreamTest, ReplacesMaximalIllFormedParts) {
  const auto decode = [](std::string_view bytes) {
    Utf8Stream stream;
    std::string out;
    for (const char c : bytes) stream.push({&c, 1}, out);
    stream.finish(out);
    return out;
  };
  const std::string r(kReplacementCharacter);
  EXPECT_EQ(decode("\xC0\xAF\xE0\x80\xBF\xF0\x81\x82\x41"), r + r + r + r + r + r + r + r + "A");
  EXPECT_EQ(decode("\xED\xA0\x80\xED\xBF\xBF\xED\xAF\x41"), r + r + r + r + r + r + r + r + "A");
  EXPECT_EQ(decode("\xF4\x91\x92\x93\xFF\x41\x80\xBF\x42"), r + r + r + r + r + "A" + r + r + "B");
  EXPECT_EQ(decode("\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41"), r + r + r + r + "A");
  EXPECT_EQ(decode("\xF0\x9F\x98"), r);
}

TEST(Utf8StreamTest, KnowsUtf8) {
  EXPECT_TRUE(is_utf8(""));
  EXPECT_TRUE(is_utf8("aé漢\U0001F600\U0010FFFF"));
  EXPECT_FALSE(is_utf8("\xE6\xBC"));
  EXPECT_FALSE(is_utf8("\xED\xA0\x80"));
  EXPECT_FALSE(is_utf8("\xF4\x90\x80\x80"));
  EXPECT_FALSE(is_utf8("a\x80"));
}

}  // namespace
}  // namespace medley::text
