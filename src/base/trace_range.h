#pragma once

namespace medley {

// A range on a profiler's timeline, from its construction to the end of its scope, on the calling
// thread: NVTX (https://nvidia.github.io/NVTX/), domain "medley". Ranges nest. One branch where no
// profiler listens; nothing in builds without a CUDA toolkit.
class TraceRange {
 public:
  explicit TraceRange(const char* name);
  ~TraceRange();
  TraceRange(const TraceRange&) = delete;
  TraceRange& operator=(const TraceRange&) = delete;
};

}  // namespace medley
