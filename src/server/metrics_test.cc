#include "server/metrics.h"

#include <gtest/gtest.h>

namespace medley::server {
namespace {

bool has_line(const std::string& text, const std::string& line) {
  return ("\n" + text).find("\n" + line + "\n") != std::string::npos;
}

size_t count(const std::string& text, const std::string& what) {
  size_t num = 0;
  for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++num;
  return num;
}

// Names, labels and kinds are those of vLLM's documentation ("Production metrics").
TEST(Metrics, NamesAndValues) {
  Metrics metrics("m");
  metrics.on_first_token(7, 30'000'000);
  metrics.on_token(1);
  metrics.on_inter_token(20'000'000);
  metrics.on_token(1);
  metrics.on_finish(FinishReason::kStop, 400'000'000);
  const std::string text = metrics.render({.engine = {.num_running = 3,
                                                      .num_waiting = 2,
                                                      .num_pages = 100,
                                                      .num_free_pages = 75,
                                                      .page_size = 16,
                                                      .num_preemptions = 4,
                                                      .num_prefix_cache_queries = 40,
                                                      .num_prefix_cache_hits = 32,
                                                      .prefix_caching = true}});
  EXPECT_TRUE(has_line(text, R"(vllm:num_requests_running{model_name="m"} 3)")) << text;
  EXPECT_TRUE(has_line(text, R"(vllm:num_requests_waiting{model_name="m"} 2)")) << text;
  EXPECT_TRUE(has_line(text, R"(vllm:kv_cache_usage_perc{model_name="m"} 0.25)")) << text;
  EXPECT_TRUE(has_line(text, R"(vllm:prompt_tokens_total{model_name="m"} 7)")) << text;
  EXPECT_TRUE(has_line(text, R"(vllm:generation_tokens_total{model_name="m"} 2)")) << text;
  EXPECT_TRUE(has_line(text, R"(vllm:num_preemptions_total{model_name="m"} 4)")) << text;
  EXPECT_TRUE(has_line(text, R"(vllm:prefix_cache_queries_total{model_name="m"} 40)")) << text;
  EXPECT_TRUE(has_line(text, R"(vllm:prefix_cache_hits_total{model_name="m"} 32)")) << text;
  EXPECT_TRUE(has_line(text, "# TYPE vllm:prompt_tokens_total counter"));
  EXPECT_TRUE(has_line(text, "# TYPE vllm:time_to_first_token_seconds histogram"));
  EXPECT_TRUE(
      has_line(text, R"(vllm:time_to_first_token_seconds_bucket{model_name="m",le="0.02"} 0)"));
  EXPECT_TRUE(
      has_line(text, R"(vllm:time_to_first_token_seconds_bucket{model_name="m",le="0.04"} 1)"));
  EXPECT_TRUE(has_line(text, R"(vllm:inter_token_latency_seconds_count{model_name="m"} 1)"));
  EXPECT_TRUE(has_line(text, R"(vllm:e2e_request_latency_seconds_sum{model_name="m"} 0.4)"))
      << text;
  EXPECT_EQ(count(text, "vllm:request_success_total{"), 4u);
  EXPECT_NE(text.find("finished_reason=\"stop\""), std::string::npos);
  EXPECT_NE(text.find("block_size=\"16\""), std::string::npos);
  EXPECT_NE(text.find("num_gpu_blocks=\"100\""), std::string::npos);
  EXPECT_NE(text.find("enable_prefix_caching=\"True\""), std::string::npos);
}

TEST(Metrics, PhasesOfARequest) {
  Metrics metrics("m");
  metrics.on_phases(
      {.queue_ns = 250'000'000, .prefill_ns = 500'000'000, .decode_ns = 2'000'000'000});
  const std::string text = metrics.render({});
  EXPECT_TRUE(has_line(text, R"(vllm:request_queue_time_seconds_sum{model_name="m"} 0.25)"));
  EXPECT_TRUE(has_line(text, R"(vllm:request_prefill_time_seconds_sum{model_name="m"} 0.5)"));
  EXPECT_TRUE(has_line(text, R"(vllm:request_decode_time_seconds_sum{model_name="m"} 2)"));
  EXPECT_TRUE(has_line(text, R"(vllm:request_decode_time_seconds_count{model_name="m"} 1)"));
}

TEST(Metrics, LoraInfoIsOneSeriesWhateverChanges) {
  Metrics metrics("m");
  metrics.render({.max_adapters = 8, .adapters = {{.id = "a", .state = "on_device"}}});
  const std::string text = metrics.render({.engine = {.waiting_adapters = {"c"}},
                                           .max_adapters = 8,
                                           .adapters = {{.id = "a", .state = "on_device"},
                                                        {.id = "b", .state = "on_device"},
                                                        {.id = "d", .state = "in_host"}}});
  EXPECT_EQ(count(text, "\nvllm:lora_requests_info{"), 1u) << text;
  EXPECT_NE(text.find("max_lora=\"8\""), std::string::npos);
  EXPECT_NE(text.find("running_lora_adapters=\"a,b\""), std::string::npos);
  EXPECT_NE(text.find("waiting_lora_adapters=\"c\""), std::string::npos);
}

TEST(Metrics, TheEnginesCountsAreNotCountedTwice) {
  Metrics metrics("m");
  metrics.render({.engine = {.num_preemptions = 2, .num_prefix_cache_hits = 16}});
  const std::string text =
      metrics.render({.engine = {.num_preemptions = 5, .num_prefix_cache_hits = 48}});
  EXPECT_TRUE(has_line(text, R"(vllm:num_preemptions_total{model_name="m"} 5)"));
  EXPECT_TRUE(has_line(text, R"(vllm:prefix_cache_hits_total{model_name="m"} 48)"));
}

// Steps of 1, 20, 20 and 30000 tokens, the last one after the first scrape.
TEST(Metrics, TokensOfSteps) {
  Metrics metrics("m");
  EngineStats engine{.num_step_tokens = 41, .num_steps_by_size = {1, 0, 0, 2}};
  metrics.render({.engine = engine});
  engine.num_step_tokens += 30000;
  engine.num_steps_by_size.back() = 1;
  const std::string text = metrics.render({.engine = engine});
  EXPECT_TRUE(has_line(text, "# TYPE vllm:iteration_tokens_total histogram"));
  const auto bucket = [&](const std::string& le, const std::string& count) {
    return has_line(
        text, "vllm:iteration_tokens_total_bucket{model_name=\"m\",le=\"" + le + "\"} " + count);
  };
  EXPECT_TRUE(bucket("1", "1")) << text;
  EXPECT_TRUE(bucket("16", "1"));
  EXPECT_TRUE(bucket("32", "3"));
  EXPECT_TRUE(bucket("16384", "3"));
  EXPECT_TRUE(bucket("+Inf", "4"));
  EXPECT_TRUE(has_line(text, R"(vllm:iteration_tokens_total_sum{model_name="m"} 30041)"));
}

TEST(MetricsTest, LoadsAndErrorsOfAnAdapter) {
  Metrics metrics("m");
  metrics.on_adapter_load({.adapter = "a", .source = "disk", .duration_ns = 300'000'000});
  metrics.on_adapter_load({.adapter = "a", .source = "host", .duration_ns = 2'000'000});
  metrics.on_adapter_load({.adapter = "a", .source = "host", .duration_ns = 6'000'000});
  metrics.on_adapter_load({.adapter = "a", .source = "disk", .ok = false});
  metrics.on_finish(FinishReason::kError, 1, "a");
  metrics.on_finish(FinishReason::kStop, 1, "a");
  const std::string text = metrics.render({});
  const std::string disk = R"({adapter="a",model_name="m",source="disk"} )";
  const std::string host = R"({adapter="a",model_name="m",source="host"} )";
  EXPECT_TRUE(has_line(text, "medley:adapter_loads_total" + disk + "1")) << text;
  EXPECT_TRUE(has_line(text, "medley:adapter_loads_total" + host + "2"));
  EXPECT_TRUE(has_line(text, "medley:adapter_load_seconds_sum" + disk + "0.3"));
  EXPECT_TRUE(has_line(text, "medley:adapter_load_seconds_count" + host + "2"));
  EXPECT_TRUE(has_line(
      text,
      R"(medley:adapter_load_seconds_bucket{adapter="a",model_name="m",source="host",le="0.005"} 1)"));
  EXPECT_TRUE(
      has_line(text, R"(medley:adapter_errors_total{adapter="a",kind="load",model_name="m"} 1)"));
  EXPECT_TRUE(has_line(
      text, R"(medley:adapter_errors_total{adapter="a",kind="request",model_name="m"} 1)"));
}

TEST(MetricsTest, PerAdapterSeriesAreBounded) {
  Metrics metrics("base");
  for (int i = 0; i < 300; ++i) {
    const std::string name = "a" + std::to_string(i);
    metrics.on_first_token(10, 1'000'000, name);
    metrics.on_token(2, name);
    metrics.on_finish(FinishReason::kLength, 1'000'000, name);
    metrics.on_adapter_load({.adapter = name, .source = "disk"});
  }
  metrics.on_token(2);  // the base model's
  const std::string text = metrics.render(
      {.adapters = {{.id = "a0", .num_bytes = 77, .state = "in_host"}, {.id = "a1"}}});
  const auto has = [&](const std::string& line) { return text.find(line) != std::string::npos; };
  const std::string base = R"(,model_name="base"} )";
  EXPECT_TRUE(has(R"(medley:adapter_generation_tokens_total{adapter="a0")" + base + "2"));
  EXPECT_TRUE(has(R"(medley:adapter_prompt_tokens_total{adapter="a255")" + base + "10"));
  EXPECT_FALSE(has(R"(adapter="a256")"));
  EXPECT_TRUE(has(R"(medley:adapter_generation_tokens_total{adapter="*others*")" + base + "88"));
  EXPECT_TRUE(has(
      R"(medley:adapter_requests_total{adapter="*others*",finished_reason="length",model_name="base"} 44)"));
  EXPECT_TRUE(
      has(R"(medley:adapter_loads_total{adapter="*others*",model_name="base",source="disk"} 44)"));
  EXPECT_TRUE(has(R"(medley:adapter_bytes{adapter="a0")" + base + "77"));
  EXPECT_TRUE(has(R"(medley:adapter_state{adapter="a0",model_name="base",state="in_host"} 1)"));
  const std::string later = metrics.render({});
  EXPECT_EQ(later.find("medley:adapter_state{"), std::string::npos);
}

}  // namespace
}  // namespace medley::server
