#include "engine/model_executor.h"

#include <array>
#include <utility>

#include "base/check.h"

namespace medley {
namespace {

// One device copy of the step's inputs serves all steps: its update goes in order with them. Only
// what the host reads is doubled.
class ModelExecutor final : public Executor {
 public:
  struct Parts {
    std::unique_ptr<Model> model;
    std::unique_ptr<Stream> stream;
    std::unique_ptr<Step> step;
    std::unique_ptr<Sampler> sampler;
    std::array<std::unique_ptr<Event>, kMaxStepsInFlight> done;
  };

  ModelExecutor(Parts parts, const ExecutorDesc& desc)
      : desc_(desc),
        parts_(std::move(parts)),
        outputs_{SampleOutput(desc.step.max_seqs), SampleOutput(desc.step.max_seqs)} {}

  ~ModelExecutor() override { parts_.stream->synchronize(); }

  const ExecutorDesc& desc() const override { return desc_; }
  Stream& stream() override { return *parts_.stream; }

  Result<StepTicket> launch(const StepInputs& inputs,
                            std::span<const SlotUpdate> updates) override {
    MEDLEY_CHECK_LT(num_launched_ - num_waited_, StepTicket{kMaxStepsInFlight});
    Stream& stream = *parts_.stream;
    for (const SlotUpdate& u : updates) parts_.sampler->set_slot(u.slot, u.params, stream);
    parts_.step->update(inputs, stream);
    parts_.model->forward(*parts_.step, stream);
    const StepTicket ticket = num_launched_++;
    if (inputs.num_logit_rows() > 0) {
      parts_.sampler->run(parts_.model->logits(), *parts_.step, stream,
                          outputs_[ticket % kMaxStepsInFlight]);
    }
    parts_.done[ticket % kMaxStepsInFlight]->record(stream);
    return ticket;
  }

  Result<const SampleOutput*> wait(StepTicket ticket) override {
    MEDLEY_CHECK_EQ(ticket, num_waited_);
    ++num_waited_;
    parts_.done[ticket % kMaxStepsInFlight]->wait();
    return &outputs_[ticket % kMaxStepsInFlight];
  }

 private:
  const ExecutorDesc desc_;
  Parts parts_;
  std::array<SampleOutput, kMaxStepsInFlight> outputs_;
  StepTicket num_launched_ = 0;
  StepTicket num_waited_ = 0;
};

}  // namespace

Result<std::unique_ptr<Executor>> make_model_executor(Backend& backend,
                                                      std::unique_ptr<Model> model,
                                                      const ModelOptions& options) {
  const ExecutorDesc desc = {.step = options.step,
                             .num_pages = options.num_pages,
                             .page_size = options.page_size,
                             .vocab_size = model->spec().vocab_size};
  ModelExecutor::Parts parts;
  parts.model = std::move(model);
  parts.stream = backend.make_stream();
  MEDLEY_TRY_ASSIGN(parts.step, backend.make_step(desc.step));
  MEDLEY_TRY_ASSIGN(parts.sampler, backend.plan(SamplerDesc{.max_seqs = desc.step.max_seqs,
                                                            .vocab_size = desc.vocab_size}));
  for (auto& event : parts.done) event = backend.make_event();
  return std::unique_ptr<Executor>(std::make_unique<ModelExecutor>(std::move(parts), desc));
}

}  // namespace medley
