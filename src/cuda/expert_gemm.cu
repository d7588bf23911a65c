#include "cuda/expert_gemm.cuh"
#include "cuda/expert_gemm_stream.cuh"
#include "cuda/expert_lora.cuh"
#include "cuda/expert_share.cuh"
#include "cuda/gate.cuh"
#include "cuda/launch.h"

namespace medley::cuda {
namespace {

constexpr int kThreadsPerBlock = 512;
constexpr int kMaxRegisters = 128;
// The first pairs' rows are kept in shared memory.
constexpr int kTablePairs = 256;
// Blocks of a kMxfp4 stage whose arithmetic overlaps.
constexpr int kUnroll = 5;

// Of this lane's two rows.
__device__ __forceinline__ float2 load_bias(const ExpertGemmParams& p, const RouteTile& tile,
                                            int unit) {
  if (p.bias == nullptr) return {};
  const float* bias =
      p.bias + (static_cast<int64_t>(tile.expert) * p.layout.num_units + unit) * kUnitRows;
  const int row = threadIdx.x % kWarpSize / 4;
  return {bias[row], bias[row + 8]};
}

template <GemmRole kRole, int kHalves>
__device__ __forceinline__ void write_unit(const ExpertGemmParams& p, const RouteTile& tile,
                                           int unit, const UnitSum<kHalves>& sum,
                                           const int32_t* out_rows, float2 bias) {
  const int lane = threadIdx.x % kWarpSize;
#pragma unroll
  for (int h = 0; h < kHalves; ++h) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int column = h * kHalfRows + lane % 4 * 2 + i;
      if (column >= tile.count) continue;
      const float low = sum.value[h][i] + bias.x;
      const float high = sum.value[h][2 + i] + bias.y;
      const int64_t offset = static_cast<int64_t>(out_rows[column]) * p.out_size;
      if constexpr (kRole == GemmRole::kGateUp) {
        const int row = unit * (kUnitRows / 2) + lane / 4;
        if (row < p.out_size) {
          static_cast<__nv_bfloat16*>(p.out)[offset + row] =
              __float2bfloat16_rn(gate_times_up(p.gate, low, high));
        }
      } else if constexpr (kRole == GemmRole::kGateUpRaw) {
        const int row = unit * (kUnitRows / 2) + lane / 4;
        if (row < p.out_size) {
          auto* out = static_cast<__nv_bfloat16*>(p.out) + 2 * offset + row;
          out[0] = __float2bfloat16_rn(low);
          out[p.out_size] = __float2bfloat16_rn(high);
        }
      } else {
        const int row = unit * kUnitRows + lane / 4;
        const auto store = [&](int at, float value) {
          if (at >= p.out_size) return;
          static_cast<__nv_bfloat16*>(p.out)[offset + at] = __float2bfloat16_rn(value);
        };
        store(row, low);
        store(row + 8, high);
      }
    }
  }
}

// A unit of the group's first or second tile, whose activations are in shared memory at `x`.
template <StreamFormat kFormat, GemmRole kRole, bool kLora, int kHalves>
__device__ __forceinline__ void run_unit(const ExpertGemmParams& p, const ExpertGemmConfig& config,
                                         const TileGroup& group, int second, int unit, uint32_t x,
                                         TileLora* loras, Ring& ring, Producer& producer) {
  const RouteTile& tile = group.tiles[second];
  const int first_row = group.first_row[second];
  const int max_rows = 2 * config.half_rows - first_row;
  const int lane = threadIdx.x % kWarpSize;
  float2 bias = {};
  constexpr bool kEarlyBias = !kLora && kRole != GemmRole::kGateUpRaw;  // as registers allow
  if constexpr (kEarlyBias) bias = load_bias(p, tile, unit);
  if constexpr (kLora) prefetch_b(loras[second], unit);
  UnitSum<kHalves> sum;
  const uint32_t lane_x =
      x + (first_row + min(lane / 4, max_rows - 1)) * config.row_stride + lane % 4 * 16;
  const int stage_x_bytes = p.layout.stage_blocks * block_cols(kFormat) * 2;
  for (int stage = 0; stage < p.layout.num_stages; ++stage) {
    add_stage<kFormat, (kLora && kHalves == 2 ? 3 : kUnroll)>(
        sum, ring.wait(), lane_x + stage * stage_x_bytes, p.layout.stage_blocks,
        kHalfRows * config.row_stride);
    __syncwarp();
    producer.issue(ring.address(ring.slot), ring.barrier(ring.slot));
    ring.advance();
  }
  if constexpr (!kEarlyBias) bias = load_bias(p, tile, unit);
  if constexpr (kLora) {
    add_lora(sum, p, tile, loras[second], shrink_queue<kRole>(p).done, unit);
  }
  write_unit<kRole>(p, tile, unit, sum, group.out_rows + group.first_row[second], bias);
}

