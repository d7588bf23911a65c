#pragma once

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

// Small tokenizers and temporary files for tests.
namespace medley::ffi::testing {

class TempFile {
 public:
  TempFile(const std::string& name, std::string_view content)
      : path_(std::filesystem::temp_directory_path() / unique_name(name)) {
    std::ofstream(path_, std::ios::binary) << content;
  }
  ~TempFile() { std::filesystem::remove(path_); }
  TempFile(const TempFile&) = delete;
  TempFile& operator=(const TempFile&) = delete;

  std::string path() const { return path_.string(); }

 private:
  static std::string unique_name(const std::string& name) {
    static int count = 0;
    return "medley_" + std::to_string(getpid()) + "_" + std::to_string(++count) + "_" + name;
  }

  std::filesystem::path path_;
};

inline constexpr std::string_view kByteLevelDecoder =
    R"({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true})";

// Byte-level BPE with "a" 0, "b" 1, the two bytes of U+00E9 apart (2, 3), the merge "ab" 4, a
// special token "<s>" 5 that the post-processor puts first, the space 6, no token 7, an ordinary
// added token "<call>" 8, the bytes F0 9F 98 80 of an emoji (9 to 12) and a two-byte token "é" 13.
// It asks for truncation to 2 tokens.
inline std::string byte_level_json(std::string_view decoder = kByteLevelDecoder) {
  return R"json({
  "version": "1.0",
  "truncation": {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0},
  "padding": null,
  "added_tokens": [
    {"id": 5, "content": "<s>", "single_word": false, "lstrip": false, "rstrip": false,
     "normalized": false, "special": true},
    {"id": 8, "content": "<call>", "single_word": false, "lstrip": false, "rstrip": false,
     "normalized": false, "special": false}],
  "normalizer": null,
  "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
                    "use_regex": true},
  "post_processor": {"type": "TemplateProcessing",
    "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}},
               {"Sequence": {"id": "A", "type_id": 0}}],
    "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
    "special_tokens": {"<s>": {"id": "<s>", "ids": [5], "tokens": ["<s>"]}}},
  "decoder": )json" +
         std::string(decoder) + R"json(,
  "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false,
            "vocab": {"a": 0, "b": 1, "Ã": 2, "©": 3, "ab": 4, "<s>": 5, "Ġ": 6, "<call>": 8,
                      "ð": 9, "Ł": 10, "ĺ": 11, "Ģ": 12, "Ã©": 13},
            "merges": [["a", "b"]]}
})json";
}

// SentencePiece style: "▁a" 3, "b" 4, "▁" 5, bytes C3 6, A9 7, 41 8 by fallback, "é" 9, special
// "<s>" 1; decoded by replacing "▁", then bytes, then dropping one leading space.
inline std::string byte_fallback_json() {
  return R"json({
  "version": "1.0", "truncation": null, "padding": null,
  "added_tokens": [
    {"id": 0, "content": "<unk>", "single_word": false, "lstrip": false, "rstrip": false,
     "normalized": false, "special": true},
    {"id": 1, "content": "<s>", "single_word": false, "lstrip": false, "rstrip": false,
     "normalized": false, "special": true}],
  "normalizer": {"type": "Sequence", "normalizers": [
    {"type": "Prepend", "prepend": "▁"},
    {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]},
  "pre_tokenizer": null, "post_processor": null,
  "decoder": {"type": "Sequence", "decoders": [
    {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
    {"type": "ByteFallback"}, {"type": "Fuse"},
    {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
  "model": {"type": "BPE", "dropout": null, "unk_token": "<unk>",
            "continuing_subword_prefix": null, "end_of_word_suffix": null, "fuse_unk": true,
            "byte_fallback": true,
            "vocab": {"<unk>": 0, "<s>": 1, "a": 2, "▁a": 3, "b": 4, "▁": 5, "<0xC3>": 6,
                      "<0xA9>": 7, "<0x41>": 8, "é": 9},
            "merges": [["▁", "a"]]}
})json";
}

}  // namespace medley::ffi::testing
