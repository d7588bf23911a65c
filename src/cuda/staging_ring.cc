#include "cuda/staging_ring.h"

#include "base/check.h"

namespace medley::cuda {
namespace {

constexpr size_t kAlignment = 16;

}  // namespace

std::byte* StagingRing::take(size_t num_bytes, Stream& stream) {
  MEDLEY_CHECK_LE(num_bytes, half_bytes_);
  if (offset_ + num_bytes > half_bytes_) {
    used_[half_].record(stream);
    half_ = 1 - half_;
    offset_ = 0;
    static_cast<void>(used_[half_].wait());  // a fault shows when the step is waited for
  }
  std::byte* piece = memory_.data() + half_ * half_bytes_ + offset_;
  offset_ += (num_bytes + kAlignment - 1) / kAlignment * kAlignment;
  return piece;
}

}  // namespace medley::cuda
