#pragma once

#include <cstdint>
#include <span>

#include "backend/step.h"
#include "cuda/attention_kernel.h"

namespace medley::cuda {

// Pure host arithmetic: how attention's work over a step is cut into blocks.

struct AttentionShape {
  int num_heads = 0;
  int num_kv_heads = 0;
  int head_dim = 0;
  int window = 0;  // 0 = full

  int group() const { return num_heads / num_kv_heads; }
  // Tiles of kDecodeTile query heads that read one kv head.
  int decode_tiles() const { return (group() + kDecodeTile - 1) / kDecodeTile; }
  bool operator==(const AttentionShape&) const = default;
};

// Arrays of a plan, on the host or the device; see AttentionItems and AttentionChunks.
struct AttentionPlanArrays {
  int32_t* num_items = nullptr;      // (1) of decode
  int32_t* seq_of_item = nullptr;    // (decode items)
  int32_t* tile_of_item = nullptr;   // (decode items)
  int32_t* chunk_of_item = nullptr;  // (decode items)
  int32_t* chunk_size = nullptr;     // (1)
  int32_t* chunk_indptr = nullptr;   // (max_seqs + 1)
  int32_t* page_indptr = nullptr;    // (max_seqs + 1), entries past the sequences repeat the last

  int32_t* num_prefill_items = nullptr;  // (1)
  int32_t* prefill_seq = nullptr;        // (prefill items)
  int32_t* prefill_tile = nullptr;       // (prefill items)
  int32_t* prefill_chunk = nullptr;      // (prefill items) zeros
};

// What decode may be cut into.
struct DecodeCapacity {
  int slots = 0;       // chunks that the device works on at once
  int chunk_step = 0;  // chunk sizes are multiples of it, in tokens
  int max_seqs = 0;
  int tiles = 0;           // of query heads
  int chunks_per_seq = 0;  // at most, where a window bounds them; else 0

  // A sequence's keys are always one chunk.
  bool is_whole() const { return chunks_per_seq == 1; }
  int max_chunks(int num_seqs) const;
  int max_items(int num_seqs) const { return max_chunks(num_seqs) * tiles; }
};
DecodeCapacity decode_capacity(const AttentionShape& shape, int resident_blocks);

// Keys of one row whose sequence holds `kv_len` tokens.
int visible_keys(int kv_len, int window);

// The chunk size, a multiple of `step`, that should finish first: chunks of at most that size cost
// their tokens and a constant, `slots` run at once, and there are at most slots + sequences of
// them.
int choose_chunk_size(std::span<const int32_t> num_keys, int slots, int step);

// Fills the decode arrays for the sequences of `inputs` that have one row, and page_indptr.
void plan_decode(const AttentionShape& shape, const DecodeCapacity& capacity,
                 const StepInputs& inputs, AttentionPlanArrays& out);

// Most items that plan_prefill makes.
int max_prefill_items(const AttentionShape& shape, int max_rows, int max_seqs);
// Fills the prefill arrays for the sequences that have several rows. Tiles that see the most keys
// come first.
void plan_prefill(const AttentionShape& shape, const StepInputs& inputs, AttentionPlanArrays& out);

}  // namespace medley::cuda
