#include "cuda/attention_plan.h"

#include <gtest/gtest.h>

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
      : seq(items, -7), tile(items, -7), chunk(items, -7), indptr(seqs + 1, -7), pages(seqs + 1) {
    view = {.num_items = &num_items,
            .seq_of_item = seq.data(),
            .tile_of_item = tile.data(),
            .chunk_of_item = chunk.data(),
            .chunk_size = &chunk_size,
            .chunk_indptr = indptr.data(),
            .page_indptr = pages.data(),
            .num_prefill_items = &num_items,
            .prefill_seq = seq.data(),
            .prefill_tile = tile.data(),
            .prefill_chunk = chunk.data()};
  }
  int32_t num_items = -7;
  int32_t chunk_size = -7;
  std::vector<int32_t> seq, tile, chunk, indptr, pages;
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
      .num_heads = 40, .num_kv_heads = 2, .head_dim = 64};  // 20 heads: two tiles
  DecodeCapacity capacity = decode_capacity(shape, /*resident_blocks=*/68);
  capacity.max_seqs = 8;
  EXPECT_EQ(capacity.tiles, 2);
  EXPECT_EQ(capacity.slots, 10);
  EXPECT_FALSE(capacity.is_whole());
  const Sequences seqs({1, 3, 1, 1}, {1000, 50, 1, 129});
  PlanArrays plan(capacity.max_items(8), 8);
  plan_decode(shape, capacity, seqs.inputs(), plan.view);
  std::set<std::tuple<int, int, int>> found;
  for (int i = 0; i < plan.num_items; ++i) {
    found.insert({plan.seq[i], plan.chunk[i], plan.tile[i]});
  }
  std::set<std::tuple<int, int, int>> expected;
  for (const auto& [seq, keys] : std::vector<std::pair<int, int>>{{0, 1000}, {2, 1}, {3, 129}}) {
    for (int chunk = 0; chunk * plan.chunk_size < keys; ++chunk) {
      for (const int tile : {0, 1}) expected.insert({seq, chunk, tile});
    }
    EXPECT_EQ(plan.indptr[seq + 1] - plan.indptr[seq],
              (keys + plan.chunk_size - 1) / plan.chunk_size);
  }
  EXPECT_EQ(found, expected);
  EXPECT_EQ(plan.num_items, static_cast<int>(expected.size()));
  EXPECT_EQ(plan.indptr[2], plan.indptr[1]) << "the prefill sequence has no chunks";
  EXPECT_EQ(plan.pages,
            (std::vector<int32_t>{0, 63, 67, 68, 77, 77, 77, 77, 77}));  // pages, then the last
}

TEST(DecodePlan, AWindowOfOneKeyTileIsOneChunk) {
  const AttentionShape shape = {.num_heads = 64, .num_kv_heads = 8, .head_dim = 64, .window = 128};
  DecodeCapacity capacity = decode_capacity(shape, /*resident_blocks=*/396);
  capacity.max_seqs = 2;
  EXPECT_TRUE(capacity.is_whole());
  EXPECT_EQ(capacity.max_items(2), 2) << "no blocks without work";
  const Sequences seqs({1, 1}, {100000, 77});
  PlanArrays plan(2, 2);
  plan_decode(shape, capacity, seqs.inputs(), plan.view);
  EXPECT_EQ(plan.indptr, (std::vector<int32_t>{0, 1, 2}));
}

TEST(DecodePlan, AWiderWindowBoundsTheChunks) {
  const AttentionShape shape = {.num_heads = 8, .num_kv_heads = 8, .head_dim = 128, .window = 100};
  const DecodeCapacity capacity = decode_capacity(shape, /*resident_blocks=*/528);
  EXPECT_EQ(capacity.chunks_per_seq, 2);  // of 64 keys
  EXPECT_EQ(capacity.max_chunks(3), 6);
  EXPECT_EQ(capacity.max_chunks(1000), 1039);
}

TEST(PrefillPlan, TilesOfSeveralRowsLastFirst) {
  const AttentionShape shape = {.num_heads = 64, .num_kv_heads = 8, .head_dim = 64};
  const Sequences seqs({1, 33, 2, 1}, {9, 40, 2, 7});
  PlanArrays plan(max_prefill_items(shape, 37, 4), 4);
  plan_prefill(shape, seqs.inputs(), plan.view);
  // 33 rows x 8 heads = 264 query rows: 3 tiles of 128.
  EXPECT_EQ(plan.num_items, 4);
  plan.seq.resize(4);
  plan.tile.resize(4);
  EXPECT_EQ(plan.seq, (std::vector<int32_t>{1, 1, 1, 2}));
  EXPECT_EQ(plan.tile, (std::vector<int32_t>{2, 1, 0, 0}));
}

}  // namespace
}  // namespace medley::cuda
