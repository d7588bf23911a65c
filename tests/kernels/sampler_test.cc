#include <algorithm>
#include <limits>
#include <numeric>

#include "side.h"

// The sampler: the CPU's tokens, ranks and top lists for the same logits, exactly; its
// log-probabilities but for the last bits.

namespace medley::testing {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr int kGptOssVocab = 201088;

struct StepOutput {
  std::vector<int32_t> token_ids;
  std::vector<float> logprobs;
  std::vector<int32_t> ranks;
  std::vector<int32_t> top_ids;
  std::vector<float> top_logprobs;
  bool operator==(const StepOutput&) const = default;
};

// Sequences of one row each on a backend: row i stands at position first_position + i and has the
// i-th slot from the end.
class SamplerRun {
 public:
  SamplerRun(Side side, int max_seqs, int vocab_size)
      : side_(std::move(side)),
        max_seqs_(max_seqs),
        vocab_size_(vocab_size),
        step_(side_.backend()
                  .make_step({.max_rows = max_seqs, .max_seqs = max_seqs, .max_pages = max_seqs})
                  .value()),
        sampler_(side_.backend()
                     .plan(SamplerDesc{.max_seqs = max_seqs, .vocab_size = vocab_size})
                     .value()),
        output_(sampler_->make_output()) {
    logits_ = side_.empty(DType::kF32, {max_seqs, vocab_size});
  }

  int slot_of(int row) const { return max_seqs_ - 1 - row; }
  void set(int row, const SamplerParams& params) {
    sampler_->set_slot(slot_of(row), params, side_.stream());
  }
  void set_logits(const std::vector<float>& logits) {
    side_.write(logits_, logits);
    num_rows_ = static_cast<int>(logits.size()) / vocab_size_;
  }
  void update(int first_position) {
    std::vector<int32_t> zeros(num_rows_, 0);
    std::vector<int32_t> ones(num_rows_, 1);
    std::vector<int32_t> base(num_rows_, kNoAdapter);
    std::vector<int32_t> each(num_rows_ + 1);
    std::iota(each.begin(), each.end(), 0);
    const std::span<const int32_t> rows(each.data(), num_rows_);
    std::vector<int32_t> positions;
    std::vector<int32_t> slots;
    for (int row = 0; row < num_rows_; ++row) {
      positions.push_back(first_position + row);
      slots.push_back(slot_of(row));
    }
    step_->update({.token_ids = zeros,
                   .positions = positions,
                   .seq_of_row = rows,
                   .adapter_of_row = base,
                   .q_indptr = each,
                   .kv_lens = ones,
                   .page_indptr = each,
                   .page_ids = zeros,
                   .sampler_slots = slots,
                   .logit_rows = rows,
                   .logit_seqs = rows},
                  side_.stream());
  }
  void update(const StepInputs& inputs) { step_->update(inputs, side_.stream()); }
  void run() { sampler_->run(logits_, *step_, side_.stream()); }
  StepOutput output() {
    sampler_->copy_output(*step_, side_.stream(), output_);
    side_.stream().synchronize();
    const auto take = [&](const auto& from, size_t per_row) {
      return std::vector(from.begin(), from.begin() + step_->num_logit_rows() * per_row);
    };
    return {.token_ids = take(output_.token_ids, 1),
            .logprobs = take(output_.logprobs, 1),
            .ranks = take(output_.ranks, 1),
            .top_ids = take(output_.top_ids, kMaxTopLogprobs),
            .top_logprobs = take(output_.top_logprobs, kMaxTopLogprobs)};
  }
  std::vector<StepOutput> steps(int count, int first_position = 0) {
    std::vector<StepOutput> outputs;
    for (int i = 0; i < count; ++i) {
      update(first_position + 100 * i);
      run();
      outputs.push_back(output());
    }
    return outputs;
  }
  Side& side() { return side_; }

