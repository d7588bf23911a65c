#include "cuda/routing.h"

namespace medley::cuda {
namespace {

// Hands out aligned pieces of one allocation: once to count, once to place.
class Carver {
 public:
  explicit Carver(std::byte* base) : base_(base) {}
  template <class T>
  T* take(size_t count) {
    T* piece = base_ == nullptr ? nullptr : reinterpret_cast<T*>(base_ + offset_);
    offset_ += (count * sizeof(T) + 255) / 256 * 256;
    return piece;
  }
  size_t num_bytes() const { return offset_; }

 private:
  std::byte* base_;
  size_t offset_ = 0;
};

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
  buffer_ = DeviceBuffer::allocate(counter.num_bytes()).value();
  buffer_.fill_zero();
  Carver placer(buffer_.as<std::byte>());
  view_ = carve(placer, max_pairs);
}

}  // namespace medley::cuda
