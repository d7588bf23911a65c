#pragma once

#include "base/error.h"
#include "cuda/attention_plan.h"
#include "cuda/step.h"

namespace medley::cuda {

// The plans of all layers that share one AttentionShape of a head size with tiled kernels. Not
// thread-safe.
class AttentionPlanner : public StepPlanner {
 public:
  AttentionPlanner(const AttentionShape& shape, int num_sms);

  const AttentionShape& shape() const { return shape_; }
  // Sizes the plan's arrays and the chunks' results for steps of `desc`. kOverloaded when memory is
  // short.
  Result<void> reserve(const StepDesc& desc) override;
  PlanBytes num_bytes() const override { return lay_out({}).num_bytes; }
  void plan(const StepInputs& inputs, const PlanMemory& host, const PlanMemory& device) override;

  // Of the step planned last. A decode step's grid depends on its padded rows alone.
  bool has_decode() const { return has_decode_; }
  int max_decode_items(const CudaStep& step) const;
  int num_prefill_items() const { return num_prefill_items_; }
  bool is_whole() const { return capacity_.is_whole(); }
  AttentionItems decode_items() const;
  AttentionItems prefill_items() const;
  AttentionChunks chunks();
  const int32_t* page_indptr() const { return device_.page_indptr; }
  int max_seqs() const { return capacity_.max_seqs; }

 private:
  struct Layout {
    AttentionPlanArrays arrays;
    PlanBytes num_bytes;
  };
  Layout lay_out(const PlanMemory& memory) const;

  const AttentionShape shape_;
  DecodeCapacity capacity_;
  int max_rows_ = 0;
  DeviceBuffer chunk_out_;
  DeviceBuffer chunk_lse_;
  AttentionPlanArrays device_;  // of the step planned last
  bool has_decode_ = false;
  int num_prefill_items_ = 0;
};

}  // namespace medley::cuda