// One thread: the group with which the units [share.x, share.y) begin.
__device__ __forceinline__ void form_group(const ExpertGemmParams& p, const RouteTile* table,
                                           int2 share, int max_rows, TileGroup& group) {
  const int num_units = p.layout.num_units;
  const int tile_idx = share.x / num_units;
  group.tiles[0] = {};
  group.num_tiles = 0;
  group.end = share.y;
  if (share.x >= share.y) return;
  const int next_tile = (tile_idx + 1) * num_units;
  group.tiles[0] = tile_entry(p, table, tile_idx);
  group.num_tiles = 1;
  group.first_unit[0] = next_tile - num_units;
  group.first_unit[1] = next_tile;
  group.first_row[0] = 0;
  if (next_tile >= share.y) return;
  group.end = next_tile;
  const RouteTile second = tile_entry(p, table, tile_idx + 1);
  const int count = group.tiles[0].count;
  if (count + second.count > max_rows) return;
  group.tiles[1] = second;
  group.num_tiles = 2;
  // Only the one of fewer rows, kHalfRows at most, may lie behind the other.
  group.first_row[0] = count < second.count ? second.count : 0;
  group.first_row[1] = count < second.count ? 0 : count;
  group.end = min(share.y, next_tile + num_units);
}

}  // namespace

template <StreamFormat kFormat, GemmRole kRole, bool kLora>
__global__ void __maxnreg__(kMaxRegisters)
    expert_gemm_kernel(const __grid_constant__ ExpertGemmParams p,
                       const __grid_constant__ ExpertGemmConfig config) {
  extern __shared__ __align__(128) uint8_t shared[];
  __shared__ __align__(8) uint64_t barriers[kThreadsPerBlock / kWarpSize * kRingSlots];
  __shared__ TileGroup group;
  __shared__ RouteTile table[kTableTiles];
  __shared__ int32_t table_rows[kRole == GemmRole::kDown ? 1 : kTablePairs];
  __shared__ TileLora loras[kLora ? 2 : 1];
  __shared__ int2 share;  // of all units
  const int lane = threadIdx.x % kWarpSize;
  const int warp = threadIdx.x / kWarpSize;
  const int max_rows = 2 * config.half_rows;
  const int ring_bytes = kRingSlots * config.slot_bytes;
  uint8_t* x = shared + config.num_warps * ring_bytes;

  if (kLora && warp >= config.num_warps) {
    run_shrinks<kRole, /*kOneRow=*/false, 6>(p);
    return;
  }
  const auto barrier_of_products = [&] {
    if constexpr (kLora) {
      named_barrier(/*id=*/1, config.num_warps * kWarpSize);
    } else {
      __syncthreads();
    }
  };
  // A warp's barriers are its own.
  if (lane < kRingSlots) {
    barrier_init(shared_address(barriers + warp * kRingSlots + lane), 1);
  }
  barrier_init_fence();
  __syncwarp();
  // What comes right after the wait does not have to wait for its parameters as well.
  asm volatile("" ::"l"(p.routing.num_tiles), "l"(p.routing.tiles), "l"(p.routing.row_of_pair),
               "l"(p.x), "l"(p.weights), "l"(p.out), "r"(p.layout.num_units), "r"(p.in_size));
  if (!p.routed_before_predecessor) wait_for_predecessor();
  if (warp == 0) {
    // Under way together; of the tiles that do not exist only the memory does.
    const int num_tiles = __ldcg(p.routing.num_tiles);
    const RouteTile mine = load_tile_entry(p, lane);
    table[lane] = mine;
    const int2 found = share_of_block<kLora>(p, num_tiles, mine);
    __syncwarp();
    if (lane == 0) {
      share = found;
      loras[0].listed = loras[kLora].listed = 0;
      form_group(p, table, found, max_rows, group);
    }
  }
  if (kRole != GemmRole::kDown && warp > 0) {
    for (int i = threadIdx.x - kWarpSize; i < min(kTablePairs, config.max_pairs);
         i += (config.num_warps - 1) * kWarpSize) {
      table_rows[i] = __ldcg(p.routing.row_of_pair + i);
    }
  }
  const auto row_of_pair = [&](int pair) {
    return pair < kTablePairs ? table_rows[pair] : __ldcg(p.routing.row_of_pair + pair);
  };
  barrier_of_products();
  const int first = share.x;
  const int last = share.y;
  RowPiece piece;
  const bool has_piece = warp < RowPiece::count(config, group);
  // What the predecessor wrote comes before the weights, which are more.
  if (kRole != GemmRole::kDown && has_piece) {
    piece.load<kRole>(p, config, group, warp, row_of_pair);
  }
  Ring ring = {.slots = shared_address(shared) + warp * ring_bytes,
               .barriers = shared_address(barriers + warp * kRingSlots),
               .slot_bytes = config.slot_bytes};
  Producer producer(p, table, {first, last}, warp, config.num_warps);
  for (int i = 0; i < kRingSlots; ++i) {
    producer.issue(ring.address(i), ring.barrier(i));
  }
  if (p.routed_before_predecessor) wait_for_predecessor();
  launch_dependents();
  if (kRole == GemmRole::kDown && has_piece) {
    piece.load<kRole>(p, config, group, warp, row_of_pair);
  }
  if (has_piece) piece.store<kFormat>(p, group, x, config.row_stride);
  const int padding = p.layout.padded_cols - p.in_size;
  for (int i = threadIdx.x; i < max_rows * padding; i += config.num_warps * kWarpSize) {
    const int at = i / padding * config.row_stride + (p.in_size + i % padding) * 2;
    *reinterpret_cast<uint16_t*>(x + at) = 0;
  }
  if (first >= last) return;
  int unit = first + warp;
  for (bool formed = true;; formed = false) {  // the group and its first pieces
    if (!formed) {
      barrier_of_products();
      if (threadIdx.x == 0) {
        loras[0].listed = loras[kLora].listed = 0;
        form_group(p, table, {group.end, share.y}, max_rows, group);
      }
      barrier_of_products();
    }
    for (int item = warp + (formed ? config.num_warps : 0); item < RowPiece::count(config, group);
         item += config.num_warps) {
      RowPiece next;
      next.load<kRole>(p, config, group, item, row_of_pair);
      next.store<kFormat>(p, group, x, config.row_stride);
    }
    barrier_of_products();
    // The last warp has the fewest units.
    if (kLora && warp == config.num_warps - 1) list_rank_blocks(p, group, loras);
    for (; unit < group.end; unit += config.num_warps) {
      const int second = unit >= group.first_unit[1];
      const int unit_in_matrix = unit - group.first_unit[second];
      if (group.tiles[second].count > kHalfRows) {
        run_unit<kFormat, kRole, kLora, 2>(p, config, group, second, unit_in_matrix,
                                           shared_address(x), loras, ring, producer);
      } else {
        run_unit<kFormat, kRole, kLora, 1>(p, config, group, second, unit_in_matrix,
                                           shared_address(x), loras, ring, producer);
      }
    }
    if (group.end >= share.y) return;
  }
}

