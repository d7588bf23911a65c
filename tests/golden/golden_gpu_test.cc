// The engine on a GPU, in bfloat16. The reference answers in float32, and the tiny models are
// sharp: what rounding alone does to them is seen on the CPU backend in bfloat16, whose float32
// answers golden_test.cc holds to the reference. A GPU may be no worse than that.

#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <set>

#include "cuda/cuda_backend.h"
#include "served.h"

namespace medley {
namespace {

using namespace testing;

constexpr double kModelRatio = 1.5;  // the GPU's mean error over a model, to the CPU's
constexpr double kCaseRatio = 4.0;   // the same over one answer, to the model's or its own
// Log-probabilities closer than this may change places under rounding.
constexpr double kMinGap = 1.0;

Served::Options on_cpu() { return {.dtype = DType::kBF16}; }
Served::Options on_gpu(bool enable_prefix_caching = false) {
  return {.backend = make_cuda_backend().value(),
          .dtype = DType::kBF16,
          .enable_prefix_caching = enable_prefix_caching};
}

struct MeanError {
  double sum = 0;
  int count = 0;
  void add(double a, double b) {
    sum += std::abs(a - b);
    ++count;
  }
  double mean() const { return count == 0 ? 0 : sum / count; }
};

// The five best log-probabilities of each position of the reference's answer.
MeanError error_of(const Case& c, const Answer& read) {
  MeanError error;
  const auto top_logprobs = c.prompt["top5_logprobs"].get<std::vector<std::vector<double>>>();
  const size_t first = c.prompt["ids"].size() - 1;
  for (size_t i = 0; i + 1 < top_logprobs.size(); ++i) {
    for (int j = 0; j < 5; ++j) {
      error.add(read.prompt_logprobs[first + i].top[j].logprob, top_logprobs[i][j]);
    }
  }
  return error;
}

// Where the reference is clear and rounding, as the CPU shows it, does not change the best token.
std::vector<bool> clear_positions(const Case& c, const Answer& cpu_read) {
  const auto tokens = c.prompt["tokens"].get<std::vector<int32_t>>();
  const auto gaps = c.prompt["gaps"].get<std::vector<double>>();
  const size_t first = c.prompt["ids"].size() - 1;
  std::vector<bool> clear;
  for (size_t i = 0; i + 1 < tokens.size(); ++i) {
    clear.push_back(gaps[i] > kMinGap &&
                    cpu_read.prompt_logprobs[first + i].top[0].token_id == tokens[i]);
  }
  return clear;
}

class GoldenGpu : public ::testing::TestWithParam<std::string> {};

// Every position of the reference's answers, read as a prompt.
TEST_P(GoldenGpu, ReadsAsTheReferenceDoes) {
  Served cpu(golden_dir() / GetParam(), on_cpu());
  Served gpu(golden_dir() / GetParam(), on_gpu());
  if (HasFailure()) return;
  std::vector<RequestId> cpu_ids, gpu_ids;
  for (const Case& c : cpu.cases()) cpu_ids.push_back(cpu.submit_to_read(c));
  for (const Case& c : gpu.cases()) gpu_ids.push_back(gpu.submit_to_read(c));
  MeanError cpu_all, gpu_all;
  std::vector<MeanError> cpu_errors, gpu_errors;
  int num_clear = 0;
  int num_positions = 0;
  for (size_t n = 0; n < cpu_ids.size(); ++n) {
    const Case& c = cpu.cases()[n];
    const Answer on_cpu = cpu.wait(cpu_ids[n]), on_gpu = gpu.wait(gpu_ids[n]);
    ASSERT_EQ(on_gpu.error, "") << c.name;
    ASSERT_EQ(on_cpu.prompt_logprobs.size(), on_gpu.prompt_logprobs.size());
    cpu_errors.push_back(error_of(c, on_cpu));
    gpu_errors.push_back(error_of(c, on_gpu));
    cpu_all.sum += cpu_errors.back().sum;
    cpu_all.count += cpu_errors.back().count;
    gpu_all.sum += gpu_errors.back().sum;
    gpu_all.count += gpu_errors.back().count;
    const auto tokens = c.prompt["tokens"].get<std::vector<int32_t>>();
    const std::vector<bool> clear = clear_positions(c, on_cpu);
    for (size_t i = 0; i < clear.size(); ++i) {
      ++num_positions;
      if (!clear[i]) continue;
      ++num_clear;
      EXPECT_EQ(on_gpu.prompt_logprobs[c.prompt["ids"].size() - 1 + i].top[0].token_id, tokens[i])
          << c.name << " token " << i;
    }
  }
  double worst = 0;
  for (size_t n = 0; n < gpu_errors.size(); ++n) {
    const double allowed = std::max(cpu_all.mean(), cpu_errors[n].mean());
    worst = std::max(worst, gpu_errors[n].mean() / allowed);
    EXPECT_LE(gpu_errors[n].mean(), kCaseRatio * allowed) << cpu.cases()[n].name;
  }
  std::printf(
      "%s: mean error of log-probabilities %.4f on the GPU, %.4f on the CPU in bfloat16; worst "
      "answer %.2f times as far; "
      "best token equal at %d positions of %d\n",
      GetParam().c_str(), gpu_all.mean(), cpu_all.mean(), worst, num_clear, num_positions);
  EXPECT_LE(gpu_all.mean(), kModelRatio * cpu_all.mean());
}

// Greedy answers, alone, all at once, and with cached prefixes: tokens equal until the CPU itself
// is undecided.
TEST_P(GoldenGpu, AnswersAsTheReferenceDoes) {
  Served cpu(golden_dir() / GetParam(), on_cpu());
  Served gpu(golden_dir() / GetParam(), on_gpu());
  Served caching(golden_dir() / GetParam(), on_gpu(/*enable_prefix_caching=*/true));
  if (HasFailure()) return;
  std::vector<RequestId> read_ids;
  for (const Case& c : cpu.cases()) read_ids.push_back(cpu.submit_to_read(c));
  std::vector<std::vector<bool>> clear;
  for (size_t n = 0; n < read_ids.size(); ++n) {
    clear.push_back(clear_positions(cpu.cases()[n], cpu.wait(read_ids[n])));
  }
  int compared = 0;
  int total = 0;
  const auto compare = [&](size_t n, const Answer& answer) {
    const Case& c = cpu.cases()[n];
    ASSERT_EQ(answer.error, "") << c.name;
    const auto tokens = c.prompt["tokens"].get<std::vector<int32_t>>();
    ASSERT_EQ(answer.tokens.size(), tokens.size()) << c.name;
    total += static_cast<int>(tokens.size());
    for (size_t i = 0; i < clear[n].size() && clear[n][i]; ++i) {
      ASSERT_EQ(answer.tokens[i], tokens[i]) << c.name << " token " << i;
      ++compared;
    }
  };
  for (size_t n = 0; n < gpu.cases().size(); ++n) {
    compare(n, gpu.wait(gpu.submit(gpu.cases()[n])));
  }
  for (Served* served : {&gpu, &caching, &caching}) {
    std::vector<RequestId> ids;
    for (const Case& c : served->cases()) ids.push_back(served->submit(c));
    for (size_t n = 0; n < ids.size(); ++n) compare(n, served->wait(ids[n]));
  }
  EXPECT_GT(caching.stats().num_prefix_cache_hits, 0u);
  std::printf("%s: %d of %d positions compared\n", GetParam().c_str(), compared, total);
  EXPECT_GT(compared, 0);
}

// The five best log-probabilities of every position that was read.
std::vector<double> best_logprobs(const Answer& read) {
  std::vector<double> logprobs;
  for (size_t i = 1; i < read.prompt_logprobs.size(); ++i) {  // the first token has none
    for (const TokenLogprob& top : read.prompt_logprobs[i].top) logprobs.push_back(top.logprob);
  }
  return logprobs;
}

// Numerics, "mixed against alone": read in one batch with all other cases, an answer differs from
// itself read alone by no more than rounding does (as seen on the CPU in bfloat16, against the
// reference), and the best token is the same wherever that leaves it alone.
TEST_P(GoldenGpu, MixedIsAloneWithinRounding) {
  Served cpu(golden_dir() / GetParam(), on_cpu());
  Served gpu(golden_dir() / GetParam(), on_gpu());
  if (HasFailure()) return;
  std::vector<RequestId> cpu_ids, mixed_ids;
  for (const Case& c : cpu.cases()) cpu_ids.push_back(cpu.submit_to_read(c));
  for (const Case& c : gpu.cases()) mixed_ids.push_back(gpu.submit_to_read(c));
  std::vector<Answer> mixed;
  for (const RequestId id : mixed_ids) mixed.push_back(gpu.wait(id));
  MeanError rounding, difference;
  int num_clear = 0;
  for (size_t n = 0; n < mixed.size(); ++n) {
    const Case& c = gpu.cases()[n];
    const Answer on_cpu = cpu.wait(cpu_ids[n]);
    const MeanError case_rounding = error_of(c, on_cpu);
    rounding.sum += case_rounding.sum;
    rounding.count += case_rounding.count;
    const Answer alone = gpu.wait(gpu.submit_to_read(c));
    const std::vector<double> a = best_logprobs(alone), m = best_logprobs(mixed[n]);
    ASSERT_EQ(a.size(), m.size()) << c.name;
    for (size_t i = 0; i < a.size(); ++i) difference.add(a[i], m[i]);
    const std::vector<bool> clear = clear_positions(c, on_cpu);
    const size_t first = c.prompt["ids"].size() - 1;
    for (size_t i = 0; i < clear.size(); ++i) {
      if (!clear[i]) continue;
      ++num_clear;
      EXPECT_EQ(mixed[n].prompt_logprobs[first + i].top[0].token_id,
                alone.prompt_logprobs[first + i].top[0].token_id)
          << c.name << " token " << i;
    }
  }
  std::printf(
      "%s: mixed and alone differ by %.4f in the mean, rounding moves %.4f; %d best tokens\n",
      GetParam().c_str(), difference.mean(), rounding.mean(), num_clear);
  EXPECT_LE(difference.mean(), kModelRatio * rounding.mean());
  EXPECT_GT(num_clear, 0);
}

// One case of each adapter, one after the other.
std::vector<std::vector<double>> answer_in_turn(Served& served) {
  std::vector<std::vector<double>> logprobs;
  std::string last;
  for (const Case& c : served.cases()) {
    if (c.adapter == last) continue;
    last = c.adapter;
    const Answer answer = served.wait(served.submit(c));
    EXPECT_EQ(answer.error, "") << c.name;
    EXPECT_FALSE(answer.logprobs.empty()) << c.name;
    logprobs.push_back(answer.logprobs);
  }
  return logprobs;
}

// What an adapter answers does not change when it had to leave the device and was brought back:
// with one slot for all, and with device memory for the largest alone.
TEST_P(GoldenGpu, AnEvictedAdapterAnswersTheSameBitwiseWhenItIsBack) {
  Served roomy(golden_dir() / GetParam(), on_gpu());
  if (HasFailure()) return;
  const auto expected = answer_in_turn(roomy);
  size_t pool_bytes = 0;
  std::set<std::string> contents;
  for (const AdapterInfo& info : roomy.store().list()) {
    pool_bytes = std::max(pool_bytes, info.device_bytes);
    if (info.device_bytes > 0) contents.insert(info.hash);
  }
  ASSERT_GT(contents.size(), 2u);
  for (const bool by_slots : {true, false}) {
    Served::Options options = on_gpu();
    if (by_slots) {
      options.max_loras = 1;
    } else {
      options.pool_bytes = pool_bytes;
    }
    Served narrow(golden_dir() / GetParam(), std::move(options));
    if (HasFailure()) return;
    std::atomic<int> num_uploads = 0;
    narrow.store().set_load_observer([&](const AdapterLoad& load) {
      num_uploads += load.source == AdapterLoad::Source::kHost && load.ok ? 1 : 0;
    });
    EXPECT_EQ(answer_in_turn(narrow), expected);
    const int first_uploads = num_uploads;
    EXPECT_GE(first_uploads, static_cast<int>(contents.size()));
    EXPECT_EQ(answer_in_turn(narrow), expected);
    // Those in place at the end of the first turn need not come again.
    EXPECT_GE(num_uploads - first_uploads, static_cast<int>(contents.size()) / 2);
    narrow.store().set_load_observer({});
  }
}

INSTANTIATE_TEST_SUITE_P(Models, GoldenGpu, ::testing::ValuesIn(golden_models()), golden_test_name);

}  // namespace
}  // namespace medley
