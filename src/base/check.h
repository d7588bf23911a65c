#pragma once

#include <string>
#include <string_view>

#include <fmt/format.h>

namespace medley {

// Prints the failed condition, its place and `detail` to stderr and aborts. Checks are always on:
// they guard against bugs, never against input.
[[noreturn]] void check_failed(const char* condition, const char* file, int line,
                               std::string_view detail);

}  // namespace medley

#define MEDLEY_CHECK(condition, ...)                                                              \
  do {                                                                                            \
    if (!(condition)) [[unlikely]] {                                                              \
      ::medley::check_failed(                                                                     \
          #condition, __FILE__, __LINE__,                                                         \
          ::fmt::format("{}",                                                                     \
                        ::fmt::join(std::initializer_list<std::string_view>{__VA_ARGS__}, " "))); \
    }                                                                                             \
  } while (false)

// Both values appear in the message.
#define MEDLEY_CHECK_OP(a, op, b)                                            \
  do {                                                                       \
    const auto& medley_a = (a);                                              \
    const auto& medley_b = (b);                                              \
    if (!(medley_a op medley_b)) [[unlikely]] {                              \
      ::medley::check_failed(#a " " #op " " #b, __FILE__, __LINE__,          \
                             ::fmt::format("{} vs {}", medley_a, medley_b)); \
    }                                                                        \
  } while (false)
#define MEDLEY_CHECK_EQ(a, b) MEDLEY_CHECK_OP(a, ==, b)
#define MEDLEY_CHECK_LE(a, b) MEDLEY_CHECK_OP(a, <=, b)
#define MEDLEY_CHECK_LT(a, b) MEDLEY_CHECK_OP(a, <, b)
#define MEDLEY_CHECK_GE(a, b) MEDLEY_CHECK_OP(a, >=, b)
#define MEDLEY_CHECK_GT(a, b) MEDLEY_CHECK_OP(a, >, b)
