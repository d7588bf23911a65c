#include "ffi/ffi.h"

#include <thread>

#include <gtest/gtest.h>

#include "ffi/testing.h"

namespace medley::ffi {
namespace {

using testing::byte_fallback_json;
using testing::byte_level_json;
using testing::TempFile;

std::span<const std::byte> as_bytes(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

Tokenizer load(std::string_view json) {
  TempFile file("tokenizer.json", json);
  auto tokenizer = Tokenizer::load(file.path());
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.error().message;
  return std::move(tokenizer).value();
}

TEST(TokenizerTest, EncodesAndDecodes) {
  const Tokenizer tokenizer = load(byte_level_json());
  const std::vector<int32_t> plain = {4, 6, 2, 3, 8, 0};
  EXPECT_EQ(tokenizer.encode("ab é<call>a", false).value(), plain);
  EXPECT_EQ(tokenizer.decode(plain, false).value(), "ab é<call>a");
  EXPECT_EQ(tokenizer.encode("ab", true).value(), (std::vector<int32_t>{5, 4}));
  EXPECT_EQ(tokenizer.encode("", false).value(), (std::vector<int32_t>{}));
  EXPECT_EQ(tokenizer.decode(std::vector<int32_t>{5, 4, 8}, true).value(), "ab<call>");
  EXPECT_EQ(tokenizer.decode(std::vector<int32_t>{2, 7, 900}, false).value(), "\uFFFD");
}

TEST(TokenizerTest, NamesTokens) {
  const Tokenizer tokenizer = load(byte_level_json());
  EXPECT_EQ(tokenizer.vocab_size(), 14u);
  EXPECT_EQ(tokenizer.token_to_id("<s>"), 5);
  EXPECT_EQ(tokenizer.token_to_id("zz"), std::nullopt);
  EXPECT_EQ(tokenizer.id_to_token(6), "Ġ");
  EXPECT_EQ(tokenizer.id_to_token(7), std::nullopt);
  EXPECT_EQ(tokenizer.id_to_token(900), std::nullopt);
}

TEST(TokenizerTest, PiecesAreRawBytes) {
  const Tokenizer tokenizer = load(byte_level_json());
  const TokenPieces& pieces = tokenizer.pieces();
  EXPECT_EQ(pieces.bytes(0), "a");
  EXPECT_EQ(pieces.bytes(2), "\xC3");
  EXPECT_EQ(pieces.bytes(3), "\xA9");
  EXPECT_EQ(pieces.bytes(6), " ");
  EXPECT_EQ(pieces.bytes(5), "<s>");
  EXPECT_EQ(pieces.bytes(7), "");
  EXPECT_EQ(pieces.bytes(900), "");
  EXPECT_EQ(pieces.bytes(-1), "");
  EXPECT_TRUE(pieces.has(5, TokenPieces::kSpecial));
  EXPECT_FALSE(pieces.has(8, TokenPieces::kSpecial));
  EXPECT_TRUE(pieces.has(7, TokenPieces::kAbsent));
  EXPECT_TRUE(pieces.has(900, TokenPieces::kAbsent));
  EXPECT_FALSE(pieces.byte_fallback());
}

TEST(TokenizerTest, PiecesOfByteFallback) {
  const Tokenizer tokenizer = load(byte_fallback_json());
  const TokenPieces& pieces = tokenizer.pieces();
  EXPECT_TRUE(pieces.byte_fallback());
  EXPECT_EQ(pieces.strip_char(), U' ');
  EXPECT_EQ(pieces.strip_start(), 1u);
  EXPECT_EQ(pieces.bytes(3), " a");
  EXPECT_EQ(pieces.bytes(6), "\xC3");
  EXPECT_TRUE(pieces.has(6, TokenPieces::kByte));
  EXPECT_FALSE(pieces.has(9, TokenPieces::kByte));
  EXPECT_EQ(tokenizer.encode("a b", false).value(), (std::vector<int32_t>{3, 5, 4}));
}

TEST(TokenizerTest, NamesWhatIsWrong) {
  const auto missing = Tokenizer::load("/nowhere/tokenizer.json");
  ASSERT_FALSE(missing.ok());
  EXPECT_EQ(missing.error().code, ErrorCode::kNotFound);
  EXPECT_NE(missing.error().message.find("/nowhere/tokenizer.json"), std::string::npos);

  TempFile broken("broken.json", "{\"version\": \"1.0\", ");
  const auto invalid = Tokenizer::load(broken.path());
  ASSERT_FALSE(invalid.ok());
  EXPECT_EQ(invalid.error().code, ErrorCode::kInvalidArgument);
  EXPECT_NE(invalid.error().message.find(broken.path()), std::string::npos);

  const std::string other = byte_level_json(
      R"({"type": "Sequence", "decoders": [
          {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
          {"type": "WordPiece", "prefix": "##", "cleanup": true}]})");
  TempFile word_piece("word_piece.json", other);
  const auto refused = Tokenizer::load(word_piece.path());
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kUnsupported);
  EXPECT_NE(refused.error().message.find("WordPiece"), std::string::npos);

