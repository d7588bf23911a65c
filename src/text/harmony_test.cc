#include "text/harmony.h"

#include <gtest/gtest.h>

#include "ffi/testing.h"
#include "text/json.h"
#include "text/testing.h"

namespace medley::text {
namespace {

// A byte-level tokenizer of the printable ASCII characters, the two bytes of "é" and the markers.
std::string harmony_json() {
  Json vocab = Json::object();
  int32_t id = 0;
  vocab["Ġ"] = id++;
  for (char c = '!'; c <= '~'; ++c) vocab[std::string(1, c)] = id++;
  vocab["Ã"] = id++;
  vocab["©"] = id++;
  Json added = Json::array();
  for (const char* marker : {"<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|constrain|>",
                             "<|call|>", "<|return|>"}) {
    vocab[marker] = id;
    added.push_back({{"id", id++},
                     {"content", marker},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", true}});
  }
  Json json = Json::parse(ffi::testing::byte_level_json());
  json["added_tokens"] = added;
  json["post_processor"] = Json();
  json["model"]["vocab"] = vocab;
  json["model"]["merges"] = Json::array();
  return json.dump();
}

class HarmonyTest : public ::testing::Test {
 protected:
  HarmonyTest() {
    TempFolder folder;
    folder.write("tokenizer.json", harmony_json());
    auto loaded = TextTokenizer::load(folder.path());
    EXPECT_TRUE(loaded.ok()) << loaded.error().message;
    tokenizer_.emplace(std::move(loaded).value());
  }

  // One line per message: channel, recipient, text.
  std::string parse(const std::string& output) const {
    HarmonyParser parser(tokenizer_->pieces(), HarmonyTokens::find(*tokenizer_).value());
    std::vector<HarmonyPiece> pieces;
    const auto take = [&](std::vector<HarmonyPiece> more) {
      for (HarmonyPiece& piece : more) {
        if (!pieces.empty() && pieces.back().message_idx == piece.message_idx) {
          EXPECT_FALSE(piece.text.empty());
          EXPECT_EQ(piece.channel, pieces.back().channel);
          pieces.back().text += piece.text;
        } else {
          EXPECT_EQ(piece.message_idx, pieces.size());
          pieces.push_back(std::move(piece));
        }
      }
    };
    const auto ids = tokenizer_->encode(output, false).value();
    for (const int32_t id : ids) take(parser.push(id));
    take(parser.finish());
    std::string lines;
    for (const HarmonyPiece& piece : pieces) {
      const char* const names[] = {"analysis", "commentary", "final"};
      lines += std::string(names[static_cast<int>(piece.channel)]) + "(" + piece.recipient + ") " +
               piece.text + "\n";
    }
    return lines;
  }

  using TempFolder = testing::TempFolder;
  std::optional<TextTokenizer> tokenizer_;
};

// The outputs follow the examples of the format's description.
TEST_F(HarmonyTest, SplitsReasoningAndAnswer) {
  EXPECT_EQ(parse("<|channel|>analysis<|message|>User asks 2 + 2.<|end|>"
                  "<|start|>assistant<|channel|>final<|message|>2 + 2 = 4.<|return|>"),
            "analysis() User asks 2 + 2.\nfinal() 2 + 2 = 4.\n");
}

TEST_F(HarmonyTest, FindsToolCalls) {
  EXPECT_EQ(parse("<|channel|>analysis<|message|>Need a tool.<|end|><|start|>assistant"
                  "<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>"
                  "{\"city\":\"Lyon\"}<|call|>"),
            "analysis() Need a tool.\ncommentary(functions.get_weather) {\"city\":\"Lyon\"}\n");
  EXPECT_EQ(parse(" to=functions.f<|channel|>commentary <|constrain|>json<|message|>{}<|call|>"),
            "commentary(functions.f) {}\n");
  EXPECT_EQ(parse("<|channel|>commentary<|message|>First I look.<|end|><|start|>assistant"
                  " to=functions.f<|channel|>commentary<|message|>{}<|call|>"),
            "commentary() First I look.\ncommentary(functions.f) {}\n");
}

TEST_F(HarmonyTest, StreamsEachToken) {
  HarmonyParser parser(tokenizer_->pieces(), HarmonyTokens::find(*tokenizer_).value());
  const auto header = tokenizer_->encode("<|channel|>final", false).value();
  for (const int32_t id : header) {
    EXPECT_TRUE(parser.push(id).empty());
  }
  const auto begin = parser.push(tokenizer_->token_to_id("<|message|>").value());
  ASSERT_EQ(begin.size(), 1u);
  EXPECT_EQ(begin[0].text, "");
  const auto letter = parser.push(tokenizer_->token_to_id("h").value());
  ASSERT_EQ(letter.size(), 1u);
  EXPECT_EQ(letter[0].text, "h");
  EXPECT_TRUE(parser.push(tokenizer_->token_to_id("Ã").value()).empty());
  EXPECT_EQ(parser.push(tokenizer_->token_to_id("©").value())[0].text, "é");
}

TEST_F(HarmonyTest, AnOutputCutShortKeepsItsText) {
  EXPECT_EQ(parse("<|channel|>analysis<|message|>thinking about"), "analysis() thinking about\n");
  EXPECT_EQ(parse("<|channel|>anal"), "");
  EXPECT_EQ(parse("<|channel|>final<|message|>done<|end|><|start|>assist"), "final() done\n");
  EXPECT_EQ(parse(" to=func"), "");
  EXPECT_EQ(parse(""), "");
}

TEST_F(HarmonyTest, TextThatIgnoresTheFormatIsTheAnswer) {
  EXPECT_EQ(parse("Hello there."), "final() Hello there.\n");
  EXPECT_EQ(parse(" toad<|return|>"), "final()  toad\n");
  EXPECT_EQ(parse("<|channel|>analysis<|message|>x<|end|>plain"), "analysis() x\nfinal() plain\n");
  EXPECT_EQ(parse("<|channel|>" + std::string(200, 'x')),
            "final() " + std::string(200, 'x') + "\n");
}

TEST_F(HarmonyTest, MarkersNeverReachTheText) {
  const std::string text = parse(
      "<|channel|>final<|message|>a<|constrain|>b<|channel|>c<|message|>d<|start|>e<|return|>");
  EXPECT_EQ(text.find("<|"), std::string::npos);
  EXPECT_EQ(text, "final() abcd\n");
}

TEST(HarmonyTokensTest, OtherTokenizersHaveNone) {
  testing::TempFolder folder;
  folder.write("tokenizer.json", ffi::testing::byte_level_json());
  EXPECT_FALSE(HarmonyTokens::find(*TextTokenizer::load(folder.path())).has_value());
}

}  // namespace
}  // namespace medley::text
