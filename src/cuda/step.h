#pragma once

#include <vector>

#include "backend/backend.h"
#include "cuda/memory.h"
#include "cuda/routing_view.h"
#include "cuda/stream.h"

namespace medley::cuda {

// Page-locked host memory, which the device can read while the host goes on.
class PinnedBuffer {
 public:
  explicit PinnedBuffer(size_t num_bytes);
  ~PinnedBuffer();
  PinnedBuffer(const PinnedBuffer&) = delete;
  PinnedBuffer& operator=(const PinnedBuffer&) = delete;
  std::byte* data() { return data_; }

 private:
  std::byte* data_ = nullptr;
};

// The inputs of a step on the device, and rows grouped by adapter for the dense projections: to the
// kernels a dense weight is one expert. Not thread-safe.
class CudaStep : public Step {
 public:
  explicit CudaStep(const StepDesc& desc);

  void update(const StepInputs& inputs, Stream& stream) override;
  int num_rows() const override { return num_rows_; }
  int num_logit_rows() const override { return num_logit_rows_; }

  bool has_lora() const { return has_lora_; }
  const int32_t* device_num_rows() const { return num_rows_on_device_; }
  const int32_t* adapter_of_row() const { return adapter_of_row_; }
  // Row of each "pair": the rows of the step, and the selected rows. The latter's row_of_pair gives
  // the row to read, and its pair_of_choice the row of the logits to write.
  const RoutingView& rows() const { return rows_; }
  const RoutingView& logit_rows() const { return logit_rows_view_; }

 private:
  static constexpr int kStagings = 2;  // the step before may still be copying

  StepDesc desc_;
  int num_rows_ = 0;
  int num_logit_rows_ = 0;
  bool has_lora_ = false;
  DeviceBuffer device_;
  std::vector<std::unique_ptr<PinnedBuffer>> stagings_;
  std::vector<std::unique_ptr<CudaEvent>> copied_;
  int next_staging_ = 0;
  int32_t* num_rows_on_device_ = nullptr;
  int32_t* adapter_of_row_ = nullptr;
  RoutingView rows_;
  RoutingView logit_rows_view_;
};

}  // namespace medley::cuda