  const auto not_text = load(byte_level_json()).encode("ab\xC3", false);
  ASSERT_FALSE(not_text.ok());
  EXPECT_EQ(not_text.error().code, ErrorCode::kInvalidArgument);
  EXPECT_NE(not_text.error().message.find("byte 2"), std::string::npos);
}

TEST(TokenizerTest, ManyThreadsEncode) {
  const Tokenizer tokenizer = load(byte_level_json());
  std::vector<std::thread> threads;
  std::vector<int> wrong(4, 0);
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 2000; ++i) {
        wrong[t] += tokenizer.encode("abab", false).value() != std::vector<int32_t>{4, 4};
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, std::vector<int>(4, 0));
}

std::string render(std::string_view source, std::string_view variables = "{}", int64_t now = 0) {
  auto chat_template = ChatTemplate::compile(source);
  if (!chat_template.ok()) return "compile: " + chat_template.error().message;
  auto text = chat_template->render(variables, now);
  return text.ok() ? *text : "error: " + text.error().message;
}

// Expected values: Jinja2 3.1 and json.dumps of Python 3.11 with transformers' settings.
TEST(ChatTemplateTest, TrimsBlocksAsTransformersDoes) {
  EXPECT_EQ(render("  {% if true %}\n  x\n  {% endif %}\ny\n"), "  x\ny");
  EXPECT_EQ(render("a\n  {%- if true -%}\n  b {% endif %}c"), "ab c");
}

