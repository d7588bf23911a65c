#include "dense_tester.h"

// dense_mlp: the CPU's answers on the same inputs.

namespace medley::testing {
namespace {

struct MlpCase {
  std::string name;
  int hidden = 256;
  int inner = 384;
  ActivationSpec activation;
  std::vector<int32_t> adapter_of_row;
  int gate_rank = 0;
  int up_rank = 0;
  bool one_a = false;  // gate's rank for both
  int down_rank = 0;
  bool bias = false;
};
void PrintTo(const MlpCase& c, std::ostream* out) { *out << c.name; }

class DenseMlpOf : public ::testing::TestWithParam<MlpCase> {};
INSTANTIATE_TEST_SUITE_P(
    Cases, DenseMlpOf,
    ::testing::Values(
        MlpCase{.name = "OneRow", .adapter_of_row = {-1}},
        MlpCase{.name = "Biases", .adapter_of_row = {-1, -1, -1}, .bias = true},
        MlpCase{.name = "HalfAUnit", .hidden = 72, .inner = 104, .adapter_of_row = {-1, -1}},
        MlpCase{.name = "Clamped",
                .activation = {.kind = Activation::kClampedSwiGlu, .limit = 2.0f, .alpha = 1.702f},
                .adapter_of_row = std::vector<int32_t>(16, -1)},
        MlpCase{.name = "TwoAs",
                .adapter_of_row = mixed_adapters(17),
                .gate_rank = 8,
                .up_rank = 5,
                .down_rank = 16},
        MlpCase{.name = "OneA",
                .adapter_of_row = mixed_adapters(9),
                .gate_rank = 7,
                .one_a = true,
                .down_rank = 7},
        MlpCase{.name = "GateOnly", .adapter_of_row = mixed_adapters(4), .gate_rank = 16},
        MlpCase{.name = "DownOnly", .adapter_of_row = mixed_adapters(4), .down_rank = 200},
        MlpCase{.name = "SixtyFiveRows",
                .adapter_of_row = mixed_adapters(65),
                .gate_rank = 64,
                .up_rank = 64,
                .down_rank = 1},
        MlpCase{.name = "TwoHundredRows",
                .adapter_of_row = mixed_adapters(200),
                .gate_rank = 8,
                .up_rank = 8,
                .down_rank = 8},
        MlpCase{.name = "ManyUnits",
                .hidden = 320,
                .inner = 8 * 132 * 9,
                .adapter_of_row = mixed_adapters(33),
                .gate_rank = 8,
                .up_rank = 8,
                .down_rank = 8}),
    [](const auto& info) { return info.param.name; });

TEST_P(DenseMlpOf, MatchesTheCpu) {
  const MlpCase& c = GetParam();
  const int rows = static_cast<int>(c.adapter_of_row.size());
  const int64_t size = int64_t{c.inner} * c.hidden;
  const std::vector<float> gate = bf16_values(size, 1, 0.1f);
  const std::vector<float> up = bf16_values(size, 2, 0.1f);
  const std::vector<float> down = bf16_values(size, 3, 0.1f);
  const std::vector<float> gate_bias = random_values(c.inner, 4);
  const std::vector<float> up_bias = random_values(c.inner, 5);
  LinearWeights gate_up = {
      .parts = {matrix_view(gate, c.inner, c.hidden), matrix_view(up, c.inner, c.hidden)},
      .gate_up = true};
  if (c.bias) gate_up.biases = {vector_view(gate_bias), vector_view(up_bias)};
  TestPairs gate_up_pairs({LoraModule::kMlpGateUp, 0});
  if (c.one_a) {
    gate_up_pairs.add(0, 2 * c.inner, c.gate_rank, c.hidden, 20);
  } else {
    if (c.gate_rank > 0) gate_up_pairs.add(0, c.inner, c.gate_rank, c.hidden, 20);
    if (c.up_rank > 0) gate_up_pairs.add(c.inner, 2 * c.inner, c.up_rank, c.hidden, 30);
  }
  TestPairs down_pairs({LoraModule::kMlpDown, 0});
  if (c.down_rank > 0) down_pairs.add(0, c.hidden, c.down_rank, c.inner, 40);
  std::vector<LoraModuleWeights> modules;
  for (const TestPairs* pairs : {&gate_up_pairs, &down_pairs}) {
    if (!pairs->empty()) modules.push_back(pairs->module());
  }

  const auto run = [&](Side side, const std::vector<int32_t>& adapter_of_row) {
    EXPECT_TRUE(side.backend().make_lora_table({.max_slots = 2, .num_layers = 1}).ok());
    const auto packed_gate_up = side.backend().pack_linear(gate_up).value();
    const auto packed_down =
        side.backend().pack_linear({.parts = {matrix_view(down, c.hidden, c.inner)}}).value();
    const auto op =
        side.backend()
            .plan(DenseMlpDesc{.hidden_size = c.hidden,
                               .mlp = {.intermediate_size = c.inner, .activation = c.activation},
                               .max_rows = rows,
                               .gate_up_lora = {LoraModule::kMlpGateUp, 0},
                               .down_lora = {LoraModule::kMlpDown, 0}})
            .value();
    for (const int slot : {0, 1}) {
      if (modules.empty()) break;
      side.set_adapter(slot, side.backend().pack_adapter(modules).value());
    }
    const auto step = make_step(side, {.adapter_of_row = adapter_of_row});
    const TensorView x =
        late_rows(side, random_values(int64_t{rows} * c.hidden, 6), rows, c.hidden);
    const TensorView out = side.empty(DType::kBF16, {rows, c.hidden});
    op->run({.x = x, .gate_up = packed_gate_up.get(), .down = packed_down.get(), .out = out}, *step,
            side.stream());
    return side.download(out);
  };
  const std::vector<float> found = run(Side::cuda(), c.adapter_of_row);
  expect_close(run(Side::cpu(), c.adapter_of_row), found, c.name);
  const std::vector<float> base = run(Side::cuda(), std::vector<int32_t>(rows, kNoAdapter));
  for (int row = 0; row < rows; ++row) {
    if (c.adapter_of_row[row] != kNoAdapter) continue;
    for (int i = row * c.hidden; i < (row + 1) * c.hidden; ++i) {
      ASSERT_EQ(base[i], found[i]) << "row " << row << ", without adapters beside it";
    }
  }
}

}  // namespace
}  // namespace medley::testing
