#include "attention_tester.h"

#include <algorithm>

// Attention over pages, and its planner, against the CPU backend on the same keys and values.

namespace medley::testing {
namespace {

AttentionSpec heads(int num_heads, int num_kv_heads, int head_dim, bool sinks = false) {
  return {.num_heads = num_heads,
          .num_kv_heads = num_kv_heads,
          .head_dim = head_dim,
          .scale = 1.0f / std::sqrt(static_cast<float>(head_dim)),
          .sinks = sinks};
}

std::vector<TestSequence> decodes(const std::vector<int>& kv_lens) {
  std::vector<TestSequence> out;
  for (const int len : kv_lens) out.push_back({.num_rows = 1, .kv_len = len});
  return out;
}

struct AttentionCase {
  std::string name;
  AttentionShapeCase shape;
  std::vector<TestSequence> sequences;
};
void PrintTo(const AttentionCase& c, std::ostream* out) { *out << c.name; }

int max_len_of(const AttentionCase& c) {
  int most = 1;
  for (const TestSequence& seq : c.sequences) most = std::max(most, seq.kv_len);
  return most;
}

std::vector<float> run_case(Side side, const AttentionCase& c) {
  int rows = 256;
  int step_rows = 0;
  for (const TestSequence& seq : c.sequences) step_rows += seq.num_rows;
  rows = std::max(rows, step_rows);
  AttentionTester tester(side, c.shape, static_cast<int>(c.sequences.size()), rows, max_len_of(c));
  tester.slow_predecessors();
  tester.fill(c.sequences);
  return tester.run(c.sequences);
}

const std::vector<int> kEdgeLens = {1, 15, 16, 17, 127, 128, 129, 255, 257};
const std::vector<int> kLongLens = {1, 15, 16, 17, 127, 128, 129, 1000, 4096};

std::vector<int> sixty_four_lens() {
  std::vector<int> lens;
  for (int i = 0; i < 64; ++i) lens.push_back(1 + i * 13 % 600);
  return lens;
}

std::vector<AttentionCase> attention_cases() {
  const AttentionSpec gpt_oss = heads(64, 8, 64, /*sinks=*/true);
  return {
      {"OneToken", {heads(8, 1, 64)}, decodes({1})},
      {"DecodeEdges", {heads(16, 2, 64)}, decodes(kEdgeLens)},
      {"DecodeEdgesSinks", {heads(16, 2, 64, true)}, decodes(kEdgeLens)},
      {"DecodeEdgesSinksWindow", {heads(16, 2, 64, true), 128}, decodes(kEdgeLens)},
      {"DecodeWindowOfOne", {heads(8, 1, 64), 1}, decodes({1, 2, 17})},
      {"DecodeHeadDim128Window64", {heads(8, 2, 128, true), 64}, decodes(kEdgeLens)},
      {"DecodeWindowNoPageMultiple", {heads(8, 1, 64), 20}, decodes({19, 20, 21, 100})},
      {"DecodeGroupOfOne", {heads(4, 4, 64, true)}, decodes(kEdgeLens)},
      {"DecodeGroupOfTwenty", {heads(40, 2, 64, true)}, decodes({1, 130, 300})},
      {"DecodeHeadDim128GroupOfFour", {heads(32, 8, 128)}, decodes(kEdgeLens)},
      {"DecodeHeadDim128GroupOfOneSinksWindow", {heads(4, 4, 128, true), 100}, decodes(kEdgeLens)},
      {"DecodeGptOss", {gpt_oss}, decodes(kLongLens)},
      {"DecodeGptOssWindow", {gpt_oss, 128}, decodes(kLongLens)},
      {"DecodeGptOssOneRow", {gpt_oss}, decodes({4096})},
      {"DecodeGptOssSevenRows", {gpt_oss}, decodes({33, 900, 2, 1500, 128, 4000, 64})},
      {"DecodeManyRows", {heads(32, 4, 128)}, decodes(sixty_four_lens())},
      {"DecodeManyRowsGptOssWindow", {gpt_oss, 128}, decodes(sixty_four_lens())},
      {"PrefillOfTwo", {heads(8, 1, 64)}, {{2, 2}}},
      {"Prefill", {heads(16, 2, 64, true)}, {{40, 40}}},
      {"PrefillChunkAtAnOffset", {heads(16, 2, 64, true)}, {{37, 150}}},
      {"PrefillWindow", {heads(16, 2, 64, true), 20}, {{70, 150}, {33, 33}}},
      {"PrefillHeadDim128", {heads(8, 2, 128)}, {{65, 130}, {7, 7}}},
      {"PrefillHeadDim128GroupOfOneWindow", {heads(2, 2, 128, true), 64}, {{150, 300}}},
      {"PrefillGptOssWindow", {gpt_oss, 128}, {{200, 1100}}},
      {"PrefillGptOss", {gpt_oss}, {{200, 1100}, {50, 50}}},
      {"Mixed", {heads(16, 2, 64, true)}, {{1, 100}, {30, 30}, {1, 1}, {17, 60}, {1, 257}}},
      {"MixedWindow", {heads(16, 2, 64, true), 20}, {{1, 100}, {30, 30}, {1, 1}, {17, 60}}},
      {"MixedHeadDim128", {heads(8, 2, 128)}, {{12, 20}, {1, 90}, {1, 300}}},
      {"PlainHeadDim16", {heads(4, 2, 16, true), 8}, {{1, 100}, {30, 30}, {1, 1}}},
      {"PlainHeadDim32", {heads(4, 2, 32)}, {{1, 100}, {30, 45}, {1, 16}}},
      {"PlainHeadDim256", {heads(4, 4, 256)}, {{1, 17}, {3, 3}}},
      {"PlainHeadDim12", {heads(6, 3, 12, true)}, decodes({5, 20})},
  };
}

class AttentionOf : public ::testing::TestWithParam<AttentionCase> {};
INSTANTIATE_TEST_SUITE_P(Shapes, AttentionOf, ::testing::ValuesIn(attention_cases()),
                         [](const auto& info) { return info.param.name; });

TEST_P(AttentionOf, MatchesTheCpu) {
  expect_close(run_case(Side::cpu(), GetParam()), run_case(Side::cuda(), GetParam()), "attention");
}

TEST(AttentionRuns, RepeatToTheBit) {
  Side side = Side::cuda();
  const std::vector<TestSequence> sequences = {{1, 700}, {30, 90}, {1, 3}, {1, 129}};
  AttentionTester tester(side, {heads(16, 2, 64, true)}, 4, 256, 700);
  tester.fill(sequences);
  const std::vector<float> first = tester.run(sequences);
  for (int i = 0; i < 5; ++i) EXPECT_EQ(tester.run(sequences), first);
}

// One graph, recorded at its padded size, serves steps of other lengths and of fewer rows.
class AttentionGraphOf : public ::testing::TestWithParam<AttentionShapeCase> {};
INSTANTIATE_TEST_SUITE_P(Shapes, AttentionGraphOf,
                         ::testing::Values(AttentionShapeCase{heads(16, 2, 64, true)},
                                           AttentionShapeCase{heads(16, 2, 64, true), 128},
                                           AttentionShapeCase{heads(8, 2, 128)},
                                           AttentionShapeCase{heads(4, 2, 32)}),
                         [](const auto& info) {
                           return "HeadDim" + std::to_string(info.param.spec.head_dim) +
                                  (info.param.window > 0 ? "Window" : "");
                         });

TEST_P(AttentionGraphOf, ServesOtherLengths) {
  const std::vector<std::vector<int>> steps = {std::vector<int>(8, 1),
                                               {1, 600, 3, 16, 17, 129, 128, 300},
                                               {500, 2, 128, 64, 1},
                                               std::vector<int>(8, 600)};
  Side side = Side::cuda();
  Side reference = Side::cpu();
  AttentionTester tester(side, GetParam(), 8, 256, 600);
  AttentionTester expected(reference, GetParam(), 8, 256, 600);
  const std::vector<TestSequence> longest = decodes(std::vector<int>(8, 600));
  tester.fill(longest);
  expected.fill(longest);
  tester.set_step(decodes(steps[0]));
  auto& stream = static_cast<cuda::CudaStream&>(side.stream());
  cuda::CudaGraph graph(stream, [&] { tester.enqueue(); });
  for (const std::vector<int>& lens : steps) {
    tester.set_step(decodes(lens));
    tester.poison_results();
    graph.launch(stream);
    expect_close(expected.run(decodes(lens)), tester.results(), "a replay");
    const std::vector<float> all = tester.results(/*all=*/true);
    const size_t row = all.size() / 256;
    for (size_t i = lens.size() * row; i < all.size(); ++i) {
      ASSERT_TRUE(std::isnan(all[i])) << "a padding row was written, element " << i;
    }
  }
}

TEST(KvCacheOnCuda, SaysWhatIsWrong) {
  Side side = Side::cuda();
  KvCacheDesc desc = {.num_layers = 48,
                      .num_pages = 10'000'000,
                      .page_size = 16,
                      .num_kv_heads = 8,
                      .head_dim = 128};
  const auto too_large = side.backend().make_kv_cache(desc);
  ASSERT_FALSE(too_large.ok());
  EXPECT_EQ(too_large.error().code, ErrorCode::kOverloaded);
  // 2 x 48 x 10^7 x 16 x 8 x 128 x 2 bytes
  EXPECT_NE(too_large.error().message.find("31457280000000"), std::string::npos)
      << too_large.error().message;
  desc.dtype = DType::kF32;
  EXPECT_EQ(side.backend().make_kv_cache(desc).error().code, ErrorCode::kUnsupported);
  desc.dtype = DType::kBF16;
  desc.num_pages = 0;
  EXPECT_EQ(side.backend().make_kv_cache(desc).error().code, ErrorCode::kInvalidArgument);
}

TEST(AttentionPlans, RefuseWhatNoKernelDoes) {
  Side side = Side::cuda();
  AttentionDesc desc = {.attention = heads(6, 4, 64)};
  EXPECT_EQ(side.backend().plan(desc).error().code, ErrorCode::kInvalidArgument);
  desc.attention = heads(4, 4, 260);
  EXPECT_EQ(side.backend().plan(desc).error().code, ErrorCode::kUnsupported);
  desc = {.attention = heads(4, 4, 64), .dtype = DType::kF32};
  EXPECT_EQ(side.backend().plan(desc).error().code, ErrorCode::kUnsupported);
}

}  // namespace
}  // namespace medley::testing
