#include "cuda/expert_gemm.cuh"
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

// Routing is read through L2: it may be older than this kernel's start by less than a wait.
__device__ __forceinline__ RouteTile load_tile_entry(const ExpertGemmParams& p, int tile_idx) {
  const auto* words = reinterpret_cast<const int32_t*>(p.routing.tiles + tile_idx);
  return {.expert = __ldcg(words),
          .begin = __ldcg(words + 1),
          .count = __ldcg(words + 2),
          .segment_begin = __ldcg(words + 3),
          .segment_count = __ldcg(words + 4)};
}

// A warp's place in the stream of copies it will consume: units first + warp, first + warp +
// num_warps, ... of the block's share, each its base stages and then the LoRA stages of its tile's
// segments. All lanes hold the same values; lane 0 issues.
template <bool kLora>
struct Producer {
  const ExpertGemmParams& p;
  int units_left;  // of the block's share, from this unit on
  int step;
  int stages_left = 0;
  int segment = 0;  // of the tile
  int rank_block = 0;
  int tile_idx;
  int unit_in_matrix;
  const uint8_t* source = nullptr;
  RouteTile tile;

  __device__ Producer(const ExpertGemmParams& params, int first, int last, int stride)
      : p(params), units_left(last - first), step(stride) {
    if (units_left <= 0) return;
    tile_idx = first / p.layout.num_units;
    unit_in_matrix = first - tile_idx * p.layout.num_units;
    tile = load_tile_entry(p, tile_idx);
    open_unit();
  }

  __device__ void open_unit() {
    source = p.weights + (static_cast<int64_t>(tile.expert) * p.layout.num_units + unit_in_matrix) *
                             p.layout.unit_bytes;
    stages_left = p.layout.num_stages;
    segment = 0;
    rank_block = 0;
  }

  __device__ void next_unit() {
    units_left -= step;
    if (units_left <= 0) return;
    unit_in_matrix += step;
    if (unit_in_matrix >= p.layout.num_units) {
      do {
        unit_in_matrix -= p.layout.num_units;
        ++tile_idx;
      } while (unit_in_matrix >= p.layout.num_units);
      tile = load_tile_entry(p, tile_idx);
    }
    open_unit();
  }

  __device__ static void copy(uint32_t slot, const uint8_t* from, int bytes, uint32_t barrier) {
    if (threadIdx.x % kWarpSize == 0) {
      barrier_expect(barrier, bytes);
      bulk_copy(slot, from, bytes, barrier);
    }
  }

  __device__ void skip_empty_segments() {
    while (segment < tile.segment_count &&
           p.lora[p.routing.segments[tile.segment_begin + segment].slot].rank == 0) {
      ++segment;
    }
  }

  __device__ void issue_lora(uint32_t slot, int slot_bytes, uint32_t barrier) {
    const LoraEntry& entry = p.lora[p.routing.segments[tile.segment_begin + segment].slot];
    const int blocks = entry.rank / kRankBlock;
    const int count = min(blocks - rank_block, slot_bytes / kRankBlockBytes);
    copy(slot,
         entry.b + tile.expert * entry.b_expert_bytes +
             (static_cast<int64_t>(unit_in_matrix) * blocks + rank_block) * kRankBlockBytes,
         count * kRankBlockBytes, barrier);
    rank_block += count;
    if (rank_block < blocks) return;
    rank_block = 0;
    ++segment;
    skip_empty_segments();
    if (segment == tile.segment_count) next_unit();
  }

  __device__ __forceinline__ void issue(uint32_t slot, int slot_bytes, uint32_t barrier) {
    if (units_left <= 0) return;
    if (kLora && stages_left == 0) return issue_lora(slot, slot_bytes, barrier);
    copy(slot, source, p.layout.stage_bytes, barrier);
    source += p.layout.stage_bytes;
    if (--stages_left > 0) return;
    if constexpr (kLora) {
      skip_empty_segments();
      if (segment < tile.segment_count) return;
    }
    next_unit();
  }
};

// A ring of slots that one warp fills and drains.
struct Ring {
  uint32_t slots;
  uint32_t barriers;
  int slot_bytes;
  int num_slots;
  int slot = 0;
  uint32_t parity = 0;

  __device__ uint32_t address() const { return slots + slot * slot_bytes; }
  __device__ uint32_t barrier() const { return barriers + slot * 8; }
  __device__ uint32_t wait() const {
    barrier_wait(barrier(), parity);
    return address();
  }
  __device__ void advance() {
    if (++slot == num_slots) {
      slot = 0;
      parity ^= 1;
    }
  }
};

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
      } else {
        const int row = unit * kUnitRows + lane / 4;
        const auto store = [&](int at, float value) {
          if (at >= p.out_size) return;
          if constexpr (kRole == GemmRole::kLogits) {
            static_cast<float*>(p.out)[offset + at] = value;
          } else {
            static_cast<__nv_bfloat16*>(p.out)[offset + at] = __float2bfloat16_rn(value);
          }
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
                                         Ring& ring, Producer<kLora>& producer,
                                         bool& shrink_complete) {
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
      const RouteSegment segment = p.routing.segments[tile.segment_begin + i];
      const LoraEntry entry = p.lora[segment.slot];
      const SegmentColumns columns = {segment.begin - tile.begin,
                                      segment.begin - tile.begin + segment.count};
      const __nv_bfloat16* s = p.s + static_cast<int64_t>(tile.begin) * p.s_stride;
      if (kRole == GemmRole::kDense && entry.num_a > 1) {
        s += ((unit >= p.part_end[0]) + (unit >= p.part_end[1])) * entry.rank;
      }
      for (int done = 0; done < entry.rank;) {
        const int blocks = min((entry.rank - done) / kRankBlock, ring.slot_bytes / kRankBlockBytes);
        const uint32_t data = ring.wait();
        add_lora_stage<kRole>(sum, data, s + done, p.s_stride, entry, columns, blocks);
        refill();
        done += blocks * kRankBlock;
      }
    }
  }
  write_unit<kRole>(p, tile, unit, sum, out_rows, low_bias, high_bias);
}

