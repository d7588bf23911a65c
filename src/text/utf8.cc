#include "text/utf8.h"

#include <cstddef>
#include <cstdint>

namespace medley::text {
namespace {

struct Scan {
  size_t size;  // bytes of a whole character, or of the maximal ill-formed part
  enum { kWhole, kIllFormed, kIncomplete } kind;
};

// Reads one character from the start of `text`, which is not empty.
Scan scan_character(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t first = byte(0);
  if (first < 0x80) return {1, Scan::kWhole};
  size_t size = 0;
  uint8_t low = 0x80;
  uint8_t high = 0xBF;  // bounds of the second byte
  if (first >= 0xC2 && first <= 0xDF) {
    size = 2;
  } else if (first >= 0xE0 && first <= 0xEF) {
    size = 3;
    if (first == 0xE0) low = 0xA0;
    if (first == 0xED) high = 0x9F;
  } else if (first >= 0xF0 && first <= 0xF4) {
    size = 4;
    if (first == 0xF0) low = 0x90;
    if (first == 0xF4) high = 0x8F;
  } else {
    return {1, Scan::kIllFormed};
  }
  for (size_t i = 1; i < size; ++i) {
    if (i == text.size()) return {i, Scan::kIncomplete};
    if (byte(i) < low || byte(i) > high) return {i, Scan::kIllFormed};
    low = 0x80;
    high = 0xBF;
  }
  return {size, Scan::kWhole};
}

}  // namespace

bool is_utf8(std::string_view text) {
  while (!text.empty()) {
    const Scan scan = scan_character(text);
    if (scan.kind != Scan::kWhole) return false;
    text.remove_prefix(scan.size);
  }
  return true;
}

void Utf8Stream::push(std::string_view bytes, std::string& out) {
  std::string joined;
  if (!incomplete_.empty()) {
    joined = incomplete_.append(bytes);
    bytes = joined;
    incomplete_.clear();
  }
  while (!bytes.empty()) {
    const Scan scan = scan_character(bytes);
    if (scan.kind == Scan::kIncomplete) {
      incomplete_ = bytes;
      return;
    }
    out += scan.kind == Scan::kWhole ? bytes.substr(0, scan.size) : kReplacementCharacter;
    bytes.remove_prefix(scan.size);
  }
}

void Utf8Stream::finish(std::string& out) {
  if (!incomplete_.empty()) out += kReplacementCharacter;
  incomplete_.clear();
}

}  // namespace medley::text
