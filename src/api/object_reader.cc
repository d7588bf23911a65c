#include "api/object_reader.h"

#include <cmath>

namespace medley::api {
namespace {

// The value as an integer, also when written 3.0 (clients in languages without integers do).
std::optional<int64_t> as_int(const Json& value) {
  if (value.is_number_unsigned()) {
    const uint64_t number = value.get<uint64_t>();
    if (number > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) return std::nullopt;
    return static_cast<int64_t>(number);
  }
  if (value.is_number_integer()) return value.get<int64_t>();
  if (value.is_number_float()) {
    const double number = value.get<double>();
    if (std::trunc(number) == number && std::abs(number) < 9e15) {
      return static_cast<int64_t>(number);
    }
  }
  return std::nullopt;
}

}  // namespace

const char* kind_of(const Json& value) {
  switch (value.type()) {
    case Json::value_t::null:
      return "null";
    case Json::value_t::object:
      return "an object";
    case Json::value_t::array:
      return "a list";
    case Json::value_t::string:
      return "a string";
    case Json::value_t::boolean:
      return "a boolean";
    case Json::value_t::number_integer:
    case Json::value_t::number_unsigned:
      return "an integer";
    case Json::value_t::number_float:
      return "a number";
    default:
      return "something else";
  }
}

std::optional<std::vector<int32_t>> as_token_ids(const Json& array) {
  std::vector<int32_t> ids;
  ids.reserve(array.size());
  for (const Json& element : array) {
    const std::optional<int64_t> id = as_int(element);
    if (!id || *id < 0 || *id > std::numeric_limits<int32_t>::max()) return std::nullopt;
    ids.push_back(static_cast<int32_t>(*id));
  }
  return ids;
}

const Json* ObjectReader::find(std::string_view name) {
  known_.emplace(name);
  if (error_) return nullptr;
  const auto it = object_.find(name);
  return it == object_.end() || it->is_null() ? nullptr : &*it;
}

void ObjectReader::read(std::string_view name, bool& out) {
  const Json* value = find(name);
  if (value == nullptr) return;
  if (!value->is_boolean()) return fail_type(name, "a boolean", *value);
  out = value->get<bool>();
}

void ObjectReader::read(std::string_view name, std::string& out) {
  const Json* value = find(name);
  if (value == nullptr) return;
  if (!value->is_string()) return fail_type(name, "a string", *value);
  out = value->get<std::string>();
}

void ObjectReader::read(std::string_view name, std::optional<int64_t>& out, IntRange range) {
  const Json* value = find(name);
  if (value == nullptr) return;
  const std::optional<int64_t> number = as_int(*value);
  if (!number && value->is_number()) {
    return fail(name, fmt::format("must be an integer of 64 bits, got {}", value->dump()));
  }
  if (!number) return fail_type(name, "an integer", *value);
  if (*number < range.min || *number > range.max) {
    return fail(name, fmt::format("must be from {} to {}, got {}", range.min, range.max, *number));
  }
  out = number;
}

void ObjectReader::read(std::string_view name, std::optional<int>& out, IntRange range) {
  std::optional<int64_t> number;
  read(name, number, range);
  if (number) out = static_cast<int>(*number);
}

void ObjectReader::read(std::string_view name, int& out, IntRange range) {
  std::optional<int> number;
  read(name, number, range);
  out = number.value_or(out);
}

void ObjectReader::read(std::string_view name, std::optional<float>& out, FloatRange range) {
  const Json* value = find(name);
  if (value == nullptr) return;
  if (!value->is_number()) return fail_type(name, "a number", *value);
  const double number = value->get<double>();
  const bool too_small = range.above_min ? number <= range.min : number < range.min;
  if (!std::isfinite(number) || too_small || number > range.max) {
    return fail(name, fmt::format("must be {} {} and at most {}, got {}",
                                  range.above_min ? "above" : "at least", range.min, range.max,
                                  value->dump()));
  }
  out = static_cast<float>(number);
}

void ObjectReader::read(std::string_view name, std::vector<int32_t>& out) {
  const Json* value = find(name);
  if (value == nullptr) return;
  if (!value->is_array()) return fail_type(name, "a list of token ids", *value);
  std::optional<std::vector<int32_t>> ids = as_token_ids(*value);
  if (!ids) return fail(name, "must hold token ids only (integers from 0 to 2147483647)");
  out = std::move(*ids);
}

void ObjectReader::fail(std::string_view name, std::string message) {
  if (error_) return;
  std::string param = prefix_ + std::string(name);
  error_ = invalid_argument(fmt::format("`{}` {}", param, message), param);
}

void ObjectReader::fail_type(std::string_view name, std::string_view expected, const Json& found) {
  fail(name, fmt::format("must be {}, got {}", expected, kind_of(found)));
}

void ObjectReader::adopt_error(const ObjectReader& nested) {
  if (!error_) error_ = nested.error_;
}

std::vector<std::string> ObjectReader::unread() const {
  std::vector<std::string> names;
  for (const auto& [name, value] : object_.items()) {
    if (!known_.contains(name)) names.push_back(name);
  }
  return names;
}

}  // namespace medley::api
