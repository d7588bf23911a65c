#include "text/chat.h"

#include <chrono>
#include <regex>
#include <utility>

#include <fmt/format.h>

namespace medley::text {
namespace {

std::string dump(const Json& json) {
  return json.dump(/*indent=*/-1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
}

Result<std::string> part_text(const Json& part, const std::string& param) {
  if (part.is_string()) return part.get<std::string>();
  if (!part.is_object() || !part.contains("type") || !part["type"].is_string()) {
    return invalid_argument(
        fmt::format("{}: expected an object with a type, found {}", param, part.type_name()),
        param);
  }
  const std::string type = part["type"].get<std::string>();
  if (type != "text" && type != "input_text" && type != "output_text") {
    return unsupported(
        fmt::format("{}: content of type '{}' is not supported, only text", param, type), param);
  }
  if (!part.contains("text") || !part["text"].is_string()) {
    return invalid_argument(fmt::format("{}: expected a string in 'text'", param), param);
  }
  return part["text"].get<std::string>();
}

struct ContentForm {
  bool keep_parts;
  bool keep_null;
};

Result<Json> fit_content(const Json& content, ContentForm form, const std::string& param) {
  if (content.is_string()) return content;
  if (content.is_null()) return form.keep_null ? Json() : Json("");
  if (!content.is_array()) {
    return invalid_argument(fmt::format("{}: expected a string, a list of parts or null, found {}",
                                        param, content.type_name()),
                            param);
  }
  Json parts = Json::array();
  std::string joined;
  for (size_t i = 0; i < content.size(); ++i) {
    MEDLEY_TRY_ASSIGN(std::string text, part_text(content[i], fmt::format("{}[{}]", param, i)));
    if (i > 0) joined += '\n';
    joined += text;
    parts.push_back({{"type", "text"}, {"text", std::move(text)}});
  }
  return form.keep_parts ? parts : Json(std::move(joined));
}

// Turns the text form of tool call arguments into objects. True if there was any.
Result<bool> parse_arguments(Json& message, const std::string& param) {
  const auto calls = message.find("tool_calls");
  if (calls == message.end() || calls->is_null()) return false;
  if (!calls->is_array()) {
    return invalid_argument(
        fmt::format("{}.tool_calls: expected a list, found {}", param, calls->type_name()),
        param + ".tool_calls");
  }
  bool any = false;
  for (size_t i = 0; i < calls->size(); ++i) {
    Json& call = (*calls)[i];
    const std::string name = fmt::format("{}.tool_calls[{}].function", param, i);
    if (!call.is_object() || !call.contains("function") || !call["function"].is_object()) {
      return invalid_argument(fmt::format("{}: expected an object", name), name);
    }
    Json& function = call["function"];
    const auto arguments = function.find("arguments");
    if (arguments == function.end() || !arguments->is_string()) continue;
    const std::string& text = arguments->get_ref<const std::string&>();
    Json parsed = text.empty() ? Json::object() : Json::parse(text, nullptr, false);
    if (parsed.is_discarded()) {
      return invalid_argument(fmt::format("{}.arguments: not valid JSON", name),
                              name + ".arguments");
    }
    *arguments = std::move(parsed);
    any = true;
  }
  return any;
}

}  // namespace

Result<ChatRenderer::Template> ChatRenderer::compile(const std::string& source) {
  static const std::regex walks_parts(
      R"(\bfor\s+\w+\s+in\s+(\w+(\.content\b|\[\s*['"]content['"]\s*\])|content\b))");
  static const std::regex tests_none(R"(content(['"]\s*\])?\s+is\s+(not\s+)?none\b)");
  MEDLEY_TRY_ASSIGN(ffi::ChatTemplate compiled, ffi::ChatTemplate::compile(source));
  return Template{.compiled = std::move(compiled),
                  .walks_parts = std::regex_search(source, walks_parts),
                  .tests_none = std::regex_search(source, tests_none)};
}

