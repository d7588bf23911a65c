#include "cuda/expert_gemm.cuh"
#include "cuda/expert_gemm_stream.cuh"
#include "cuda/expert_row_lora.cuh"
#include "cuda/gate.cuh"
#include "cuda/launch.h"
#include "cuda/there.cuh"

// Expert products of a step of one row: each pair is a tile of its own. There are too few units to
// keep all warps busy with one each, so the stages of a unit are spread over the warps, and another
// warp adds them up in order and finishes the unit. No warp that multiplies waits for another.
//
// A block of gate_up and one of down fit on a multiprocessor at once, and both start while the
// router still runs: it publishes the experts as soon as it knows them (RoutingView::row_experts),
// and they ask for weights. Units are dealt out in the order of the pairs, so that gate_up
// completes pair after pair. What it makes reaches down as soon as it is written (row_h), so that
// down multiplies the first pairs while gate_up still streams the weights of the last.

namespace medley::cuda {
namespace {

constexpr int kMaxWarps = 16;
// 16 warps of gate_up and 16 of down on a multiprocessor, with LoRA 16 and 12.
constexpr int kRegisters = 64;
constexpr int kLoraRegisters = 72;
// Blocks of A that a warp of a shrink has under way, as registers allow.
constexpr int kShrinkUnroll = 4;
constexpr int kDownShrinkUnroll = 3;
// Runs of 256 columns in a stage: a lane's share of one are 16 bytes of activations.
template <StreamFormat kFormat>
inline constexpr int kMaxRuns =
    (kMaxStageBytes / block_bytes(kFormat) * block_cols(kFormat) + 255) / 256;

// The first of this lane's eight columns of a run, from the stage's first: column lane / 4 of an
// mma stands for the lane / 4-th 32 columns of a run of 256.
__device__ __forceinline__ int lane_column(int run) {
  const int lane = threadIdx.x % kWarpSize;
  return run * 256 + lane / 4 * 32 + lane % 4 * 8;
}

// Adds one kMxfp4 block, the `in_run`-th of its run. Each mma multiplies 32 columns with all of an
// mma's columns, and only the lanes whose columns stand for those 32 add what comes out.
__device__ __forceinline__ void add_row_block(float (&sum)[4], uint32_t codes, uint4 x,
                                              uint32_t scale, int in_run) {
  constexpr uint32_t kExponent = 0x7f800000u;
  const uint4 w = load_shared_16(codes);
  const bool mine = static_cast<int>(threadIdx.x % 4) == in_run;
#pragma unroll
  for (int g = 0; g < 2; ++g) {
    float part[4];
    Unpacked(w, g).multiply(part, x);
    const float low_scale = __uint_as_float((g == 0 ? scale << 23 : scale << 7) & kExponent);
    const float high_scale = __uint_as_float((g == 0 ? scale << 15 : scale >> 1) & kExponent);
    if (mine) {
      sum[g] += part[g] * low_scale;
      sum[2 + g] += part[2 + g] * high_scale;
    }
  }
}

// A stage's product: of the unit's rows lane / 4 and lane / 4 + 8. Not inlined: its caller has no
// registers to spare.
template <StreamFormat kFormat>
__device__ __noinline__ float2 multiply_stage(uint32_t weights, uint4 x0, uint4 x1,
                                              int num_blocks) {
  const int lane = threadIdx.x % kWarpSize;
  float sum[4] = {};
  const uint32_t codes = weights + lane * 16;
  if constexpr (kFormat == StreamFormat::kMxfp4) {
    // The lane's columns of an mma stand for block lane % 4 of a run.
    const uint32_t scales =
        weights + num_blocks * kCodeBytes + lane / 4 * 4 + lane % 4 * kScaleBytes;
    const uint32_t scale = load_shared_4(scales);
    int block = 0;
    for (; block + 2 <= min(num_blocks, 4); block += 2) {
      add_row_block(sum, codes + block * kCodeBytes, x0, scale, block);
      add_row_block(sum, codes + (block + 1) * kCodeBytes, x0, scale, block + 1);
    }
    if (num_blocks > 4) {
      x0 = x1;
      const uint32_t next_scale = load_shared_4(scales + 4 * kScaleBytes);
      for (block = 4; block < num_blocks; ++block) {
        add_row_block(sum, codes + block * kCodeBytes, x0, next_scale, block - 4);
      }
    } else if (block < num_blocks) {
      add_row_block(sum, codes + block * kCodeBytes, x0, scale, block);
    }
  } else {
#pragma unroll 2
    for (int block = 0; block < num_blocks; ++block) {
      const uint4 low = load_shared_16(codes + block * 1024);
      const uint4 high = load_shared_16(codes + block * 1024 + 512);
      add_bf16_block(sum, low, high, lane / 4 == block ? x0 : uint4{});
    }
  }
  return add_columns(sum);
}

// A block's units in a turn, and where they stand. In shared memory.
struct Turn {
  // Phase t of each is turn t's.
  uint64_t table_ready;                // by one warp: num_units, units
  uint64_t unit_ready[kMaxTurnUnits];  // by stages
  uint64_t bias_ready;
  uint64_t done;  // by all warps that read it
  RowUnit units[kMaxTurnUnits];
  alignas(16) float bias[kMaxTurnUnits][kUnitRows];
  int num_pairs;  // of the step
  int num_units;
  bool is_last;

