#pragma once

#include "cuda/dense_gemm_lora.cuh"
#include "cuda/dense_gemm_stream.cuh"
#include "cuda/dense_shrink.cuh"
#include "cuda/gate.cuh"
#include "cuda/launch.h"

namespace medley::cuda {

// Where a tile of rows lies in the step's tiles, pairs and segments.
struct TilePlace {
  int first_pair;
  int num_rows;  // 0 where the step has fewer
  int first_segment;
  int num_segments;
};

template <int kHalves>
__device__ __forceinline__ TilePlace find_tile(const RoutingView& rows, int tile_idx) {
  constexpr int kTilesTaken = kHalves > 2 ? kHalves / 2 : 1;
  const int first = tile_idx * kTilesTaken;
  const int last = min(first + kTilesTaken, __ldcg(rows.num_tiles)) - 1;
  if (first > last) return {};
  const auto* begin = reinterpret_cast<const int32_t*>(rows.tiles + first);
  const auto* end = reinterpret_cast<const int32_t*>(rows.tiles + last);
  const int first_pair = __ldcg(begin + 1);
  const int first_segment = __ldcg(begin + 3);
  return {.first_pair = first_pair,
          .num_rows = __ldcg(end + 1) + __ldcg(end + 2) - first_pair,
          .first_segment = first_segment,
          .num_segments = __ldcg(end + 3) + __ldcg(end + 4) - first_segment};
}

// What all warps of a block know about its tile of rows.
template <int kHalves, DenseLora kLora>
struct DenseTile {
  static constexpr int kRows = kHalves * kHalfRows;
  int32_t in_rows[kRows];
  int32_t out_rows[kRows];
  DenseSegment segments[kLora != DenseLora::kNone ? kRows : 1];
};
template <int kHalves>
struct DenseTile<kHalves, DenseLora::kInside> {
  static constexpr int kRows = kHalves * kHalfRows;
  int32_t in_rows[kRows];
  int32_t out_rows[kRows];
  DenseSegment segments[kRows];
  ShrinkSegment shrinks[kRows];
};

template <DenseRole kRole, int kHalves, DenseLora kLora>
__device__ __forceinline__ void fill_tile(const DenseGemmParams& p, const TilePlace& place,
                                          DenseTile<kHalves, kLora>& tile) {
  for (int i = threadIdx.x; i < place.num_rows; i += blockDim.x) {
    const int row = __ldcg(p.rows.row_of_pair + place.first_pair + i);
    tile.in_rows[i] = row;
    tile.out_rows[i] =
        kRole == DenseRole::kLogits ? __ldcg(p.rows.pair_of_choice + place.first_pair + i) : row;
  }
}

// Thread `worker` of `num_workers`.
template <int kHalves, DenseLora kLora>
__device__ __forceinline__ void fill_segments(const DenseGemmParams& p, const TilePlace& place,
                                              int worker, int num_workers,
                                              DenseTile<kHalves, kLora>& tile) {
  for (int i = worker; i < place.num_segments; i += num_workers) {
    const RouteSegment segment = p.rows.segments[place.first_segment + i];
    const LoraEntry& entry = p.lora[segment.slot];
    tile.segments[i] = {.rank_blocks = entry.rank / kRankBlock,
                        .num_a = entry.num_a,
                        .begin = segment.begin - place.first_pair,
                        .end = segment.begin - place.first_pair + segment.count,
                        .b = entry.b};
    if constexpr (kLora == DenseLora::kInside) {
      tile.shrinks[i] = {.a = entry.a,
                         .scale = entry.scale,
                         .end_unit = entry.num_a * entry.rank / kUnitRows,
                         .begin = segment.begin,
                         .count = segment.count};
    }
  }
}

// Adds the product of a unit with the block's columns.
template <int kHalves, class Producer>
__device__ __forceinline__ void add_columns(const DenseGemmParams& p, const DenseShare& share,
                                            UnitSum<kHalves>& sums, WeightRing& ring,
                                            ActivationRing& x_ring, Producer& producer) {
  const int lane = threadIdx.x % kWarpSize;
  const uint32_t lane_x = lane / 4 * x_ring.row_bytes + lane % 4 * 16;
  int chunk_of_slot = 0;
#pragma unroll 1
  for (int at = share.begin; at < share.end; at += kChunkBlocks) {
    const int blocks = share.end - at;
    const uint32_t data = ring.wait() + lane * 16;
    const uint32_t x = x_ring.wait() + lane_x + chunk_of_slot * kRowChunkBytes;
#pragma unroll
    for (int b = 0; b < kChunkBlocks; ++b) {
      if (b >= blocks) break;
      const uint4 low = load_shared_16(data + b * kBlockBytes);
      const uint4 high = load_shared_16(data + b * kBlockBytes + kBlockBytes / 2);
#pragma unroll
      for (int h = 0; h < kHalves; ++h) {
        add_bf16_block(sums.value[h], low, high,
                       load_shared_16(x + h * kHalfRows * x_ring.row_bytes + b * kBlockCols * 2));
      }
    }
    ring.refill(p, producer);
    if (++chunk_of_slot == x_ring.chunks || blocks <= kChunkBlocks) {
      x_ring.release();
      chunk_of_slot = 0;
    }
  }
}

__device__ __forceinline__ float2 load_bias(const DenseGemmParams& p, int unit) {
  if (p.bias == nullptr) return {};
  const float* from = p.bias + static_cast<int64_t>(unit) * kUnitRows + threadIdx.x % kWarpSize / 4;
  return {from[0], from[8]};
}

// One lane's values of a unit and a half: rows lane / 4 and lane / 4 + 8, columns 2 (lane % 4) and
// the next.
template <DenseRole kRole>
__device__ __forceinline__ void write_values(const DenseGemmParams& p, int unit, int half,
                                             const float4& sum, float2 bias, int num_rows,
                                             const int32_t* out_rows) {
  const int lane = threadIdx.x % kWarpSize;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int column = half * kHalfRows + lane % 4 * 2 + i;
    if (column >= num_rows) continue;
    const float low = (i == 0 ? sum.x : sum.y) + bias.x;
    const float high = (i == 0 ? sum.z : sum.w) + bias.y;
    const int64_t offset = static_cast<int64_t>(out_rows[column]) * p.out_size;
    if constexpr (kRole == DenseRole::kGateUp) {
      const int row = unit * (kUnitRows / 2) + lane / 4;
      if (row >= p.out_size) continue;
      static_cast<__nv_bfloat16*>(p.out)[offset + row] =
          __float2bfloat16_rn(gate_times_up(p.gate, low, high));
    } else {
      const auto store = [&](int row, float value) {
        if (row >= p.out_size) return;
        if constexpr (kRole == DenseRole::kLogits) {
          static_cast<float*>(p.out)[offset + row] = value;
        } else {
          static_cast<__nv_bfloat16*>(p.out)[offset + row] = __float2bfloat16_rn(value);
        }
      };
      store(unit * kUnitRows + lane / 4, low);
      store(unit * kUnitRows + lane / 4 + 8, high);
    }
  }
}

