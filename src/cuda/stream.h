#pragma once

#include <cuda_runtime_api.h>

#include "backend/backend.h"

namespace medley::cuda {

class CudaStream : public Stream {
 public:
  CudaStream();
  ~CudaStream() override;
  CudaStream(const CudaStream&) = delete;
  CudaStream& operator=(const CudaStream&) = delete;
  void synchronize() override;
  cudaStream_t get() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

inline cudaStream_t cuda_stream(Stream& stream) { return static_cast<CudaStream&>(stream).get(); }

class CudaEvent : public Event {
 public:
  // What a waiting thread does; only spinning events can be timed.
  enum class Wait : uint8_t { kSpin, kSleep };
  explicit CudaEvent(Wait wait = Wait::kSpin);
  ~CudaEvent() override;
  CudaEvent(const CudaEvent&) = delete;
  CudaEvent& operator=(const CudaEvent&) = delete;
  void record(Stream& stream) override;
  Result<void> wait() override;
  cudaEvent_t get() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

// Work captured from a stream once and launched as often as wanted.
class CudaGraph : public Graph {
 public:
  // `work` enqueues on the stream; nothing runs.
  template <class Work>
  CudaGraph(CudaStream& stream, const Work& work) {
    begin(stream);
    work();
    end(stream);
  }
  ~CudaGraph() override;
  CudaGraph(const CudaGraph&) = delete;
  CudaGraph& operator=(const CudaGraph&) = delete;
  void launch(Stream& stream) override;

 private:
  void begin(CudaStream& stream);
  void end(CudaStream& stream);
  cudaGraphExec_t graph_ = nullptr;
};

}  // namespace medley::cuda