namespace {

template <StreamFormat kFormat, GemmRole kRole, bool kLora>
void launch_form(const ExpertGemmConfig& config, const ExpertGemmParams& params, int num_blocks,
                 cudaStream_t stream) {
  const LaunchShape shape = {
      .grid = dim3(num_blocks),
      .block = dim3((config.num_warps + (kLora ? kShrinkWarps : 0)) * kWarpSize),
      .shared_bytes = config.shared_bytes,
      .max_carveout = true};
  const auto kernel = expert_gemm_kernel<kFormat, kRole, kLora>;
  [[maybe_unused]] static const bool allowed = allow_all_shared_memory(kernel);
  launch(kernel, shape, stream, params, config);
}

template <StreamFormat kFormat, GemmRole kRole>
void launch_form(bool lora, const ExpertGemmConfig& config, const ExpertGemmParams& params,
                 int num_blocks, cudaStream_t stream) {
  constexpr bool kHasLora = kRole != GemmRole::kGateUpRaw;
  if (lora) {
    launch_form<kFormat, kRole, kHasLora>(config, params, num_blocks, stream);
  } else {
    launch_form<kFormat, kRole, false>(config, params, num_blocks, stream);
  }
}

}  // namespace

void launch_expert_gemm(GemmRole role, bool lora, const ExpertGemmConfig& config,
                        const ExpertGemmParams& params, int num_blocks, cudaStream_t stream) {
  const bool mxfp4 = params.layout.format == StreamFormat::kMxfp4;
  switch (role) {
    case GemmRole::kGateUp:
      return mxfp4 ? launch_form<StreamFormat::kMxfp4, GemmRole::kGateUp>(lora, config, params,
                                                                          num_blocks, stream)
                   : launch_form<StreamFormat::kBF16, GemmRole::kGateUp>(lora, config, params,
                                                                         num_blocks, stream);
    case GemmRole::kGateUpRaw:
      return mxfp4 ? launch_form<StreamFormat::kMxfp4, GemmRole::kGateUpRaw>(lora, config, params,
                                                                             num_blocks, stream)
                   : launch_form<StreamFormat::kBF16, GemmRole::kGateUpRaw>(lora, config, params,
                                                                            num_blocks, stream);
    case GemmRole::kDown:
      return mxfp4 ? launch_form<StreamFormat::kMxfp4, GemmRole::kDown>(lora, config, params,
                                                                        num_blocks, stream)
                   : launch_form<StreamFormat::kBF16, GemmRole::kDown>(lora, config, params,
                                                                       num_blocks, stream);
  }
}

}  // namespace medley::cuda
