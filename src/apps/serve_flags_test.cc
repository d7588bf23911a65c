#include "apps/serve_flags.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>

#include <CLI/CLI.hpp>

namespace medley::apps {
namespace {

ServeFlags parse(std::vector<std::string> arguments) {
  CLI::App app;
  ServeFlags flags;
  add_serve_flags(app, flags);
  std::ranges::reverse(arguments);  // as the library takes them
  app.parse(arguments);
  return flags;
}

TEST(ServeFlags, AsWithVllm) {
  const ServeFlags flags = parse({"/m",
                                  "--host",
                                  "127.0.0.1",
                                  "--port",
                                  "9000",
                                  "--served-model-name",
                                  "a",
                                  "b",
                                  "--dtype",
                                  "float32",
                                  "--max-model-len",
                                  "2048",
                                  "--enable-lora",
                                  "--lora-modules",
                                  "x=/x",
                                  R"({"name":"y","path":"/y"})",
                                  "--max-loras",
                                  "3",
                                  "--max-lora-rank",
                                  "64",
                                  "--api-key",
                                  "k",
                                  "--max-num-seqs",
                                  "5",
                                  "--max-num-batched-tokens",
                                  "99",
                                  "--seed",
                                  "7"});
  EXPECT_EQ(flags.model, "/m");
  EXPECT_EQ(flags.host, "127.0.0.1");
  EXPECT_EQ(flags.port, 9000);
  EXPECT_EQ(flags.served_model_names, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(flags.dtype, "float32");
  EXPECT_EQ(flags.max_model_len, 2048);
  EXPECT_TRUE(flags.enable_lora);
  EXPECT_EQ(flags.lora_modules.size(), 2u);
  EXPECT_EQ(flags.max_loras, 3);
  EXPECT_EQ(flags.max_lora_rank, 64);
  EXPECT_EQ(flags.api_key, "k");
  EXPECT_EQ(flags.max_num_seqs, 5);
  EXPECT_EQ(flags.max_num_batched_tokens, 99);
  EXPECT_EQ(flags.seed, 7u);
}

TEST(ServeFlags, PrefixCachingIsOnUnlessRefused) {
  EXPECT_TRUE(parse({"/m"}).enable_prefix_caching);
  EXPECT_TRUE(parse({"/m", "--enable-prefix-caching"}).enable_prefix_caching);
  EXPECT_FALSE(parse({"/m", "--no-enable-prefix-caching"}).enable_prefix_caching);
}

TEST(ServeFlags, EnvironmentStandsInForFlags) {
  setenv("MEDLEY_API_KEY", "from-environment", 1);
  setenv("MEDLEY_MAX_LORAS", "5", 1);
  const ServeFlags flags = parse({"/m", "--max-loras", "6"});
  unsetenv("MEDLEY_API_KEY");
  unsetenv("MEDLEY_MAX_LORAS");
  EXPECT_EQ(flags.api_key, "from-environment");
  EXPECT_EQ(flags.max_loras, 6);
}

TEST(ServeFlags, BadValuesAndMissingModelAreErrors) {
  EXPECT_THROW(parse({}), CLI::RequiredError);
  EXPECT_THROW(parse({"/m", "--port", "70000"}), CLI::ValidationError);
  EXPECT_THROW(parse({"/m", "--max-loras", "0"}), CLI::ValidationError);
  EXPECT_THROW(parse({"/m", "--gpu-memory-utilization", "1.5"}), CLI::ValidationError);
  EXPECT_THROW(parse({"/m", "--device", "tpu"}), CLI::ValidationError);
  EXPECT_THROW(parse({"/m", "--load-format", "pt"}), CLI::ValidationError);
  EXPECT_THROW(parse({"/m", "--no-such-flag"}), CLI::ExtrasError);
}

TEST(ServeFlags, ForeignFlagsWarnOrRefuse) {
  EXPECT_TRUE(check_foreign_flags(parse({"/m", "--tensor-parallel-size", "1"})).ok());
  EXPECT_EQ(parse({"/m", "--load-format", "dummy"}).load_format, "dummy");
  const Result<void> refused = check_foreign_flags(parse({"/m", "--tensor-parallel-size", "2"}));
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().param, "--tensor-parallel-size");
  EXPECT_FALSE(check_foreign_flags(parse({"/m", "--kv-cache-dtype", "fp8"})).ok());
}

TEST(LoraModule, BothForms) {
  EXPECT_EQ(parse_lora_module("a=/b=c")->path, "/b=c");
  EXPECT_EQ(parse_lora_module("a=/b")->name, "a");
  const LoraModule json =
      parse_lora_module(R"({"name":"n","path":"/p","base_model_name":"b"})").value();
  EXPECT_EQ(json.name, "n");
  EXPECT_EQ(json.path, "/p");
  for (const char* bad : {"", "a", "=b", "a=", "{", "{}", R"({"name":"n"})", R"({"name":1})"}) {
    EXPECT_FALSE(parse_lora_module(bad).ok()) << bad;
  }
}

TEST(Dtype, AutoFollowsTheCheckpoint) {
  EXPECT_EQ(parse_dtype("auto", DType::kF32).value(), DType::kF32);
  EXPECT_EQ(parse_dtype("auto", DType::kBF16).value(), DType::kBF16);
  EXPECT_EQ(parse_dtype("auto", DType::kF16).value(), DType::kBF16);
  EXPECT_EQ(parse_dtype("float32", DType::kBF16).value(), DType::kF32);
  EXPECT_FALSE(parse_dtype("float16", DType::kBF16).ok());
}

}  // namespace
}  // namespace medley::apps