// Brings the activations of a tile to shared memory; kMxfp4's times 2^kActivationShift.
template <StreamFormat kFormat, GemmRole kRole>
__device__ __forceinline__ void load_tile(const ExpertGemmParams& p, const RouteTile& tile,
                                          uint8_t* x, int row_stride, int32_t* out_rows) {
  const int vectors = p.in_size / 8;
  const __nv_bfloat162 shift = __float2bfloat162_rn(ldexpf(1.0f, kActivationShift));
  for (int i = threadIdx.x; i < tile.count * vectors; i += blockDim.x) {
    const int row = i / vectors;
    const int v = i - row * vectors;
    const int pair = tile.begin + row;
    const int64_t from = kRole == GemmRole::kDown ? pair : p.routing.row_of_pair[pair];
    uint4 values = __ldcg(reinterpret_cast<const uint4*>(p.x + from * p.in_size) + v);
    if constexpr (kFormat == StreamFormat::kMxfp4) {
      auto* pairs = reinterpret_cast<__nv_bfloat162*>(&values);
#pragma unroll
      for (int j = 0; j < 4; ++j) pairs[j] = __hmul2(pairs[j], shift);
    }
    *reinterpret_cast<uint4*>(x + row * row_stride + v * 16) = values;
  }
  if (threadIdx.x < tile.count) {
    const int pair = tile.begin + threadIdx.x;
    out_rows[threadIdx.x] = kRole == GemmRole::kDense    ? p.routing.row_of_pair[pair]
                            : kRole == GemmRole::kLogits ? p.routing.pair_of_choice[pair]
                                                         : pair;
  }
}

}  // namespace

template <StreamFormat kFormat, GemmRole kRole, bool kLora>
__global__ void __maxnreg__(kLora ? kMaxRegistersWithLora : kMaxRegisters)
    expert_gemm_kernel(const __grid_constant__ ExpertGemmParams p,
                       const __grid_constant__ ExpertGemmConfig config) {
  extern __shared__ __align__(128) uint8_t shared[];
  __shared__ __align__(8) uint64_t barriers[kThreadsPerBlock / kWarpSize * kMaxSlots];
  __shared__ int32_t out_rows[kTileRows];
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
  barrier_init_fence();
  __syncthreads();
  if (!p.routed_before_predecessor) wait_for_predecessor();

  const int64_t num_units = static_cast<int64_t>(__ldcg(p.routing.num_tiles)) * p.layout.num_units;
  const int first = static_cast<int>(num_units * blockIdx.x / gridDim.x);
  const int last = static_cast<int>(num_units * (blockIdx.x + 1) / gridDim.x);
  Ring ring = {.slots = shared_address(shared) + warp * ring_bytes,
               .barriers = shared_address(barriers + warp * config.num_slots),
               .slot_bytes = config.slot_bytes,
               .num_slots = config.num_slots};
  Producer<kLora> producer(p, first + warp, last, config.num_warps);
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
    const int end = min(last, (tile_idx + 1) * p.layout.num_units);
    const RouteTile tile = load_tile_entry(p, tile_idx);
    __syncthreads();
    load_tile<kFormat, kRole>(p, tile, x, config.row_stride, out_rows);
    __syncthreads();
    for (; unit < end; unit += config.num_warps) {
      const int unit_in_matrix = unit - tile_idx * p.layout.num_units;
      if (tile.count > kHalfRows) {
        run_unit<kFormat, kRole, kLora, 2>(p, tile, unit_in_matrix, shared_address(x),
                                           config.row_stride, out_rows, ring, producer,
                                           shrink_complete);
      } else {
        run_unit<kFormat, kRole, kLora, 1>(p, tile, unit_in_matrix, shared_address(x),
                                           config.row_stride, out_rows, ring, producer,
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
  const auto kernel =
      lora ? expert_gemm_kernel<kFormat, kRole, true> : expert_gemm_kernel<kFormat, kRole, false>;
  static const bool allowed = [] {
    allow_all_shared_memory(
        reinterpret_cast<const void*>(expert_gemm_kernel<kFormat, kRole, false>));
    allow_all_shared_memory(
        reinterpret_cast<const void*>(expert_gemm_kernel<kFormat, kRole, true>));
    return true;
  }();
  static_cast<void>(allowed);
  launch(kernel, shape, stream, params, config);
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
    case GemmRole::kDown:
      return mxfp4 ? launch_form<StreamFormat::kMxfp4, GemmRole::kDown>(lora, config, params,
                                                                        num_blocks, stream)
                   : launch_form<StreamFormat::kBF16, GemmRole::kDown>(lora, config, params,
                                                                       num_blocks, stream);
    case GemmRole::kDense:
      return launch_form<StreamFormat::kBF16, GemmRole::kDense>(lora, config, params, num_blocks,
                                                                stream);
    case GemmRole::kLogits:
      return launch_form<StreamFormat::kBF16, GemmRole::kLogits>(lora, config, params, num_blocks,
                                                                 stream);
  }
}

}  // namespace medley::cuda
