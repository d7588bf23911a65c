#include "cuda/expert_gemm.cuh"
#include "cuda/expert_gemm_stream.cuh"
#include "cuda/expert_lora.cuh"
#include "cuda/launch.h"

// Expert products of so few rows that there are too few units to keep all warps busy: down of one
// or two rows, gate_up of one without LoRA. What counts is how soon the weights are asked for and
// how little is left to do once the last ones are there. So the stages of each unit are spread over
// the warps, and their sums added in the order of the stages. Of one row without LoRA, blocks of
// both products fit on a multiprocessor at once: down's weights are on their way while gate_up
// runs.

namespace medley::cuda {
namespace {

constexpr int kMaxWarps = 16;
constexpr int kBaseRegisters = 64;  // two blocks on a multiprocessor
constexpr int kLoraRegisters = 128;
// That a warp asks for before activations are there, unless it waits for them anyway.
constexpr int kFirstSlots = 2;
// Blocks of a kMxfp4 stage whose arithmetic overlaps.
constexpr int kUnroll = 2;
constexpr int kShrinkUnroll = 4;

// The sums of the stages of a block's units, in shared memory: 16 rows by kSpreadRows each.
struct StageSums {
  float* sums;

  __device__ float* at(int stage) const {
    return sums + stage * kSpreadSumFloats + threadIdx.x % kWarpSize / 4 * 4;
  }
  // Lanes with rows to give write them.
  __device__ void store(int stage, const float4& sum) const {
    if (threadIdx.x % 4 == 0) *reinterpret_cast<float4*>(at(stage)) = sum;
  }
  // Adds those of the stages first .. first + count - 1, in order.
  __device__ void add(int first, int count, UnitSum<1>& sum) const {
    if (threadIdx.x % 4 != 0) return;
    float4 total = {};
#pragma unroll 3
    for (int i = 0; i < count; ++i) {
      const float4 v = *reinterpret_cast<const float4*>(at(first + i));
      total = {total.x + v.x, total.y + v.y, total.z + v.z, total.w + v.w};
    }
    sum.value[0][0] += total.x;
    sum.value[0][1] += total.y;
    sum.value[0][2] += total.z;
    sum.value[0][3] += total.w;
  }
};

// Units that are worked on at a time, of one tile or two; in shared memory. Their stages are
// numbered from the first unit's on, and lie one after the other in each matrix.
struct UnitRun {
  TileGroup group;
  int begin;  // unit, of all
  int end;
  int next_tile;  // first unit of the second tile
  int count;      // stages
  int second;     // the first of the second tile
  const uint8_t* first;
  int64_t to_second;  // what the second tile's stages lie further on

