#include "engine/model_executor.h"

#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "backend/testing/unused_backend.h"

namespace medley {
namespace {

// A device that writes down what is enqueued and does it only when an event is waited for: each
// step's sample is 100 x its ordinal + the row.
struct Recording {
  std::string trace;
  std::vector<std::pair<SampleOutput*, int>> enqueued;
  int num_sampled = 0;
  bool fault = false;
  bool has_graphs = false;
  bool observed = false;
};

struct FakeStream final : Stream {
  void synchronize() override {}
};

struct FakeEvent final : Event {
  explicit FakeEvent(Recording& r) : recording(r) {}
  void record(Stream&) override { recording.trace += "record "; }
  Result<void> wait() override {
    recording.trace += "wait ";
    if (recording.fault) return internal_error("the device has failed");
    if (recording.enqueued.empty()) return {};
    const auto [out, num_rows] = recording.enqueued.front();
    recording.enqueued.erase(recording.enqueued.begin());
    for (int i = 0; i < num_rows; ++i) out->token_ids[i] = 100 * recording.num_sampled + i;
    ++recording.num_sampled;
    return {};
  }
  Recording& recording;
};

struct FakeStep final : Step {
  explicit FakeStep(Recording& r) : recording(r) {}
  void update(const StepInputs& inputs, Stream&) override {
    recording.trace += "update ";
    rows = inputs.num_rows();
    logit_rows = inputs.num_logit_rows();
    seqs = inputs.num_seqs();
    lora = !inputs.adapter_of_row.empty() && inputs.adapter_of_row[0] != kNoAdapter;
  }
  int num_rows() const override { return rows; }
  int num_logit_rows() const override { return logit_rows; }
  // As a device that pads batches to powers of two: 1, 2 and 4 rows.
  std::optional<int> graph_key() const override {
    if (!recording.has_graphs || rows > 4 || rows != seqs) return std::nullopt;
    return (rows > 2 ? 4 : rows) * 2 + lora;
  }
  std::vector<int> graph_batches() const override {
    return recording.has_graphs ? std::vector<int>{1, 2, 4} : std::vector<int>{};
  }
  Recording& recording;
  int rows = 0, logit_rows = 0, seqs = 0;
  bool lora = false;
};

struct FakeSampler final : Sampler {
  explicit FakeSampler(Recording& r) : recording(r) {}
  void set_slot(int slot, const SamplerParams& params, Stream&) override {
    recording.trace += "slot" + std::to_string(slot) + "=" + std::to_string(params.seed) + " ";
  }
  SampleOutput make_output() const override { return SampleOutput(4); }
  void run(const ConstTensorView&, const Step&, Stream&) override { recording.trace += "sample "; }
  void copy_output(const Step& step, Stream&, SampleOutput& out) override {
    recording.trace += "copy ";
    recording.enqueued.emplace_back(&out, step.num_logit_rows());
  }
  Recording& recording;
};

struct FakeForward final : Model {
  explicit FakeForward(Recording& r) : recording(r) { model_spec.vocab_size = 77; }
  void forward(const Step&, Stream&) override { recording.trace += "forward "; }
  Result<void> make_kv_cache(int num_pages, int page_size) override {
    EXPECT_EQ(num_pages, 8);
    EXPECT_EQ(page_size, 16);
    return {};
  }
  bool is_observed() const override { return recording.observed; }
  ConstTensorView logits() const override { return {}; }
  const ModelSpec& spec() const override { return model_spec; }
  size_t num_weight_bytes() const override { return 0; }
  Recording& recording;
  ModelSpec model_spec;
};

struct FakeGraph final : Graph {
  FakeGraph(Recording& r, std::string w) : recording(r), work(std::move(w)) {}
  void launch(Stream&) override { recording.trace += "graph(" + work + ") "; }
  Recording& recording;
  std::string work;
};

// Offers what an executor needs and nothing else.
class FakeBackend final : public testing::UnusedBackend {
 public:
  using UnusedBackend::plan;
  explicit FakeBackend(Recording& r) : recording_(r) {}
  std::unique_ptr<Stream> make_stream() override { return std::make_unique<FakeStream>(); }
  std::unique_ptr<Event> make_event() override { return std::make_unique<FakeEvent>(recording_); }
  std::unique_ptr<Graph> record(Stream&, const std::function<void()>& work) override {
    const std::string before = std::exchange(recording_.trace, "");
    work();
    std::string recorded = std::exchange(recording_.trace, before);
    recorded.pop_back();
    return std::make_unique<FakeGraph>(recording_,
                                       recorded + " " + std::to_string(num_recorded_++));
  }
  Result<std::unique_ptr<Step>> make_step(const StepDesc& desc) override {
    if (desc.max_rows > 64) return Error{ErrorCode::kOverloaded, "no memory for the step"};
    return std::unique_ptr<Step>(std::make_unique<FakeStep>(recording_));
  }
  Result<std::unique_ptr<Sampler>> plan(const SamplerDesc& desc) override {
    EXPECT_EQ(desc.vocab_size, 77);
    EXPECT_EQ(desc.max_seqs, 4);
    return std::unique_ptr<Sampler>(std::make_unique<FakeSampler>(recording_));
  }