 private:
  Side side_;
  int max_seqs_;
  int vocab_size_;
  int num_rows_ = 0;
  std::unique_ptr<Step> step_;
  std::unique_ptr<Sampler> sampler_;
  SampleOutput output_;
  TensorView logits_;
};

void expect_same(const StepOutput& want, const StepOutput& got, std::span<const int> num_top,
                 int vocab_size, const std::string& what) {
  ASSERT_EQ(want.token_ids, got.token_ids) << what;
  for (size_t row = 0; row < num_top.size(); ++row) {
    if (num_top[row] < 0) continue;
    ASSERT_EQ(want.ranks[row], got.ranks[row]) << what << ", row " << row;
    const auto near = [&](float a, float b) {
      ASSERT_NEAR(a, b, 2e-6 * (1 + std::abs(a))) << what << ", row " << row;
    };
    near(want.logprobs[row], got.logprobs[row]);
    for (int j = 0; j < std::min(num_top[row], vocab_size); ++j) {
      const size_t at = row * kMaxTopLogprobs + j;
      ASSERT_EQ(want.top_ids[at], got.top_ids[at]) << what << ", row " << row << ", place " << j;
      near(want.top_logprobs[at], got.top_logprobs[at]);
    }
  }
}

// The same rows on both backends for some steps; the logits stay, the positions go on.
void compare(int vocab_size, const std::vector<float>& logits,
             const std::vector<SamplerParams>& params, int num_steps = 2) {
  const int rows = static_cast<int>(params.size());
  std::vector<int> num_top;
  for (const SamplerParams& each : params) num_top.push_back(each.num_top_logprobs);
  SamplerRun cpu(Side::cpu(), rows, vocab_size);
  SamplerRun cuda(Side::cuda(), rows, vocab_size);
  for (SamplerRun* run : {&cpu, &cuda}) {
    for (int row = 0; row < rows; ++row) run->set(row, params[row]);
    run->set_logits(logits);
  }
  const auto want = cpu.steps(num_steps);
  const auto got = cuda.steps(num_steps);
  for (int i = 0; i < num_steps; ++i) {
    expect_same(want[i], got[i], num_top, vocab_size, "step " + std::to_string(i));
  }
}

// `count` times the same but for the seed.
std::vector<SamplerParams> seeds(SamplerParams params, int count) {
  std::vector<SamplerParams> all;
  for (int i = 0; i < count; ++i) {
    params.seed = 0x9E3779B97F4A7C15u * (i + 1);
    all.push_back(params);
  }
  return all;
}

struct ParamsCase {
  std::string name;
  SamplerParams params;
};
void PrintTo(const ParamsCase& c, std::ostream* out) { *out << c.name; }

const std::vector<ParamsCase> kCases = {
    {"Greedy", {.temperature = 0}},
    {"Plain", {}},
    {"HotterThanFlat", {.temperature = 50}},
    {"Cold", {.temperature = 0.05f}},
    {"NearlyGreedy", {.temperature = 1e-4f}},
    {"TopOne", {.top_k = 1}},
    {"TopFifty", {.top_k = 50}},
    {"TopThousand", {.temperature = 3, .top_k = 1000}},
    {"TopMoreThanAll", {.top_k = 1 << 20}},
    {"TopP", {.top_p = 0.9f}},
    {"SmallTopP", {.top_p = 1e-6f}},
    {"NearlyAllTopP", {.temperature = 2, .top_p = 0.99999f}},
    {"MinP", {.min_p = 0.05f}},
    {"TinyMinP", {.temperature = 2, .min_p = 1e-6f}},
    {"MinPOne", {.min_p = 1.0f}},
    {"AllFilters", {.temperature = 1.3f, .top_p = 0.8f, .top_k = 200, .min_p = 0.01f}},
    {"MinPCutsTopP", {.temperature = 1.5f, .top_p = 0.99f, .min_p = 0.2f}},
    {"GreedyLogprobs", {.temperature = 0, .num_top_logprobs = 20}},
    {"DrawnLogprobs", {.top_k = 40, .num_top_logprobs = 5}},
    {"OwnLogprobOnly", {.num_top_logprobs = 0}},
    {"Repetition", {.temperature = 0, .repetition_penalty = 1.4f}},
    {"FrequencyAndPresence", {.frequency_penalty = 0.7f, .presence_penalty = -0.4f}},
    {"PenaltiesAndLogprobs",
     {.temperature = 0.4f,
      .num_top_logprobs = 3,
      .repetition_penalty = 0.8f,
      .frequency_penalty = 0.3f}},
};

class SamplerOf : public ::testing::TestWithParam<ParamsCase> {};
INSTANTIATE_TEST_SUITE_P(Params, SamplerOf, ::testing::ValuesIn(kCases),
                         [](const auto& info) { return info.param.name; });

TEST_P(SamplerOf, GptOssVocabulary) {
  compare(kGptOssVocab, random_values(int64_t{12} * kGptOssVocab, 1, 2.5f),
          seeds(GetParam().params, 12));
}

TEST_P(SamplerOf, OddSizes) {
  for (const int vocab_size : {1, 2, 5, 33, 1003, 4096}) {
    SCOPED_TRACE(vocab_size);
    compare(vocab_size, random_values(int64_t{9} * vocab_size, 2, 2.0f),
            seeds(GetParam().params, 9), /*num_steps=*/4);
  }
}

TEST_P(SamplerOf, EqualLogits) {
  for (const int vocab_size : {7, 40000}) {
    SCOPED_TRACE(vocab_size);
    compare(vocab_size, std::vector<float>(5 * vocab_size, -1.25f), seeds(GetParam().params, 5));
  }
}

// Many ties at each of few values; both zeros are one of them.
TEST_P(SamplerOf, FewValues) {
  std::vector<float> logits(3 * 20000);
  const float values[] = {0.0f, 1.0f, -0.0f, -2.0f, 1.0f, 0.5f};
  std::mt19937 engine(4);
  for (float& logit : logits) logit = values[engine() % 6];
  compare(20000, logits, seeds(GetParam().params, 3));
}

TEST_P(SamplerOf, Extremes) {
  std::vector<float> logits = random_values(4 * 3000, 5, 1.0f);
  for (int row = 0; row < 4; ++row) {
    logits[row * 3000 + 17] = row % 2 == 0 ? 2e38f : 1e-40f;
    logits[row * 3000 + 2999] = -2e38f;
    logits[row * 3000 + 5] = -kInfinity;
  }
  compare(3000, logits, seeds(GetParam().params, 4));
}

TEST(SamplerTest, TheBestOfATieIsTheLowerId) {
  std::vector<float> logits(kGptOssVocab, 0.0f);
  for (const int id : {201087, 150001, 77777, 25137}) logits[id] = 3.0f;
  SamplerRun cuda(Side::cuda(), 1, kGptOssVocab);
  cuda.set(0, {.temperature = 0, .num_top_logprobs = 5});
  cuda.set_logits(logits);
  const StepOutput out = cuda.steps(1)[0];
  EXPECT_EQ(out.token_ids[0], 25137);
  const std::vector<int32_t> top(out.top_ids.begin(), out.top_ids.begin() + 5);
  EXPECT_EQ(top, (std::vector<int32_t>{25137, 77777, 150001, 201087, 0}));
  // 4 e^3 + (201088 - 4) = 201164.34; its logarithm is 12.21187.
  EXPECT_NEAR(out.logprobs[0], 3 - std::log(4 * std::exp(3.0) + 201084), 1e-5);
}

// A batch of all kinds of rows at once, over steps that make the penalties grow.
TEST(SamplerTest, SixtyFourMixedRowsOfGptOss) {
  std::vector<SamplerParams> params;
  for (int i = 0; i < 64; ++i) {
    params.push_back(kCases[i % kCases.size()].params);
    params.back().seed = 1000 + i;
  }
  compare(kGptOssVocab, random_values(int64_t{64} * kGptOssVocab, 6, 4.0f), params, 4);
}

TEST(SamplerTest, PenaltiesCountPromptAndOutput) {
  const int vocab_size = 500;
  std::vector<int32_t> prompt(3000);
  std::vector<int32_t> output(700);
  std::mt19937 engine(7);
  for (int32_t& id : prompt) id = static_cast<int32_t>(engine() % 100);
  for (int32_t& id : output) id = static_cast<int32_t>(engine() % 300);
  std::vector<SamplerParams> params;
  for (int i = 0; i < 8; ++i) {
    params.push_back({.temperature = i % 2 == 0 ? 0.0f : 0.8f,
                      .seed = static_cast<uint64_t>(i),
                      .repetition_penalty = i < 4 ? 1.3f : 1.0f,
                      .frequency_penalty = i % 4 < 2 ? 0.2f : 0.0f,
                      .presence_penalty = 0.5f,
                      .prompt_ids = prompt,
                      .output_ids = std::span(output).first(100 * (i % 7))});
  }
  compare(vocab_size, random_values(8 * vocab_size, 8, 3.0f), params, 20);
}

TEST(SamplerTest, Edits) {
  const int vocab_size = 3000;
  std::vector<LogitEdit> bans;
  for (int id = 0; id < kMaxLogitEdits; ++id) bans.push_back({.token_id = id, .add = -kInfinity});
  // Two edits of a token, one of which ends; an edit that makes a poor token the best.
  const std::vector<LogitEdit> biases = {{.token_id = 2999, .add = 20.0f, .num_outputs = 2},
                                         {.token_id = 5, .add = 1.5f},
                                         {.token_id = 2999, .add = 1.0f},
                                         {.token_id = 5, .add = 2.5f, .num_outputs = 3}};
  std::vector<SamplerParams> params;
  for (const auto edits : std::initializer_list<std::span<const LogitEdit>>{bans, biases}) {
    for (const float temperature : {0.0f, 1.0f}) {
      params.push_back({.temperature = temperature,
                        .num_top_logprobs = 2,
                        .repetition_penalty = 1.1f,
                        .edits = edits});
      params.push_back({.temperature = temperature, .top_k = 5, .edits = edits});
    }
  }
  compare(vocab_size, random_values(8 * vocab_size, 9, 2.0f), params, 6);
}

TEST(SamplerTest, AllButOneRuledOut) {
  std::vector<LogitEdit> bans;
  for (int id = 0; id < 100; ++id) {
    if (id != 42) bans.push_back({.token_id = id, .add = -kInfinity});
  }
  compare(100, random_values(200, 10, 2.0f), {{.edits = bans}, {.temperature = 0, .edits = bans}});
}

TEST(SamplerTest, ASlotIsSetAnew) {
  const int vocab_size = 50;
  SamplerRun cpu(Side::cpu(), 2, vocab_size);
  SamplerRun cuda(Side::cuda(), 2, vocab_size);
  const std::vector<int32_t> prompt = {3, 4};
  const LogitEdit edit = {.token_id = 9, .add = 9.0f};
  const std::vector<SamplerParams> in_turn = {
      {.presence_penalty = 2.0f, .prompt_ids = prompt, .edits = {&edit, 1}},
      {.temperature = 0},
      {.temperature = 0, .repetition_penalty = 3.0f, .prompt_ids = prompt},
      {.temperature = 0.5f, .frequency_penalty = 1.0f}};
  const std::vector<float> logits = random_values(2 * vocab_size, 11, 2.0f);
  for (SamplerRun* run : {&cpu, &cuda}) run->set_logits(logits);
  for (const SamplerParams& params : in_turn) {
    for (SamplerRun* run : {&cpu, &cuda}) run->set(1, params), run->set(0, {});
    const auto want = cpu.steps(5);
    const auto got = cuda.steps(5);
    for (int i = 0; i < 5; ++i) ASSERT_EQ(want[i].token_ids, got[i].token_ids) << i;
  }
}

// Scored rows of a prompt chunk beside its sampled last row, and a sequence that only decodes.
TEST(SamplerTest, KnownTokensAreScored) {
  const int vocab_size = 257;
  const auto run = [&](Side side) {
    SamplerRun sampler(std::move(side), 6, vocab_size);
    sampler.set(0, {.num_prompt_logprobs = 4, .frequency_penalty = 0.5f});
    sampler.set(1, {.temperature = 0, .num_top_logprobs = 2});
    sampler.set_logits(random_values(6 * vocab_size, 12, 3.0f));
    const std::vector<int32_t> tokens(5, 0), positions = {0, 1, 2, 3, 90};
    const std::vector<int32_t> seqs = {0, 0, 0, 0, 1}, base(5, kNoAdapter), indptr = {0, 4, 5};
    const std::vector<int32_t> lens = {4, 91}, page_indptr = {0, 1, 7}, pages(6, 0);
    const std::vector<int32_t> slots = {5, 4}, rows = {0, 1, 2, 3, 4},
                               targets = {7, 256, 0, -1, -1};
    std::vector<StepOutput> outputs;
    for (int i = 0; i < 3; ++i) {
      sampler.update({.token_ids = tokens,
                      .positions = positions,
                      .seq_of_row = seqs,
                      .adapter_of_row = base,
                      .q_indptr = indptr,
                      .kv_lens = lens,
                      .page_indptr = page_indptr,
                      .page_ids = pages,
                      .sampler_slots = slots,
                      .logit_rows = rows,
                      .logit_seqs = seqs,
                      .logit_targets = targets});
      sampler.run();
      outputs.push_back(sampler.output());
    }
    return outputs;
  };
  const auto want = run(Side::cpu());
  const auto got = run(Side::cuda());
  const int num_top[] = {4, 4, 4, -1, 2};
  for (int i = 0; i < 3; ++i) {
    expect_same(want[i], got[i], num_top, vocab_size, "step " + std::to_string(i));
    EXPECT_EQ(got[i].token_ids[1], 256);
  }
}

// One recorded run serves later steps with other logits, slots and positions.
TEST(SamplerTest, RecordedRun) {
  const int vocab_size = 5000;
  SamplerRun cpu(Side::cpu(), 8, vocab_size);
  SamplerRun cuda(Side::cuda(), 8, vocab_size);
  const auto prepare = [&](SamplerRun& run, int turn) {
    for (int row = 0; row < 8; ++row) {
      SamplerParams params = kCases[(row + 3 * turn) % kCases.size()].params;
      params.seed = turn;
      run.set(row, params);
    }
    run.set_logits(random_values(8 * vocab_size, 20 + turn, 3.0f));
    run.update(1000 * turn);
  };
  prepare(cuda, 0);
  const auto graph = cuda.side().backend().record(cuda.side().stream(), [&] { cuda.run(); });
  for (int turn = 1; turn < 8; ++turn) {
    prepare(cpu, turn);
    prepare(cuda, turn);
    cpu.run();
    graph->launch(cuda.side().stream());
    ASSERT_EQ(cpu.output().token_ids, cuda.output().token_ids) << turn;
  }
}

TEST(SamplerTest, ReplaysAreBitwiseEqual) {
  std::vector<SamplerParams> params;
  for (int i = 0; i < 46; ++i) {
    params.push_back(kCases[i % kCases.size()].params);
    params.back().num_top_logprobs = 20;
  }
  SamplerRun cuda(Side::cuda(), 46, 30000);
  cuda.set_logits(random_values(46 * 30000, 13, 2.0f));
  std::vector<StepOutput> first;
  for (int i = 0; i < 10; ++i) {
    for (int row = 0; row < 46; ++row) cuda.set(row, params[row]);
    const auto outputs = cuda.steps(3);
    if (i == 0) first = outputs;
    ASSERT_TRUE(first == outputs) << i;
  }
}

// More than both halves of the staging memory in one go.
TEST(SamplerTest, LongPrompts) {
  const int vocab_size = 2000;
  std::vector<int32_t> prompt(1'500'000);
  for (size_t i = 0; i < prompt.size(); ++i) prompt[i] = static_cast<int32_t>(i % 1500);
  std::vector<SamplerParams> params;
  for (int i = 0; i < 4; ++i) {
    params.push_back(
        {.temperature = 0,
         .repetition_penalty = 2.0f,
         .prompt_ids = std::span(prompt).subspan(i, prompt.size() - 400'000 * i - 1000),
         .output_ids = std::span(prompt).first(10 * i)});
  }
  compare(vocab_size, random_values(4 * vocab_size, 14, 2.0f), params, 3);
}

TEST(SamplerTest, RefusesWhatItCannotHold) {
  Side cuda = Side::cuda();
  const auto too_many = cuda.backend().plan(SamplerDesc{.max_seqs = 1, .vocab_size = 1 << 19});
  ASSERT_FALSE(too_many.ok());
  EXPECT_EQ(too_many.error().code, ErrorCode::kUnsupported);
  EXPECT_NE(too_many.error().message.find("524288"), std::string::npos) << too_many.error().message;
}

}  // namespace
}  // namespace medley::testing