  // One thread: the run with which the units [share.x, share.y) begin, of at most max_units.
  __device__ void form(const ExpertGemmParams& p, const RouteTile* table, int2 share,
                       int max_units) {
    form_group(p, table, share, group);
    const int num_units = p.layout.num_units;
    const int tile_idx = share.x / num_units;
    next_tile = (tile_idx + 1) * num_units;
    begin = share.x;
    end = min(min(share.y, share.x + max_units), next_tile + (group.num_tiles - 1) * num_units);
    count = max(end - share.x, 0) * p.layout.num_stages;
    second = (next_tile - share.x) * p.layout.num_stages;
    const auto matrix_bytes = static_cast<int64_t>(num_units) * p.layout.unit_bytes;
    const int expert = group.tiles[0].expert;
    first = p.weights + expert * matrix_bytes +
            static_cast<int64_t>(share.x - tile_idx * num_units) * p.layout.unit_bytes;
    to_second = (group.tiles[1].expert - expert - 1) * matrix_bytes;
  }
  __device__ const uint8_t* source(int stage, int stage_bytes) const {
    return first + static_cast<int64_t>(stage) * stage_bytes + (stage >= second ? to_second : 0);
  }
};

// A stage's sums: column n of an mma is row n. Not inlined: its caller has no registers to spare.
template <StreamFormat kFormat, int kRows>
__device__ __noinline__ float4 multiply_stage(uint32_t weights, uint32_t x, int num_blocks) {
  UnitSum<1> sum;
  if constexpr (kFormat == StreamFormat::kMxfp4) {
    add_folded_stage<kRows, kUnroll>(sum, weights, x, num_blocks);
    unfold<kRows>(sum);
  } else {
    add_bf16_stage(sum, weights, x, num_blocks, /*half_stride=*/0);
  }
  const float(&v)[4] = sum.value[0];
  return {v[0], v[1], v[2], v[3]};
}

}  // namespace

// kRows: 1 where the step has one.
template <StreamFormat kFormat, GemmRole kRole, bool kLora, int kRows>
__global__ void __maxnreg__(kLora ? kLoraRegisters : kBaseRegisters)
    expert_gemm_spread_kernel(const __grid_constant__ ExpertGemmParams p,
                              const __grid_constant__ ExpertGemmConfig config) {
  extern __shared__ __align__(128) uint8_t shared[];
  __shared__ __align__(8) uint64_t barriers[kMaxWarps * kFewRowsSlots];
  __shared__ UnitRun run;
  __shared__ RouteTile table[kTableTiles];
  __shared__ int32_t row_of_pair[kTableTiles];
  __shared__ TileLora loras[kLora ? 2 : 1];
  __shared__ int last;  // of the block's share of all units
  const int lane = threadIdx.x % kWarpSize;
  const int warp = threadIdx.x / kWarpSize;
  const int num_warps = config.num_warps;

  if (kLora && warp >= num_warps) {
    run_shrinks<kRole, /*kSpread=*/true, kShrinkUnroll>(p);
    return;
  }
  const auto barrier_of_products = [&] {
    if constexpr (kLora) {
      named_barrier(/*id=*/1, num_warps * kWarpSize);
    } else {
      __syncthreads();
    }
  };
  const int num_slots = config.num_slots;
  const int slot_bytes = config.slot_bytes;
  Ring ring = {.slots = shared_address(shared) + warp * num_slots * slot_bytes,
               .barriers = shared_address(barriers + warp * num_slots),
               .slot_bytes = slot_bytes,
               .num_slots = num_slots};
  uint8_t* x = shared + num_warps * num_slots * slot_bytes;
  const StageSums sums = {reinterpret_cast<float*>(x + config.x_bytes)};
  // A warp's barriers are its own.
  if (lane < num_slots) barrier_init(ring.barrier(lane), 1);
  barrier_init_fence();
  __syncwarp();
  // What comes right after the wait does not have to wait for its parameters as well.
  asm volatile("" ::"l"(p.routing.num_tiles), "l"(p.routing.tiles), "l"(p.routing.row_of_pair),
               "l"(p.x), "l"(p.weights), "l"(p.out), "r"(p.layout.num_units), "r"(p.in_size));
  const int num_stages = p.layout.num_stages;
  const int stage_bytes = p.layout.stage_bytes;
  if (!p.routed_before_predecessor) wait_for_predecessor();
  if (warp == 0) {
    // Under way together; of the tiles that do not exist only the memory does.
    const int num_tiles = __ldcg(p.routing.num_tiles);
    if (lane < config.max_pairs) {
      table[lane] = load_tile_entry(p, lane);
      row_of_pair[lane] = __ldcg(p.routing.row_of_pair + lane);
    }
    __syncwarp();
    if (lane == 0) {
      const uint32_t all_units = num_tiles * p.layout.num_units;
      const int2 mine = {static_cast<int>(all_units * blockIdx.x / gridDim.x),
                         static_cast<int>(all_units * (blockIdx.x + 1) / gridDim.x)};
      last = mine.y;
      loras[0].listed = loras[kLora].listed = 0;
      run.form(p, table, mine, config.spread_units);
    }
  }
  barrier_of_products();
  const TileGroup& group = run.group;
  const int stage_x_bytes = p.layout.stage_blocks * block_cols(kFormat) * 2;
  const int step_in_unit = num_warps % num_stages;
  const auto issue = [&](int stage, int to_slot) {
    if (stage >= run.count) return;
    issue_copy(ring.address(to_slot), run.source(stage, stage_bytes), stage_bytes,
               ring.barrier(to_slot));
  };
  bool started = false;  // the first run of units, which has its group
  do {
    if (started) {
      barrier_of_products();
      if (threadIdx.x == 0) {
        loras[0].listed = loras[kLora].listed = 0;
        run.form(p, table, {run.end, last}, config.spread_units);
      }
      barrier_of_products();
    }
    using Piece = RowPiece<1>;
    Piece piece;
    const auto load_piece = [&](int item) {
      piece.load<kRole>(p, group, item, config.half_rows,
                        [&](int pair) { return row_of_pair[pair]; });
    };
    const bool has_piece = warp < Piece::count(p, group);
    // What the predecessor wrote comes before the weights, which are more.
    const bool x_first = kRole != GemmRole::kDown || started;
    if (x_first && has_piece) load_piece(warp);
    const int first_slots = x_first ? min(kFirstSlots, num_slots) : num_slots;
    const auto nth_slot = [&](int i) {
      return ring.slot + i < num_slots ? ring.slot + i : ring.slot + i - num_slots;
    };
#pragma unroll 1
    for (int i = 0; i < first_slots; ++i) issue(warp + i * num_warps, nth_slot(i));
    if (!x_first && lane == 0) {
      // All that is left to do is to wait for the predecessor.
      for (int stage = warp + num_slots * num_warps; stage < run.count; stage += num_warps) {
        bulk_prefetch(run.source(stage, stage_bytes), stage_bytes);
      }
    }
    if (!started) {
      if (p.routed_before_predecessor) wait_for_predecessor();
      launch_dependents();
      const int padding = p.layout.padded_cols - p.in_size;
      for (int i = threadIdx.x; i < 2 * config.half_rows * padding; i += num_warps * kWarpSize) {
        const int at = i / padding * config.row_stride + (p.in_size + i % padding) * 2;
        *reinterpret_cast<uint16_t*>(x + at) = 0;
      }
    }
    if (!x_first && has_piece) load_piece(warp);
    if (has_piece) piece.store<kFormat>(p, run.group, x, config.row_stride);
    for (int item = warp + num_warps; item < Piece::count(p, group); item += num_warps) {
      load_piece(item);
      piece.store<kFormat>(p, run.group, x, config.row_stride);
    }
    started = true;
    barrier_of_products();
#pragma unroll 1
    for (int i = first_slots; i < num_slots; ++i) {
      issue(warp + i * num_warps, nth_slot(i));
    }
    // The last warp has the fewest stages.
    if (kLora && warp == num_warps - 1) list_rank_blocks(p, group, loras);
    const int group_x_bytes = config.half_rows * config.row_stride;
    const uint32_t lane_x =
        kFormat == StreamFormat::kMxfp4
            ? folded_x<kRows>(shared_address(x), config.half_rows, config.row_stride)
            : shared_address(x) + min(lane / 4, config.half_rows - 1) * config.row_stride +
                  lane % 4 * 16;
    int in_unit = warp % num_stages;
    for (int stage = warp; stage < run.count; stage += num_warps) {
      const uint32_t stage_x =
          lane_x + in_unit * stage_x_bytes + (stage >= run.second ? group_x_bytes : 0);
      const uint32_t weights = ring.wait();
      sums.store(stage, multiply_stage<kFormat, kRows>(weights, stage_x, p.layout.stage_blocks));
      __syncwarp();
      issue(stage + num_slots * num_warps, ring.slot);
      ring.advance();
      in_unit += step_in_unit;
      if (in_unit >= num_stages) in_unit -= num_stages;
    }
    // What does not need the other warps' sums comes before the barrier, for a warp's first unit.
    bool joined = false;
    for (int at = run.begin + warp; at < run.end || !joined; at += num_warps) {
      const int second = at >= run.next_tile;
      const int in_matrix = at - run.next_tile + (second ? 0 : p.layout.num_units);
      UnitSum<1> sum;
      float2 bias = {};
      if (at < run.end) {
        bias = load_bias(p, group.tiles[second], in_matrix);
        if constexpr (kLora) {
          add_lora</*kSpread=*/true>(sum, p, group.tiles[second], loras[second],
                                     shrinks_done<kRole>(p), in_matrix);
        }
      }
      if (!joined) barrier_of_products();
      joined = true;
      if (at >= run.end) break;
      sums.add((at - run.begin) * num_stages, num_stages, sum);
      write_unit<kRole>(p, group.tiles[second], in_matrix, sum,
                        group.out_rows + second * config.half_rows, bias);
    }
  } while (run.end < last);
}

namespace {

template <StreamFormat kFormat>
void launch_spread(GemmRole role, bool lora, const ExpertGemmConfig& config,
                   const ExpertGemmParams& params, int num_blocks, cudaStream_t stream) {
  const LaunchShape shape = {
      .grid = dim3(num_blocks),
      .block = dim3((config.num_warps + (lora ? kShrinkWarps : 0)) * kWarpSize),
      .shared_bytes = config.shared_bytes,
      .max_carveout = true};
  // Only kMxfp4 has a form for one row.
  constexpr int kOne = kFormat == StreamFormat::kMxfp4 ? 1 : kSpreadRows;
  constexpr auto kGateUp = GemmRole::kGateUp;
  constexpr auto kDown = GemmRole::kDown;
  const auto gate_up = expert_gemm_spread_kernel<kFormat, kGateUp, false, kOne>;
  const auto one = expert_gemm_spread_kernel<kFormat, kDown, false, kOne>;
  const auto two = expert_gemm_spread_kernel<kFormat, kDown, false, kSpreadRows>;
  const auto one_lora = expert_gemm_spread_kernel<kFormat, kDown, true, kOne>;
  const auto two_lora = expert_gemm_spread_kernel<kFormat, kDown, true, kSpreadRows>;
  [[maybe_unused]] static const bool allowed =
      allow_all_shared_memory(gate_up, one, two, one_lora, two_lora);
  const bool has_one = config.half_rows == 1;
  // One row, without LoRA.
  if (role == kGateUp) return launch(gate_up, shape, stream, params, config);
  const auto down = lora ? (has_one ? one_lora : two_lora) : (has_one ? one : two);
  launch(down, shape, stream, params, config);
}

}  // namespace

void launch_expert_gemm_spread(GemmRole role, bool lora, const ExpertGemmConfig& config,
                               const ExpertGemmParams& params, int num_blocks,
                               cudaStream_t stream) {
  const auto form = params.layout.format == StreamFormat::kMxfp4
                        ? launch_spread<StreamFormat::kMxfp4>
                        : launch_spread<StreamFormat::kBF16>;
  form(role, lora, config, params, num_blocks, stream);
}

}  // namespace medley::cuda
