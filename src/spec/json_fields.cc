#include "spec/json_fields.h"

#include <algorithm>
#include <cmath>
#include <set>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "spec/json_parse.h"

namespace medley {
namespace {

using json = nlohmann::ordered_json;

// Shared by an object and those below it.
struct Document {
  json root;
  std::string what;
  std::optional<Error> error;
};

std::optional<int64_t> as_integer(const json& value) {
  if (value.is_number_unsigned()) {
    const auto wide = value.get<uint64_t>();
    if (wide > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) return std::nullopt;
    return static_cast<int64_t>(wide);
  }
  if (value.is_number_integer()) return value.get<int64_t>();
  return std::nullopt;
}

}  // namespace

struct JsonFields::State {
  std::shared_ptr<Document> document;
  const json* object = nullptr;
  std::string path;  // "rope_scaling." below the root
  mutable std::set<std::string, std::less<>> used;
  std::vector<std::shared_ptr<State>> children;
};

JsonFields::JsonFields(std::shared_ptr<State> state) : state_(std::move(state)) {}

Result<JsonFields> JsonFields::parse(std::string_view text, std::string what) {
  MEDLEY_TRY_ASSIGN(json root, parse_ordered_json(text, what));
  if (!root.is_object()) {
    return invalid_argument(fmt::format("{}: expected an object, found {}", what, brief(root)));
  }
  auto state = std::make_shared<State>();
  state->document = std::make_shared<Document>();
  state->document->root = std::move(root);
  state->document->what = std::move(what);
  state->object = &state->document->root;
  return JsonFields(std::move(state));
}

const void* JsonFields::find(std::string_view name) const {
  const auto found = state_->object->find(name);
  if (found == state_->object->end() || found->is_null()) return nullptr;
  return &*found;
}

bool JsonFields::has(std::string_view name) const { return find(name) != nullptr; }

bool JsonFields::is_string(std::string_view name) const {
  const auto* value = static_cast<const json*>(find(name));
  return value != nullptr && value->is_string();
}

bool JsonFields::is_array(std::string_view name) const {
  const auto* value = static_cast<const json*>(find(name));
  return value != nullptr && value->is_array();
}

bool JsonFields::is_object(std::string_view name) const {
  const auto* value = static_cast<const json*>(find(name));
  return value != nullptr && value->is_object();
}

std::vector<std::string> JsonFields::names() const {
  std::vector<std::string> names;
  for (const auto& [name, value] : state_->object->items()) names.push_back(name);
  return names;
}

void JsonFields::fail(std::string_view name, std::string_view problem, ErrorCode code) {
  if (state_->document->error) return;
  const auto* value = static_cast<const json*>(find(name));
  const std::string field = state_->path + std::string(name);
  state_->document->error =
      Error{code,
            fmt::format("{}: field '{}' {}: {}", state_->document->what, field,
                        value == nullptr ? "is absent" : "= " + brief(*value), problem),
            field};
}

bool JsonFields::ok() const { return !state_->document->error.has_value(); }

int64_t JsonFields::integer(std::string_view name, std::optional<int64_t> fallback, int64_t min,
                            int64_t max) {
  state_->used.emplace(name);
  const auto* value = static_cast<const json*>(find(name));
  if (value == nullptr) {
    if (!fallback) fail(name, "an integer is required", ErrorCode::kInvalidArgument);
    return fallback.value_or(min);
  }
  const std::optional<int64_t> found = as_integer(*value);
  if (!found || *found < min || *found > max) {
    fail(name, fmt::format("expected an integer from {} to {}", min, max),
         ErrorCode::kInvalidArgument);
    return fallback.value_or(min);
  }
  return *found;
}

int JsonFields::size(std::string_view name, std::optional<int> fallback) {
  return static_cast<int>(integer(name, fallback, 1, std::numeric_limits<int>::max()));
}

double JsonFields::number(std::string_view name, std::optional<double> fallback) {
  state_->used.emplace(name);
  const auto* value = static_cast<const json*>(find(name));
  if (value == nullptr) {
    if (!fallback) fail(name, "a number is required", ErrorCode::kInvalidArgument);
    return fallback.value_or(0.0);
  }
  if (!value->is_number() || !std::isfinite(value->get<double>())) {
    fail(name, "expected a number", ErrorCode::kInvalidArgument);
    return fallback.value_or(0.0);
  }
  return value->get<double>();
}

bool JsonFields::boolean(std::string_view name, std::optional<bool> fallback) {
  state_->used.emplace(name);
  const auto* value = static_cast<const json*>(find(name));
  if (value == nullptr) {
    if (!fallback) fail(name, "true or false is required", ErrorCode::kInvalidArgument);
    return fallback.value_or(false);
  }
  if (!value->is_boolean()) {
    fail(name, "expected true or false", ErrorCode::kInvalidArgument);
    return fallback.value_or(false);
  }
  return value->get<bool>();
}

std::string JsonFields::string(std::string_view name, std::optional<std::string> fallback) {
  state_->used.emplace(name);
  const auto* value = static_cast<const json*>(find(name));
  if (value == nullptr) {
    if (!fallback) fail(name, "a string is required", ErrorCode::kInvalidArgument);
    return fallback.value_or("");
  }
  if (!value->is_string()) {
    fail(name, "expected a string", ErrorCode::kInvalidArgument);
    return fallback.value_or("");
  }
  return value->get<std::string>();
}

std::vector<std::string> JsonFields::strings(std::string_view name) {
  state_->used.emplace(name);
  const auto* value = static_cast<const json*>(find(name));
  if (value == nullptr) return {};
  if (value->is_string()) return {value->get<std::string>()};
  const bool all = value->is_array() && std::all_of(value->begin(), value->end(),
                                                    [](const json& v) { return v.is_string(); });
  if (!all) {
    fail(name, "expected a list of strings", ErrorCode::kInvalidArgument);
    return {};
  }
  return value->get<std::vector<std::string>>();
}

std::vector<int64_t> JsonFields::integers(std::string_view name) {
  state_->used.emplace(name);
  const auto* value = static_cast<const json*>(find(name));
  if (value == nullptr) return {};
  const json one = json::array({*value});
  const json& list = value->is_array() ? *value : one;
  std::vector<int64_t> numbers;
  for (const json& item : list) {
    const std::optional<int64_t> number = as_integer(item);
    if (!number) {
      fail(name, "expected a list of integers", ErrorCode::kInvalidArgument);
      return {};
    }
    numbers.push_back(*number);
  }
  return numbers;
}

std::vector<std::pair<std::string, double>> JsonFields::numbers(std::string_view name) {
  state_->used.emplace(name);
  const auto* value = static_cast<const json*>(find(name));
  if (value == nullptr) return {};
  std::vector<std::pair<std::string, double>> numbers;
  if (value->is_object()) {
    for (const auto& [key, item] : value->items()) {
      if (item.is_number() && std::isfinite(item.get<double>())) {
        numbers.emplace_back(key, item.get<double>());
      }
    }
  }
  if (!value->is_object() || numbers.size() != value->size()) {
    fail(name, "expected an object of numbers", ErrorCode::kInvalidArgument);
    return {};
  }
  return numbers;
}

JsonFields JsonFields::object(std::string_view name) {
  static const json kEmpty = json::object();
  state_->used.emplace(name);
  const auto* value = static_cast<const json*>(find(name));
  if (value != nullptr && !value->is_object()) {
    fail(name, "expected an object", ErrorCode::kInvalidArgument);
    value = nullptr;
  }
  auto child = std::make_shared<State>();
  child->document = state_->document;
  child->object = value == nullptr ? &kEmpty : value;
  child->path = state_->path + std::string(name) + ".";
  state_->children.push_back(child);
  return JsonFields(std::move(child));
}

void JsonFields::ignore(std::initializer_list<std::string_view> names) {
  for (const std::string_view name : names) state_->used.emplace(name);
}

void JsonFields::require(std::string_view name, std::initializer_list<std::string_view> neutral,
                         std::string_view why) {
  state_->used.emplace(name);
  const auto* value = static_cast<const json*>(find(name));
  if (value == nullptr) return;
  for (const std::string_view text : neutral) {
    if (*value == json::parse(text, nullptr, /*allow_exceptions=*/false)) return;
  }
  fail(name, why.empty() ? "this value is not supported" : why);
}

Result<void> JsonFields::finish() const {
  if (state_->document->error) return *state_->document->error;
  for (const auto& [name, value] : state_->object->items()) {
    if (value.is_null() || state_->used.contains(name)) continue;
    const std::string field = state_->path + name;
    return unsupported(fmt::format("{}: field '{}' = {} is not known; it might change the result",
                                   state_->document->what, field, brief(value)),
                       field);
  }
  for (const auto& child : state_->children) MEDLEY_TRY(JsonFields(child).finish());
  return {};
}

}  // namespace medley
