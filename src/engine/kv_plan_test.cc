#include "engine/kv_plan.h"

#include <gtest/gtest.h>

namespace medley {
namespace {

// GPT-OSS 20B: 24 layers, 8 KV heads of 64.
ModelSpec gpt_oss_20b() {
  ModelSpec spec;
  spec.layers.resize(24);
  spec.attention = {.num_heads = 64, .num_kv_heads = 8, .head_dim = 64};
  return spec;
}

TEST(KvPlan, PageBytes) {
  // keys and values x 24 x 8 x 64 x 2 bytes = 48 KiB a token.
  EXPECT_EQ(kv_page_bytes(gpt_oss_20b(), DType::kBF16, 16), 16 * 48 * 1024);
  EXPECT_EQ(kv_page_bytes(gpt_oss_20b(), DType::kF32, 1), 96 * 1024);
}

TEST(KvPlan, WithoutABudgetAllSequencesFit) {
  const auto pages =
      plan_kv_pages(gpt_oss_20b(), {.max_num_seqs = 3, .max_model_len = 33, .page_size = 16});
  EXPECT_EQ(*pages, 3 * 3);
}

TEST(KvPlan, TheBudgetIsKept) {
  const KvPlanDesc desc = {.max_num_seqs = 64,
                           .max_model_len = 32,
                           .page_size = 16,
                           .budget_bytes = 10 * 16 * 48 * 1024 + 1};
  EXPECT_EQ(*plan_kv_pages(gpt_oss_20b(), desc), 10);
}

TEST(KvPlan, PageTablesHoldSharedPagesOnceForEachSequence) {
  KvPlanDesc desc = {.max_num_seqs = 64, .max_model_len = 33, .page_size = 16};
  EXPECT_EQ(plan_page_table(desc, 100), 64 * 3);
  EXPECT_EQ(plan_page_table(desc, 10), 160);
}

TEST(KvPlan, OneSequenceMustFit) {
  const KvPlanDesc desc = {.max_num_seqs = 64,
                           .max_model_len = 32,
                           .page_size = 16,
                           .budget_bytes = 2 * 16 * 48 * 1024 - 1};
  const auto pages = plan_kv_pages(gpt_oss_20b(), desc);
  ASSERT_FALSE(pages.ok());
  EXPECT_EQ(pages.error().message,
            "the KV cache holds 786432 bytes, but one request of max_model_len 32 takes 1572864");
}

}  // namespace
}  // namespace medley
