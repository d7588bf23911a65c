#pragma once

#include <array>
#include <cstddef>

#include "cuda/memory.h"
#include "cuda/stream.h"

namespace medley::cuda {

// Page-locked memory for what is enqueued to be copied to the device: two halves take turns, and
// the host waits only when a whole half is still under way.
class StagingRing {
 public:
  explicit StagingRing(size_t half_bytes) : half_bytes_(half_bytes), memory_(2 * half_bytes) {}

  size_t half_bytes() const { return half_bytes_; }
  // Up to half_bytes() bytes, aligned to 16, which stay as they are until all work enqueued on
  // `stream` up to the next call is done. One stream per ring.
  std::byte* take(size_t num_bytes, Stream& stream);

 private:
  const size_t half_bytes_;
  PinnedBuffer memory_;
  std::array<CudaEvent, 2> used_;
  int half_ = 0;
  size_t offset_ = 0;
};

}  // namespace medley::cuda
