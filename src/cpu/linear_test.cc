#include "cpu/testing.h"

namespace medley::cpu {
namespace {

constexpr LoraSite kQkv{LoraModule::kQkv, 1};

struct LinearCase {
  int64_t in;
  std::vector<int> out_sizes;
  std::vector<int> adapters;  // one row each
  bool bias = true;
  DType dtype = DType::kF32;
};

int64_t total(const std::vector<int>& sizes) {
  int64_t sum = 0;
  for (const int size : sizes) sum += size;
  return sum;
}

// Runs W x + b + LoRA for random data on both sides.
void check_linear(const LinearCase& c, const std::vector<TestModule>& adapters) {
  const int64_t out = total(c.out_sizes);
  const int64_t rows = static_cast<int64_t>(c.adapters.size());
  const Floats w = random_floats(out * c.in, 1, 0.2f);
  const Floats b = random_floats(out, 2);
  const Floats x = rounded(random_floats(rows * c.in, 3), c.dtype);

  TestBackend test;
  for (size_t slot = 0; slot < adapters.size(); ++slot)
    test.set_adapter(slot, {&adapters[slot], 1});
  LinearWeights weights;
  int64_t begin = 0;
  for (const int size : c.out_sizes) {
    weights.parts.push_back(matrix(w, size, c.in));
    weights.parts.back().data = w.data() + begin * c.in;
    if (c.bias) {
      weights.biases.push_back({.dtype = DType::kF32, .data = b.data() + begin, .size = size});
    }
    begin += size;
  }
  const auto packed = test.backend->pack_linear(weights).value();
  const auto op = test.plan(LinearDesc{.in_size = static_cast<int>(c.in),
                                       .out_sizes = c.out_sizes,
                                       .bias = c.bias,
                                       .dtype = c.dtype,
                                       .lora = kQkv});
  test.set_step(rows_with_adapters(c.adapters));
  HostTensor xt = tensor(c.dtype, {rows, c.in}, x);
  HostTensor yt = tensor(c.dtype, {rows, out});
  op->run({.x = xt.view(), .weight = packed.get(), .out = yt.view()}, *test.step, *test.stream);

  std::vector<double> want(rows * out);
  for (int64_t r = 0; r < rows; ++r) {
    const std::vector<double> xr(x.begin() + r * c.in, x.begin() + (r + 1) * c.in);
    double* y = want.data() + r * out;
    add_product(w, xr.data(), out, c.in, y);
    if (c.adapters[r] != kNoAdapter) adapters[c.adapters[r]].add_to(xr.data(), 0, y);
    for (int64_t i = 0; c.bias && i < out; ++i) y[i] += b[i];
  }
  expect_close(values_of(yt), want, c.dtype);
}

TEST(Linear, OneRow) { check_linear({.in = 64, .out_sizes = {32}, .adapters = {-1}}, {}); }

TEST(Linear, OutputsThatDoNotFillAPanelAndManyRows) {
  check_linear({.in = 37, .out_sizes = {19, 7, 7}, .adapters = std::vector<int>(23, -1)}, {});
}

TEST(Linear, WithoutBias) {
  check_linear({.in = 8, .out_sizes = {5}, .adapters = {-1, -1}, .bias = false}, {});
}

TEST(Linear, BFloat16) {
  check_linear({.in = 64, .out_sizes = {48, 16}, .adapters = {-1, 0, -1}, .dtype = DType::kBF16},
               {{kQkv, {TestPair(0, 64, 8, 64, 5)}}});
}

TEST(Linear, RanksOneSevenAndSixtyFourWithBaseRowsBetween) {
  check_linear({.in = 40, .out_sizes = {24, 8, 8}, .adapters = {0, -1, 1, 2, -1, 0, 2, 2}},
               {{kQkv, {TestPair(0, 40, 1, 40, 10)}},
                {kQkv, {TestPair(0, 40, 7, 40, 20)}},
                {kQkv, {TestPair(0, 40, 64, 40, 30)}}});
}

TEST(Linear, AdaptersOfSomePartsOnly) {
  check_linear({.in = 24, .out_sizes = {20, 6, 6}, .adapters = {0, 1, 2, -1}},
               {{kQkv, {TestPair(0, 20, 4, 24, 10)}},
                {kQkv, {TestPair(26, 32, 3, 24, 20)}},
                {kQkv, {TestPair(0, 20, 4, 24, 30), TestPair(20, 26, 2, 24, 40)}}});
}

TEST(Linear, MoreRowsOfAnAdapterThanOneTaskTakes) {
  check_linear({.in = 24, .out_sizes = {20}, .adapters = std::vector<int>(100, 0)},
               {{kQkv, {TestPair(0, 20, 5, 24, 10)}}});
}

TEST(Linear, BaseRowsKeepTheirBitsBesideAdapters) {
  const TestModule adapter{kQkv, {TestPair(0, 48, 8, 64, 5)}};
  TestBackend test;
  test.set_adapter(0, {&adapter, 1});
  const Floats w = random_floats(48 * 64, 1);
  const auto packed = test.backend->pack_linear({{matrix(w, 48, 64)}, {}}).value();
  const auto op =
      test.plan(LinearDesc{.in_size = 64, .out_sizes = {48}, .dtype = DType::kF32, .lora = kQkv});
  HostTensor x = tensor(DType::kF32, {9, 64}, random_floats(9 * 64, 3));
  const auto run = [&](std::vector<int> adapters) {
    test.set_step(rows_with_adapters(adapters));
    HostTensor y = tensor(DType::kF32, {9, 48});
    op->run({.x = x.view(), .weight = packed.get(), .out = y.view()}, *test.step, *test.stream);
    return values_of(y);
  };
  const Floats base = run(std::vector<int>(9, kNoAdapter));
  const Floats mixed = run({-1, 0, -1, 0, 0, -1, -1, 0, -1});
  for (const int row : {0, 2, 5, 6, 8}) {
    for (int i = 0; i < 48; ++i) ASSERT_EQ(base[row * 48 + i], mixed[row * 48 + i]);
  }
  EXPECT_NE(base[1 * 48], mixed[1 * 48]);
}

TEST(Linear, AdaptersComeAndGoBetweenSteps) {
  const TestModule first{kQkv, {TestPair(0, 4, 2, 8, 5)}}, second{kQkv, {TestPair(0, 4, 3, 8, 6)}};
  TestBackend test;
  const Floats w(4 * 8, 0.0f);
  const auto packed = test.backend->pack_linear({{matrix(w, 4, 8)}, {}}).value();
  const auto op =
      test.plan(LinearDesc{.in_size = 8, .out_sizes = {4}, .dtype = DType::kF32, .lora = kQkv});
  const Floats x = random_floats(8, 3);
  HostTensor xt = tensor(DType::kF32, {1, 8}, x);
  const std::vector<double> xd(x.begin(), x.end());
  const auto run = [&] {
    test.set_step(rows_with_adapters(std::vector<int>{3}));
    HostTensor y = tensor(DType::kF32, {1, 4});
    op->run({.x = xt.view(), .weight = packed.get(), .out = y.view()}, *test.step, *test.stream);
    return values_of(y);
  };
  for (const TestModule* module : {&first, &second}) {
    test.set_adapter(3, {module, 1});
    std::vector<double> want(4);
    module->add_to(xd.data(), 0, want.data());
    expect_close(run(), want, DType::kF32);
  }
  test.backend->clear_adapter(3, *test.stream);
  EXPECT_EQ(run(), Floats(4, 0.0f));
}

// s = 1 + 2^-9 rounds to 1 in bfloat16; B = 512 tells the two apart.
TEST(Linear, BFloat16RoundsTheShrunkenRow) {
  for (const DType dtype : {DType::kBF16, DType::kF32}) {
    TestBackend test;
    const Floats a = {1.0f, 0x1p-9f}, b = {512.0f}, w = {0.0f, 0.0f};
    const LoraModuleWeights module{kQkv,
                                   {{.row_end = 1,
                                     .rank = 1,
                                     .a = {matrix(a, 1, 2)},
                                     .b = {matrix(b, 1, 1)},
                                     .scale = {1.0f}}}};
    test.set_adapter(0, std::span(&module, 1));
    const auto packed = test.backend->pack_linear({{matrix(w, 1, 2)}, {}}).value();
    const auto op =
        test.plan(LinearDesc{.in_size = 2, .out_sizes = {1}, .dtype = dtype, .lora = kQkv});
    test.set_step(rows_with_adapters(std::vector<int>{0}));
    HostTensor x = tensor(dtype, {1, 2}, {1.0f, 1.0f}), y = tensor(dtype, {1, 1});
    op->run({.x = x.view(), .weight = packed.get(), .out = y.view()}, *test.step, *test.stream);
    EXPECT_EQ(values_of(y)[0], dtype == DType::kBF16 ? 512.0f : 513.0f);
  }
}

TEST(PackAdapter, RoundsToBFloat16WhenAsked) {
  const Floats a = {1.0f + 0x1p-9f}, b = {1.0f}, w = {0.0f};
  const LoraModuleWeights module{
      kQkv,
      {{.row_end = 1, .rank = 1, .a = {matrix(a, 1, 1)}, .b = {matrix(b, 1, 1)}, .scale = {1.0f}}}};
  for (const bool lora_bf16 : {false, true}) {
    TestBackend test(1, lora_bf16);
    test.set_adapter(0, std::span(&module, 1));
    const auto packed = test.backend->pack_linear({{matrix(w, 1, 1)}, {}}).value();
    const auto op =
        test.plan(LinearDesc{.in_size = 1, .out_sizes = {1}, .dtype = DType::kF32, .lora = kQkv});
    test.set_step(rows_with_adapters(std::vector<int>{0}));
    HostTensor x = tensor(DType::kF32, {1, 1}, {1.0f}), y = tensor(DType::kF32, {1, 1});
    op->run({.x = x.view(), .weight = packed.get(), .out = y.view()}, *test.step, *test.stream);
    EXPECT_EQ(values_of(y)[0], lora_bf16 ? 1.0f : a[0]);
  }
}

TEST(PackAdapter, NamesTheShapeThatDoesNotFit) {
  TestBackend test;
  LoraModuleWeights module = TestModule{kQkv, {TestPair(0, 8, 4, 8, 1)}}.view();
  module.pairs[0].b[0].rows = 7;
  const auto result = test.backend->pack_adapter({&module, 1});
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(result.error().message, "LoRA qkv of layer 1: rows of B: expected 8, found 7");
}

TEST(LmHead, SelectedRowsWithLora) {
  const LoraSite site{LoraModule::kLmHead, 0};
  const TestModule adapter{site, {TestPair(0, 50, 3, 12, 5)}};
  TestBackend test;
  test.set_adapter(2, {&adapter, 1});
  const Floats w = random_floats(50 * 12, 1), x = random_floats(5 * 12, 2);
  const auto packed = test.backend->pack_linear({{matrix(w, 50, 12)}, {}}).value();
  const auto op = test.plan(
      LmHeadDesc{.hidden_size = 12, .vocab_size = 50, .dtype = DType::kF32, .lora = true});
  const TestSequence sequences[] = {{.num_rows = 2},
                                    {.num_rows = 3, .adapter = 2, .first_page = 1}};
  test.set_step(TestInputs(sequences));  // rows 1 and 4
  HostTensor xt = tensor(DType::kF32, {5, 12}, x), logits = tensor(DType::kF32, {128, 50});
  op->run({.x = xt.view(), .weight = packed.get(), .logits = logits.view()}, *test.step,
          *test.stream);
  std::vector<double> want(100);
  for (int i = 0; i < 2; ++i) {
    const int row = i == 0 ? 1 : 4;
    const std::vector<double> xr(x.begin() + row * 12, x.begin() + (row + 1) * 12);
    add_product(w, xr.data(), 50, 12, want.data() + i * 50);
    if (i == 1) adapter.add_to(xr.data(), 0, want.data() + i * 50);
  }
  Floats got = values_of(logits);
  got.resize(100);
  expect_close(got, want, DType::kF32);
}

TEST(DenseMlp, SwiGluWithLoraOnGateOnly) {
  constexpr int kHidden = 20, kInner = 28;
  const TestModule gate{{LoraModule::kMlpGateUp, 0}, {TestPair(0, kInner, 4, kHidden, 5)}};
  const TestModule down{{LoraModule::kMlpDown, 0}, {TestPair(0, kHidden, 2, kInner, 9)}};
  const TestModule modules[] = {gate, down};
  TestBackend test;
  test.set_adapter(0, modules);
  const Floats w1 = random_floats(2 * kInner * kHidden, 1, 0.4f);
  const Floats w2 = random_floats(kHidden * kInner, 2, 0.4f), x = random_floats(3 * kHidden, 3);
  MatrixView up = matrix(w1, kInner, kHidden);
  up.data = w1.data() + kInner * kHidden;
  const auto packed1 = test.backend->pack_linear({{matrix(w1, kInner, kHidden), up}, {}}).value();
  const auto packed2 = test.backend->pack_linear({{matrix(w2, kHidden, kInner)}, {}}).value();
  const auto op = test.plan(DenseMlpDesc{.hidden_size = kHidden,
                                         .mlp = {.intermediate_size = kInner, .activation = {}},
                                         .dtype = DType::kF32,
                                         .max_rows = 8,
                                         .gate_up_lora = gate.site,
                                         .down_lora = down.site});
  test.set_step(rows_with_adapters(std::vector<int>{-1, 0, -1}));
  HostTensor xt = tensor(DType::kF32, {3, kHidden}, x), y = tensor(DType::kF32, {3, kHidden});
  op->run({.x = xt.view(), .gate_up = packed1.get(), .down = packed2.get(), .out = y.view()},
          *test.step, *test.stream);
  std::vector<double> want(3 * kHidden);
  for (int r = 0; r < 3; ++r) {
    const std::vector<double> xr(x.begin() + r * kHidden, x.begin() + (r + 1) * kHidden);
    std::vector<double> h(2 * kInner), act(kInner);
    add_product(w1, xr.data(), 2 * kInner, kHidden, h.data());
    if (r == 1) gate.add_to(xr.data(), 0, h.data());
    for (int i = 0; i < kInner; ++i) act[i] = h[i] / (1 + std::exp(-h[i])) * h[kInner + i];
    add_product(w2, act.data(), kHidden, kInner, want.data() + r * kHidden);
    if (r == 1) down.add_to(act.data(), 0, want.data() + r * kHidden);
  }
  expect_close(values_of(y), want, DType::kF32);
}

TEST(Embed, TableRowsAndLora) {
  const TestModule adapter{{LoraModule::kEmbed, 0}, {TestPair(0, 6, 2, 10, 5)}};
  TestBackend test;
  test.set_adapter(1, {&adapter, 1});
  const Floats table = random_floats(60, 1);
  const auto packed = test.backend->pack_embedding(matrix(table, 10, 6)).value();
  const auto op =
      test.plan(EmbedDesc{.vocab_size = 10, .hidden_size = 6, .dtype = DType::kF32, .lora = true});
  const TestSequence sequences[] = {{.num_rows = 2, .tokens = {7, 0}},
                                    {.num_rows = 1, .adapter = 1, .first_page = 1, .tokens = {9}}};
  test.set_step(TestInputs(sequences));
  HostTensor out = tensor(DType::kF32, {3, 6});
  op->run({.table = packed.get(), .residual = out.view()}, *test.step, *test.stream);
  std::vector<double> want, one_hot(10);
  for (const int token : {7, 0, 9}) {
    for (int i = 0; i < 6; ++i) want.push_back(table[token * 6 + i]);
  }
  one_hot[9] = 1;
  adapter.add_to(one_hot.data(), 0, want.data() + 12);
  expect_close(values_of(out), want, DType::kF32);
}

}  // namespace
}  // namespace medley::cpu
