#pragma once

#include <cstdint>
#include <initializer_list>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"

namespace medley {

// A JSON object of a configuration file, read field by field. It remembers which fields were read,
// so that finish() can refuse the rest by name and value: nothing in the file is passed over
// unawares. The first error sticks; reads after it return their fallback. null counts as absent.
class JsonFields {
 public:
  // `what` names the file in errors.
  static Result<JsonFields> parse(std::string_view text, std::string what);

  bool has(std::string_view name) const;  // present and not null
  bool is_string(std::string_view name) const;
  bool is_array(std::string_view name) const;
  bool is_object(std::string_view name) const;
  std::vector<std::string> names() const;

  // Without a fallback the field is required. Values outside [min, max] are errors.
  int64_t integer(std::string_view name, std::optional<int64_t> fallback = std::nullopt,
                  int64_t min = std::numeric_limits<int64_t>::min(),
                  int64_t max = std::numeric_limits<int64_t>::max());
  // A size: between 1 and 2^31 - 1.
  int size(std::string_view name, std::optional<int> fallback = std::nullopt);
  double number(std::string_view name, std::optional<double> fallback = std::nullopt);
  bool boolean(std::string_view name, std::optional<bool> fallback = std::nullopt);
  std::string string(std::string_view name, std::optional<std::string> fallback = std::nullopt);
  // A list, or one value standing for a list of one. Empty when absent.
  std::vector<std::string> strings(std::string_view name);
  std::vector<int64_t> integers(std::string_view name);
  // An object whose members are all numbers, in the order of the keys. Empty when absent.
  std::vector<std::pair<std::string, double>> numbers(std::string_view name);
  // The object below `name`; absent reads as {}. Its errors are this object's too.
  JsonFields object(std::string_view name);

  // Fields that never change the result.
  void ignore(std::initializer_list<std::string_view> names);
  // kUnsupported unless the field is absent, null or one of `neutral` (JSON texts): its other
  // values change the result in a way that is not implemented. `why` ends the message.
  void require(std::string_view name, std::initializer_list<std::string_view> neutral,
               std::string_view why = {});

  // Records an error about field `name`, unless there is one already.
  void fail(std::string_view name, std::string_view problem,
            ErrorCode code = ErrorCode::kUnsupported);
  bool ok() const;
  // The first error; else kUnsupported for any field that was never read.
  Result<void> finish() const;

 private:
  struct State;
  explicit JsonFields(std::shared_ptr<State> state);
  const void* find(std::string_view name) const;

  std::shared_ptr<State> state_;
};

}  // namespace medley
