#include "apps/memory_plan.h"

#include <gtest/gtest.h>

namespace medley::apps {
namespace {

constexpr int64_t kGib = int64_t{1} << 30;
constexpr int64_t kMib = int64_t{1} << 20;

// GPT-OSS 20B's keys and values: 48 KiB a token, 768 KiB a page of 16.
ModelSpec spec() {
  ModelSpec spec;
  spec.layers.resize(24);
  spec.attention = {.num_heads = 64, .num_kv_heads = 8, .head_dim = 64};
  return spec;
}
constexpr int64_t kPageBytes = 768 << 10;

KvPlanDesc kv(int64_t max_model_len = 131072) {
  return {.max_num_seqs = 64, .max_model_len = max_model_len, .page_size = 16};
}

// 100 GiB, 60 of them free: 10 are kept, half a GiB is for graphs.
constexpr DeviceMemory kGpu = {.free_bytes = 60 * kGib, .total_bytes = 100 * kGib};
constexpr MemoryDesc kBase = {.device = kGpu, .host_bytes = 200 * kGib};
constexpr MemoryDesc kLora = {.device = kGpu, .host_bytes = 200 * kGib, .has_adapters = true};
constexpr MemoryDesc kCpu = {.host_bytes = 200 * kGib, .has_adapters = true};
constexpr int64_t kLeft = 50 * kGib - 512 * kMib;
ModelFlags flags() {
  ModelFlags flags;
  flags.gpu_memory_utilization = 0.9;
  return flags;
}

TEST(MemoryPlan, WithoutAdaptersKeysAndValuesGetAll) {
  const MemoryPlan plan = *plan_memory(flags(), spec(), kBase, kv());
  EXPECT_EQ(plan.num_pages, kLeft / kPageBytes);
  EXPECT_EQ(plan.kv_bytes, plan.num_pages * kPageBytes);
}

TEST(MemoryPlan, AdaptersGetHalfOrWhatSequencesCannotFill) {
  const MemoryPlan half = *plan_memory(flags(), spec(), kLora, kv());
  EXPECT_NEAR(static_cast<double>(half.kv_bytes), kLeft / 2.0, kPageBytes);
  EXPECT_NEAR(static_cast<double>(half.adapter_bytes), kLeft / 2.0, kPageBytes);
  // 64 sequences of 4,096 tokens take 12 GiB.
  const MemoryPlan rest = *plan_memory(flags(), spec(), kLora, kv(4096));
  EXPECT_EQ(rest.kv_bytes, 12 * kGib);
  EXPECT_NEAR(static_cast<double>(rest.adapter_bytes), kLeft - 12.0 * kGib, kMib);
}

TEST(MemoryPlan, TheFlagIsKept) {
  ModelFlags with_flag = flags();
  with_flag.kv_cache_memory_bytes = 20 * kGib;
  const MemoryPlan plan = *plan_memory(with_flag, spec(), kLora, kv());
  EXPECT_LE(plan.kv_bytes, 20 * kGib);
  EXPECT_GT(plan.kv_bytes, 20 * kGib - kPageBytes);
  with_flag.kv_cache_memory_bytes = 500 * kGib;
  EXPECT_LE(plan_memory(with_flag, spec(), kLora, kv())->kv_bytes, kLeft);
}

TEST(MemoryPlan, AdaptersOnTheDeviceFitIntoHostMemoryToo) {
  EXPECT_EQ(plan_memory(flags(), spec(), kLora, kv())->adapter_host_bytes, 150 * kGib);
  MemoryDesc small_host = kLora;
  small_host.host_bytes = 16 * kGib;
  const MemoryPlan plan = *plan_memory(flags(), spec(), small_host, kv());
  EXPECT_EQ(plan.adapter_host_bytes, 12 * kGib);
  EXPECT_EQ(plan.adapter_bytes, 12 * kGib);
  ModelFlags with_flag = flags();
  with_flag.adapter_host_memory_bytes = 5 * kGib;
  EXPECT_EQ(plan_memory(with_flag, spec(), kLora, kv())->adapter_host_bytes, 5 * kGib);
  EXPECT_EQ(plan_memory(with_flag, spec(), kLora, kv())->adapter_bytes, 5 * kGib);
  EXPECT_EQ(plan_memory(with_flag, spec(), kCpu, kv(4096))->adapter_host_bytes, 5 * kGib);
}

TEST(MemoryPlan, AGpuThatIsFullIsAnError) {
  const auto plan = plan_memory(
      flags(), spec(), {.device = DeviceMemory{.free_bytes = 10 * kGib, .total_bytes = 100 * kGib}},
      kv());
  ASSERT_FALSE(plan.ok());
  EXPECT_EQ(plan.error().code, ErrorCode::kOverloaded);
  EXPECT_EQ(plan.error().message,
            "the model leaves 10240 MiB of the GPU free; of these 10240 MiB are kept free "
            "(--gpu-memory-utilization 0.9) and 512 MiB are for graphs");
}

TEST(MemoryPlan, OnTheCpuKeysAndValuesHaveADefault) {
  const MemoryPlan plan = *plan_memory(flags(), spec(), kCpu, kv(4096));
  EXPECT_LE(plan.kv_bytes, 4 * kGib);
  EXPECT_GT(plan.kv_bytes, 4 * kGib - kPageBytes * 2);
  EXPECT_EQ(plan.adapter_bytes, 0);
  EXPECT_EQ(plan.adapter_host_bytes, 0);
  ModelFlags small = flags();
  small.kv_cache_memory_bytes = 64 * kMib;
  const auto none = plan_memory(small, spec(), kCpu, kv());
  ASSERT_FALSE(none.ok());
  EXPECT_EQ(none.error().param, "kv_cache_memory");
}

}  // namespace
}  // namespace medley::apps
