#include <limits>

#include "cpu/testing.h"

// Logits are changed before a token is taken: expected values by hand from the definitions of the
// penalties (repetition: Keskar et al. 2019, over prompt and output; frequency and presence:
// OpenAI, over the output).
namespace medley::cpu {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// One slot that samples greedily from the same logits again and again.
class GreedyTest {
 public:
  explicit GreedyTest(Floats logits)
      : logits_(std::move(logits)),
        sampler_(test_.plan(SamplerDesc{.max_seqs = 4, .vocab_size = vocab_size()})) {}

  void set(SamplerParams params, int slot = 2) {
    params.temperature = 0;
    sampler_->set_slot(slot, params, *test_.stream);
  }
  std::vector<int> sample(int num_tokens, int slot = 2) {
    const TestSequence sequence{.sampler_slot = slot};
    test_.set_step(TestInputs({&sequence, 1}));
    const HostTensor row = tensor(DType::kF32, {1, vocab_size()}, logits_);
    std::vector<int> tokens;
    for (int i = 0; i < num_tokens; ++i) {
      sampler_->run(row.view(), *test_.step, *test_.stream);
      sampler_->copy_output(*test_.step, *test_.stream, out_);
      tokens.push_back(out_.token_ids[0]);
    }
    return tokens;
  }
  const SampleOutput& out() const { return out_; }
  TestBackend& test() { return test_; }
  Sampler& sampler() { return *sampler_; }

 private:
  int64_t vocab_size() const { return static_cast<int64_t>(logits_.size()); }

