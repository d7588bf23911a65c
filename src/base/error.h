#pragma once

#include <optional>
#include <string>
#include <utility>
#include <variant>

#include "base/check.h"

namespace medley {

// What went wrong, by who can mend it. `api` maps each code to one HTTP status (the number in the
// comment).
enum class ErrorCode {
  kInvalidArgument,  // 400: the caller's value is wrong
  kUnsupported,      // 400: understood, but not implemented
  kUnauthorized,     // 401: missing or wrong key
  kForbidden,        // 403: the key may not do this
  kNotFound,         // 404: unknown model, adapter, route or file
  kConflict,         // 409: exists already, or is in use
  kTooLarge,         // 413: body or file over a limit
  kOverloaded,       // 429: a queue is full; try again
  kInternal,         // 500: a fault of ours or of the device
  kUnavailable,      // 503: starting, draining or stopped
};

const char* to_string(ErrorCode code);

// `message` names what was wrong, what was expected and what was found. `param` is the request
// field, flag or tensor concerned, or empty.
struct Error {
  ErrorCode code = ErrorCode::kInternal;
  std::string message;
  std::string param = {};
};

inline Error invalid_argument(std::string message, std::string param = {}) {
  return {ErrorCode::kInvalidArgument, std::move(message), std::move(param)};
}
inline Error unsupported(std::string message, std::string param = {}) {
  return {ErrorCode::kUnsupported, std::move(message), std::move(param)};
}
inline Error not_found(std::string message, std::string param = {}) {
  return {ErrorCode::kNotFound, std::move(message), std::move(param)};
}
inline Error internal_error(std::string message) {
  return {ErrorCode::kInternal, std::move(message), {}};
}

// A value or an Error. Reading the value of a failed Result is a bug and aborts.
template <class T>
class [[nodiscard]] Result {
 public:
  using value_type = T;

  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}      // NOLINT
  Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}  // NOLINT

  bool ok() const { return state_.index() == 0; }
  explicit operator bool() const { return ok(); }

  T& value() & {
    MEDLEY_CHECK(ok(), error().message);
    return std::get<0>(state_);
  }
  const T& value() const& {
    MEDLEY_CHECK(ok(), error().message);
    return std::get<0>(state_);
  }
  // By value, so that a loop over f().value() does not outlive what it walks.
  T value() && {
    MEDLEY_CHECK(ok(), error().message);
    return std::get<0>(std::move(state_));
  }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

  const Error& error() const& { return std::get<1>(state_); }
  Error&& error() && { return std::get<1>(std::move(state_)); }

 private:
  std::variant<T, Error> state_;
};

template <>
class [[nodiscard]] Result<void> {
 public:
  using value_type = void;

  Result() = default;
  Result(Error error) : error_(std::move(error)) {}  // NOLINT

  bool ok() const { return !error_.has_value(); }
  explicit operator bool() const { return ok(); }
  const Error& error() const& {
    MEDLEY_CHECK(error_.has_value(), "no error");
    return *error_;
  }
  Error&& error() && {
    MEDLEY_CHECK(error_.has_value(), "no error");
    return std::move(*error_);
  }

 private:
  std::optional<Error> error_;
};

}  // namespace medley

// Evaluates a Result; returns its error from the enclosing function, or goes on.
#define MEDLEY_TRY(expr)                                                      \
  do {                                                                        \
    auto medley_try_result = (expr);                                          \
    if (!medley_try_result.ok()) return std::move(medley_try_result).error(); \
  } while (false)

// MEDLEY_TRY_ASSIGN(auto x, f()): x = f()'s value, or returns f()'s error.
#define MEDLEY_TRY_ASSIGN(lhs, expr) \
  MEDLEY_TRY_ASSIGN_IMPL(MEDLEY_CONCAT(medley_try_, __LINE__), lhs, expr)
#define MEDLEY_TRY_ASSIGN_IMPL(tmp, lhs, expr)  \
  auto tmp = (expr);                            \
  if (!tmp.ok()) return std::move(tmp).error(); \
  lhs = std::move(tmp).value()
#define MEDLEY_CONCAT(a, b) MEDLEY_CONCAT_IMPL(a, b)
#define MEDLEY_CONCAT_IMPL(a, b) a##b
