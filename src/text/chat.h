#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "base/error.h"
#include "ffi/ffi.h"
#include "text/json.h"
#include "text/tokenizer_config.h"

namespace medley::text {

struct ChatInput {
  Json messages;  // as in an OpenAI chat request
  Json tools;     // array of OpenAI tools, or null
  bool add_generation_prompt = true;
  Json template_kwargs;                // chat_template_kwargs: object of further names, or null
  std::optional<int64_t> now_seconds;  // what a template takes for the time; the clock's if absent
};

// Renders chats with a model's chat template. Const members are thread-safe.
class ChatRenderer {
 public:
  // `override_source` replaces the model's own templates (--chat-template). kInvalidArgument: a
  // template does not compile. A model without template gives a renderer that refuses to render.
  static Result<ChatRenderer> create(const TokenizerConfig& config,
                                     const std::optional<std::string>& override_source = {});

  bool has_template() const { return !templates_.empty(); }

  // The prompt; its special tokens are in the text. What clients send is fitted to what templates
  // expect: a list of text parts is joined by newlines unless the template walks through parts,
  // null content becomes "" unless the template tests for none, and arguments of tool calls (text
  // in OpenAI's form) are offered as an object, then, should the template fail on it, as text.
  // kInvalidArgument names the field: malformed messages, content other than text, a template that
  // is missing, fails or refuses.
  Result<std::string> render(const ChatInput& input) const;

 private:
  struct Template {
    ffi::ChatTemplate compiled;
    bool walks_parts;
    bool tests_none;
  };

  static Result<Template> compile(const std::string& source);
  const Template& choose(bool has_tools) const;

  std::map<std::string, Template> templates_;
  std::map<std::string, std::string> special_tokens_;
};

}  // namespace medley::text