  TestBackend test_;
  Floats logits_;
  std::unique_ptr<Sampler> sampler_;
  SampleOutput out_{4};
};

using Tokens = std::vector<int>;

// 4 | 2.5 < 3 | 2.5 > 1.5 | 1 < 1.5 | 1 = 1 > 0, the lower id.
TEST(SamplerSlots, FrequencyPenaltyGrowsWithEachOccurrence) {
  GreedyTest test({4, 3, 1});
  test.set({.frequency_penalty = 1.5f});
  EXPECT_EQ(test.sample(5), (Tokens{0, 1, 0, 1, 0}));
}

// 4 - 1.5 = 2.5 < 3, 3 - 1.5 = 1.5 < 2.5, and no more is taken off than that.
TEST(SamplerSlots, PresencePenaltyIsTakenOffOnce) {
  GreedyTest test({4, 3, 1});
  test.set({.presence_penalty = 1.5f});
  EXPECT_EQ(test.sample(5), (Tokens{0, 1, 0, 0, 0}));
}

TEST(SamplerSlots, NegativePenaltiesReward) {
  GreedyTest test({4, 3, 1});
  const int32_t output[] = {1};
  test.set({.presence_penalty = -1.5f, .output_ids = output});
  EXPECT_EQ(test.sample(2), (Tokens{1, 1}));
}

// The prompt does not count for frequency and presence.
TEST(SamplerSlots, FrequencyAndPresenceAreOfTheOutputAlone) {
  GreedyTest test({4, 3, 1});
  const int32_t prompt[] = {0, 0, 0};
  test.set({.frequency_penalty = 1.5f, .presence_penalty = 1.0f, .prompt_ids = prompt});
  EXPECT_EQ(test.sample(1), Tokens{0});
}

// 4 / 2 = 2 < 3 for a token of the prompt; then 3 / 2 = 1.5 < 2.
TEST(SamplerSlots, RepetitionPenaltyIsOfPromptAndOutput) {
  GreedyTest test({4, 3, 1});
  const int32_t prompt[] = {0};
  test.set({.repetition_penalty = 2.0f, .prompt_ids = prompt});
  EXPECT_EQ(test.sample(3), (Tokens{1, 0, 0}));
}

// -1 * 2 = -2 < -1.5, while -1 / 2 would have stayed the best.
TEST(SamplerSlots, RepetitionPenaltyMultipliesNegativeLogits) {
  GreedyTest test({-1, -1.5, -3});
  test.set({.repetition_penalty = 2.0f});
  EXPECT_EQ(test.sample(2), (Tokens{0, 1}));
}

// Repetition comes first: 4 / 2 - 0.5 = 1.5 < 1.6. The other way round (4 - 0.5) / 2 = 1.75.
TEST(SamplerSlots, RepetitionComesBeforePresence) {
  GreedyTest test({4, 1.6f});
  const int32_t output[] = {0};
  test.set({.repetition_penalty = 2.0f, .presence_penalty = 0.5f, .output_ids = output});
  EXPECT_EQ(test.sample(1), Tokens{1});
}

// The bias comes before the penalty: (1 + 4) / 2 = 2.5 < 3, where 1 / 2 + 4 would win.
TEST(SamplerSlots, EditsComeBeforePenalties) {
  GreedyTest test({1, 3});
  const int32_t prompt[] = {0};
  const LogitEdit edits[] = {{.token_id = 0, .add = 4.0f}};
  test.set({.prompt_ids = prompt, .edits = edits});
  EXPECT_EQ(test.sample(1), Tokens{0});
  test.set({.repetition_penalty = 2.0f, .prompt_ids = prompt, .edits = edits});
  EXPECT_EQ(test.sample(1), Tokens{1});
}

TEST(SamplerSlots, AnEditEndsWithItsOutputs) {
  GreedyTest test({4, 3, 1});
  const LogitEdit edits[] = {{.token_id = 0, .add = -kInfinity, .num_outputs = 3},
                             {.token_id = 1, .add = -100.0f}};
  test.set({.edits = edits});
  EXPECT_EQ(test.sample(5), (Tokens{2, 2, 2, 0, 0}));
}

// A sequence that was preempted goes on as if it had not been.
TEST(SamplerSlots, OutputBeforeTheSlotCounts) {
  GreedyTest test({4, 3, 1});
  const LogitEdit edits[] = {{.token_id = 1, .add = -kInfinity, .num_outputs = 4}};
  const SamplerParams params{.frequency_penalty = 1.2f, .edits = edits};
  test.set(params);
  const Tokens whole = test.sample(8);
  for (int at = 1; at < 8; ++at) {
    const std::vector<int32_t> output(whole.begin(), whole.begin() + at);
    SamplerParams rest = params;
    rest.output_ids = output;
    test.set(rest, /*slot=*/at % 4);
    EXPECT_EQ(test.sample(8 - at, at % 4), Tokens(whole.begin() + at, whole.end())) << at;
  }
}

TEST(SamplerSlots, ASlotIsSetAnew) {
  GreedyTest test({4, 3, 1});
  const LogitEdit edits[] = {{.token_id = 0, .add = -kInfinity}};
  test.set({.presence_penalty = 2.0f, .edits = edits});
  EXPECT_EQ(test.sample(2), (Tokens{1, 1}));
  test.set({});
  EXPECT_EQ(test.sample(2), (Tokens{0, 0}));
  test.set({.presence_penalty = 2.0f});
  EXPECT_EQ(test.sample(2), (Tokens{0, 1}));
}

TEST(SamplerSlots, LogprobsAreOfTheUnchangedLogits) {
  GreedyTest test({std::log(0.5f), std::log(0.3f), std::log(0.2f)});
  const LogitEdit edits[] = {{.token_id = 0, .add = -kInfinity}};
  const int32_t prompt[] = {1};
  test.set(
      {.num_top_logprobs = 1, .repetition_penalty = 3.0f, .prompt_ids = prompt, .edits = edits});
  EXPECT_EQ(test.sample(1), Tokens{2});
  EXPECT_NEAR(test.out().logprobs[0], std::log(0.2), 1e-6);
  EXPECT_EQ(test.out().ranks[0], 3);
  EXPECT_EQ(test.out().top_ids[0], 0);
  EXPECT_NEAR(test.out().top_logprobs[0], std::log(0.5), 1e-6);
}

// Rows with a known token beside a sampled one: scored as they are, and the slot's counts, output
// and next token are the sampled row's alone.
TEST(SamplerSlots, KnownTokensAreScored) {
  GreedyTest test({std::log(0.25f), std::log(0.125f), std::log(0.5f), std::log(0.125f)});
  test.set({.num_prompt_logprobs = 2, .frequency_penalty = 0.1f}, 1);
  const TestSequence sequence{.num_rows = 4, .sampler_slot = 1, .tokens = {0, 3, 2, 1}};
  TestInputs inputs({&sequence, 1});
  inputs.logit_rows = {0, 1, 2, 3};
  inputs.logit_seqs = {0, 0, 0, 0};
  const std::vector<int32_t> targets = {3, 2, 1, kSampleToken};
  StepInputs view = inputs.view();
  view.logit_targets = targets;
  test.test().step->update(view, *test.test().stream);
  Floats rows;
  for (int i = 0; i < 4; ++i) {
    for (const double p : {0.25, 0.125, 0.5, 0.125}) rows.push_back(std::log(p));
  }
  const HostTensor logits = tensor(DType::kF32, {4, 4}, rows);
  SampleOutput out(4);
  test.sampler().run(logits.view(), *test.test().step, *test.test().stream);
  test.sampler().copy_output(*test.test().step, *test.test().stream, out);
  EXPECT_EQ(std::vector<int32_t>(out.token_ids.begin(), out.token_ids.end()),
            (std::vector<int32_t>{3, 2, 1, 2}));
  const double probabilities[] = {0.125, 0.5, 0.125};
  const int ranks[] = {4, 1, 3};  // of the two of 0.125 the lower id is ahead
  for (int i = 0; i < 3; ++i) {
    EXPECT_NEAR(out.logprobs[i], std::log(probabilities[i]), 1e-6);
    EXPECT_EQ(out.ranks[i], ranks[i]);
    EXPECT_EQ(out.top_ids[i * kMaxTopLogprobs], 2);
    EXPECT_EQ(out.top_ids[i * kMaxTopLogprobs + 1], 0);
  }
  // One 2 has been counted, not the scored one besides: 0.5 still beats 0.25 by log 2 = 0.693 until
  // seven are.
  EXPECT_EQ(test.sample(7, 1), (Tokens{2, 2, 2, 2, 2, 2, 0}));
}

}  // namespace
}  // namespace medley::cpu