 private:
  Recording& recording_;
  int num_recorded_ = 0;
};

ExecutorOptions options(int max_rows = 16) {
  return {.step = {.max_rows = max_rows, .max_seqs = 4, .max_pages = 8},
          .num_pages = 8,
          .page_size = 16};
}

StepInputs inputs(const std::vector<int32_t>& rows, const std::vector<int32_t>& logit_rows) {
  return {.token_ids = rows, .logit_rows = logit_rows};
}

class ModelExecutorTest : public ::testing::Test {
 protected:
  Recording recording_;
  FakeBackend backend_{recording_};
  std::unique_ptr<Executor> executor_ =
      make_model_executor(backend_, std::make_unique<FakeForward>(recording_), options()).value();
  const std::vector<int32_t> rows_ = {5, 6, 7};
  const std::vector<int32_t> logit_rows_ = {0, 2};
};

TEST_F(ModelExecutorTest, DescribesTheModel) {
  EXPECT_EQ(executor_->desc().vocab_size, 77);
  EXPECT_EQ(executor_->desc().num_pages, 8);
  EXPECT_EQ(executor_->desc().step.max_rows, 16);
}

TEST_F(ModelExecutorTest, SlotsAreSetBeforeTheStepThatUsesThem) {
  const std::array<SlotUpdate, 2> updates = {SlotUpdate{1, {.seed = 9}},
                                             SlotUpdate{0, {.seed = 8}}};
  ASSERT_TRUE(executor_->launch(inputs(rows_, logit_rows_), updates).ok());
  EXPECT_EQ(recording_.trace, "slot1=9 slot0=8 update forward sample copy record ");
}

TEST_F(ModelExecutorTest, AChunkWithoutASampleIsOnlyComputed) {
  ASSERT_TRUE(executor_->launch(inputs(rows_, {}), {}).ok());
  EXPECT_EQ(recording_.trace, "update forward record ");
}

TEST_F(ModelExecutorTest, TwoStepsInFlightKeepTheirOutputsApart) {
  const StepTicket first = *executor_->launch(inputs(rows_, logit_rows_), {});
  const StepTicket second = *executor_->launch(inputs(rows_, logit_rows_), {});
  const SampleOutput* out_first = *executor_->wait(first);
  const SampleOutput* out_second = *executor_->wait(second);
  EXPECT_EQ(out_first->token_ids[1], 1);
  EXPECT_EQ(out_second->token_ids[1], 101);
  EXPECT_EQ(out_first->token_ids.size(), 4u);
}

TEST_F(ModelExecutorTest, AFaultOfTheDeviceIsAnError) {
  const StepTicket ticket = *executor_->launch(inputs(rows_, logit_rows_), {});
  recording_.fault = true;
  const auto output = executor_->wait(ticket);
  ASSERT_FALSE(output.ok());
  EXPECT_EQ(output.error().message, "the device has failed");
}

TEST_F(ModelExecutorTest, DecodeStepsLaunchTheGraphOfTheirKey) {
  recording_.has_graphs = true;
  executor_ =
      make_model_executor(backend_, std::make_unique<FakeForward>(recording_), options()).value();
  recording_.trace.clear();
  const std::vector<int32_t> tokens = {5, 6, 7};
  const std::vector<int32_t> lens = {4, 4, 9};
  const std::vector<int32_t> adapters = {2, -1, -1};
  // Three rows take the graph of four with LoRA, the last of the six recorded.
  const std::vector<int32_t> sampled = {0, 1, 2};
  ASSERT_TRUE(executor_
                  ->launch({.token_ids = tokens,
                            .adapter_of_row = adapters,
                            .kv_lens = lens,
                            .logit_rows = sampled},
                           {})
                  .ok());
  EXPECT_EQ(recording_.trace, "update graph(forward sample 5) copy record ");
  recording_.trace.clear();
  ASSERT_TRUE(executor_->wait(0).ok());
  recording_.trace.clear();
  // A chunk of one sequence has no key.
  ASSERT_TRUE(executor_->launch({.token_ids = tokens, .kv_lens = {lens.data(), 1}}, {}).ok());
  EXPECT_EQ(recording_.trace, "update forward record ");
}

TEST_F(ModelExecutorTest, NoGraphsWhileRoutingIsObserved) {
  recording_.has_graphs = true;
  executor_ =
      make_model_executor(backend_, std::make_unique<FakeForward>(recording_), options()).value();
  const std::vector<int32_t> token = {5}, len = {4}, sampled = {0};
  const StepInputs inputs = {.token_ids = token, .kv_lens = len, .logit_rows = sampled};
  for (const bool observed : {true, false}) {
    recording_.observed = observed;
    recording_.trace.clear();
    ASSERT_TRUE(executor_->launch(inputs, {}).ok());
    EXPECT_EQ(recording_.trace, observed ? "update forward sample copy record "
                                         : "update graph(forward sample 0) copy record ");
  }
}

TEST_F(ModelExecutorTest, LackOfMemoryIsAnErrorAtStart) {
  const auto executor = make_model_executor(backend_, std::make_unique<FakeForward>(recording_),
                                            options(/*max_rows=*/65));
  ASSERT_FALSE(executor.ok());
  EXPECT_EQ(executor.error().message, "no memory for the step");
}

}  // namespace
}  // namespace medley