// Joins the sums of a cluster's blocks: block i adds those of the (unit, half) with i as remainder,
// in the order of the blocks. The warps send theirs to `receive` (blocks, items of a block, 32) of
// whichever block adds them; `arrived` there counts the bytes.
template <DenseRole kRole, int kHalves>
__device__ __forceinline__ void join_cluster(const DenseGemmParams& p, const DenseShare& share,
                                             int warp, int num_warps, uint32_t receive,
                                             uint32_t arrived, const UnitSum<kHalves>& sums,
                                             int num_rows, const int32_t* out_rows) {
  const int lane = threadIdx.x % kWarpSize;
  const int num_halves = (num_rows + kHalfRows - 1) / kHalfRows;
  const int num_items = (share.last - share.first) * num_halves;
  const int items_of_block = (num_items + share.cluster - 1) / share.cluster;
  const auto place = [&](int from_block, int index) {
    return receive + ((from_block * items_of_block + index) * kWarpSize + lane) * 16;
  };
  const int unit = share.first + warp;
  if (warp < num_warps && unit < share.last) {
#pragma unroll
    for (int h = 0; h < kHalves; ++h) {
      if (h >= num_halves) break;
      const int item = warp * num_halves + h;
      const int to = item % share.cluster;
      const auto& v = sums.value[h];
      store_remote_16(remote_address(place(share.rank_in_cluster, item / share.cluster), to),
                      {v[0], v[1], v[2], v[3]}, remote_address(arrived, to));
    }
  }
  const int mine = (num_items - share.rank_in_cluster + share.cluster - 1) / share.cluster;
  if (threadIdx.x == 0) {
    barrier_expect(arrived, mine * share.cluster * kWarpSize * static_cast<int>(sizeof(float4)));
  }
  if (warp >= num_warps) return;
  const auto unit_of = [&](int index) {
    return share.first + (index * share.cluster + share.rank_in_cluster) / num_halves;
  };
  float2 bias = {};
  if (warp < mine) bias = load_bias(p, unit_of(warp));
  barrier_wait(arrived, 0);
  for (int index = warp; index < mine; index += num_warps) {
    float4 total = {};
    for (int i = 0; i < share.cluster; ++i) {
      const uint4 bits = load_shared_16(place(i, index));
      total.x += __uint_as_float(bits.x);
      total.y += __uint_as_float(bits.y);
      total.z += __uint_as_float(bits.z);
      total.w += __uint_as_float(bits.w);
    }
    if (index != warp) bias = load_bias(p, unit_of(index));
    const int half = (index * share.cluster + share.rank_in_cluster) % num_halves;
    write_values<kRole>(p, unit_of(index), half, total, bias, num_rows, out_rows);
  }
}

