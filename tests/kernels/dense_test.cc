#include <numeric>

#include "side.h"
#include "slow_copy.h"

// add_norm, linear and lm_head: the CPU's answers on the same inputs.

namespace medley::testing {
namespace {

VectorView vector_view(const std::vector<float>& values) {
  return {.dtype = DType::kF32, .data = values.data(), .size = static_cast<int64_t>(values.size())};
}
MatrixView matrix_view(const std::vector<float>& values, int64_t rows, int64_t cols) {
  return {
      .dtype = DType::kF32, .data = values.data(), .rows = rows, .cols = cols, .row_stride = cols};
}
std::vector<float> bf16_values(int64_t count, uint32_t seed, float scale) {
  std::vector<float> values = random_values(count, seed, scale);
  for (float& value : values) value = bf16_to_float(float_to_bf16(value));
  return values;
}

std::unique_ptr<Step> make_step(Side& side, const std::vector<int32_t>& adapter_of_row,
                                const std::vector<int32_t>& logit_rows = {}) {
  const int rows = static_cast<int>(adapter_of_row.size());
  auto step =
      side.backend().make_step({.max_rows = rows, .max_seqs = rows, .max_pages = rows}).value();
  std::vector<int32_t> zeros(rows, 0);
  std::vector<int32_t> each(rows);
  std::iota(each.begin(), each.end(), 0);
  std::vector<int32_t> indptr(rows + 1);
  std::iota(indptr.begin(), indptr.end(), 0);
  const std::vector<int32_t> ones(rows, 1);
  step->update({.token_ids = zeros,
                .positions = zeros,
                .seq_of_row = each,
                .adapter_of_row = adapter_of_row,
                .q_indptr = indptr,
                .kv_lens = ones,
                .page_indptr = indptr,
                .page_ids = each,
                .sampler_slots = each,
                .logit_rows = logit_rows,
                .logit_seqs = logit_rows},
               side.stream());
  return step;
}

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
    const auto step = make_step(side, {-1, -1, -1});
    const TensorView residual =
        side.upload(random_values(kRows * hidden, 2), DType::kBF16, {kRows, hidden});
    const TensorView source =
        side.upload(random_values(kRows * hidden, 3), DType::kBF16, {kRows, hidden});
    TensorView delta = source;
    if (side.is_cuda()) {
      delta = side.empty(DType::kBF16, {kRows, hidden});
      launch_slow_copy(delta.data, source.data, source.num_bytes(),
                       cuda::cuda_stream(side.stream()));
    }
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

class LinearOf : public ::testing::TestWithParam<LinearCase> {};
INSTANTIATE_TEST_SUITE_P(
    Shapes, LinearOf,
    ::testing::Values(LinearCase{.name = "OneRow", .adapter_of_row = {-1}},
                      LinearCase{.name = "OddSizes",
                                 .in_size = 40,
                                 .out_sizes = {17},
                                 .adapter_of_row = {-1, -1, -1}},
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
                                 .ranks = {64}}),
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
  LoraModuleWeights module = {.site = site};
  std::vector<std::vector<float>> lora_values;
  lora_values.reserve(6);
  int64_t begin = 0;
  for (size_t i = 0; i < c.ranks.size(); ++i) {
    const int64_t end = c.one_a ? out_size : begin + c.out_sizes[i];
    const int rank = c.ranks[i];
    if (rank > 0) {
      lora_values.push_back(bf16_values(static_cast<int64_t>(rank) * c.in_size, 31 + i, 0.05f));
      lora_values.push_back(bf16_values((end - begin) * rank, 41 + i, 0.5f));
      module.pairs.push_back(
          {.row_begin = begin,
           .row_end = end,
           .rank = rank,
           .a = {matrix_view(lora_values[lora_values.size() - 2], rank, c.in_size)},
           .b = {matrix_view(lora_values.back(), end - begin, rank)},
           .scale = random_values(rank, 51 + i)});
    }
    begin = end;
  }
  const auto run = [&](Side side) {
    EXPECT_TRUE(side.backend().make_lora_table({.max_slots = 2, .num_layers = 1}).ok());
    const auto packed = side.backend().pack_linear(weights).value();
    const auto op =
        side.backend()
            .plan(LinearDesc{
                .in_size = c.in_size, .out_sizes = c.out_sizes, .bias = c.bias, .lora = site})
            .value();
    if (!module.pairs.empty()) {
      side.set_adapter(0, side.backend().pack_adapter({&module, 1}).value());
    }
    const auto step = make_step(side, c.adapter_of_row);
    const TensorView source = side.upload(random_values(static_cast<int64_t>(rows) * c.in_size, 4),
                                          DType::kBF16, {rows, c.in_size});
    TensorView x = source;
    if (side.is_cuda()) {
      x = side.empty(DType::kBF16, {rows, c.in_size});
      launch_slow_copy(x.data, source.data, source.num_bytes(), cuda::cuda_stream(side.stream()));
    }
    const TensorView out = side.empty(DType::kBF16, {rows, out_size});
    op->run({.x = x, .weight = packed.get(), .out = out}, *step, side.stream());
    return side.download(out);
  };
  expect_close(run(Side::cpu()), run(Side::cuda()), c.name);
}

TEST(LmHeadTest, SelectedRowsInTheirOrder) {
  constexpr int kHidden = 96;
  constexpr int kVocab = 203;
  const std::vector<float> matrix = bf16_values(kVocab * kHidden, 5, 0.1f);
  const std::vector<int32_t> logit_rows = {4, 0, 3};
  const auto run = [&](Side side) {
    EXPECT_TRUE(side.backend().make_lora_table({.max_slots = 4, .num_layers = 1}).ok());
    const auto packed =
        side.backend().pack_linear({.parts = {matrix_view(matrix, kVocab, kHidden)}}).value();
    const auto op =
        side.backend().plan(LmHeadDesc{.hidden_size = kHidden, .vocab_size = kVocab}).value();
    const auto step = make_step(side, {3, -1, -1, 1, -1}, logit_rows);
    const TensorView x = side.upload(random_values(5 * kHidden, 6), DType::kBF16, {5, kHidden});
    const TensorView logits = side.empty(DType::kF32, {5, kVocab});
    op->run({.x = x, .weight = packed.get(), .logits = logits}, *step, side.stream());
    std::vector<float> all = side.download(logits);
    all.resize(3 * kVocab);
    return all;
  };
  expect_close(run(Side::cpu()), run(Side::cuda()), "logits", {.distance = 1e-9, .relative = 1e-4});
}

}  // namespace
}  // namespace medley::testing
