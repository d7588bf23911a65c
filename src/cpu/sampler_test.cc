#include "cpu/philox.h"
#include "cpu/testing.h"

namespace medley::cpu {
namespace {

// The known answers that ship with Random123 1.14 (kat_vectors, philox4x32 10).
TEST(Philox, KnownAnswers) {
  EXPECT_EQ(philox({0, 0, 0, 0}, {0, 0}),
            (std::array<uint32_t, 4>{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (std::array<uint32_t, 4>{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

Floats logs(std::initializer_list<double> probabilities) {
  Floats out;
  for (const double p : probabilities) out.push_back(static_cast<float>(std::log(p)));
  return out;
}

class SamplerTest {
 public:
  explicit SamplerTest(Floats logits)
      : logits_(std::move(logits)),
        sampler_(test_.plan(SamplerDesc{.max_seqs = 128, .vocab_size = vocab_size()})) {}

  // One token per position 0, 1, ..., each in a row of its own.
  std::vector<int> sample(const SamplerParams& params, int num_rows = 1) {
    std::vector<TestSequence> sequences;
    for (int i = 0; i < num_rows; ++i) {
      sequences.push_back({.first_position = i, .first_page = i, .sampler_slot = (i * 5) % 128});
      sampler_->set_slot(sequences.back().sampler_slot, params, *test_.stream);
    }
    test_.set_step(TestInputs(sequences));
    HostTensor rows = tensor(DType::kF32, {num_rows, vocab_size()});
    for (int i = 0; i < num_rows; ++i) {
      std::copy(logits_.begin(), logits_.end(), rows.as<float>() + i * vocab_size());
    }
    sampler_->run(rows.view(), *test_.step, *test_.stream);
    sampler_->copy_output(*test_.step, *test_.stream, out_);
    return {out_.token_ids.begin(), out_.token_ids.begin() + num_rows};
  }

  std::vector<int> counts(const SamplerParams& params) {
    std::vector<int> counts(vocab_size());
    for (SamplerParams p = params; p.seed < params.seed + 100; ++p.seed) {
      for (const int token : sample(p, 100)) ++counts[token];
    }
    return counts;
  }

  // 10,000 draws: each count within five standard deviations of p * 10,000, and never drawn where
  // p is 0.
  void expect_distribution(const SamplerParams& params, const std::vector<double>& p) {
    const std::vector<int> got = counts(params);
    for (size_t i = 0; i < p.size(); ++i) {
      const double mean = 10000 * p[i];
      EXPECT_NEAR(got[i], mean, 5 * std::sqrt(mean * (1 - p[i]))) << "token " << i;
    }
  }

  const SampleOutput& out() const { return out_; }
  TestBackend& test() { return test_; }
  Sampler& sampler() { return *sampler_; }

 private:
  int64_t vocab_size() const { return static_cast<int64_t>(logits_.size()); }

  TestBackend test_;
  Floats logits_;
  std::unique_ptr<Sampler> sampler_;
  SampleOutput out_{128};
};

TEST(Sampler, GreedyTakesTheLowestIdOfATie) {
  EXPECT_EQ(SamplerTest({1, 3, 2, 3}).sample({.temperature = 0})[0], 1);
}

TEST(Sampler, PlainDistribution) {
  SamplerTest(logs({0.1, 0.4, 0.2, 0.3})).expect_distribution({}, {0.1, 0.4, 0.2, 0.3});
}

// Temperature 0.5 squares the probabilities: 1, 16, 4, 9 of 30.
TEST(Sampler, Temperature) {
  SamplerTest(logs({0.1, 0.4, 0.2, 0.3}))
      .expect_distribution({.temperature = 0.5f}, {1 / 30.0, 16 / 30.0, 4 / 30.0, 9 / 30.0});
}

TEST(Sampler, TopK) {
  SamplerTest(logs({0.1, 0.4, 0.2, 0.3}))
      .expect_distribution({.top_k = 2}, {0, 4 / 7.0, 0, 3 / 7.0});
}

TEST(Sampler, TopKOfATieKeepsTheLowerId) {
  SamplerTest(logs({0.25, 0.25, 0.25, 0.25})).expect_distribution({.top_k = 2}, {0.5, 0.5, 0, 0});
}

// 0.4 + 0.3 < 0.75, so the third token is still needed.
TEST(Sampler, TopPKeepsTheTokenThatCrosses) {
  SamplerTest(logs({0.1, 0.4, 0.2, 0.3}))
      .expect_distribution({.top_p = 0.75f}, {0, 4 / 9.0, 2 / 9.0, 3 / 9.0});
}

TEST(Sampler, TopPBelowTheBestTokenIsGreedy) {
  SamplerTest(logs({0.1, 0.4, 0.2, 0.3})).expect_distribution({.top_p = 0.01f}, {0, 1, 0, 0});
}

// Of the two that top_k leaves, 0.4 / 0.7 = 0.571 is enough for 0.55.
TEST(Sampler, TopPCountsWhatTopKLeaves) {
  SamplerTest(logs({0.1, 0.4, 0.2, 0.3}))
      .expect_distribution({.top_p = 0.55f, .top_k = 2}, {0, 1, 0, 0});
}

// Half of the best, 0.2, cuts the two smallest.
TEST(Sampler, MinP) {
  SamplerTest(logs({0.1, 0.4, 0.19, 0.31}))
      .expect_distribution({.min_p = 0.5f}, {0, 40 / 71.0, 0, 31 / 71.0});
}

TEST(Sampler, OneOfAHugeVocabulary) {
  Floats logits = random_floats(5000, 1);
  logits[4321] = 40.0f;
  for (const int token : SamplerTest(logits).sample({}, 64)) EXPECT_EQ(token, 4321);
}

TEST(Sampler, DrawDependsOnSeedAndPositionAlone) {
  SamplerTest test(random_floats(50, 1));
  const std::vector<int> batch = test.sample({.seed = 7}, 100);
  EXPECT_NE(batch, test.sample({.seed = 8}, 100));
  const std::vector<int> few = test.sample({.seed = 7}, 40);
  EXPECT_EQ(few, std::vector<int>(batch.begin(), batch.begin() + 40));
  const Floats logits = random_floats(50, 1);
  test.sampler().set_slot(99, {.seed = 7}, *test.test().stream);
  const TestSequence alone{.first_position = 33, .sampler_slot = 99};
  test.test().set_step(TestInputs({&alone, 1}));
  HostTensor row = tensor(DType::kF32, {1, 50}, logits);
  SampleOutput out(1);
  test.sampler().run(row.view(), *test.test().step, *test.test().stream);
  test.sampler().copy_output(*test.test().step, *test.test().stream, out);
  EXPECT_EQ(out.token_ids[0], batch[33]);
}

TEST(Sampler, LogprobsAreOfTheUnmodifiedDistribution) {
  SamplerTest test(logs({0.1, 0.4, 0.2, 0.3}));
  const int token =
      test.sample({.temperature = 0.3f, .top_k = 1, .seed = 3, .num_top_logprobs = 3})[0];
  EXPECT_EQ(token, 1);
  EXPECT_NEAR(test.out().logprobs[0], std::log(0.4), 1e-6);
  const int ids[] = {1, 3, 2};
  const double p[] = {0.4, 0.3, 0.2};
  for (int j = 0; j < 3; ++j) {
    EXPECT_EQ(test.out().top_ids[j], ids[j]);
    EXPECT_NEAR(test.out().top_logprobs[j], std::log(p[j]), 1e-6);
  }
}

TEST(Sampler, NextStepEmbedsTheSampledToken) {
  SamplerTest test({0, 0, 9, 0});
  const Floats table = {0, 1, 2, 3};
  const auto packed = test.test().backend->pack_embedding(matrix(table, 4, 1)).value();
  const auto embed =
      test.test().plan(EmbedDesc{.vocab_size = 4, .hidden_size = 1, .dtype = DType::kF32});
  test.sample({.temperature = 0});
  const TestSequence sequences[] = {{.sampler_slot = 0, .tokens = {kTokenFromSampler}},
                                    {.first_page = 1, .sampler_slot = 1, .tokens = {3}}};
  test.test().set_step(TestInputs(sequences));
  HostTensor out = tensor(DType::kF32, {2, 1});
  embed->run({.table = packed.get(), .residual = out.view()}, *test.test().step,
             *test.test().stream);
  EXPECT_EQ(values_of(out), (Floats{2, 3}));
}

}  // namespace
}  // namespace medley::cpu