  __device__ void init(int num_products, int num_finishers, int num_stages) {
    const int lane = threadIdx.x % kWarpSize;
    barrier_init(shared_address(unit_ready + lane), num_stages);
    if (lane > 0) return;
    barrier_init(shared_address(&table_ready), 1);
    barrier_init(shared_address(&bias_ready), 1);
    barrier_init(shared_address(&done), num_products + num_finishers);
  }
};
static_assert(kMaxTurnUnits == kWarpSize && kMaxRowPairs == kWarpSize);

// One warp, once the turn before has ended: lists the units of the turn that begins with the
// block's unit `begin`. They lie gridDim.x apart.
__device__ __forceinline__ void list_units(const ExpertGemmParams& p,
                                           const ExpertGemmConfig& config, int begin, Turn& turn) {
  const int lane = threadIdx.x % kWarpSize;
  const auto stride = static_cast<int>(gridDim.x);
  int expert_of_tile = kNoExpert;
  if (lane < config.max_pairs) {
    const int32_t* from = p.routing.row_experts + lane;
    expert_of_tile = wait_until_there(load_relaxed_4(from), from);
  }
  const int num_tiles = __popc(__ballot_sync(0xffffffffu, expert_of_tile != kNoExpert));
  const int number = begin + lane * stride;
  const int pair = number / p.layout.num_units;
  const int expert = __shfl_sync(0xffffffffu, expert_of_tile, pair % kWarpSize);
  const int all_units = num_tiles * p.layout.num_units;
  const bool mine = lane < config.turn_units && number < all_units;
  const int in_matrix = number - pair * p.layout.num_units;
  const int64_t at = static_cast<int64_t>(expert) * p.layout.num_units + in_matrix;
  if (mine) turn.units[lane] = {p.weights + at * p.layout.unit_bytes, pair, expert, in_matrix};
  const int count = __popc(__ballot_sync(0xffffffffu, mine));
  if (lane == 0) {
    turn.num_units = count;
    turn.num_pairs = num_tiles;
    turn.is_last = begin + config.turn_units * stride >= all_units;
  }
  __syncwarp();
  if (lane == 0) barrier_arrive(shared_address(&turn.table_ready));
  if (p.bias == nullptr) return;
  const uint32_t barrier = shared_address(&turn.bias_ready);
  constexpr int kBytes = sizeof(turn.bias[0]);
  generic_before_async_fence();
  if (lane == 0) barrier_expect(barrier, count * kBytes);
  __syncwarp();
  if (mine) bulk_copy(shared_address(turn.bias[lane]), p.bias + at * kUnitRows, kBytes, barrier);
}

// Writes a unit's sums. gate_up's go to `out` and, for down to see as soon as they are there, to
// row_h; what is counted only says that it is about time.
template <GemmRole kRole>
__device__ __forceinline__ void write_row_unit(const ExpertGemmParams& p, const RowUnit& unit,
                                               float low, float high) {
  const int lane = threadIdx.x % kWarpSize;
  auto* out = static_cast<__nv_bfloat16*>(p.out) + static_cast<int64_t>(unit.pair) * p.out_size;
  if constexpr (kRole == GemmRole::kDown) {
    const int row = unit.in_matrix * kUnitRows + lane / 4;
    if (lane % 4 != 0) return;
    if (row < p.out_size) out[row] = __float2bfloat16_rn(low);
    if (row + 8 < p.out_size) out[row + 8] = __float2bfloat16_rn(high);
  } else {
    const int row = unit.in_matrix * (kUnitRows / 2) + lane / 4;
    const float h = gate_times_up(p.gate, low, high);
    const float next = __shfl_down_sync(0xffffffffu, h, 4);
    if (p.delay_ns != 0) __nanosleep(p.delay_ns * (unit.in_matrix % 3));
    if (lane % 8 == 0 && row < p.out_size) {
      auto* row_h = p.routing.row_h + static_cast<int64_t>(unit.pair) * p.out_size + row;
      store_relaxed_4(row_h, pack_bf16x2(h, next));
    }
    if (lane % 4 == 0 && row < p.out_size) out[row] = __float2bfloat16_rn(h);
    if (lane == 0) atomicAdd(p.routing.units_done + unit.pair, 1u);
  }
}

// `total` and the sums of a unit's stages, in order.
__device__ __forceinline__ float2 add_stages(float2 total, const float2* stages, int num_stages) {
#pragma unroll 3
  for (int i = 0; i < num_stages; ++i) {
    const float2 stage = stages[i * kStageSums + threadIdx.x % kWarpSize / 4];
    total = {total.x + stage.x, total.y + stage.y};
  }
  return total;
}

// One of the warps that finish units; with LoRA there are kShrinkWarps, which take turns.
template <GemmRole kRole, bool kLora>
__device__ void finish_units(const ExpertGemmParams& p, const float2* sums, Turn& turn,
                             int32_t* seen) {
  const int lane = threadIdx.x % kWarpSize;
  constexpr int kStep = kLora ? kShrinkWarps : 1;
  RowLora lora;
  if constexpr (kLora) lora = load_lora(p);
  for (uint32_t parity = 0;; parity ^= 1) {
    barrier_wait(shared_address(&turn.table_ready), parity);
    if (p.bias != nullptr) barrier_wait(shared_address(&turn.bias_ready), parity);
    // What the adapter adds to a unit is made before the unit before it is finished.
    float2 of_lora = {};
    for (int next = threadIdx.x / kWarpSize % kStep; next < turn.num_units + kStep; next += kStep) {
      float2 total = of_lora;
      if constexpr (kLora) {
        of_lora = {};
        if (next < turn.num_units && lora.rank_blocks > 0) {
          const RowUnit& unit = turn.units[next];
          of_lora = multiply_lora(p, lora, unit, shrink_queue<kRole>(p).done, seen + unit.pair);
        }
      }
      const int i = next - kStep;
      if (i < 0) continue;
      barrier_wait(shared_address(turn.unit_ready + i), parity);
      const int num_stages = p.layout.num_stages;
      total = add_stages(total, sums + i * num_stages * kStageSums, num_stages);
      if (p.bias != nullptr) {
        total.x += turn.bias[i][lane / 4];
        total.y += turn.bias[i][lane / 4 + 8];
      }
      write_row_unit<kRole>(p, turn.units[i], total.x, total.y);
    }
    if (turn.is_last) return;
    __syncwarp();
    if (lane == 0) barrier_arrive(shared_address(&turn.done));
  }
}

// One warp of down's: says of each pair when its activations are there, or about to come.
__device__ void watch_activations(const ExpertGemmParams& p, Turn& turn, uint32_t ready) {
  const int lane = threadIdx.x % kWarpSize;
  bool waiting = false;
  if (p.units_of_pair > 0) {
    barrier_wait(shared_address(&turn.table_ready), 0);
    waiting = lane < turn.num_pairs;
  }
  const bool has_pair = waiting;
  for (uint32_t polls = 0; __any_sync(0xffffffffu, waiting); ++polls) {
    if (waiting) {
      waiting = load_relaxed_4(p.routing.units_done + lane) < p.units_of_pair;
      if (!waiting) barrier_arrive(ready + lane * 8);
    }
    if (polls > kMaxPolls) __trap();
  }
  wait_for_predecessor();
  launch_dependents();
  if (!has_pair) barrier_arrive(ready + lane * 8);
}

}  // namespace

// Warps: with LoRA those that shrink, and finish units afterwards; those that multiply; of down,
// one that watches; without LoRA one that finishes units. Dynamic shared memory: rings, gate_up's
// row, then the sums of each stage of the turn's units.
template <StreamFormat kFormat, GemmRole kRole, bool kLora>
__global__ void __maxnreg__(kLora ? kLoraRegisters : kRegisters)
    expert_gemm_row_kernel(const __grid_constant__ ExpertGemmParams p,
                           const __grid_constant__ ExpertGemmConfig config) {
  constexpr bool kDown = kRole == GemmRole::kDown;
  constexpr int kRuns = kMaxRuns<kFormat>;
  static_assert(kRuns <= 2);
  extern __shared__ __align__(128) uint8_t shared[];
  __shared__ __align__(8) uint64_t barriers[kMaxWarps * kRingSlots];
  __shared__ __align__(8) uint64_t ready[kDown ? kMaxRowPairs : 1];  // a pair's activations
  __shared__ Turn turn;
  __shared__ int32_t seen[kLora ? kMaxRowPairs : 1];
  const int lane = threadIdx.x % kWarpSize;
  const int num_warps = config.num_warps;
  // Of those that multiply; below zero those that shrink.
  const int warp = static_cast<int>(threadIdx.x / kWarpSize) - (kLora ? kShrinkWarps : 0);
  const int num_stages = p.layout.num_stages;
  const int rings_bytes = num_warps * kRingSlots * config.slot_bytes;
  auto* sums = reinterpret_cast<float2*>(shared + rings_bytes + config.x_bytes);
  Ring ring = {.slots = shared_address(shared) + warp * kRingSlots * config.slot_bytes,
               .barriers = shared_address(barriers + warp * kRingSlots),
               .slot_bytes = config.slot_bytes};
  if (warp >= 0 && warp < num_warps && lane < kRingSlots) barrier_init(ring.barrier(lane), 1);
  if (warp == num_warps - 1) {
    turn.init(num_warps, kLora ? kShrinkWarps : 1, num_stages);
    if (kDown) barrier_init(shared_address(ready + lane), 1);
    if (kLora) seen[lane] = 0;
  }
  barrier_init_fence();
  __syncthreads();
  // down finds its experts where this kernel does; whatever else follows waits for this kernel, and
  // this one for the router.
  if (!kDown && warp == 0) launch_dependents();
  if (kDown && warp == num_warps) return watch_activations(p, turn, shared_address(ready));
  if (kLora ? warp < 0 : warp >= num_warps) {
    if constexpr (kLora) {
      run_shrinks<kRole, /*kOneRow=*/true, kDown ? kDownShrinkUnroll : kShrinkUnroll>(
          p, shared_address(ready));
    } else if (!kDown) {
      wait_for_predecessor();
    }
    finish_units<kRole, kLora>(p, sums, turn, seen);
    return;
  }
  const int stage_bytes = p.layout.stage_bytes;
  const int stage_cols = p.layout.stage_blocks * block_cols(kFormat);
  auto* row = reinterpret_cast<uint4*>(shared + rings_bytes);
  // stage / num_stages, of all that a turn has.
  const uint32_t reciprocal = ((1u << 22) + num_stages - 1) / num_stages;
  const auto unit_of = [&](uint32_t stage) { return stage * reciprocal >> 22; };
  int begin = blockIdx.x;
  for (uint32_t parity = 0;; parity ^= 1) {
    const bool first = begin == static_cast<int>(blockIdx.x);
    if (warp == 0) {
      if (!first) barrier_wait(shared_address(&turn.done), parity ^ 1);
      list_units(p, config, begin, turn);
    }
    barrier_wait(shared_address(&turn.table_ready), parity);
    const int count = turn.num_units * num_stages;
    const auto issue = [&](int stage, int slot) {
      if (stage >= count) return;
      const uint32_t unit = unit_of(stage);
      issue_copy(ring.address(slot),
                 turn.units[unit].weights + (stage - unit * num_stages) * stage_bytes, stage_bytes,
                 ring.barrier(slot));
    };
    // With LoRA down's weights would stand in the way of what gate_up's adapter still reads.
    if (kDown && kLora && count > 0) barrier_wait(shared_address(ready + turn.units[0].pair), 0);
#pragma unroll 1
    for (int i = 0; i < kRingSlots; ++i) {
      issue(warp + i * num_warps,
            ring.slot + i < kRingSlots ? ring.slot + i : ring.slot + i - kRingSlots);
    }
    if (!kDown && first) {
      wait_for_predecessor();
      const auto* from = reinterpret_cast<const uint4*>(p.x);
      for (int i = warp * kWarpSize + lane; i < p.in_size / 8; i += num_warps * kWarpSize) {
        row[i] = shifted<kFormat>(__ldcg(from + i));
      }
      named_barrier(/*id=*/1, num_warps * kWarpSize);
    }
    if (kLora && warp == num_warps - 1 && count > 0) {
      // The adapter's part of the units is asked for ahead of time.
      if (kDown) barrier_wait(shared_address(ready + turn.units[0].pair), 0);  // routed by then
      const RowLora lora = load_lora(p);
      const int num_bytes = lora.rank_blocks * kRankBlockBytes;
      if (lane < turn.num_units && num_bytes > 0) {
        const RowUnit& unit = turn.units[lane];
        bulk_prefetch(lora.b + unit.expert * lora.b_expert_bytes +
                          static_cast<int64_t>(unit.in_matrix) * num_bytes,
                      num_bytes);
      }
    }
    for (int stage = warp; stage < count; stage += num_warps) {
      const uint32_t unit = unit_of(stage);
      const int in_unit = stage - unit * num_stages;
      uint4 x[2] = {};
      // f(run, vector of a row), for the runs of which this lane has activations.
      const auto for_runs = [&](const auto& f) {
#pragma unroll
        for (int i = 0; i < kRuns; ++i) {
          const int column = in_unit * stage_cols + lane_column(i);
          if (lane_column(i) < stage_cols && column < p.in_size) f(i, column / 8);
        }
      };
      if constexpr (kDown) {
        const int pair = turn.units[unit].pair;
        barrier_wait(shared_address(ready + pair), 0);
        const bool is_coming = p.units_of_pair > 0;
        const auto* from = reinterpret_cast<const uint4*>((is_coming ? p.routing.row_h : p.x) +
                                                          static_cast<int64_t>(pair) * p.in_size);
        for_runs([&](int i, int at) { x[i] = load_relaxed_16(from + at); });
        if (is_coming) {
          for_runs([&](int i, int at) { x[i] = wait_until_there(x[i], from + at); });
          __syncwarp();
        }
#pragma unroll
        for (int i = 0; i < kRuns; ++i) x[i] = shifted<kFormat>(x[i]);
      } else {
        for_runs([&](int i, int at) { x[i] = row[at]; });
      }
      const uint32_t weights = ring.wait();
      const float2 sum = multiply_stage<kFormat>(weights, x[0], x[1], p.layout.stage_blocks);
      if (lane % 4 == 0) sums[stage * kStageSums + lane / 4] = sum;
      __syncwarp();
      if (lane == 0) barrier_arrive(shared_address(turn.unit_ready + unit));
      issue(stage + kRingSlots * num_warps, ring.slot);
      ring.advance();
    }
    if (turn.is_last) return;
    __syncwarp();
    if (lane == 0) barrier_arrive(shared_address(&turn.done));
    begin += config.turn_units * static_cast<int>(gridDim.x);
  }
}

namespace {

template <StreamFormat kFormat, GemmRole kRole>
void launch_row(bool lora, const ExpertGemmConfig& config, const ExpertGemmParams& params,
                int num_blocks, cudaStream_t stream) {
  const int num_warps = config.num_warps + (kRole == GemmRole::kDown) + (lora ? kShrinkWarps : 1);
  const LaunchShape shape = {.grid = dim3(num_blocks),
                             .block = dim3(num_warps * kWarpSize),
                             .shared_bytes = config.shared_bytes,
                             .max_carveout = true};
  const auto base = expert_gemm_row_kernel<kFormat, kRole, false>;
  const auto with_lora = expert_gemm_row_kernel<kFormat, kRole, true>;
  [[maybe_unused]] static const bool allowed = allow_all_shared_memory(base, with_lora);
  launch(lora ? with_lora : base, shape, stream, params, config);
}

}  // namespace

void launch_expert_gemm_row(GemmRole role, bool lora, const ExpertGemmConfig& config,
                            const ExpertGemmParams& params, int num_blocks, cudaStream_t stream) {
  const bool mxfp4 = params.layout.format == StreamFormat::kMxfp4;
  constexpr auto kDown = GemmRole::kDown;
  constexpr auto kGateUp = GemmRole::kGateUp;
  const auto form = role == kDown ? (mxfp4 ? launch_row<StreamFormat::kMxfp4, kDown>
                                           : launch_row<StreamFormat::kBF16, kDown>)
                                  : (mxfp4 ? launch_row<StreamFormat::kMxfp4, kGateUp>
                                           : launch_row<StreamFormat::kBF16, kGateUp>);
  form(lora, config, params, num_blocks, stream);
}

}  // namespace medley::cuda
