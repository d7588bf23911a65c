#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "cuda/lora_entry.h"
#include "cuda/matrix_layout.h"
#include "cuda/routing_view.h"

namespace medley::cuda {

// Few rows against streamed matrices: out = epilogue(W_e x + B_a s + bias) for the pairs of each
// tile. What a role changes is where x comes from, what the 16 rows of a unit are, and the
// epilogue.
enum class GemmRole : uint8_t {
  kGateUp,  // x by row; unit u = gate rows 8 u .. 8 u + 7, then the same up rows; out by pair
  // As kGateUp without LoRA and activation: (pairs, 2 out_size), a pair's gate before its up.
  kGateUpRaw,
  kDown,  // x by pair; unit u = rows 16 u .. 16 u + 15; out by pair
};
enum class GateActivation : uint8_t { kSwiGlu, kClampedSwiGlu };

// What becomes of a row's gate and up (gate.cuh).
struct GateParams {
  GateActivation activation = GateActivation::kSwiGlu;
  float limit = 0.0f;
  float alpha = 0.0f;
};

struct ExpertGemmParams {
  const uint8_t* weights = nullptr;  // (experts) matrices in one layout
  const float* bias = nullptr;       // (experts, units, 16), or none
  MatrixLayout layout;
  RoutingView routing;
  const __nv_bfloat16* x = nullptr;  // (rows or pairs, in_size)
  void* out = nullptr;               // (pairs, out_size)
  int in_size = 0;
  int out_size = 0;
  GateParams gate;                  // kGateUp
  const LoraEntry* lora = nullptr;  // (slots)
  // Memory for scale * A x: (pairs, s_stride); of a step of one row, for what adds up to it, float:
  // (pairs, shrink_ranges, s_stride).
  __nv_bfloat16* s = nullptr;
  int s_stride = 0;
  int shrink_ranges = 1;
  // kGateUp: (slots), of the product that the next kernel makes of the same routing. Its A is
  // brought to the L2 by warps that have run out of work.
  const LoraEntry* next_lora = nullptr;
  // For tests: up to twice as long before a share of a shrink, or a unit of one row, counts as
  // done.
  uint32_t delay_ns = 0;
  bool routed_before_predecessor = false;  // the routing is complete once this kernel starts
  // kDown of one row: x comes while this kernel runs (RoutingView::row_h); once so many of a pair's
  // units are done, it is time to look for it. 0: x is complete once the predecessor has ended.
  uint32_t units_of_pair = 0;
};

// With LoRA a block has this many more warps, which do nothing but shrinks, each cut into shares.
inline constexpr int kShrinkWarps = 4;
inline constexpr int kShrinkShares = 2;

// A step of one row (expert_gemm_row.cu): its pairs, and a block's units in a turn, at most, and
// the sums of a stage, in pairs of float.
inline constexpr int kMaxRowPairs = 32;
inline constexpr int kMaxTurnUnits = 32;
inline constexpr int kStageSums = 8;
// There are fewer shares of shrinks than blocks there: each is cut into ranges of columns, at most
// so many, and whoever needs s adds up what they make of it.
inline constexpr int kMaxShrinkRanges = 6;

// Slots of a warp's ring: more make every batch slower.
inline constexpr int kRingSlots = 2;

// Of an activation row, as a warp copies it to shared memory.
inline constexpr int kRowPieceBytes = 2048;

// How a product is laid over an SM: one block, `num_warps` independent warps, each with a ring of
// kRingSlots stages.
struct ExpertGemmConfig {
  int max_pairs = 0;  // of the step
  int num_warps = 0;
  int slot_bytes = 0;
  int half_rows = 0;   // activation rows in shared memory are 2 halves of this many
  int row_stride = 0;  // bytes of each
  int row_pieces = 0;  // in which each is copied
  int x_bytes = 0;     // of all of them
  // launch_expert_gemm_row's: units whose stages are spread over the warps at a time. 0: a warp
  // takes whole units.
  int turn_units = 0;
  int shrink_ranges = 1;  // of columns, of a share of the shrinks of one row
  size_t shared_bytes = 0;
  std::string to_string() const;
};

// Launches `num_blocks` blocks; each takes a contiguous share of all units, equal by cost. The
// second form is for steps of one row: units are dealt out one by one, and a block has one or two
// warps more.
void launch_expert_gemm(GemmRole role, bool lora, const ExpertGemmConfig& config,
                        const ExpertGemmParams& params, int num_blocks, cudaStream_t stream);
void launch_expert_gemm_row(GemmRole role, bool lora, const ExpertGemmConfig& config,
                            const ExpertGemmParams& params, int num_blocks, cudaStream_t stream);

}  // namespace medley::cuda
