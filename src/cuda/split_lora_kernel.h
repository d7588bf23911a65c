#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <string>

#include "cuda/expert_gemm_kernel.h"
#include "cuda/lora_entry.h"
#include "cuda/routing_view.h"

// LoRA of the experts as launches of its own around base kernels that know nothing of it: per
// projection a shrink (A x) and an expand (B s). The form is that of vLLM's fused_moe_lora
// (gate_up_shrink, gate_up_expand, down_shrink, down_expand), and so are the switches: Split-K,
// grouped tile order, EVEN_K, and adding into the base's output. A tile's rows are a segment: up to
// kTileRows pairs of one expert and one adapter.

namespace medley::cuda {

// How blocks that share a sum over columns join it.
enum class SplitK : uint8_t {
  kOff,         // one block has all columns
  kAtomic,      // relaxed atomic additions, in any order; the sums are zeroed before
  kFixedOrder,  // a partial sum each; the reader adds them in order
};

inline constexpr int kMaxSplits = 8;
inline constexpr int kMaxSplitWarps = 16;
// Rank rows of a pair: gate and up may each have an A of the largest rank.
inline constexpr int kSplitStride = 2 * kMaxRank;

// Partial sums of A x, not scaled, by (split, pair, rank row).
struct SplitSums {
  float* values = nullptr;   // (splits, pairs, kSplitStride)
  int64_t split_stride = 0;  // floats from one split to the next
};

// sums[split][pair] = A x over the split's columns, for the pairs of every segment.
struct SplitShrinkParams {
  RoutingView routing;
  const LoraEntry* lora = nullptr;   // (slots)
  const __nv_bfloat16* x = nullptr;  // (rows or pairs, in_size)
  bool x_by_row = false;
  int in_size = 0;
  int num_blocks = 0;  // of 32 columns, in a unit of A
  SplitSums sums;
};

// Columns go to splits and warps by block of 32, round robin: split i's warp w has the blocks i *
// num_warps + w + n * num_splits * num_warps.
struct SplitShrinkConfig {
  int num_warps = 0;
  int num_splits = 1;
  int rank_step = 1;  // blocks among which a segment's rank units take turns
  int group = 1;      // segments whose blocks are neighbours in launch order; 1: plain order
  SplitK split_k = SplitK::kOff;
  bool even_k = false;  // all warps have equally many whole blocks: no tail predicates
  std::string to_string() const;
};

// out[pair] (+)= B (scale * s), for the pairs of every segment; s is rounded to bfloat16 after the
// scale. Reads the routing and the sums before it waits for its predecessor, which must have waited
// for both.
struct SplitExpandParams {
  RoutingView routing;
  const LoraEntry* lora = nullptr;  // (slots)
  SplitSums sums;
  int num_partials = 1;          // splits to add
  __nv_bfloat16* out = nullptr;  // (pairs, out_stride): the base's output, or a delta
  int out_stride = 0;
  int num_units = 0;    // of B
  int row_limit = 0;    // rows of out, or of its gate half
  bool paired = false;  // units of 8 gate rows and 8 up rows; up begins at row_limit
};

struct SplitExpandConfig {
  int num_warps = 0;
  int repeats = 1;  // a block's tile has num_warps * repeats * kExpandUnits units
  int group = 1;
  bool even_k = false;     // every rank is a multiple of kExpandRanks: no tail predicate
  bool fused_add = false;  // add to out instead of storing a delta
  std::string to_string() const;
};
inline constexpr int kExpandUnits = 4;
inline constexpr int kExpandRanks = 32;  // of one K step

// out[pair] += delta[pair] for the pairs of every segment.
struct SplitAddParams {
  RoutingView routing;
  const LoraEntry* lora = nullptr;       // (slots)
  const __nv_bfloat16* delta = nullptr;  // (pairs, stride)
  __nv_bfloat16* out = nullptr;          // (pairs, stride)
  int stride = 0;                        // a multiple of 8
};

void launch_split_shrink(const SplitShrinkConfig& config, const SplitShrinkParams& params,
                         int max_pairs, cudaStream_t stream);
void launch_split_expand(const SplitExpandConfig& config, const SplitExpandParams& params,
                         int max_pairs, cudaStream_t stream);
void launch_split_add(const SplitAddParams& params, int max_pairs, cudaStream_t stream);
// Zeroes split 0 of `max_pairs` pairs.
void launch_split_zero(const SplitSums& sums, int max_pairs, cudaStream_t stream);
// out[pair] = activation of the gate and up that `base`, of role kGateUpRaw, left in its out.
void launch_split_activate(const ExpertGemmParams& base, __nv_bfloat16* out, int max_pairs,
                           cudaStream_t stream);

}  // namespace medley::cuda
