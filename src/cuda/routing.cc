#include "cuda/routing.h"

#include "cuda/carver.h"

namespace medley::cuda {
namespace {

RoutingView carve(Carver& carver, int max_pairs) {
  return {.num_tiles = carver.take<int32_t>(1),
          .num_segments = carver.take<int32_t>(1),
          .tiles = carver.take<RouteTile>(max_pairs),
          .segments = carver.take<RouteSegment>(max_pairs),
          .row_of_pair = carver.take<int32_t>(max_pairs),
          .pair_of_choice = carver.take<int32_t>(max_pairs),
          .weight_of_choice = carver.take<float>(max_pairs),
          .expert_of_choice = carver.take<int32_t>(max_pairs),
          .arrivals = carver.take<uint32_t>(1)};
}

}  // namespace

CudaRouting::CudaRouting(int max_pairs) : max_pairs_(max_pairs) {
  Carver counter(nullptr);
  carve(counter, max_pairs);
  counter.take<uint32_t>(max_pairs);
  buffer_ = DeviceBuffer::allocate(counter.num_bytes()).value();
  buffer_.fill_zero();
  Carver placer(buffer_.as<std::byte>());
  view_ = carve(placer, max_pairs);
  keys_ = placer.take<uint32_t>(max_pairs);
}

}  // namespace medley::cuda
