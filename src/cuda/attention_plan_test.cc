#include "cuda/attention_plan.h"

#include <gtest/gtest.h>

#include <numeric>
#include <set>
#include <tuple>
#include <vector>

namespace medley::cuda {
namespace {

// A step of sequences with `rows` rows each that end at `kv_lens`, 16 tokens a page.
struct Sequences {
  Sequences(const std::vector<int>& rows, std::vector<int32_t> lens) : kv_lens(std::move(lens)) {
    for (size_t s = 0; s < rows.size(); ++s) {
      q_indptr.push_back(q_indptr.back() + rows[s]);
      page_indptr.push_back(page_indptr.back() + (kv_lens[s] + 15) / 16);
    }
    tokens.resize(q_indptr.back());
  }
  StepInputs inputs() const {
    return {
        .token_ids = tokens, .q_indptr = q_indptr, .kv_lens = kv_lens, .page_indptr = page_indptr};
  }
  std::vector<int32_t> tokens, kv_lens, q_indptr = {0}, page_indptr = {0};
};

struct PlanArrays {
  PlanArrays(int items, int seqs)
      : valid(std::make_unique<bool[]>(items)), ints(4, std::vector<int32_t>(items, -7)) {
    indptrs.assign(2, std::vector<int32_t>(seqs + 1, -7));
    prefill.assign(3, std::vector<int32_t>(items, -7));
    view = {.item_is_valid = valid.get(),
            .seq_of_item = ints[0].data(),
            .tile_of_item = ints[1].data(),
            .chunk_of_item = ints[2].data(),
            .chunk_indptr = indptrs[0].data(),
            .page_indptr = indptrs[1].data(),
            .chunk_size = ints[3].data(),
            .zeros = prefill[0].data(),
            .prefill_seq = prefill[1].data(),
            .prefill_tile = prefill[2].data()};
  }
  std::unique_ptr<bool[]> valid;
  std::vector<std::vector<int32_t>> ints, indptrs, prefill;
  AttentionPlanArrays view;
};

TEST(ChunkSize, IsAMultipleOfTheStepThatFitsTheChunks) {
  for (const int slots : {1, 6, 49, 66}) {
    for (const std::vector<int32_t>& keys : {std::vector<int32_t>{1},
                                             {4096},
                                             {131072},
                                             {1, 15, 16, 17, 127, 128, 129, 1000, 4096},
                                             std::vector<int32_t>(64, 2000),
                                             {0, 5, 0},
                                             {0}}) {
      const int size = choose_chunk_size(keys, slots, 128);
      EXPECT_EQ(size % 128, 0);
      EXPECT_GE(size, 128);
      int chunks = 0;
      for (const int32_t n : keys) chunks += (n + size - 1) / size;
      EXPECT_LE(chunks, slots + static_cast<int>(keys.size()));
    }
  }
}

TEST(ChunkSize, OneLongSequenceIsSpreadOverTheDevice) {
  // 4096 keys are 32 chunks of the smallest size, and 49 may run at once.
  EXPECT_EQ(choose_chunk_size(std::vector<int32_t>{4096}, 49, 128), 128);
}

TEST(ChunkSize, EqualSequencesThatFillTheDeviceStayWhole) {
  EXPECT_GE(choose_chunk_size(std::vector<int32_t>(128, 1024), 49, 128), 512);
}

TEST(ChunkSize, ALongSequenceAmongShortOnesIsSplit) {
  std::vector<int32_t> keys(63, 100);
  keys.push_back(30000);
  EXPECT_LE(choose_chunk_size(keys, 49, 128), 2048);
}

TEST(DecodePlan, CoversEachVisibleKeyOnceAndNoPrefill) {
  const AttentionShape shape = {
      .num_heads = 40, .num_kv_heads = 2, .head_dim = 64, .window = 0};  // 20 heads: two tiles
  const DecodeCapacity capacity = {.slots = 10, .max_seqs = 8, .tiles = shape.decode_tiles()};
  ASSERT_EQ(capacity.tiles, 2);
  const Sequences seqs({1, 3, 1, 1}, {1000, 50, 1, 129});
  PlanArrays plan(capacity.max_items(8), 8);
  plan_decode(shape, capacity, 128, seqs.inputs(), plan.view);
  const int size = *plan.view.chunk_size;
  std::set<std::tuple<int, int, int>> found;
  int valid = 0;
  for (int i = 0; i < capacity.max_items(8); ++i) {
    if (!plan.valid[i]) continue;
    ++valid;
    found.insert({plan.ints[0][i], plan.ints[2][i], plan.ints[1][i]});
  }
  std::set<std::tuple<int, int, int>> expected;
  for (const auto& [seq, keys] : std::vector<std::pair<int, int>>{{0, 1000}, {2, 1}, {3, 129}}) {
    for (int chunk = 0; chunk * size < keys; ++chunk) {
      for (const int tile : {0, 1}) expected.insert({seq, chunk, tile});
    }
    EXPECT_EQ(plan.indptrs[0][seq + 1] - plan.indptrs[0][seq], (keys + size - 1) / size);
  }
  EXPECT_EQ(found, expected);
  EXPECT_EQ(valid, static_cast<int>(expected.size()));
  EXPECT_EQ(plan.indptrs[0][2], plan.indptrs[0][1]) << "the prefill sequence has no chunks";
  EXPECT_EQ(plan.indptrs[1],
            (std::vector<int32_t>{0, 63, 67, 68, 77, 77, 77, 77, 77}));  // pages, then the last
}

TEST(DecodePlan, AWindowIsOneChunk) {
  const AttentionShape shape = {.num_heads = 64, .num_kv_heads = 8, .head_dim = 64, .window = 128};
  const DecodeCapacity capacity = {.slots = 49, .max_seqs = 2, .tiles = 1};
  const Sequences seqs({1, 1}, {100000, 77});
  PlanArrays plan(capacity.max_items(2), 2);
  plan_decode(shape, capacity, 128, seqs.inputs(), plan.view);
  EXPECT_EQ(plan.indptrs[0], (std::vector<int32_t>{0, 1, 2}));
}

TEST(PrefillPlan, TilesOfSeveralRowsLastFirst) {
  const AttentionShape shape = {.num_heads = 64, .num_kv_heads = 8, .head_dim = 64};
  const Sequences seqs({1, 33, 2, 1}, {9, 40, 2, 7});
  PlanArrays plan(max_prefill_items(shape, 37, 4), 4);
  // 33 rows x 8 heads = 264 query rows: 3 tiles of 128.
  EXPECT_EQ(plan_prefill(shape, seqs.inputs(), plan.view), 4);
  EXPECT_EQ(std::vector(plan.prefill[1].begin(), plan.prefill[1].begin() + 4),
            (std::vector<int32_t>{1, 1, 1, 2}));
  EXPECT_EQ(std::vector(plan.prefill[2].begin(), plan.prefill[2].begin() + 4),
            (std::vector<int32_t>{2, 1, 0, 0}));
}

}  // namespace
}  // namespace medley::cuda
