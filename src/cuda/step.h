#pragma once

#include <array>
#include <memory>
#include <vector>

#include "backend/backend.h"
#include "cuda/lora_adapter.h"
#include "cuda/memory.h"
#include "cuda/routing_view.h"
#include "cuda/stream.h"

namespace medley::cuda {

// What grids, configurations and graphs are sized by: so that few graphs serve all batches, and a
// row's result depends on the padded batch alone. Multiples of 32 from 64 rows on.
int padded_rows(int rows);

// Where a planner's arrays lie: those that every step needs, and those of steps that do not only
// decode.
struct PlanMemory {
  std::byte* decode = nullptr;
  std::byte* other = nullptr;
};
struct PlanBytes {
  size_t decode = 0;
  size_t other = 0;
};

// Works out, on the host, what an op needs of a step beyond its arrays (attention's split of the
// work). The arrays are part of the step's memory, and come to the device with it.
class StepPlanner {
 public:
  virtual ~StepPlanner() = default;
  // At start-up: makes room for steps of these capacities.
  virtual Result<void> reserve(const StepDesc& desc) = 0;
  // Of the arrays for all that is reserved.
  virtual PlanBytes num_bytes() const = 0;
  // Fills the arrays at `host`; the step's ops will find them at `device`.
  virtual void plan(const StepInputs& inputs, const PlanMemory& host, const PlanMemory& device) = 0;
};

// A step's inputs on the device, as StepInputs has them. A decode step's arrays always lie at the
// same addresses, so a graph recorded for one serves others.
struct StepArrays {
  int32_t* num_rows = nullptr;
  int32_t* num_seqs = nullptr;
  int32_t* num_logit_rows = nullptr;
  int32_t* token_ids = nullptr;       // (rows) or kTokenFromSampler
  int32_t* positions = nullptr;       // (rows)
  int32_t* seq_of_row = nullptr;      // (rows)
  int32_t* adapter_of_row = nullptr;  // (rows)
  int32_t* q_indptr = nullptr;        // (seqs + 1)
  int32_t* kv_lens = nullptr;         // (seqs)
  int32_t* page_indptr = nullptr;     // (seqs + 1)
  int32_t* page_ids = nullptr;        // (pages)
  int32_t* sampler_slots = nullptr;   // (seqs)
  int32_t* logit_rows = nullptr;      // (selected)
  int32_t* logit_seqs = nullptr;      // (selected)
  int32_t* logit_targets = nullptr;   // (selected) kSampleToken or a known token
  // Rows grouped by adapter: to the kernels a dense weight is one expert, whose "pairs" are the
  // rows of the step, or the selected rows. The latter's row_of_pair gives the row to read, and its
  // pair_of_choice the row of the logits to write.
  RoutingView rows;
  RoutingView selected;
};

// Not thread-safe.
class CudaStep : public Step {
 public:
  // `planners`, reserved for `desc`, are asked at every update; none may be added or reserve more
  // from now on. A graph's step waits at its update for all of the adapters that were set. Both
  // must outlive the step.
  CudaStep(const StepDesc& desc, const std::vector<std::unique_ptr<StepPlanner>>& planners,
           LoraTable& adapters);

  void update(const StepInputs& inputs, Stream& stream) override;
  int num_rows() const override { return num_rows_; }
  int num_logit_rows() const override { return num_logit_rows_; }
  std::optional<int> graph_key() const override;
  std::vector<int> graph_batches() const override;

  const StepDesc& desc() const { return desc_; }
  int num_seqs() const { return num_seqs_; }
  int launch_rows() const { return padded_rows(num_rows_); }
  int launch_logit_rows() const { return padded_rows(num_logit_rows_); }
  bool has_lora() const { return has_lora_; }
  // One row a sequence, and no more sequences than StepDesc::max_seqs.
  bool is_decode() const { return is_decode_; }
  const StepArrays& device() const { return is_decode_ ? decode_ : any_; }

 private:
  static constexpr int kStagings = 2;  // the step before may still be copying

  struct Staging {
    std::unique_ptr<PinnedBuffer> memory;
    StepArrays decode;
    StepArrays any;
    std::vector<PlanMemory> plans;
    CudaEvent copied;
  };

  const StepDesc desc_;
  std::vector<int32_t> all_rows_;  // 0, 1, ...
  const std::vector<std::unique_ptr<StepPlanner>>& planners_;
  LoraTable& adapters_;
  int num_rows_ = 0;
  int num_seqs_ = 0;
  int num_logit_rows_ = 0;
  bool has_lora_ = false;
  bool is_decode_ = false;
  DeviceBuffer memory_;
  StepArrays decode_;
  StepArrays any_;
  std::vector<PlanMemory> plans_;
  size_t decode_offset_ = 0;
  size_t pages_offset_ = 0;
  std::array<Staging, kStagings> stagings_;
  int next_staging_ = 0;
};

}  // namespace medley::cuda
