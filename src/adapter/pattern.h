#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "base/error.h"

namespace medley {

// A regular expression of an adapter's config, in Python's spelling (re module). Matching is
// bounded: an expression that would run away is an error. Copyable; thread-safe.
class Pattern {
 public:
  // kInvalidArgument names the expression.
  static Result<Pattern> compile(std::string_view expression);

  // As re.fullmatch.
  Result<bool> matches(std::string_view text) const;
  // As PEFT looks up rank_pattern and alpha_pattern: the expression matches the whole of `key`, or
  // its end after a dot.
  Result<bool> matches_end(std::string_view key) const;

  const std::string& expression() const { return expression_; }

 private:
  struct Compiled;
  std::string expression_;
  std::shared_ptr<const Compiled> compiled_;  // null: only letters, digits, '_' and '.'
};

}  // namespace medley