constexpr int max_dense_threads(int halves, DenseLora lora) {
  return kWarpSize *
         (lora == DenseLora::kInside ? max_inside_warps(halves) : max_dense_warps(halves) + 1);
}

template <DenseRole kRole, int kHalves, DenseLora kLora>
__global__ void __launch_bounds__(max_dense_threads(kHalves, kLora), min_dense_blocks(kHalves))
    dense_gemm_kernel(const __grid_constant__ DenseGemmParams p,
                      const __grid_constant__ DenseGemmConfig config) {
  extern __shared__ __align__(128) uint8_t shared[];
  __shared__ __align__(8) uint64_t ring_barriers[kMaxDenseWarps * kMaxDenseSlots];
  __shared__ __align__(8) uint64_t x_barriers[2 * kMaxDenseSlots];
  __shared__ __align__(8) uint64_t joined;
  __shared__ DenseTile<kHalves, kLora> tile;
  __shared__ DenseProducer<kLora != DenseLora::kNone> producers[kMaxDenseWarps];
  // kInside: the tile's segments are there; where s is, or will be, is known.
  __shared__ __align__(8) uint64_t segments_there;
  __shared__ __align__(8) uint64_t s_there;
  __shared__ PlaceOfS place_of_s;
  __shared__ DenseShrinkStart shrink_start;
  const int warp = threadIdx.x / kWarpSize;
  const int lane = threadIdx.x % kWarpSize;
  const int num_warps = config.num_warps;
  const int rank_in_cluster = static_cast<int>(blockIdx.x) % config.cluster;
  const int cluster_idx = static_cast<int>(blockIdx.x) / config.cluster;
  const int tile_idx = cluster_idx % config.num_tiles;
  const int share_idx = cluster_idx / config.num_tiles;
  const int blocks = p.layout.padded_cols / kBlockCols;
  const DenseShare share = {
      .first = split_begin(p.layout.num_units, config.num_shares, share_idx),
      .last = split_begin(p.layout.num_units, config.num_shares, share_idx + 1),
      .begin = split_begin(blocks, config.cluster, rank_in_cluster),
      .end = split_begin(blocks, config.cluster, rank_in_cluster + 1),
      .rank_in_cluster = rank_in_cluster,
      .cluster = config.cluster};

  // Only the first tile is known to have rows.
  TilePlace place;
  if (tile_idx > 0) {
    place = find_tile<kHalves>(p.rows, tile_idx);
    if (place.num_rows == 0) return wait_for_predecessor();
  }

  WeightRing ring = {.slots = shared_address(shared) + warp * config.num_slots * kWeightSlotBytes,
                     .barriers = shared_address(ring_barriers + warp * kMaxDenseSlots),
                     .num_slots = config.num_slots};
  const int ring_bytes = num_warps * config.num_slots * kWeightSlotBytes;
  ActivationRing x_ring = {.slots = shared_address(shared) + ring_bytes,
                           .full = shared_address(x_barriers),
                           .empty = shared_address(x_barriers + kMaxDenseSlots),
                           .row_bytes = x_row_bytes(config.x_chunks),
                           .slot_bytes = x_slot_bytes(kHalves, config.x_chunks),
                           .num_slots = config.x_slots,
                           .chunks = config.x_chunks};
  auto& producer = producers[warp < num_warps ? warp : 0];
  int filled = 0;
  if (warp < num_warps) {
    if (lane == 0) {
      for (int i = 0; i < ring.num_slots; ++i) barrier_init(ring.barrier(i), 1);
      barrier_init_fence();
      producer.open(share, share.first + warp, num_warps);
      for (; filled < ring.num_slots && producer.in_base(); ++filled) {
        producer.issue(p, ring.address(filled), ring.barrier(filled));
      }
    }
  } else if ((kLora != DenseLora::kInside || warp == num_warps) && lane == 0) {
    barrier_init(shared_address(&joined), 1);
    if constexpr (kLora == DenseLora::kInside) {
      barrier_init(shared_address(&segments_there), 1);
      barrier_init(shared_address(&s_there),
                   waits_for_each_s(kHalves, kLora) ? 1 : config.shrink_warps);
    }
    for (int i = 0; i < x_ring.num_slots; ++i) {
      barrier_init(x_ring.full + i * 8, 1);
      barrier_init(x_ring.empty + i * 8, num_warps);
    }
    barrier_init_fence();
  }
  launch_dependents();
  // Columns past the last are zero in the weights; what meets them must be finite.
  if (p.in_size != p.layout.padded_cols) {
    auto* words = reinterpret_cast<uint32_t*>(shared + ring_bytes);
    for (int i = threadIdx.x; i < x_ring.num_slots * x_ring.slot_bytes / 4; i += blockDim.x) {
      words[i] = 0;
    }
    generic_before_async_fence();
  }
  if (tile_idx == 0) place = find_tile<kHalves>(p.rows, 0);
  // One tile only: constants to the compiler.
  if constexpr (kLora == DenseLora::kInside) place.first_pair = place.first_segment = 0;
  fill_tile<kRole, kHalves, kLora>(p, place, tile);
  if constexpr (kLora == DenseLora::kBefore) {
    fill_segments(p, place, threadIdx.x, blockDim.x, tile);
  }
  __syncthreads();
  if (config.cluster > 1) cluster_arrive();

  if constexpr (kLora == DenseLora::kInside) {
    if (warp > num_warps) {
      const DenseShrinkList list = {tile.shrinks, tile.in_rows, place.num_segments};
      DenseShrinker shrinker = {
          p, list, config.shrink_splits, warp - num_warps - 1, config.shrink_warps, shrink_start};
      // The activations do not wait for this.
      if (shrinker.warp == 0) {
        fill_segments(p, place, lane, kWarpSize, tile);
        __syncwarp();
        list.add_up();
        __syncwarp();
        if (lane == 0) barrier_arrive(shared_address(&segments_there));
      }
      shrinker.prepare();
      wait_for_predecessor();
      constexpr bool kStaged = !waits_for_each_s(kHalves, kLora);
      __nv_bfloat16* const staged = kStaged && list.max_units() * kUnitRows <= kSharedRanks
                                        ? reinterpret_cast<__nv_bfloat16*>(
                                              shared + config.shared_bytes - config.shared_s_bytes)
                                        : nullptr;
      shrinker.run([&](const __nv_bfloat16* s) {
        if (threadIdx.x != (num_warps + 1) * kWarpSize) return;
        place_of_s = staged != nullptr ? PlaceOfS{staged, kSharedRanks} : PlaceOfS{s, p.s_stride};
        if constexpr (!kStaged) barrier_arrive(shared_address(&s_there));
      });
      if constexpr (kStaged) {
        wait_for_all_s(list, shrinker.s(shrink_start.state.turn), p.s_stride,
                       {.first = rank_in_cluster,
                        .step = config.cluster,
                        .worker = static_cast<int>(threadIdx.x) - (num_warps + 1) * kWarpSize,
                        .num_workers = config.shrink_warps * kWarpSize,
                        .to = staged});
        __syncwarp();
        if (lane == 0) barrier_arrive(shared_address(&s_there));
      }
      shrinker.leave(place.num_rows);
      __syncwarp();
      if (config.cluster > 1) cluster_wait();
      return;
    }
  }

  const int num_rounds = (share.last - share.first + num_warps - 1) / num_warps;
  UnitSum<kHalves> sums = {};
  if (warp == num_warps) {
    // Behind lora_shrink x is complete; else the predecessor may have written it.
    if constexpr (kLora != DenseLora::kBefore) wait_for_predecessor();
    bring_activations(p, share, num_rounds, place.num_rows, tile.in_rows, x_ring);
    if constexpr (kLora == DenseLora::kBefore) wait_for_predecessor();
  } else {
    const DenseSegments segments = {tile.segments, place.num_segments};
    PlaceOfS s = {p.s + static_cast<int64_t>(place.first_pair) * p.s_stride, p.s_stride};
    if constexpr (kLora != DenseLora::kNone) {
      if constexpr (kLora == DenseLora::kInside) {
        barrier_wait(shared_address(&segments_there), 0);
      }
      if (lane == 0) {
        producer.set_segments(segments);
        for (; filled < ring.num_slots; ++filled) {
          producer.issue(p, ring.address(filled), ring.barrier(filled));
        }
      }
    }
    for (int round = 0; round < num_rounds; ++round) {
      const int unit = share.first + round * num_warps + warp;
      if (unit >= share.last) {
        for (int at = share.begin; at < share.end; at += config.x_chunks * kChunkBlocks) {
          x_ring.wait();
          x_ring.release();
        }
        continue;
      }
      sums = {};
      float2 bias = {};
      if (config.cluster == 1) bias = load_bias(p, unit);
      add_columns<kHalves>(p, share, sums, ring, x_ring, producer);
      if constexpr (kLora != DenseLora::kNone) {
        if (round == 0) {
          wait_for_predecessor();
          if constexpr (kLora == DenseLora::kInside) {
            barrier_wait(shared_address(&s_there), 0);
            s = place_of_s;
          }
        }
        add_ranks<kRole, kHalves, kLora>(p, share, segments, s, unit, sums, ring, producer);
      }
      if (config.cluster > 1) continue;
#pragma unroll
      for (int h = 0; h < kHalves; ++h) {
        const auto& v = sums.value[h];
        write_values<kRole>(p, unit, h, {v[0], v[1], v[2], v[3]}, bias, place.num_rows,
                            tile.out_rows);
      }
    }
  }
  if (config.cluster > 1) {
    __syncwarp();
    // All blocks of the cluster have begun, and their barriers are ready.
    cluster_wait();
    const uint32_t receive = x_ring.slots + x_ring.num_slots * x_ring.slot_bytes;
    join_cluster<kRole, kHalves>(p, share, warp, num_warps, receive, shared_address(&joined), sums,
                                 place.num_rows, tile.out_rows);
  }
}