Result<ChatRenderer> ChatRenderer::create(const TokenizerConfig& config,
                                          const std::optional<std::string>& override_source) {
  ChatRenderer renderer;
  renderer.special_tokens_ = config.special_tokens;
  std::map<std::string, std::string> sources = config.chat_templates;
  if (override_source) sources = {{"default", *override_source}};
  for (const auto& [name, source] : sources) {
    auto compiled = compile(source);
    if (!compiled.ok()) {
      return invalid_argument(fmt::format("chat template '{}': {}", name, compiled.error().message),
                              "chat_template");
    }
    renderer.templates_.emplace(name, std::move(compiled).value());
  }
  return renderer;
}

const ChatRenderer::Template& ChatRenderer::choose(bool has_tools) const {
  if (has_tools) {
    if (const auto found = templates_.find("tool_use"); found != templates_.end()) {
      return found->second;
    }
  }
  const auto found = templates_.find("default");
  return found != templates_.end() ? found->second : templates_.begin()->second;
}

Result<std::string> ChatRenderer::render(const ChatInput& input) const {
  if (templates_.empty()) {
    return invalid_argument(
        "this model has no chat template (neither chat_template in tokenizer_config.json, nor "
        "chat_template.jinja, nor chat_template.json): give one with --chat-template, or use "
        "/v1/completions",
        "messages");
  }
  if (!input.messages.is_array() || input.messages.empty()) {
    return invalid_argument("messages: expected a list with at least one message", "messages");
  }
  const bool has_tools = input.tools.is_array() && !input.tools.empty();
  if (!input.tools.is_null() && !input.tools.is_array()) {
    return invalid_argument(
        fmt::format("tools: expected a list, found {}", input.tools.type_name()), "tools");
  }
  const Template& chosen = choose(has_tools);

  Json messages = input.messages;
  for (size_t i = 0; i < messages.size(); ++i) {
    Json& message = messages[i];
    const std::string param = fmt::format("messages[{}]", i);
    if (!message.is_object() || !message.contains("role") || !message["role"].is_string()) {
      return invalid_argument(
          fmt::format("{}: expected an object with a role, found {}", param, message.type_name()),
          param);
    }
    MEDLEY_TRY_ASSIGN(
        message["content"],
        fit_content(message.contains("content") ? message["content"] : Json(),
                    {.keep_parts = chosen.walks_parts, .keep_null = chosen.tests_none},
                    param + ".content"));
  }
  Json variables = Json::object();
  for (const auto& [name, token] : special_tokens_) variables[name] = token;
  variables["messages"] = messages;
  variables["tools"] = has_tools ? input.tools : Json();
  variables["documents"] = Json();
  variables["add_generation_prompt"] = input.add_generation_prompt;
  if (!input.template_kwargs.is_null() && !input.template_kwargs.is_object()) {
    return invalid_argument(fmt::format("chat_template_kwargs: expected an object, found {}",
                                        input.template_kwargs.type_name()),
                            "chat_template_kwargs");
  }
  for (const auto& [name, value] : input.template_kwargs.items()) variables[name] = value;

  const int64_t now =
      input.now_seconds.value_or(std::chrono::duration_cast<std::chrono::seconds>(
                                     std::chrono::system_clock::now().time_since_epoch())
                                     .count());
  const auto render_with = [&]() -> Result<std::string> {
    auto text = chosen.compiled.render(dump(variables), now);
    if (!text.ok()) return Error{text.error().code, text.error().message, "messages"};
    return text;
  };

  bool any_parsed = false;
  for (size_t i = 0; i < messages.size(); ++i) {
    MEDLEY_TRY_ASSIGN(const bool parsed,
                      parse_arguments(variables["messages"][i], fmt::format("messages[{}]", i)));
    any_parsed = any_parsed || parsed;
  }
  Result<std::string> text = render_with();
  if (text.ok() || !any_parsed) return text;
  variables["messages"] = std::move(messages);
  Result<std::string> second = render_with();
  return second.ok() ? second : text;
}

}  // namespace medley::text
