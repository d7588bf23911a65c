#pragma once

#include "base/check.h"
#include "cuda/check.h"
#include "cuda/stream.h"

namespace medley::bench {

// Times launches of graphs on the device. Not thread-safe.
class GraphTimer {
 public:
  // Launches and waits; microseconds from the stream's reaching the graph to its end.
  float time_us(Graph& graph, Stream& stream) {
    begin_.record(stream);
    graph.launch(stream);
    end_.record(stream);
    MEDLEY_CHECK(end_.wait().ok(), "the device has failed");
    float ms = 0.0f;
    MEDLEY_CUDA_CHECK(cudaEventElapsedTime(&ms, begin_.get(), end_.get()));
    return ms * 1000.0f;
  }

 private:
  cuda::CudaEvent begin_, end_;
};

}  // namespace medley::bench
