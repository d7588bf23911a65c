#include "spec/json_parse.h"

#include <optional>
#include <unordered_set>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace medley {
namespace {

constexpr size_t kMaxBriefLength = 120;

// What the grammar allows and we refuse. A pass of its own: a parser with a callback looks at all
// members of an object whenever one of them ends, which takes seconds for the tens of thousands of
// tensors in a file.
template <class Json>
class StructureCheck : public nlohmann::json_sax<Json> {
 public:
  bool null() override { return is_shallow(); }
  bool boolean(bool) override { return is_shallow(); }
  bool number_integer(typename Json::number_integer_t) override { return is_shallow(); }
  bool number_unsigned(typename Json::number_unsigned_t) override { return is_shallow(); }
  bool number_float(typename Json::number_float_t, const std::string&) override {
    return is_shallow();
  }
  bool string(std::string&) override { return is_shallow(); }
  bool binary(typename Json::binary_t&) override { return is_shallow(); }
  bool start_object(size_t) override {
    keys_.emplace_back();
    return open();
  }
  bool key(std::string& key) override {
    if (!keys_.back().insert(key).second && !duplicate_) duplicate_ = key;
    return is_shallow();
  }
  bool end_object() override {
    keys_.pop_back();
    return close();
  }
  bool start_array(size_t) override { return open(); }
  bool end_array() override { return close(); }
  bool parse_error(size_t, const std::string&, const nlohmann::detail::exception&) override {
    return false;
  }

  bool is_too_deep() const { return too_deep_; }
  const std::optional<std::string>& duplicate() const { return duplicate_; }

 private:
  bool is_shallow() {
    too_deep_ |= depth_ > kMaxJsonDepth;
    return !too_deep_;
  }
  bool open() {
    const bool shallow = is_shallow();
    ++depth_;
    return shallow;
  }
  bool close() {
    --depth_;
    return true;
  }

  int depth_ = 0;
  std::vector<std::unordered_set<std::string>> keys_;  // of each open object
  std::optional<std::string> duplicate_;
  bool too_deep_ = false;
};

template <class Json>
Result<Json> parse(std::string_view text, const std::string& what) {
  StructureCheck<Json> check;
  const bool is_valid = Json::sax_parse(text, &check);
  if (check.is_too_deep()) {
    return invalid_argument(fmt::format("{}: nested deeper than {} levels", what, kMaxJsonDepth));
  }
  if (check.duplicate()) {
    return invalid_argument(fmt::format("{}: '{}' appears twice", what, *check.duplicate()));
  }
  if (!is_valid) return invalid_argument(fmt::format("{}: not valid JSON", what));
  return Json::parse(text, /*callback=*/nullptr, /*allow_exceptions=*/false);
}

template <class Json>
std::string cut_text(const Json& value) {
  std::string text =
      value.dump(/*indent=*/-1, ' ', /*ensure_ascii=*/true, Json::error_handler_t::replace);
  if (text.size() > kMaxBriefLength) text = text.substr(0, kMaxBriefLength) + "...";
  return text;
}

}  // namespace

Result<nlohmann::json> parse_json(std::string_view text, const std::string& what) {
  return parse<nlohmann::json>(text, what);
}

Result<nlohmann::ordered_json> parse_ordered_json(std::string_view text, const std::string& what) {
  return parse<nlohmann::ordered_json>(text, what);
}

std::string brief(const nlohmann::json& value) { return cut_text(value); }
std::string brief(const nlohmann::ordered_json& value) { return cut_text(value); }

}  // namespace medley
