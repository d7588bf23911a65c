#include "cuda/expert_gemm.cuh"
#include "cuda/expert_gemm_stream.cuh"
#include "cuda/launch.h"

namespace medley::cuda {
namespace {

constexpr int kMaxSlots = 8;
constexpr int kThreadsPerBlock = 512;
// With LoRA a block leaves 12288 registers of its SM to a block of lora_shrink beside it.
constexpr int kMaxRegisters = 128;
constexpr int kMaxRegistersWithLora = 104;
// Blocks of a kMxfp4 stage whose arithmetic overlaps.
constexpr int kUnroll = 5;
constexpr int kUnrollWithLora = 2;

template <GemmRole kRole, int kHalves>
__device__ __forceinline__ void write_unit(const ExpertGemmParams& p, const RouteTile& tile,
                                           int unit, const UnitSum<kHalves>& sum,
                                           const int32_t* out_rows, float low_bias,
                                           float high_bias) {
  const int lane = threadIdx.x % kWarpSize;
#pragma unroll
  for (int h = 0; h < kHalves; ++h) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int column = h * kHalfRows + lane % 4 * 2 + i;
      if (column >= tile.count) continue;
      const float low = sum.value[h][i] + low_bias;
      const float high = sum.value[h][2 + i] + high_bias;
      const int64_t offset = static_cast<int64_t>(out_rows[column]) * p.out_size;
      if constexpr (kRole == GemmRole::kGateUp) {
        const int row = unit * (kUnitRows / 2) + lane / 4;
        if (row < p.out_size) {
          static_cast<__nv_bfloat16*>(p.out)[offset + row] =
              __float2bfloat16_rn(gate_times_up(p, low, high));
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

template <StreamFormat kFormat, GemmRole kRole, bool kLora, int kHalves>
__device__ __forceinline__ void run_unit(const ExpertGemmParams& p, const RouteTile& tile, int unit,
                                         uint32_t x, int row_stride, const int32_t* out_rows,
                                         const SegmentInfo* segments, Ring& ring,
                                         Producer<kLora>& producer, bool& shrink_complete) {
  const int lane = threadIdx.x % kWarpSize;
  float low_bias = 0.0f;
  float high_bias = 0.0f;
  const auto load_bias = [&] {
    if (p.bias == nullptr) return;
    const float* bias =
        p.bias + (static_cast<int64_t>(tile.expert) * p.layout.num_units + unit) * kUnitRows;
    low_bias = bias[lane / 4];
    high_bias = bias[lane / 4 + 8];
  };
  if constexpr (!kLora) load_bias();
  UnitSum<kHalves> sum;
  const uint32_t lane_x = x + lane / 4 * row_stride + lane % 4 * 16;
  const int stage_x_bytes = p.layout.stage_blocks * block_cols(kFormat) * 2;
  const auto refill = [&] {
    __syncwarp();
    producer.issue(ring.address(), ring.slot_bytes, ring.barrier());
    ring.advance();
  };
  for (int stage = 0; stage < p.layout.num_stages; ++stage) {
    const uint32_t data = ring.wait();
    const uint32_t stage_x = lane_x + stage * stage_x_bytes;
    if constexpr (kFormat == StreamFormat::kMxfp4) {
      add_mxfp4_stage<kLora ? kUnrollWithLora / kHalves : kUnroll>(
          sum, data, stage_x, p.layout.stage_blocks, kHalfRows * row_stride);
    } else {
      add_bf16_stage(sum, data, stage_x, p.layout.stage_blocks, kHalfRows * row_stride);
    }
    refill();
  }
  if constexpr (kLora) {
    load_bias();
    if (tile.segment_count > 0 && !shrink_complete) {
      wait_for_predecessor();
      launch_dependents();
      shrink_complete = true;
    }
    for (int i = 0; i < tile.segment_count; ++i) {
      const SegmentInfo& info = segments[i];
      const SegmentColumns columns = {info.begin, info.end};
      const __nv_bfloat16* s = p.s + static_cast<int64_t>(tile.begin) * p.s_stride;
      for (int done = 0; done < info.rank;) {
        const int blocks = min((info.rank - done) / kRankBlock, ring.slot_bytes / kRankBlockBytes);
        const uint32_t data = ring.wait();
        add_lora_stage<kRole>(sum, data, s + done, p.s_stride, info.num_a == 1 ? 0 : info.rank,
                              columns, blocks);
        refill();
        done += blocks * kRankBlock;
      }
    }
  }
  write_unit<kRole>(p, tile, unit, sum, out_rows, low_bias, high_bias);
}

// A unit's cost in halves: a tile of more than kHalfRows rows takes half as long again.
__device__ __forceinline__ int unit_cost(const RouteTile& tile) {
  return tile.count > kHalfRows ? 3 : 2;
}

// The block's share [first, last) of all units, equal by cost. Called by whole warps.
__device__ __forceinline__ int2 share_of_block(const ExpertGemmParams& p, bool equal_units) {
  const int num_tiles = __ldcg(p.routing.num_tiles);
  const int num_units = p.layout.num_units;
  if (equal_units) {
    const int64_t all = static_cast<int64_t>(num_tiles) * num_units;
    return {static_cast<int>(all * blockIdx.x / gridDim.x),
            static_cast<int>(all * (blockIdx.x + 1) / gridDim.x)};
  }
  const int lane = threadIdx.x % kWarpSize;
  int total = 0;
  for (int i = lane; i < num_tiles; i += kWarpSize) total += unit_cost(load_tile_entry(p, i));
  total = __reduce_add_sync(0xffffffffu, total);
  const int64_t cost = static_cast<int64_t>(total) * num_units;
  const int begin = static_cast<int>(cost * blockIdx.x / gridDim.x);
  const int end = static_cast<int>(cost * (blockIdx.x + 1) / gridDim.x);
  // A share begins with the first unit whose cost begins at or after `begin`.
  int first = num_tiles * num_units;
  int last = first;
  int before = 0;
  for (int base = 0; base < num_tiles; base += kWarpSize) {
    const int tile_idx = base + lane;
    const int each = tile_idx < num_tiles ? unit_cost(load_tile_entry(p, tile_idx)) : 0;
    int through = each * num_units;
#pragma unroll
    for (int offset = 1; offset < kWarpSize; offset *= 2) {
      const int other = __shfl_up_sync(0xffffffffu, through, offset);
      if (lane >= offset) through += other;
    }
    const int start = before + through - each * num_units;
    const int last_start = start + each * (num_units - 1);
    if (each > 0 && begin <= last_start) {
      first = min(first, tile_idx * num_units + max(0, begin - start + each - 1) / each);
    }
    if (each > 0 && end <= last_start) {
      last = min(last, tile_idx * num_units + max(0, end - start + each - 1) / each);
    }
    before += __shfl_sync(0xffffffffu, through, kWarpSize - 1);
  }
  return {static_cast<int>(__reduce_min_sync(0xffffffffu, first)),
          static_cast<int>(__reduce_min_sync(0xffffffffu, last))};
}

// One thread: the group that begins with tile `tile_idx`; `more` if the block's share goes beyond
// it.
__device__ __forceinline__ void form_group(const ExpertGemmParams& p, int tile_idx, bool more,
                                           TileGroup& group) {
  group.tiles[0] = load_tile_entry(p, tile_idx);
  group.first_tile = tile_idx;
  group.num_tiles = 1;
  if (!more || group.tiles[0].count > kHalfRows) return;
  group.tiles[1] = load_tile_entry(p, tile_idx + 1);
  if (group.tiles[1].count <= kHalfRows) group.num_tiles = 2;
}

// Brings a group's activations to shared memory; kMxfp4's times 2^kActivationShift. A warp takes a
// piece of a row, all its loads under way together.
template <StreamFormat kFormat, GemmRole kRole>
__device__ __forceinline__ void load_group(const ExpertGemmParams& p, TileGroup& group, uint8_t* x,
                                           int row_stride) {
  constexpr int kLoads = 4;
  const int lane = threadIdx.x % kWarpSize;
  const int vectors = p.in_size / 8;
  const int pieces = (vectors + kLoads * kWarpSize - 1) / (kLoads * kWarpSize);
  const int first_count = group.tiles[0].count;
  const int rows = first_count + (group.num_tiles == 2 ? group.tiles[1].count : 0);
  const __nv_bfloat162 shift = __float2bfloat162_rn(ldexpf(1.0f, kActivationShift));
  for (int item = threadIdx.x / kWarpSize; item < rows * pieces; item += blockDim.x / kWarpSize) {
    const int row = item / pieces;
    const int piece = item - row * pieces;
    const bool second = row >= first_count;
    const int column = second ? row - first_count : row;
    const int pair = group.tiles[second].begin + column;
    const int place = (second ? kHalfRows : 0) + column;
    const int64_t from = kRole == GemmRole::kDown ? pair : __ldcg(p.routing.row_of_pair + pair);
    const auto* source = reinterpret_cast<const uint4*>(p.x + from * p.in_size);
    const int begin = piece * kLoads * kWarpSize + lane;
    uint4 values[kLoads];
#pragma unroll
    for (int j = 0; j < kLoads; ++j) {
      if (begin + j * kWarpSize < vectors) values[j] = __ldcg(source + begin + j * kWarpSize);
    }
#pragma unroll
    for (int j = 0; j < kLoads; ++j) {
      const int v = begin + j * kWarpSize;
      if (v >= vectors) continue;
      if constexpr (kFormat == StreamFormat::kMxfp4) {
        auto* pairs = reinterpret_cast<__nv_bfloat162*>(&values[j]);
#pragma unroll
        for (int k = 0; k < 4; ++k) pairs[k] = __hmul2(pairs[k], shift);
      }
      *reinterpret_cast<uint4*>(x + place * row_stride + v * 16) = values[j];
    }
    if (piece == 0 && lane == 0) group.out_rows[place] = pair;
  }
}

}  // namespace

template <StreamFormat kFormat, GemmRole kRole, bool kLora>
__global__ void __maxnreg__(kLora ? kMaxRegistersWithLora : kMaxRegisters)
    expert_gemm_kernel(const __grid_constant__ ExpertGemmParams p,
                       const __grid_constant__ ExpertGemmConfig config) {
  extern __shared__ __align__(128) uint8_t shared[];
  __shared__ __align__(8) uint64_t barriers[kThreadsPerBlock / kWarpSize * kMaxSlots];
  __shared__ TileGroup group;
  const int warp = threadIdx.x / kWarpSize;
  const int ring_bytes = config.num_slots * config.slot_bytes;
  uint8_t* x = shared + config.num_warps * ring_bytes;

  for (int i = threadIdx.x; i < config.num_warps * config.num_slots; i += blockDim.x) {
    barrier_init(shared_address(barriers + i), 1);
  }
  const int padding = p.layout.padded_cols - p.in_size;
  for (int i = threadIdx.x; i < config.tile_rows * padding; i += blockDim.x) {
    const int at = i / padding * config.row_stride + (p.in_size + i % padding) * 2;
    *reinterpret_cast<uint16_t*>(x + at) = 0;
  }
  if (threadIdx.x == 0) group.num_tiles = 0;
  barrier_init_fence();
  __syncthreads();
  if (!p.routed_before_predecessor) wait_for_predecessor();

  const int2 share = share_of_block(p, config.equal_units);
  const int first = share.x;
  const int last = share.y;
  Ring ring = {.slots = shared_address(shared) + warp * ring_bytes,
               .barriers = shared_address(barriers + warp * config.num_slots),
               .slot_bytes = config.slot_bytes,
               .num_slots = config.num_slots};
  Producer<kLora> producer(p, group, first + warp, last, config.num_warps);
  for (int i = 0; i < config.num_slots; ++i) {
    producer.issue(ring.slots + i * ring.slot_bytes, ring.slot_bytes, ring.barriers + i * 8);
  }

  bool shrink_complete = !p.routed_before_predecessor;
  if (!kLora && !shrink_complete) {
    wait_for_predecessor();
    shrink_complete = true;
  }
  if (shrink_complete) launch_dependents();
  int unit = first + warp;
  for (int begin = first; begin < last;) {
    const int tile_idx = begin / p.layout.num_units;
    const int next_tile = (tile_idx + 1) * p.layout.num_units;
    __syncthreads();
    if (threadIdx.x == 0) form_group(p, tile_idx, next_tile < last, group);
    __syncthreads();
    if (kLora && threadIdx.x < 2 * kTileRows) {
      const int place = threadIdx.x / kTileRows;
      const int i = threadIdx.x % kTileRows;
      const RouteTile& tile = group.tiles[place];
      if (place < group.num_tiles && i < tile.segment_count) {
        group.segments[place][i] = load_segment(p, tile.segment_begin + i, tile.begin);
      }
    }
    load_group<kFormat, kRole>(p, group, x, config.row_stride);
    __syncthreads();
    const int end = min(last, next_tile + (group.num_tiles - 1) * p.layout.num_units);
    for (; unit < end; unit += config.num_warps) {
      const int second = unit >= next_tile;
      const RouteTile& tile = group.tiles[second];
      const int unit_in_matrix = unit - (tile_idx + second) * p.layout.num_units;
      const uint32_t tile_x = shared_address(x) + second * kHalfRows * config.row_stride;
      const int32_t* out_rows = group.out_rows + second * kHalfRows;
      if (tile.count > kHalfRows) {
        run_unit<kFormat, kRole, kLora, 2>(p, tile, unit_in_matrix, tile_x, config.row_stride,
                                           out_rows, group.segments[second], ring, producer,
                                           shrink_complete);
      } else {
        run_unit<kFormat, kRole, kLora, 1>(p, tile, unit_in_matrix, tile_x, config.row_stride,
                                           out_rows, group.segments[second], ring, producer,
                                           shrink_complete);
      }
    }
    begin = end;
  }
  if (!shrink_complete) wait_for_predecessor();
}

template <StreamFormat kFormat, GemmRole kRole>
void launch_form(bool lora, const ExpertGemmConfig& config, const ExpertGemmParams& params,
                 int num_blocks, cudaStream_t stream) {
  const LaunchShape shape = {.grid = dim3(num_blocks),
                             .block = dim3(config.num_warps * kWarpSize),
                             .shared_bytes = config.shared_bytes};
  constexpr bool kHasLora = kRole != GemmRole::kGateUpRaw;
  const auto base = expert_gemm_kernel<kFormat, kRole, false>;
  const auto with_lora = expert_gemm_kernel<kFormat, kRole, kHasLora>;
  static const bool allowed = [&] {
    allow_all_shared_memory(reinterpret_cast<const void*>(base));
    allow_all_shared_memory(reinterpret_cast<const void*>(with_lora));
    return true;
  }();
  static_cast<void>(allowed);
  launch(lora ? with_lora : base, shape, stream, params, config);
}

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
