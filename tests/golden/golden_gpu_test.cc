// The engine on a GPU against the engine on the CPU backend, both in bfloat16: the CPU's answers in
// float32 are held to the reference in golden_test.cc, and both backends round at the same places.

#include <gtest/gtest.h>

#include <cmath>

#include "cuda/cuda_backend.h"
#include "served.h"

namespace medley {
namespace {

using namespace testing;

// Sums of another order move a value to its neighbour in bfloat16 now and then; a layer later that
// is a difference like any other. The tiny models are sharp, so one such step shows.
constexpr double kMaxDifference = 0.25;   // of any log-probability
constexpr double kMeanDifference = 0.01;  // over a model
constexpr double kMinGap = 2 * kMaxDifference;

Served::Options on_cpu() { return {.dtype = DType::kBF16}; }
Served::Options on_gpu(bool enable_prefix_caching = false) {
  return {.backend = make_cuda_backend().value(),
          .dtype = DType::kBF16,
          .enable_prefix_caching = enable_prefix_caching};
}

struct Difference {
  double sum = 0;
  double max = 0;
  int count = 0;
  void add(double a, double b) {
    sum += std::abs(a - b);
    max = std::max(max, std::abs(a - b));
    ++count;
  }
};

class GoldenGpu : public ::testing::TestWithParam<std::string> {};

// Every position of the reference's answers, read as a prompt.
TEST_P(GoldenGpu, ReadsAsTheCpuDoes) {
  Served cpu(golden_dir() / GetParam(), on_cpu());
  Served gpu(golden_dir() / GetParam(), on_gpu());
  if (HasFailure()) return;
  std::vector<RequestId> cpu_ids, gpu_ids;
  for (const Case& c : cpu.cases()) cpu_ids.push_back(cpu.submit_to_read(c));
  for (const Case& c : gpu.cases()) gpu_ids.push_back(gpu.submit_to_read(c));
  Difference all;
  for (size_t n = 0; n < cpu_ids.size(); ++n) {
    const Answer a = cpu.wait(cpu_ids[n]), b = gpu.wait(gpu_ids[n]);
    ASSERT_EQ(b.error, "");
    ASSERT_EQ(a.prompt_logprobs.size(), b.prompt_logprobs.size());
    Difference own;
    for (size_t i = 0; i < a.prompt_logprobs.size(); ++i) {
      const PromptLogprob& x = a.prompt_logprobs[i];
      const PromptLogprob& y = b.prompt_logprobs[i];
      ASSERT_EQ(x.token.token_id, y.token.token_id);
      own.add(x.top[0].logprob, y.top[0].logprob);
      all.add(x.top[0].logprob, y.top[0].logprob);
    }
    EXPECT_LE(own.max, kMaxDifference) << cpu.cases()[n].name;
  }
  std::printf("%s: %d positions, log-probabilities differ by %.4f in the mean, %.3f at most\n",
              GetParam().c_str(), all.count, all.sum / all.count, all.max);
  EXPECT_LE(all.sum / all.count, kMeanDifference);
}

// Greedy answers, alone, all at once, and with cached prefixes: tokens equal until the CPU itself
// is undecided.
TEST_P(GoldenGpu, AnswersAsTheCpuDoes) {
  Served cpu(golden_dir() / GetParam(), on_cpu());
  Served gpu(golden_dir() / GetParam(), on_gpu());
  Served caching(golden_dir() / GetParam(), on_gpu(/*enable_prefix_caching=*/true));
  if (HasFailure()) return;
  std::vector<Answer> expected;
  for (const Case& c : cpu.cases()) expected.push_back(cpu.wait(cpu.submit(c)));
  int compared = 0;
  int total = 0;
  const auto compare = [&](const Case& c, const Answer& want, const Answer& answer) {
    ASSERT_EQ(answer.error, "") << c.name;
    ASSERT_EQ(answer.tokens.size(), want.tokens.size()) << c.name;
    total += static_cast<int>(want.tokens.size());
    for (size_t i = 0; i < want.tokens.size(); ++i) {
      if (want.tops[i][0].logprob - want.tops[i][1].logprob <= kMinGap) return;
      ASSERT_EQ(answer.tokens[i], want.tokens[i]) << c.name << " token " << i;
      ASSERT_NEAR(answer.logprobs[i], want.logprobs[i], kMaxDifference) << c.name << " token " << i;
      ++compared;
    }
  };
  for (size_t i = 0; i < expected.size(); ++i) {
    compare(gpu.cases()[i], expected[i], gpu.wait(gpu.submit(gpu.cases()[i])));
  }
  for (Served* served : {&gpu, &caching, &caching}) {
    std::vector<RequestId> ids;
    for (const Case& c : served->cases()) ids.push_back(served->submit(c));
    for (size_t i = 0; i < ids.size(); ++i) {
      compare(served->cases()[i], expected[i], served->wait(ids[i]));
    }
  }
  EXPECT_GT(caching.stats().num_prefix_cache_hits, 0u);
  std::printf("%s: %d of %d positions compared\n", GetParam().c_str(), compared, total);
  EXPECT_GE(compared, total / 4);
}

// The same steps give the same bits.
TEST_P(GoldenGpu, RunToRunBitwise) {
  std::vector<std::vector<double>> first;
  for (int run = 0; run < 2; ++run) {
    Served gpu(golden_dir() / GetParam(), on_gpu());
    if (HasFailure()) return;
    for (size_t i = 0; i < gpu.cases().size(); ++i) {
      const Answer answer = gpu.wait(gpu.submit(gpu.cases()[i]));
      if (run == 0) {
        first.push_back(answer.logprobs);
      } else {
        EXPECT_EQ(answer.logprobs, first[i]) << gpu.cases()[i].name;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, GoldenGpu, ::testing::ValuesIn(golden_models()), golden_test_name);

}  // namespace
}  // namespace medley
