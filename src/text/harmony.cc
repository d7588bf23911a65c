#include "text/harmony.h"

#include <string_view>
#include <utility>

namespace medley::text {
namespace {

// A tool's name is at most 64 characters; a header names a role, a channel, a recipient and a type.
constexpr size_t kMaxHeaderTokens = 96;

// The recipient in "assistant to=functions.f" or "commentary to=functions.f json".
std::string recipient_in(std::string_view header) {
  const size_t at = header.find("to=");
  if (at == std::string_view::npos) return {};
  header.remove_prefix(at + 3);
  return std::string(header.substr(0, header.find_first_of(" \t\n")));
}

// `role` is a beginning of " to=R", which may stand between the prompt's <|start|>assistant and
// <|channel|>.
bool may_be_recipient(std::string_view role) {
  constexpr std::string_view kTo = "to=";
  const size_t begin = role.find_first_not_of(' ');
  if (begin == std::string_view::npos) return true;
  role.remove_prefix(begin);
  return role.starts_with(kTo) || kTo.starts_with(role);
}

std::string_view first_word(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t\n");
  if (begin == std::string_view::npos) return {};
  text.remove_prefix(begin);
  return text.substr(0, text.find_first_of(" \t\n"));
}

}  // namespace

std::optional<HarmonyTokens> HarmonyTokens::find(const TextTokenizer& tokenizer) {
  const auto start = tokenizer.token_to_id("<|start|>");
  const auto end = tokenizer.token_to_id("<|end|>");
  const auto message = tokenizer.token_to_id("<|message|>");
  const auto channel = tokenizer.token_to_id("<|channel|>");
  const auto constrain = tokenizer.token_to_id("<|constrain|>");
  const auto call = tokenizer.token_to_id("<|call|>");
  const auto return_ = tokenizer.token_to_id("<|return|>");
  if (!start || !end || !message || !channel || !constrain || !call || !return_) return {};
  return HarmonyTokens{*start, *end, *message, *channel, *constrain, *call, *return_};
}

HarmonyParser::HarmonyParser(const ffi::TokenPieces& pieces, const HarmonyTokens& tokens)
    : pieces_(&pieces), tokens_(tokens), detokenizer_(pieces) {}

std::vector<HarmonyPiece> HarmonyParser::push(int32_t token_id) {
  std::vector<HarmonyPiece> out;
  const bool ends =
      token_id == tokens_.end || token_id == tokens_.call || token_id == tokens_.return_;
  if (ends || token_id == tokens_.start) {
    if (state_ == State::kBody) {
      end_body(out);
    } else if (ends) {
      unfinished_header(out);
    }
    begin_header();
    start_seen_ = token_id == tokens_.start;
    return out;
  }
  if (state_ == State::kBody) {
    emit(detokenizer_.push(token_id), out);
    return out;
  }
  if (token_id == tokens_.message) {
    begin_body_from_header(out);
  } else if (token_id == tokens_.channel) {
    state_ = State::kChannel;
  } else if (token_id == tokens_.constrain) {
    state_ = State::kConstrain;
  } else {
    header_.push_back(token_id);
    if (state_ == State::kRole) role_ += pieces_->bytes(token_id);
    if (state_ == State::kChannel) channel_ += pieces_->bytes(token_id);
    const bool breaks_format = state_ == State::kRole && !start_seen_ && !may_be_recipient(role_);
    if (breaks_format || header_.size() > kMaxHeaderTokens) header_is_text(out);
  }
  return out;
}

std::vector<HarmonyPiece> HarmonyParser::finish() {
  std::vector<HarmonyPiece> out;
  if (state_ == State::kBody) {
    end_body(out);
  } else {
    unfinished_header(out);
  }
  begin_header();
  return out;
}

void HarmonyParser::begin_header() {
  state_ = State::kRole;
  start_seen_ = false;
  header_.clear();
  role_.clear();
  channel_.clear();
}

void HarmonyParser::begin_body_from_header(std::vector<HarmonyPiece>& out) {
  const std::string_view name = first_word(channel_);
  HarmonyChannel channel = HarmonyChannel::kFinal;
  if (name == "analysis") channel = HarmonyChannel::kAnalysis;
  if (name == "commentary") channel = HarmonyChannel::kCommentary;
  std::string recipient = recipient_in(channel_);
  if (recipient.empty()) recipient = recipient_in(role_);
  begin_body(channel, std::move(recipient), out);
}

void HarmonyParser::begin_body(HarmonyChannel channel, std::string recipient,
                               std::vector<HarmonyPiece>& out) {
  state_ = State::kBody;
  current_ = {.channel = channel,
              .recipient = std::move(recipient),
              .message_idx = num_messages_++,
              .text = {}};
  out.push_back(current_);
  detokenizer_ = IncrementalDetokenizer(*pieces_);
}

void HarmonyParser::end_body(std::vector<HarmonyPiece>& out) { emit(detokenizer_.finish(), out); }

void HarmonyParser::header_is_text(std::vector<HarmonyPiece>& out) {
  const std::vector<int32_t> ids = std::exchange(header_, {});
  begin_body(HarmonyChannel::kFinal, {}, out);
  for (const int32_t id : ids) emit(detokenizer_.push(id), out);
}

// The output ended before <|message|>. A header cut short says nothing to the user; but without
// <|start|> or <|channel|> it was an answer that ignores the format.
void HarmonyParser::unfinished_header(std::vector<HarmonyPiece>& out) {
  const bool is_header = start_seen_ || state_ != State::kRole || role_.find("to=") != role_.npos;
  if (is_header || header_.empty()) return;
  header_is_text(out);
  end_body(out);
}

void HarmonyParser::emit(std::string text, std::vector<HarmonyPiece>& out) {
  if (text.empty()) return;
  if (!out.empty() && out.back().message_idx == current_.message_idx) {
    out.back().text += text;
    return;
  }
  out.push_back(current_);
  out.back().text = std::move(text);
}

}  // namespace medley::text
