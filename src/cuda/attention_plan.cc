#include "cuda/attention_plan.h"

#include <algorithm>
#include <limits>

#include "base/check.h"

namespace medley::cuda {
namespace {

// Chunks are cut for this share of the blocks that the device can hold: with more, what each costs
// besides its keys outweighs the idle room (bench/results/2026-11-30-attention.md).
constexpr int kUsedFifths = 3;
// What starting and joining a chunk costs, in tokens.
constexpr int64_t kChunkCost = 128;

int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

int num_rows_of(const StepInputs& inputs, int seq) {
  return inputs.q_indptr[seq + 1] - inputs.q_indptr[seq];
}

}  // namespace

int DecodeCapacity::max_chunks(int num_seqs) const {
  const int chunks = slots + num_seqs;
  return chunks_per_seq > 0 ? std::min(chunks, num_seqs * chunks_per_seq) : chunks;
}

DecodeCapacity decode_capacity(const AttentionShape& shape, int resident_blocks) {
  DecodeCapacity capacity = {.chunk_step = decode_key_tile(shape.head_dim),
                             .tiles = shape.decode_tiles()};
  capacity.slots =
      std::max(1, resident_blocks * kUsedFifths / 5 / (shape.num_kv_heads * capacity.tiles));
  capacity.chunks_per_seq = static_cast<int>(divide_up(shape.window, capacity.chunk_step));
  return capacity;
}

int visible_keys(int kv_len, int window) { return window > 0 ? std::min(kv_len, window) : kv_len; }

int choose_chunk_size(std::span<const int32_t> num_keys, int slots, int step) {
  int64_t longest = 1;
  int64_t total = 0;
  for (const int32_t keys : num_keys) {
    longest = std::max<int64_t>(longest, keys);
    total += keys;
  }
  const auto max_chunks = slots + static_cast<int64_t>(num_keys.size());
  int64_t best = divide_up(longest, step) * step;
  int64_t best_cost = std::numeric_limits<int64_t>::max();
  for (int64_t size = step;; size += divide_up(size / 4, step) * step) {
    size = std::min(size, divide_up(longest, step) * step);
    int64_t chunks = 0;
    for (const int32_t keys : num_keys) chunks += divide_up(keys, size);
    if (chunks <= max_chunks) {
      const int64_t cost =
          divide_up(total + chunks * kChunkCost, slots) + std::min(size, longest) + kChunkCost;
      if (cost <= best_cost) {
        best = size;
        best_cost = cost;
      }
    }
    if (size >= longest) return static_cast<int>(best);
  }
}

void plan_decode(const AttentionShape& shape, const DecodeCapacity& capacity,
                 const StepInputs& inputs, AttentionPlanArrays& out) {
  const int num_seqs = inputs.num_seqs();
  MEDLEY_CHECK_LE(num_seqs, capacity.max_seqs);
  // The keys of each sequence wait in chunk_indptr until the chunks are known.
  int32_t* keys = out.chunk_indptr + 1;
  for (int seq = 0; seq < num_seqs; ++seq) {
    keys[seq] = num_rows_of(inputs, seq) == 1 ? visible_keys(inputs.kv_lens[seq], shape.window) : 0;
  }
  const int size =
      choose_chunk_size({keys, static_cast<size_t>(num_seqs)}, capacity.slots, capacity.chunk_step);
  *out.chunk_size = size;
  out.chunk_indptr[0] = 0;
  int item = 0;
  for (int seq = 0; seq < num_seqs; ++seq) {
    const int chunks = static_cast<int>(divide_up(keys[seq], size));
    out.chunk_indptr[seq + 1] = out.chunk_indptr[seq] + chunks;
    for (int chunk = 0; chunk < chunks; ++chunk) {
      for (int tile = 0; tile < capacity.tiles; ++tile, ++item) {
        out.seq_of_item[item] = seq;
        out.tile_of_item[item] = tile;
        out.chunk_of_item[item] = chunk;
      }
    }
  }
  MEDLEY_CHECK_LE(item, capacity.max_items(num_seqs));
  *out.num_items = item;
  std::ranges::copy(inputs.page_indptr, out.page_indptr);
  std::fill(out.page_indptr + num_seqs + 1, out.page_indptr + capacity.max_seqs + 1,
            inputs.page_indptr[num_seqs]);
}

int max_prefill_items(const AttentionShape& shape, int max_rows, int max_seqs) {
  return static_cast<int>(divide_up(static_cast<int64_t>(max_rows) * shape.group(), kPrefillTile)) +
         max_seqs;
}

void plan_prefill(const AttentionShape& shape, const StepInputs& inputs, AttentionPlanArrays& out) {
  int item = 0;
  for (int seq = 0; seq < inputs.num_seqs(); ++seq) {
    const int rows = num_rows_of(inputs, seq);
    if (rows <= 1) continue;
    const auto tiles =
        static_cast<int>(divide_up(static_cast<int64_t>(rows) * shape.group(), kPrefillTile));
    for (int tile = tiles - 1; tile >= 0; --tile, ++item) {
      out.prefill_seq[item] = seq;
      out.prefill_tile[item] = tile;
      out.prefill_chunk[item] = 0;
    }
  }
  *out.num_prefill_items = item;
}

}  // namespace medley::cuda
