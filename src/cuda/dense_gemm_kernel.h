#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "cuda/expert_gemm_kernel.h"
#include "cuda/lora_entry.h"
#include "cuda/matrix_layout.h"
#include "cuda/routing_view.h"

namespace medley::cuda {

// A dense bfloat16 matrix against rows: out = epilogue(W x + B s + bias).
enum class DenseRole : uint8_t {
  kRows,    // unit u = rows 16 u .. 16 u + 15; x and out by row
  kLogits,  // the same, x by selected row, out float32 by place among them
  kGateUp,  // unit u = gate rows 8 u .. 8 u + 7, then the same up rows; out = act(gate, up)
};

// Where a step's adapters have s = scale * A x from.
enum class DenseLora : uint8_t {
  kNone,    // no adapters
  kBefore,  // from lora_shrink, which this kernel follows and which has waited for whoever wrote x
  kInside,  // this kernel (dense_shrink.cuh); one tile of rows
};

// What a launch finds and changes for the next one.
struct alignas(16) DenseShrinkState {
  uint32_t first_ticket;  // of this launch
  int32_t turn;           // 0 or 1: the place of s
  int32_t rows_before;    // what the launch before has left in the other place: rows of s
  int32_t pieces_before;  // and pieces of 8 ranks
};

// The shrinks of a launch, shared out while it runs. At first all is zero, but all words of
// `partial` and `s` kNotThere (there.cuh). One launch at a time.
struct DenseShrinkQueue {
  DenseShrinkState* state = nullptr;  // (1)
  uint32_t* taken = nullptr;          // (1) shares, of all launches
  uint32_t* left = nullptr;           // (1) blocks that have read the state; zero between launches
  float* partial = nullptr;           // (kMaxShrinkPartials, units of ranks, 128)
  __nv_bfloat16* s = nullptr;         // (2, kMaxInsideRows, s_stride)
  uint32_t delay_ns = 0;              // for tests: up to twice as long before a sum is published
};
// The numbers of a queue's words.
inline constexpr int kShrinkSumFloats = 4 * 32;  // of half a tile's rows and a unit of 16 ranks
inline constexpr int kMaxShrinkUnits = 3 * kMaxRank / kUnitRows;  // of an adapter
inline constexpr int kMaxInsideRows = 64;
inline constexpr int kMaxShrinkSplits = 16;     // of the columns
inline constexpr int kMaxDenseShrinkWarps = 4;  // of a block
inline constexpr int kMaxShrinkPartials = 256;  // rows times splits

struct DenseGemmParams {
  const uint8_t* weights = nullptr;  // one kBF16 matrix
  const float* bias = nullptr;       // (units, 16), or none
  MatrixLayout layout;
  // A step input, complete before any kernel of the step: its pairs are the rows, sorted by adapter
  // and all of expert 0.
  RoutingView rows;
  const __nv_bfloat16* x = nullptr;  // (rows, in_size)
  void* out = nullptr;               // (rows, out_size)
  int in_size = 0;                   // a multiple of 8
  int out_size = 0;
  GateParams gate;                   // kGateUp
  const LoraEntry* lora = nullptr;   // (slots)
  const __nv_bfloat16* s = nullptr;  // kBefore: (pairs, s_stride)
  int s_stride = 0;
  DenseShrinkQueue shrink;                   // kInside
  int part_end[2] = {INT32_MAX, INT32_MAX};  // units where the first parts end
};

// A share of the units and a tile of 8 * `halves` rows are a cluster's work. Its blocks split the
// columns, at places that depend on the config alone, and add their sums in order; a block's warps
// take a unit each, then the next ones.
struct DenseGemmConfig {
  int halves = 1;      // 1, 2, 4, 8: groups of 8 rows
  int cluster = 1;     // blocks; above 1 only where each warp has one unit
  int num_shares = 1;  // clusters that divide the units
  int num_tiles = 1;   // of rows
  int num_warps = 1;   // that multiply; one more brings the activations, some may shrink
  int num_slots = 0;   // of a warp's ring of weights
  int x_slots = 0;     // of the block's ring of activations
  int x_chunks = 1;    // that each of them holds
  size_t shared_bytes = 0;
  // kInside; no splits where shrinks are not done inside.
  int shrink_splits = 0;   // of A's columns
  int shrink_warps = 0;    // beside the others
  int shared_s_bytes = 0;  // at the end of shared memory
  std::string to_string() const;
};

constexpr int max_dense_warps(int halves) { return halves <= 2 ? 8 : 13; }
constexpr int min_dense_blocks(int halves) { return halves <= 2 ? 2 : 1; }  // on an SM
// Of a block with kInside.
constexpr int max_inside_warps(int halves) { return halves <= 2 ? 10 : 16; }
inline constexpr int kMaxDenseHalves = 8;
inline constexpr int kMaxDenseWarps = 13;
inline constexpr int kMaxDenseCluster = 4;
inline constexpr int kMaxDenseSlots = 8;
// Blocks of 32 columns that a slot of weights holds.
inline constexpr int kChunkBlocks = 5;
inline constexpr int kWeightSlotBytes = kChunkBlocks * block_bytes(StreamFormat::kBF16);
inline constexpr int kRowChunkBytes = kChunkBlocks * block_cols(StreamFormat::kBF16) * 2;
// Of a row in a slot of activations: 64 modulo 128 bytes keeps the 16-byte loads of 8 rows free of
// bank conflicts.
constexpr int x_row_bytes(int x_chunks) {
  return x_chunks * kRowChunkBytes + (x_chunks % 2 == 0 ? 64 : 0);
}
constexpr int x_slot_bytes(int halves, int x_chunks) { return 8 * halves * x_row_bytes(x_chunks); }

// Of a row of s in shared memory; 32 modulo 128 bytes keeps the 8-byte loads of 8 rows free of bank
// conflicts. Where an adapter has more ranks, s stays in the L2.
inline constexpr int kSharedRanks = 144;
constexpr int shared_s_bytes(int halves) { return 8 * halves * kSharedRanks * 2; }

// Where the sums of a cluster's blocks meet.
constexpr int join_bytes(int cluster, int units, int halves) {
  return cluster == 1 ? 0 : cluster * ((units * halves + cluster - 1) / cluster) * 512;
}

// Where part `part` of `parts` begins.
constexpr int split_begin(int count, int parts, int part) { return count * part / parts; }

template <DenseRole kRole>
void launch_dense_gemm(DenseLora lora, const DenseGemmConfig& config, const DenseGemmParams& params,
                       cudaStream_t stream);
extern template void launch_dense_gemm<DenseRole::kRows>(DenseLora, const DenseGemmConfig&,
                                                         const DenseGemmParams&, cudaStream_t);
extern template void launch_dense_gemm<DenseRole::kLogits>(DenseLora, const DenseGemmConfig&,
                                                           const DenseGemmParams&, cudaStream_t);
extern template void launch_dense_gemm<DenseRole::kGateUp>(DenseLora, const DenseGemmConfig&,
                                                           const DenseGemmParams&, cudaStream_t);

}  // namespace medley::cuda
