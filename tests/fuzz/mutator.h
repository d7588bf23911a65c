#pragma once

#include <cstdint>
#include <cstdlib>
#include <random>
#include <string>
#include <string_view>
#include <vector>

namespace medley::fuzz {

// Makes damaged copies of valid inputs; the same seed makes the same ones. Most keep most of the
// input, so that they get past the first checks.
class Mutator {
 public:
  explicit Mutator(uint64_t seed) : random_(seed) {}

  // One to four changes: bits, bytes, numbers, tokens of the format, repeats, cuts.
  std::string mutate(std::string text) {
    static const std::vector<std::string> kTokens = {"null",
                                                     "true",
                                                     "false",
                                                     "-1",
                                                     "0",
                                                     "18446744073709551615",
                                                     "9223372036854775808",
                                                     "1e999",
                                                     "1.5",
                                                     "[]",
                                                     "{}",
                                                     "\"\"",
                                                     ",",
                                                     "\"",
                                                     "[[",
                                                     "}",
                                                     "\\u0000",
                                                     "\xff",
                                                     "data_offsets",
                                                     "shape",
                                                     "lora_A",
                                                     ".base_layer",
                                                     "(.*)+",
                                                     "BF16",
                                                     "U8",
                                                     "F4"};
    const int num_changes = 1 + static_cast<int>(below(4));
    for (int i = 0; i < num_changes && !text.empty(); ++i) {
      const size_t at = below(text.size());
      switch (below(8)) {
        case 0:
          text[at] = static_cast<char>(text[at] ^ (1 << below(8)));
          break;
        case 1:
          text[at] = static_cast<char>(below(256));
          break;
        case 2:
          text.insert(at, kTokens[below(kTokens.size())]);
          break;
        case 3:
          text.erase(at, 1 + below(8));
          break;
        case 4:
          text.insert(at, text.substr(at, 1 + below(64)));
          break;
        case 5:
          change_digit(text, at);
          break;
        case 6:
          swap_parts(text);
          break;
        default:
          if (below(4) == 0) text.resize(at);
          break;
      }
    }
    return text;
  }

  size_t below(size_t limit) {
    return limit == 0 ? 0 : std::uniform_int_distribution<size_t>(0, limit - 1)(random_);
  }

 private:
  void change_digit(std::string& text, size_t at) {
    for (; at < text.size(); ++at) {
      if (text[at] < '0' || text[at] > '9') continue;
      text[at] = static_cast<char>('0' + below(10));
      return;
    }
  }
  void swap_parts(std::string& text) {
    const size_t size = 1 + below(16);
    if (text.size() < 2 * size) return;
    const size_t x = below(text.size() - size);
    const size_t y = below(text.size() - size);
    const std::string part = text.substr(x, size);
    text.replace(x, size, text.substr(y, size));
    text.replace(y, size, part);
  }

  std::mt19937_64 random_;
};

// MEDLEY_FUZZ_ITERATIONS in the environment runs longer.
inline int num_iterations(int fallback) {
  const char* text = std::getenv("MEDLEY_FUZZ_ITERATIONS");
  return text == nullptr ? fallback : std::atoi(text);
}

}  // namespace medley::fuzz
