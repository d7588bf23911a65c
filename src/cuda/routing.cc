#include "cuda/routing.h"

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "cuda/carver.h"
#include "cuda/check.h"
#include "cuda/expert_gemm_kernel.h"

namespace medley::cuda {
namespace {

// Kernels read this many tiles before they know how many there are.
constexpr int kMinTiles = 32;

ShrinkQueue carve_queue(Carver& carver, int max_pairs) {
  return {.taken = carver.take<uint32_t>(1), .done = carver.take<uint32_t>(max_pairs)};
}

RoutingView carve(Carver& carver, int max_pairs, int inner_size) {
  return {.num_tiles = carver.take<int32_t>(1),
          .num_segments = carver.take<int32_t>(1),
          .tiles = carver.take<RouteTile>(std::max(max_pairs, kMinTiles)),
          .segments = carver.take<RouteSegment>(max_pairs),
          .row_of_pair = carver.take<int32_t>(max_pairs),
          .pair_of_choice = carver.take<int32_t>(max_pairs),
          .weight_of_choice = carver.take<float>(max_pairs),
          .expert_of_choice = carver.take<int32_t>(max_pairs),
          .arrivals = carver.take<uint32_t>(1),
          .row_experts = carver.take<int32_t>(kMaxRowPairs),
          .row_h = carver.take<__nv_bfloat16>(std::min(max_pairs, kMaxRowPairs) *
                                              static_cast<size_t>(inner_size + inner_size % 2)),
          .inner_size = inner_size,
          .units_done = carver.take<uint32_t>(max_pairs),
          .gate_up_shrink = carve_queue(carver, max_pairs),
          .down_shrink = carve_queue(carver, max_pairs)};
}

template <class T>
std::vector<T> read_back(const T* from, size_t count) {
  std::vector<T> values(count);
  MEDLEY_CUDA_CHECK(cudaMemcpy(values.data(), from, sizeof(T) * count, cudaMemcpyDeviceToHost));
  return values;
}

}  // namespace

CudaRouting::CudaRouting(int max_pairs, int inner_size) : max_pairs_(max_pairs) {
  Carver counter(nullptr);
  carve(counter, max_pairs, inner_size);
  counter.take<uint32_t>(max_pairs);
  buffer_ = DeviceBuffer::allocate(counter.num_bytes()).value();
  buffer_.fill_zero();
  Carver placer(buffer_.as<std::byte>());
  view_ = carve(placer, max_pairs, inner_size);
  keys_ = placer.take<uint32_t>(max_pairs);
}

RoutingCounts CudaRouting::counts(Stream& stream) const {
  stream.synchronize();
  std::set<int32_t> experts;
  for (const RouteTile& tile : read_back(view_.tiles, read_back(view_.num_tiles, 1)[0])) {
    experts.insert(tile.expert);
  }
  std::set<std::pair<int32_t, int32_t>> pairs;  // an adapter's pairs may lie in two tiles
  const size_t num_segments = read_back(view_.num_segments, 1)[0];
  for (const RouteSegment& segment : read_back(view_.segments, num_segments)) {
    pairs.emplace(segment.expert, segment.slot);
  }
  return {.num_experts = static_cast<int>(experts.size()),
          .num_expert_adapters = static_cast<int>(pairs.size())};
}

}  // namespace medley::cuda
