#pragma once

#include "cuda/expert_gemm.cuh"
#include "cuda/expert_gemm_stream.cuh"

// Steps of one or two rows leave too few units to keep all warps of a block busy: the stages of
// each unit are spread over the warps, and their sums are added in the order of the stages.

namespace medley::cuda {

// A warp's stages of a spread share, in the order in which it consumes them: of all stages of the
// share's units, one after the other, every num_warps-th.
struct SpreadStages {
  int unit;  // of all units
  int stage;
  int tile_idx;
  int unit_in_matrix;

  // The first-th stage from the unit `first_unit` on.
  __device__ SpreadStages(const MatrixLayout& layout, int first_unit, int first)
      : unit(first_unit + first / layout.num_stages), stage(first % layout.num_stages) {
    tile_idx = unit / layout.num_units;
    unit_in_matrix = unit - tile_idx * layout.num_units;
  }
  __device__ void advance(const MatrixLayout& layout, int step) {
    stage += step;
    while (stage >= layout.num_stages) {
      stage -= layout.num_stages;
      ++unit;
      if (++unit_in_matrix < layout.num_units) continue;
      unit_in_matrix = 0;
      ++tile_idx;
    }
  }
};

struct SpreadProducer {
  const ExpertGemmParams& p;
  const RouteTile* table;
  SpreadStages stages;
  int last;
  int step;

  __device__ SpreadProducer(const ExpertGemmParams& params, const RouteTile* tile_table, int2 share,
                            int warp, int num_warps)
      : p(params),
        table(tile_table),
        stages(params.layout, share.x, warp),
        last(share.y),
        step(num_warps) {}

  __device__ __forceinline__ void issue(uint32_t slot, uint32_t barrier) {
    if (stages.unit >= last) return;
    const int expert = tile_entry(p, table, stages.tile_idx).expert;
    issue_copy(slot,
               p.weights +
                   (static_cast<int64_t>(expert) * p.layout.num_units + stages.unit_in_matrix) *
                       p.layout.unit_bytes +
                   stages.stage * p.layout.stage_bytes,
               p.layout.stage_bytes, barrier);
    stages.advance(p.layout, step);
  }
};

// The part of a stage's sum that a lane holds, where tiles have at most kSpreadRows rows: lanes
// with rows to give write them for whoever adds the stages up.
struct SpreadSums {
  float* sums;

  __device__ static float* at(float* sums, int slot) {
    return sums + slot * kSpreadSumFloats + threadIdx.x % kWarpSize / 4 * 4;
  }
  __device__ void store(int slot, const UnitSum<1>& sum) const {
    if (threadIdx.x % 4 != 0) return;
    const float(&v)[4] = sum.value[0];
    *reinterpret_cast<float4*>(at(sums, slot)) = {v[0], v[1], v[2], v[3]};
  }
  // Adds the slots first .. first + count - 1, in order.
  __device__ void add(int first, int count, UnitSum<1>& sum) const {
    if (threadIdx.x % 4 != 0) return;
    float4 total = {};
#pragma unroll 3
    for (int i = 0; i < count; ++i) {
      const float4 v = *reinterpret_cast<const float4*>(at(sums, first + i));
      total = {total.x + v.x, total.y + v.y, total.z + v.z, total.w + v.w};
    }
    sum.value[0][0] += total.x;
    sum.value[0][1] += total.y;
    sum.value[0][2] += total.z;
    sum.value[0][3] += total.w;
  }
};

}  // namespace medley::cuda
