#include "cuda/stream.h"

#include "cuda/check.h"
#include "cuda/fault.h"

namespace medley::cuda {

CudaStream::CudaStream() {
  MEDLEY_CUDA_CHECK(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
}
CudaStream::~CudaStream() { cudaStreamDestroy(stream_); }
void CudaStream::synchronize() { MEDLEY_CUDA_CHECK(cudaStreamSynchronize(stream_)); }

CudaEvent::CudaEvent(Wait wait) {
  MEDLEY_CUDA_CHECK(cudaEventCreateWithFlags(
      &event_,
      wait == Wait::kSleep ? cudaEventBlockingSync | cudaEventDisableTiming : cudaEventDefault));
}
CudaEvent::~CudaEvent() { cudaEventDestroy(event_); }
void CudaEvent::record(Stream& stream) {
  MEDLEY_CUDA_CHECK(cudaEventRecord(event_, cuda_stream(stream)));
}
Result<void> CudaEvent::wait() {
  // Passed already, mostly: then nothing synchronises.
  const cudaError_t state = cudaEventQuery(event_);
  MEDLEY_CUDA_CHECK(state == cudaErrorNotReady ? cudaEventSynchronize(event_) : state);
  return device_fault();
}

CudaGraph::~CudaGraph() {
  if (graph_ != nullptr) cudaGraphExecDestroy(graph_);
}
void CudaGraph::begin(CudaStream& stream) {
  MEDLEY_CUDA_CHECK(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeThreadLocal));
}
void CudaGraph::end(CudaStream& stream) {
  cudaGraph_t graph = nullptr;
  MEDLEY_CUDA_CHECK(cudaStreamEndCapture(stream.get(), &graph));
  MEDLEY_CUDA_CHECK(cudaGraphInstantiate(&graph_, graph, 0));
  MEDLEY_CUDA_CHECK(cudaGraphDestroy(graph));
}
void CudaGraph::launch(Stream& stream) {
  MEDLEY_CUDA_CHECK(cudaGraphLaunch(graph_, cuda_stream(stream)));
}

}  // namespace medley::cuda
