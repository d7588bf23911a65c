#pragma once

#include <string>
#include <string_view>

namespace medley::text {

// U+FFFD, which stands for bytes that are not UTF-8.
inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";

// True if all of `text` is well-formed UTF-8 (Unicode 15, table 3-7).
bool is_utf8(std::string_view text);

// Turns a stream of bytes into well-formed UTF-8: each maximal part of an ill-formed sequence
// becomes one U+FFFD (Unicode 15, section 3.9). A character is given out when its last byte has
// come. Not thread-safe.
class Utf8Stream {
 public:
  // Appends to `out` the characters that `bytes` completes.
  void push(std::string_view bytes, std::string& out);
  // The stream has ended: appends a U+FFFD if it ended within a character.
  void finish(std::string& out);

 private:
  std::string incomplete_;  // a proper prefix of one character, at most 3 bytes
};

}  // namespace medley::text
