#include "engine/model_executor.h"

#include <array>
#include <map>
#include <numeric>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/trace_range.h"

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
        outputs_{parts_.sampler->make_output(), parts_.sampler->make_output()} {}

  ~ModelExecutor() override { parts_.stream->synchronize(); }

  void record_graphs(Backend& backend) {
    for (const int rows : parts_.step->graph_batches()) {
      for (const int32_t adapter : {kNoAdapter, int32_t{0}}) {
        update_for_recording(rows, adapter);
        const std::optional<int> key = parts_.step->graph_key();
        MEDLEY_CHECK(key.has_value(), "a batch worth a graph has no key");
        graphs_[*key] = backend.record(*parts_.stream, [&] { enqueue(*parts_.stream); });
      }
    }
    parts_.stream->synchronize();
  }

  const ExecutorDesc& desc() const override { return desc_; }
  Stream& stream() override { return *parts_.stream; }

  Result<StepTicket> launch(const StepInputs& inputs,
                            std::span<const SlotUpdate> updates) override {
    MEDLEY_CHECK_LT(num_launched_ - num_waited_, StepTicket{kMaxStepsInFlight});
    const TraceRange range("step");
    Stream& stream = *parts_.stream;
    upload(inputs, updates, stream);
    run(stream);
    const StepTicket ticket = num_launched_++;
    if (inputs.num_logit_rows() > 0) {
      parts_.sampler->copy_output(*parts_.step, stream, outputs_[ticket % kMaxStepsInFlight]);
    }
    parts_.done[ticket % kMaxStepsInFlight]->record(stream);
    return ticket;
  }

  Result<const SampleOutput*> wait(StepTicket ticket) override {
    MEDLEY_CHECK_EQ(ticket, num_waited_);
    ++num_waited_;
    MEDLEY_TRY(parts_.done[ticket % kMaxStepsInFlight]->wait());
    return &outputs_[ticket % kMaxStepsInFlight];
  }

 private:
  void upload(const StepInputs& inputs, std::span<const SlotUpdate> updates, Stream& stream) {
    const TraceRange range("upload");
    for (const SlotUpdate& u : updates) parts_.sampler->set_slot(u.slot, u.params, stream);
    parts_.step->update(inputs, stream);
  }

  void run(Stream& stream) {
    const std::optional<int> key = parts_.step->graph_key();
    if (key && !parts_.model->is_observed()) {
      const auto graph = graphs_.find(*key);
      if (graph != graphs_.end()) {
        const TraceRange range("graph");
        return graph->second->launch(stream);
      }
    }
    enqueue(stream);
  }

  // What a graph holds: one pass over the model, and the sampling of what it left.
  void enqueue(Stream& stream) {
    parts_.model->forward(*parts_.step, stream);
    if (parts_.step->num_logit_rows() == 0) return;
    const TraceRange range("sampling");
    parts_.sampler->run(parts_.model->logits(), *parts_.step, stream);
  }

  // A decode step of `rows` sequences of one token, all with one adapter.
  void update_for_recording(int rows, int32_t adapter) {
    const std::vector<int32_t> zeros(rows, 0);
    const std::vector<int32_t> ones(rows, 1);
    const std::vector<int32_t> adapters(rows, adapter);
    std::vector<int32_t> counting(rows + 1);
    std::iota(counting.begin(), counting.end(), 0);
    const std::span<const int32_t> indices(counting.data(), rows);
    parts_.step->update({.token_ids = zeros,
                         .positions = zeros,
                         .seq_of_row = indices,
                         .adapter_of_row = adapters,
                         .q_indptr = counting,
                         .kv_lens = ones,
                         .page_indptr = counting,
                         .page_ids = zeros,
                         .sampler_slots = indices,
                         .logit_rows = indices,
                         .logit_seqs = indices},
                        *parts_.stream);
  }

  const ExecutorDesc desc_;
  Parts parts_;
  std::map<int, std::unique_ptr<Graph>> graphs_;  // by Step::graph_key()
  std::array<SampleOutput, kMaxStepsInFlight> outputs_;
  StepTicket num_launched_ = 0;
  StepTicket num_waited_ = 0;
};

}  // namespace

Result<std::unique_ptr<Executor>> make_model_executor(Backend& backend,
                                                      std::unique_ptr<Model> model,
                                                      const ExecutorOptions& options) {
  const ExecutorDesc desc = {.step = options.step,
                             .num_pages = options.num_pages,
                             .page_size = options.page_size,
                             .vocab_size = model->spec().vocab_size};
  ModelExecutor::Parts parts;
  parts.model = std::move(model);
  parts.stream = backend.make_stream();
  MEDLEY_TRY(parts.model->make_kv_cache(options.num_pages, options.page_size));
  MEDLEY_TRY_ASSIGN(parts.step, backend.make_step(desc.step));
  MEDLEY_TRY_ASSIGN(parts.sampler, backend.plan(SamplerDesc{.max_seqs = desc.step.max_seqs,
                                                            .vocab_size = desc.vocab_size}));
  for (auto& event : parts.done) event = backend.make_event();
  auto executor = std::make_unique<ModelExecutor>(std::move(parts), desc);
  executor->record_graphs(backend);
  return std::unique_ptr<Executor>(std::move(executor));
}

}  // namespace medley
