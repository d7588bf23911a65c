#include "api/tokens.h"

#include "api/json.h"
#include "api/object_reader.h"

namespace medley::api {
namespace {

Result<Json> parse_object(std::string_view body) {
  MEDLEY_TRY_ASSIGN(Json json, parse_json(body));
  if (json.is_object()) return json;
  return invalid_argument(fmt::format("the body must be an object, got {}", kind_of(json)));
}

void read_chat(ObjectReader& reader, const Json& messages, text::ChatInput& chat) {
  if (!messages.is_array()) return reader.fail_type("messages", "a list", messages);
  chat.messages = messages;
  reader.read("add_generation_prompt", chat.add_generation_prompt);
  if (const Json* tools = reader.find("tools")) {
    if (!tools->is_array()) return reader.fail_type("tools", "a list", *tools);
    chat.tools = *tools;
  }
  if (const Json* kwargs = reader.find("chat_template_kwargs")) {
    if (!kwargs->is_object()) {
      return reader.fail_type("chat_template_kwargs", "an object", *kwargs);
    }
    chat.template_kwargs = *kwargs;
  }
  for (const char* field : {"continue_final_message", "chat_template"}) {
    const Json* value = reader.find(field);
    if (value != nullptr && *value != Json(false)) reader.fail(field, "is not supported");
  }
}

}  // namespace

Result<TokenizeRequest> parse_tokenize(std::string_view body) {
  MEDLEY_TRY_ASSIGN(const Json json, parse_object(body));
  ObjectReader reader(json);
  TokenizeRequest request;
  reader.read("model", request.model);
  reader.read("return_token_strs", request.return_token_strs);
  const Json* messages = reader.find("messages");
  const Json* prompt = reader.find("prompt");
  if ((messages == nullptr) == (prompt == nullptr)) {
    reader.fail("prompt", "or `messages` must be given, and not both");
  } else if (messages != nullptr) {
    request.shape = Shape::kChat;
    request.add_special_tokens = false;
    read_chat(reader, *messages, request.chat);
  } else {
    reader.read("prompt", request.prompt);
  }
  reader.read("add_special_tokens", request.add_special_tokens);
  if (reader.error()) return *reader.error();
  return request;
}

Result<DetokenizeRequest> parse_detokenize(std::string_view body) {
  MEDLEY_TRY_ASSIGN(const Json json, parse_object(body));
  ObjectReader reader(json);
  DetokenizeRequest request;
  reader.read("model", request.model);
  if (reader.find("tokens") == nullptr) reader.fail("tokens", "must be given");
  reader.read("tokens", request.tokens);
  if (reader.error()) return *reader.error();
  return request;
}

std::string render_tokenize(const TokenizeAnswer& answer) {
  return dump_json(Json{{"count", answer.tokens.size()},
                        {"max_model_len", answer.max_model_len},
                        {"tokens", answer.tokens},
                        {"token_strs", answer.has_strings ? Json(answer.strings) : Json(nullptr)}});
}

std::string render_detokenize(const std::string& prompt) {
  return dump_json(Json{{"prompt", prompt}});
}

}  // namespace medley::api
