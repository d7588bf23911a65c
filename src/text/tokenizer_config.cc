#include "text/tokenizer_config.h"

#include <filesystem>
#include <fstream>
#include <iterator>

#include <fmt/format.h>

#include "text/json.h"

namespace medley::text {
namespace {

namespace fs = std::filesystem;

Result<std::optional<std::string>> read_if_present(const fs::path& path) {
  std::error_code error;
  if (!fs::exists(path, error)) return std::optional<std::string>();
  std::ifstream file(path, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  if (!file) return invalid_argument(fmt::format("cannot read {}", path.string()));
  return std::optional(std::move(text));
}

// Null when the file is missing.
Result<Json> read_object(const fs::path& path) {
  MEDLEY_TRY_ASSIGN(const auto text, read_if_present(path));
  if (!text) return Json();
  Json json = Json::parse(*text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) {
    return invalid_argument(fmt::format("{}: expected a JSON object", path.string()));
  }
  return json;
}

// A special token is a string or an object with `content`.
void add_special_tokens(const Json& json, TokenizerConfig& config) {
  for (const char* name : {"bos_token", "eos_token", "unk_token", "sep_token", "pad_token",
                           "cls_token", "mask_token"}) {
    const auto token = json.find(name);
    if (token == json.end()) continue;
    if (token->is_string()) {
      config.special_tokens[name] = token->get<std::string>();
    } else if (token->is_object() && token->contains("content") &&
               (*token)["content"].is_string()) {
      config.special_tokens[name] = (*token)["content"].get<std::string>();
    }
  }
}

Result<void> add_chat_templates(const Json& json, const fs::path& path, TokenizerConfig& config) {
  const auto field = json.find("chat_template");
  if (field == json.end() || field->is_null()) return {};
  if (field->is_string()) {
    config.chat_templates["default"] = field->get<std::string>();
    return {};
  }
  const Error wrong = invalid_argument(fmt::format(
      "{}: chat_template must be a string or a list of objects with name and template, found {}",
      path.string(), field->type_name()));
  if (!field->is_array()) return wrong;
  for (const Json& item : *field) {
    if (!item.is_object() || !item.contains("name") || !item.contains("template") ||
        !item["name"].is_string() || !item["template"].is_string()) {
      return wrong;
    }
    config.chat_templates[item["name"].get<std::string>()] = item["template"].get<std::string>();
  }
  return {};
}

}  // namespace

Result<TokenizerConfig> read_tokenizer_config(const std::string& folder) {
  const fs::path base(folder);
  TokenizerConfig config;
  MEDLEY_TRY_ASSIGN(const Json map, read_object(base / "special_tokens_map.json"));
  if (map.is_object()) add_special_tokens(map, config);

  const fs::path config_path = base / "tokenizer_config.json";
  MEDLEY_TRY_ASSIGN(const Json main, read_object(config_path));
  if (main.is_object()) {
    add_special_tokens(main, config);
    const auto add_bos = main.find("add_bos_token");
    if (add_bos != main.end() && add_bos->is_boolean()) config.add_bos_token = add_bos->get<bool>();
    MEDLEY_TRY(add_chat_templates(main, config_path, config));
  }

  const fs::path json_path = base / "chat_template.json";
  MEDLEY_TRY_ASSIGN(const Json templates, read_object(json_path));
  if (templates.is_object()) MEDLEY_TRY(add_chat_templates(templates, json_path, config));

  MEDLEY_TRY_ASSIGN(const auto jinja, read_if_present(base / "chat_template.jinja"));
  if (jinja) config.chat_templates["default"] = *jinja;
  return config;
}

}  // namespace medley::text
