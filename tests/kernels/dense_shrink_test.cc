#include <limits>

#include "cuda/context.h"
#include "dense_tester.h"

// LoRA's first half inside dense products: what must not matter to it, and what must not hang.

namespace medley::testing {
namespace {

constexpr int kInSize = 1440;
const std::vector<int> kOutSizes = {512, 64, 96};
constexpr int kOutSize = 672;

// A q/k/v projection with two adapters of other ranks, on a side that keeps it.
class Projection {
 public:
  explicit Projection(Side side, int rank = 24) : side_(std::move(side)) {
    EXPECT_TRUE(side_.backend().make_lora_table({.max_slots = 2, .num_layers = 1}).ok());
    int64_t begin = 0;
    TestPairs wide(kSite);
    TestPairs narrow(kSite);
    for (const int size : kOutSizes) {
      matrices_.push_back(bf16_values(int64_t{size} * kInSize, 10 + size, 0.05f));
      weights_.parts.push_back(matrix_view(matrices_.back(), size, kInSize));
      wide.add(begin, begin + size, rank, kInSize, 30 + size);
      if (begin == 0) narrow.add(begin, begin + size, 8, kInSize, 40);
      begin += size;
    }
    packed_ = side_.backend().pack_linear(weights_).value();
    op_ = side_.backend()
              .plan(LinearDesc{.in_size = kInSize, .out_sizes = kOutSizes, .lora = kSite})
              .value();
    side_.set_adapter(0, side_.backend().pack_adapter({&wide.module(), 1}).value());
    side_.set_adapter(1, side_.backend().pack_adapter({&narrow.module(), 1}).value());
  }

  Side& side() { return side_; }
  cuda::Context& context() { return cuda_context(side_.backend()); }

  TensorView x(int rows) {
    return side_.upload(random_values(int64_t{rows} * kInSize, 4), DType::kBF16, {rows, kInSize});
  }
  void enqueue(const TensorView& x, const TensorView& out, const Step& step) {
    op_->run({.x = x, .weight = packed_.get(), .out = out}, step, side_.stream());
  }
  std::vector<float> run(int rows) {
    const auto step = make_step(side_, {.adapter_of_row = mixed_adapters(rows)});
    const TensorView out = side_.empty(DType::kBF16, {rows, kOutSize});
    enqueue(x(rows), out, *step);
    return side_.download(out);
  }

 private:
  static constexpr LoraSite kSite = {LoraModule::kQkv, 0};
  Side side_;
  std::vector<std::vector<float>> matrices_;
  LinearWeights weights_;
  std::unique_ptr<PackedWeight> packed_;
  std::unique_ptr<Linear> op_;
};

// One tile of each size.
class DenseShrinks : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Rows, DenseShrinks, ::testing::Values(1, 7, 16, 32, 64));

TEST_P(DenseShrinks, GridOfOneBlock) {
  Projection cuda(Side::cuda());
  cuda.context().num_sms = 1;
  expect_close(Projection(Side::cpu()).run(GetParam()), cuda.run(GetParam()), "one block");
}

TEST_P(DenseShrinks, GridOfManyTimesWhatFits) {
  Projection cuda(Side::cuda());
  cuda.context().num_sms *= 16;
  expect_close(Projection(Side::cpu()).run(GetParam()), cuda.run(GetParam()), "many blocks");
}

TEST_P(DenseShrinks, AnotherKernelHasNearlyAllMultiprocessors) {
  Projection cuda(Side::cuda());
  cuda::CudaStream other;
  launch_hog(cuda.context().num_sms - 1, /*milliseconds=*/20, cuda::cuda_stream(other));
  expect_close(Projection(Side::cpu()).run(GetParam()), cuda.run(GetParam()), "one free");
}

TEST_P(DenseShrinks, LateSumsChangeNothing) {
  Projection cuda(Side::cuda());
  const std::vector<float> prompt = cuda.run(GetParam());
  for (const uint32_t delay_ns : {1000u, 20000u, 200000u}) {
    cuda.context().delay_ns = delay_ns;
    EXPECT_EQ(prompt, cuda.run(GetParam())) << delay_ns;
  }
}

// What a launch leaves must not be taken for the next one's.
TEST(DenseShrinksInTurn, OtherBatchesAndRanksInBetweenChangeNothing) {
  Projection cuda(Side::cuda(), /*rank=*/200);
  const std::vector<int> batches = {1, 64, 3, 16, 65, 40, 8, 2};
  std::vector<std::vector<float>> first;
  for (const int rows : batches) first.push_back(cuda.run(rows));
  for (size_t i = batches.size(); i-- > 0;) EXPECT_EQ(first[i], cuda.run(batches[i])) << i;
}

TEST_P(DenseShrinks, ReplaysAreBitwiseEqual) {
  constexpr int kLaunches = 50;
  constexpr int kReplays = 400;
  const int rows = GetParam();
  Projection cuda(Side::cuda());
  Side& side = cuda.side();
  const std::vector<float> expected = cuda.run(rows);
  const auto step = make_step(side, {.adapter_of_row = mixed_adapters(rows)});
  const TensorView x = cuda.x(rows);
  std::vector<TensorView> outs;
  for (int i = 0; i < kLaunches; ++i) outs.push_back(side.empty(DType::kBF16, {rows, kOutSize}));
  const auto graph = side.backend().record(side.stream(), [&] {
    for (const TensorView& out : outs) cuda.enqueue(x, out, *step);
  });
  for (int i = 0; i < kReplays; ++i) {
    graph->launch(side.stream());
    ASSERT_EQ(expected, side.download(outs[i % kLaunches])) << i;
  }
  for (const TensorView& out : outs) ASSERT_EQ(expected, side.download(out));
}

// Not a number is a value like any other to those who wait for one.
TEST_P(DenseShrinks, NotANumberIsNotWaitedFor) {
  const int rows = GetParam();
  Projection cuda(Side::cuda());
  Side& side = cuda.side();
  const auto step = make_step(side, {.adapter_of_row = std::vector<int32_t>(rows, 0)});
  const TensorView out = side.empty(DType::kBF16, {rows, kOutSize});
  // All bits set, as memory is that nothing has written.
  cuda.enqueue(side.empty(DType::kBF16, {rows, kInSize}), out, *step);
  for (const float value : side.download(out)) ASSERT_TRUE(std::isnan(value)) << value;
  cuda.enqueue(side.upload(std::vector<float>(int64_t{rows} * kInSize,
                                              std::numeric_limits<float>::infinity()),
                           DType::kBF16, {rows, kInSize}),
               out, *step);
  for (const float value : side.download(out)) ASSERT_FALSE(std::isfinite(value)) << value;
}

}  // namespace
}  // namespace medley::testing
