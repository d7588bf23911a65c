#include "dense_tester.h"

// add_norm, linear and lm_head: the CPU's answers on the same inputs.

namespace medley::testing {
namespace {

class AddNormOf : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Sizes, AddNormOf, ::testing::Values(8, 64, 2880, 5120, 8192));

TEST_P(AddNormOf, DenseDelta) {
  const int hidden = GetParam();
  constexpr int kRows = 3;
  const auto run = [&](Side side) {
    const auto norm = side.backend().pack_vector(vector_view(random_values(hidden, 1))).value();
    const auto op =
        side.backend()
            .plan(AddNormDesc{
                .hidden_size = hidden, .eps = 1e-5f, .delta = AddNormDesc::Delta::kDense})
            .value();
    const auto step = make_step(side, {.adapter_of_row = {-1, -1, -1}});
    const TensorView residual =
        side.upload(random_values(kRows * hidden, 2), DType::kBF16, {kRows, hidden});
    const TensorView delta = late_rows(side, random_values(kRows * hidden, 3), kRows, hidden);
    const TensorView out = side.empty(DType::kBF16, {kRows, hidden});
    op->run({.residual = residual, .delta = delta, .norm = norm.get(), .out = out}, *step,
            side.stream());
    return std::pair(side.download(residual), side.download(out));
  };
  const auto reference = run(Side::cpu());
  const auto found = run(Side::cuda());
  EXPECT_EQ(reference.first, found.first) << "the residual is one addition and one rounding";
  expect_close(reference.second, found.second, "normalised");
}

struct LinearCase {
  std::string name;
  int in_size = 64;
  std::vector<int> out_sizes = {64};
  bool bias = false;
  std::vector<int32_t> adapter_of_row;
  std::vector<int> ranks;  // by part, 0 = no pair; empty = no LoRA
  bool one_a = false;      // one pair over all parts
};
void PrintTo(const LinearCase& c, std::ostream* out) { *out << c.name; }

// Rows without an adapter between rows of two, on the edges of tiles.
LinearCase qkv_rows(int rows) {
  return {.name = "Qkv" + std::to_string(rows) + "Rows",
          .in_size = 288,
          .out_sizes = {128, 32, 32},
          .bias = true,
          .adapter_of_row = mixed_adapters(rows),
          .ranks = {8, 16, 5}};
}
LinearCase wide_rank(int rank, int rows = 11) {
  return {.name = "Rank" + std::to_string(rank) + "Of" + std::to_string(rows),
          .in_size = 320,
          .out_sizes = {96},
          .adapter_of_row = mixed_adapters(rows),
          .ranks = {rank}};
}

class LinearOf : public ::testing::TestWithParam<LinearCase> {};
INSTANTIATE_TEST_SUITE_P(
    Shapes, LinearOf,
    ::testing::Values(
        LinearCase{.name = "OneRow", .adapter_of_row = {-1}},
        LinearCase{
            .name = "OddSizes", .in_size = 40, .out_sizes = {17}, .adapter_of_row = {-1, -1, -1}},
        LinearCase{.name = "QkvWithBias",
                   .in_size = 2880,
                   .out_sizes = {512, 64, 64},
                   .bias = true,
                   .adapter_of_row = std::vector<int32_t>(9, -1)},
        LinearCase{.name = "WideInput",
                   .in_size = 4096,
                   .out_sizes = {288},
                   .adapter_of_row = std::vector<int32_t>(16, -1)},
        LinearCase{.name = "SixtyFourRows",
                   .in_size = 256,
                   .out_sizes = {128},
                   .adapter_of_row = std::vector<int32_t>(64, -1)},
        LinearCase{.name = "QkvWithLora",
                   .in_size = 256,
                   .out_sizes = {128, 32, 32},
                   .bias = true,
                   .adapter_of_row = {0, -1, 0, -1, 0},
                   .ranks = {8, 16, 5}},
        LinearCase{.name = "OnlyQAndV",
                   .in_size = 256,
                   .out_sizes = {128, 32, 32},
                   .adapter_of_row = {-1, 0, 0},
                   .ranks = {8, 0, 8}},
        LinearCase{.name = "OneAForAllParts",
                   .in_size = 256,
                   .out_sizes = {128, 32, 32},
                   .adapter_of_row = {0},
                   .ranks = {12},
                   .one_a = true},
        LinearCase{.name = "TwentyLoraRows",
                   .in_size = 4096,
                   .out_sizes = {144},
                   .adapter_of_row = std::vector<int32_t>(20, 0),
                   .ranks = {64}},
        qkv_rows(1), qkv_rows(16), qkv_rows(17), qkv_rows(33), qkv_rows(64), qkv_rows(65),
        qkv_rows(200), wide_rank(1), wide_rank(7), wide_rank(16), wide_rank(64), wide_rank(200),
        wide_rank(200, 40), wide_rank(512, 64), wide_rank(512, 3),
        LinearCase{.name = "GptOssO",
                   .in_size = 4096,
                   .out_sizes = {2880},
                   .bias = true,
                   .adapter_of_row = mixed_adapters(9),
                   .ranks = {16}},
        LinearCase{.name = "GptOssQkv",
                   .in_size = 2880,
                   .out_sizes = {4096, 512, 512},
                   .bias = true,
                   .adapter_of_row = mixed_adapters(40),
                   .ranks = {16, 16, 16}},
        LinearCase{.name = "VeryWideInput",
                   .in_size = 25600,
                   .out_sizes = {160},
                   .adapter_of_row = mixed_adapters(5),
                   .ranks = {8}}),
    [](const auto& info) { return info.param.name; });

TEST_P(LinearOf, MatchesTheCpu) {
  const LinearCase& c = GetParam();
  const int rows = static_cast<int>(c.adapter_of_row.size());
  const int out_size = std::accumulate(c.out_sizes.begin(), c.out_sizes.end(), 0);
  std::vector<std::vector<float>> matrices;
  std::vector<std::vector<float>> biases;
  LinearWeights weights;
  for (const int size : c.out_sizes) {
    matrices.push_back(bf16_values(static_cast<int64_t>(size) * c.in_size, 10 + size, 0.05f));
    biases.push_back(random_values(size, 20 + size, 0.2f));
  }
  for (size_t i = 0; i < matrices.size(); ++i) {
    weights.parts.push_back(matrix_view(matrices[i], c.out_sizes[i], c.in_size));
    if (c.bias) weights.biases.push_back(vector_view(biases[i]));
  }
  const LoraSite site = {LoraModule::kQkv, 0};
  TestPairs pairs(site);
  int64_t begin = 0;
  for (size_t i = 0; i < c.ranks.size(); ++i) {
    const int64_t end = c.one_a ? out_size : begin + c.out_sizes[i];
    if (c.ranks[i] > 0) pairs.add(begin, end, c.ranks[i], c.in_size, 31 + 10 * i);
    begin = end;
  }
  const auto run = [&](Side side, const std::vector<int32_t>& adapter_of_row) {
    EXPECT_TRUE(side.backend().make_lora_table({.max_slots = 2, .num_layers = 1}).ok());
    const auto packed = side.backend().pack_linear(weights).value();
    const auto op =
        side.backend()
            .plan(LinearDesc{
                .in_size = c.in_size, .out_sizes = c.out_sizes, .bias = c.bias, .lora = site})
            .value();
    for (const int slot : {0, 1}) {
      if (pairs.empty()) break;
      side.set_adapter(slot, side.backend().pack_adapter({&pairs.module(), 1}).value());
    }
    const auto step = make_step(side, {.adapter_of_row = adapter_of_row});
    const TensorView x =
        late_rows(side, random_values(static_cast<int64_t>(rows) * c.in_size, 4), rows, c.in_size);
    const TensorView out = side.empty(DType::kBF16, {rows, out_size});
    op->run({.x = x, .weight = packed.get(), .out = out}, *step, side.stream());
    return side.download(out);
  };
  const std::vector<float> found = run(Side::cuda(), c.adapter_of_row);
  expect_close(run(Side::cpu(), c.adapter_of_row), found, c.name);
  EXPECT_EQ(run(Side::cuda(), c.adapter_of_row), found) << "another run";
  const std::vector<float> base = run(Side::cuda(), std::vector<int32_t>(rows, kNoAdapter));
  for (int row = 0; row < rows; ++row) {
    if (c.adapter_of_row[row] != kNoAdapter) continue;
    const auto row_of = [&](const std::vector<float>& all) {
      return std::vector<float>(all.begin() + row * out_size, all.begin() + (row + 1) * out_size);
    };
    EXPECT_EQ(row_of(base), row_of(found)) << "row " << row << ", without adapters beside it";
  }
}

struct LogitsCase {
  std::string name;
  int hidden = 96;
  int vocab = 203;
  std::vector<int32_t> adapter_of_row;
  std::vector<int32_t> logit_rows;
  int rank = 0;
};
void PrintTo(const LogitsCase& c, std::ostream* out) { *out << c.name; }

std::vector<int32_t> every_second(int rows) {
  std::vector<int32_t> out;
  for (int i = rows - 1; i >= 0; i -= 2) out.push_back(i);
  return out;
}

class LogitsOf : public ::testing::TestWithParam<LogitsCase> {};
INSTANTIATE_TEST_SUITE_P(Rows, LogitsOf,
                         ::testing::Values(LogitsCase{.name = "InTheirOrder",
                                                      .adapter_of_row = {3, -1, -1, 1, -1},
                                                      .logit_rows = {4, 0, 3}},
                                           LogitsCase{.name = "WithLora",
                                                      .adapter_of_row = {1, -1, -1, 1, -1},
                                                      .logit_rows = {4, 0, 3},
                                                      .rank = 8},
                                           LogitsCase{.name = "NoneWithLora",
                                                      .adapter_of_row = {1, -1, -1, 0},
                                                      .logit_rows = {2, 1},
                                                      .rank = 8},
                                           LogitsCase{.name = "SixtyFive",
                                                      .hidden = 640,
                                                      .vocab = 2100,
                                                      .adapter_of_row = mixed_adapters(130),
                                                      .logit_rows = every_second(130),
                                                      .rank = 16}),
                         [](const auto& info) { return info.param.name; });

TEST_P(LogitsOf, MatchTheCpu) {
  const LogitsCase& c = GetParam();
  const int rows = static_cast<int>(c.adapter_of_row.size());
  const std::vector<float> matrix = bf16_values(int64_t{c.vocab} * c.hidden, 5, 0.1f);
  TestPairs pairs({LoraModule::kLmHead, 0});
  if (c.rank > 0) pairs.add(0, c.vocab, c.rank, c.hidden, 7);
  const auto run = [&](Side side) {
    EXPECT_TRUE(side.backend().make_lora_table({.max_slots = 4, .num_layers = 1}).ok());
    const auto packed =
        side.backend().pack_linear({.parts = {matrix_view(matrix, c.vocab, c.hidden)}}).value();
    const auto op =
        side.backend()
            .plan(LmHeadDesc{.hidden_size = c.hidden, .vocab_size = c.vocab, .lora = c.rank > 0})
            .value();
    for (const int slot : {0, 1}) {
      if (pairs.empty()) break;
      side.set_adapter(slot, side.backend().pack_adapter({&pairs.module(), 1}).value());
    }
    const auto step =
        make_step(side, {.adapter_of_row = c.adapter_of_row, .logit_rows = c.logit_rows});
    const TensorView x =
        side.upload(random_values(int64_t{rows} * c.hidden, 6), DType::kBF16, {rows, c.hidden});
    const TensorView logits = side.empty(DType::kF32, {rows, c.vocab});
    op->run({.x = x, .weight = packed.get(), .logits = logits}, *step, side.stream());
    std::vector<float> all = side.download(logits);
    all.resize(c.logit_rows.size() * c.vocab);
    return all;
  };
  // s is rounded to bfloat16, and a sum in another order may round to its neighbour.
  const Limits limits = c.rank > 0 ? Limits{.distance = 1e-6, .relative = 5e-3}
                                   : Limits{.distance = 1e-9, .relative = 1e-4};
  expect_close(run(Side::cpu()), run(Side::cuda()), "logits", limits);
}

}  // namespace
}  // namespace medley::testing
