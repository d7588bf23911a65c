#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "text/incremental_detokenizer.h"
#include "text/tokenizer.h"

namespace medley::text {

// Who a message of GPT-OSS speaks to.
enum class HarmonyChannel : uint8_t {
  kAnalysis,    // reasoning, not for the user
  kCommentary,  // tool calls (with a recipient), or a preamble for the user (without)
  kFinal,       // the answer
};

struct HarmonyPiece {
  HarmonyChannel channel = HarmonyChannel::kFinal;
  std::string recipient;   // such as "functions.get_weather"; empty: the user
  size_t message_idx = 0;  // counts the messages of this output from 0
  std::string text;        // final; may be empty only in the first piece of a message
};

// Ids of the markers; only a GPT-OSS tokenizer has all of them.
struct HarmonyTokens {
  int32_t start, end, message, channel, constrain, call, return_;

  static std::optional<HarmonyTokens> find(const TextTokenizer& tokenizer);
};

// Splits the output of a GPT-OSS model into messages, token by token. Format: "OpenAI harmony
// response format" (https://cookbook.openai.com/articles/openai-harmony):
//
//   [<|start|>assistant] [to=R] <|channel|>C [to=R] [<|constrain|>T] <|message|> text <|end|>
//
// where the prompt has already given the first <|start|>assistant, and <|call|> or <|return|> may
// stand for <|end|>. Output that breaks the format is not lost: what stands where a header should
// be and cannot be one becomes final text. Not thread-safe.
class HarmonyParser {
 public:
  HarmonyParser(const ffi::TokenPieces& pieces, const HarmonyTokens& tokens);

  // The pieces that the token completes; mostly none or one.
  std::vector<HarmonyPiece> push(int32_t token_id);
  // The rest, when no token follows.
  std::vector<HarmonyPiece> finish();

 private:
  enum class State : uint8_t { kRole, kChannel, kConstrain, kBody };

  void begin_body(HarmonyChannel channel, std::string recipient, std::vector<HarmonyPiece>& out);
  void end_body(std::vector<HarmonyPiece>& out);
  void begin_body_from_header(std::vector<HarmonyPiece>& out);
  void header_is_text(std::vector<HarmonyPiece>& out);
  void unfinished_header(std::vector<HarmonyPiece>& out);
  void begin_header();
  void emit(std::string text, std::vector<HarmonyPiece>& out);

  const ffi::TokenPieces* pieces_;
  HarmonyTokens tokens_;
  State state_ = State::kRole;
  bool start_seen_ = false;      // this header began with <|start|>
  std::vector<int32_t> header_;  // ids since the header began, markers left out
  std::string role_;             // text before <|channel|>
  std::string channel_;          // text after it
  HarmonyPiece current_;
  size_t num_messages_ = 0;
  IncrementalDetokenizer detokenizer_;
};

}  // namespace medley::text
