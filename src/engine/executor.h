#pragma once

#include <cstdint>
#include <span>

#include "backend/backend.h"
#include "backend/sampler.h"
#include "backend/step.h"
#include "base/error.h"

namespace medley {

// What an executor was built for.
struct ExecutorDesc {
  StepDesc step;
  int num_pages = 0;
  int page_size = 0;
  int64_t vocab_size = 0;
};

// A sequence takes a sampler slot from the step it is launched with on.
struct SlotUpdate {
  int slot = 0;
  SamplerParams params;
};

using StepTicket = uint64_t;

inline constexpr int kMaxStepsInFlight = 2;

// Runs steps, in the order of their launch, each seeing the KV cache and the sampled tokens that
// the ones before it left. Engine thread only.
class Executor {
 public:
  virtual ~Executor() = default;
  virtual const ExecutorDesc& desc() const = 0;

  // Where adapters are uploaded, in order with the steps.
  virtual Stream& stream() = 0;

  // Starts a step; `inputs` and `updates` are read during the call only. At most kMaxStepsInFlight
  // are launched and not waited for. An error is a fault of the device: it runs nothing from then
  // on.
  virtual Result<StepTicket> launch(const StepInputs& inputs,
                                    std::span<const SlotUpdate> updates) = 0;

  // Waits for the oldest launched step. Output i belongs to its logit_rows[i]; valid until
  // kMaxStepsInFlight more steps have been launched.
  virtual Result<const SampleOutput*> wait(StepTicket ticket) = 0;
};

}  // namespace medley
