#include "adapter/pattern.h"

#include <algorithm>
#include <exception>

#include <fmt/format.h>
#include <boost/regex.hpp>

namespace medley {
namespace {

constexpr size_t kMaxExpressionLength = 4096;

bool is_plain(std::string_view expression) {
  return std::all_of(expression.begin(), expression.end(),
                     [](unsigned char c) { return std::isalnum(c) != 0 || c == '_' || c == '.'; });
}

// A plain expression against a text of its length; '.' is any character.
bool equal_plain(std::string_view expression, std::string_view text) {
  return std::equal(expression.begin(), expression.end(), text.begin(), text.end(),
                    [](char e, char t) { return e == '.' || e == t; });
}

// Python names groups (?P<name>...), Perl (?<name>...).
std::string to_perl(std::string_view expression) {
  std::string out;
  for (size_t i = 0; i < expression.size(); ++i) {
    if (expression.substr(i, 4) == "(?P<") {
      out += "(?<";
      i += 3;
    } else {
      out += expression[i];
    }
  }
  return out;
}

}  // namespace

struct Pattern::Compiled {
  boost::regex whole;
  boost::regex end;
};

Result<Pattern> Pattern::compile(std::string_view expression) {
  Pattern pattern;
  pattern.expression_ = std::string(expression);
  if (is_plain(expression)) return pattern;
  if (expression.size() > kMaxExpressionLength) {
    return invalid_argument(fmt::format("a regular expression of {} characters; at most {}",
                                        expression.size(), kMaxExpressionLength));
  }
  try {
    const std::string perl = to_perl(expression);
    pattern.compiled_ = std::make_shared<const Compiled>(
        Compiled{boost::regex(perl), boost::regex("(?:.*\\.)?(?:" + perl + ")")});
  } catch (const std::exception& error) {
    return invalid_argument(
        fmt::format("'{}' is not a supported regular expression: {}", expression, error.what()));
  }
  return pattern;
}

Result<bool> Pattern::matches(std::string_view text) const {
  if (compiled_ == nullptr) return equal_plain(expression_, text);
  try {
    return boost::regex_match(text.begin(), text.end(), compiled_->whole);
  } catch (const std::exception& error) {
    return invalid_argument(fmt::format("'{}' can't be matched: {}", expression_, error.what()));
  }
}

Result<bool> Pattern::matches_end(std::string_view key) const {
  if (compiled_ == nullptr) {
    const size_t size = expression_.size();
    if (key.size() < size || !equal_plain(expression_, key.substr(key.size() - size))) return false;
    return key.size() == size || key[key.size() - size - 1] == '.';
  }
  try {
    return boost::regex_match(key.begin(), key.end(), compiled_->end);
  } catch (const std::exception& error) {
    return invalid_argument(fmt::format("'{}' can't be matched: {}", expression_, error.what()));
  }
}

}  // namespace medley