TEST(ChatTemplateTest, WritesJsonAsPythonDoes) {
  EXPECT_EQ(render("{{ x | tojson }}",
                   R"({"x": {"b": [1, 2.0, "é<&'\"\n\u0001"], "a": null, "t": true}})"),
            R"({"b": [1, 2.0, "é<&'\"\n\u0001"], "a": null, "t": true})");
  EXPECT_EQ(render("{{ x | tojson(indent=2) }}", R"({"x": {"b": [1, {}], "a": []}})"),
            "{\n  \"b\": [\n    1,\n    {}\n  ],\n  \"a\": []\n}");
  EXPECT_EQ(render("{{ x | tojson(ensure_ascii=true) }}", R"({"x": "é😀"})"),
            R"("\u00e9\ud83d\ude00")");
  EXPECT_EQ(render("{{ x | tojson(separators=(',', ':'), sort_keys=true) }}",
                   R"({"x": {"b": 1, "a": [1, 2]}})"),
            R"({"a":[1,2],"b":1})");
  EXPECT_EQ(render("{{ x | tojson }}", R"({"x": [1e16, 1.5e-7, 123456.75, -0.0001, 1e100, 0.0]})"),
            "[1e+16, 1.5e-07, 123456.75, -0.0001, 1e+100, 0.0]");
}

TEST(ChatTemplateTest, PrintsValuesAsPythonDoes) {
  EXPECT_EQ(render("{{ a }} {{ b }} {{ c }} {{ d }}{{ missing }}",
                   R"({"a": true, "b": null, "c": ["x'y", 1, false], "d": {"k": 1.0}})"),
            R"(True None ["x'y", 1, False] {'k': 1.0})");
}

TEST(ChatTemplateTest, OffersWhatTemplatesUse) {
  EXPECT_EQ(render("{{ ' a b '.strip().split(' ')[-1] }}{{ {'k': 1}.get('z', 7) }}"), "b7");
  EXPECT_EQ(render("{% for x in [1, 2, 3, 4] %}{% if x == 2 %}{% continue %}{% endif %}"
                   "{% if x == 4 %}{% break %}{% endif %}{{ x }}{% endfor %}"),
            "13");
  EXPECT_EQ(render("{{ x is iterable }}{{ missing is iterable }}{{ [] is iterable }}"
                   "{{ 'a' is iterable }}{{ 1 is iterable }}",
                   R"({"x": null})"),
            "FalseTrueTrueTrueFalse");
  EXPECT_EQ(render("a{% generation %}b{% endgeneration %}c"), "abc");
  EXPECT_EQ(render("a {%- generation -%} b {%- endgeneration -%} c"), "abc");
  EXPECT_EQ(render("{% for k, v in x.items() %}{{ k }}={{ v }};{% endfor %}",
                   R"({"x": {"z": 1, "a": 2}})"),
            "z=1;a=2;");
  EXPECT_EQ(render("{% set ns = namespace(n=0) %}{% for x in 'ab' %}{% set ns.n = ns.n + 1 %}"
                   "{% endfor %}{{ ns.n }}"),
            "2");
  EXPECT_EQ(render("{{ [1, 2, 3][::-1] }}{{ loop is defined }}"), "[3, 2, 1]False");
}

TEST(ChatTemplateTest, PrintsTheTimeGiven) {
  setenv("TZ", "UTC", 1);
  tzset();
  EXPECT_EQ(render("{{ strftime_now('%d %b %Y %H:%M') }}", "{}", 1700000000), "14 Nov 2023 22:13");
}

TEST(ChatTemplateTest, ReportsErrors) {
  EXPECT_EQ(render("{{ raise_exception('roles must alternate') }}"),
            "error: the chat template refused the messages: roles must alternate");
  EXPECT_EQ(render("{% macro m() %}{{ raise_exception('inner') }}{% endmacro %}{{ m() }}"),
            "error: the chat template refused the messages: inner");
  EXPECT_NE(render("{% if %}").find("compile: cannot compile the chat template"),
            std::string::npos);
  EXPECT_NE(render("a\n{{ missing.name }}").find(":2"), std::string::npos);
  EXPECT_NE(render("x", "[1]").find("error: the template's variables"), std::string::npos);
}

// https://github.com/BLAKE3-team/BLAKE3/blob/master/test_vectors/test_vectors.json: the input is
// the bytes 0, 1, ... 250, 0, 1, ...
TEST(Blake3Test, MatchesThePublishedVectors) {
  std::string input;
  for (int i = 0; i < 102400; ++i) input.push_back(static_cast<char>(i % 251));
  EXPECT_EQ(to_hex(blake3({})), "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262");
  EXPECT_EQ(to_hex(blake3(as_bytes(input.substr(0, 1)))),
            "2d3adedff11b61f14c886e35afa036736dcd87a74d27b5c1510225d0f592e213");
  const std::string expected = "bc3e3d41a1146b069abffad3c0d44860cf664390afce4d9661f7902e7943e085";
  EXPECT_EQ(to_hex(blake3(as_bytes(input))), expected);

  Blake3Hasher hasher;
  hasher.update(as_bytes(input.substr(0, 1000)));
  EXPECT_NE(to_hex(hasher.finish()), expected);
  hasher.update(as_bytes(input.substr(1000)));
  EXPECT_EQ(to_hex(hasher.finish()), expected);

  TempFile file("blake3.bin", input);
  EXPECT_EQ(to_hex(blake3_file(file.path()).value()), expected);
}

TEST(Blake3Test, LargeInputHashesTheSameInOneUpdateAndInMany) {
  std::string input(3 << 20, 'x');
  for (size_t i = 0; i < input.size(); i += 7) input[i] = static_cast<char>(i >> 8);
  Blake3Hasher pieces;
  for (size_t i = 0; i < input.size(); i += 4099) {
    pieces.update(as_bytes(std::string_view(input).substr(i, 4099)));
  }
  EXPECT_EQ(to_hex(blake3(as_bytes(input))), to_hex(pieces.finish()));
}

TEST(Blake3Test, NamesAMissingFile) {
  const auto digest = blake3_file("/nowhere/file");
  ASSERT_FALSE(digest.ok());
  EXPECT_EQ(digest.error().code, ErrorCode::kNotFound);
  EXPECT_NE(digest.error().message.find("/nowhere/file"), std::string::npos);
}

}  // namespace
}  // namespace medley::ffi
