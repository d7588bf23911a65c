#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "api/json.h"

namespace medley::api {

// Reads typed fields out of a JSON object; null counts as absent. The first field that has a wrong
// type or value becomes the error, and everything after it reads as absent.
class ObjectReader {
 public:
  // `prefix` names the object inside errors ("stream_options."). `object` must be a JSON object and
  // outlive the reader.
  explicit ObjectReader(const Json& object, std::string prefix = {})
      : object_(object), prefix_(std::move(prefix)) {}

  // The field's value, or null when absent. Marks it as known.
  const Json* find(std::string_view name);

  void read(std::string_view name, bool& out);
  void read(std::string_view name, std::string& out);
  struct IntRange {
    int64_t min = std::numeric_limits<int32_t>::min();
    int64_t max = std::numeric_limits<int32_t>::max();
  };
  void read(std::string_view name, int& out, IntRange range);
  void read(std::string_view name, std::optional<int>& out, IntRange range);
  void read(std::string_view name, std::optional<int64_t>& out, IntRange range);
  struct FloatRange {
    double min = 0.0;
    double max = 1.0;
    bool above_min = false;  // min itself is refused
  };
  void read(std::string_view name, std::optional<float>& out, FloatRange range);
  // Token ids: non-negative 32-bit integers.
  void read(std::string_view name, std::vector<int32_t>& out);

  void fail(std::string_view name, std::string message);
  // "must be <expected>, got <kind of value>"
  void fail_type(std::string_view name, std::string_view expected, const Json& found);
  // Takes over the error of a reader of a nested object, if it has one.
  void adopt_error(const ObjectReader& nested);
  const std::optional<Error>& error() const { return error_; }

  // Names of the object that nobody asked for.
  std::vector<std::string> unread() const;

 private:
  const Json& object_;
  std::string prefix_;
  std::unordered_set<std::string> known_;
  std::optional<Error> error_;
};

// "a string", "an integer", ... for messages.
const char* kind_of(const Json& value);

// All elements as token ids; nothing if one is not.
std::optional<std::vector<int32_t>> as_token_ids(const Json& array);

}  // namespace medley::api