template <DenseRole kRole, int kHalves, DenseLora kLora>
void launch_dense_form(const DenseGemmConfig& config, const DenseGemmParams& params,
                       cudaStream_t stream) {
  const int num_warps =
      config.num_warps + 1 + (kLora == DenseLora::kInside ? config.shrink_warps : 0);
  const LaunchShape shape = {.grid = dim3(config.num_tiles * config.num_shares * config.cluster),
                             .block = dim3(num_warps * kWarpSize),
                             .cluster = config.cluster,
                             .shared_bytes = config.shared_bytes};
  [[maybe_unused]] static const bool allowed =
      allow_all_shared_memory(dense_gemm_kernel<kRole, kHalves, kLora>);
  launch(dense_gemm_kernel<kRole, kHalves, kLora>, shape, stream, params, config);
}

template <DenseRole kRole, int kHalves>
void launch_dense_halves(DenseLora lora, const DenseGemmConfig& config,
                         const DenseGemmParams& params, cudaStream_t stream) {
  if (lora == DenseLora::kNone) {
    launch_dense_form<kRole, kHalves, DenseLora::kNone>(config, params, stream);
  } else if (lora == DenseLora::kInside) {
    launch_dense_form<kRole, kHalves, DenseLora::kInside>(config, params, stream);
  } else if constexpr (kHalves == kMaxDenseHalves) {
    launch_dense_form<kRole, kHalves, DenseLora::kBefore>(config, params, stream);
  }
}

template <DenseRole kRole>
void launch_dense_gemm(DenseLora lora, const DenseGemmConfig& config, const DenseGemmParams& params,
                       cudaStream_t stream) {
  switch (config.halves) {
    case 1:
      return launch_dense_halves<kRole, 1>(lora, config, params, stream);
    case 2:
      return launch_dense_halves<kRole, 2>(lora, config, params, stream);
    case 4:
      return launch_dense_halves<kRole, 4>(lora, config, params, stream);
    default:
      return launch_dense_halves<kRole, kMaxDenseHalves>(lora, config, params, stream);
  }
}

}  // namespace medley::cuda
