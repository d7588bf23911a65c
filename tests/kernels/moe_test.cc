#include "moe_lora_cases.h"
#include "moe_tester.h"
#include "slow_copy.h"

namespace medley::testing {
namespace {

// The shapes that a unit, a stage or a tile might get wrong; both weight formats.
class Moe : public ::testing::TestWithParam<WeightFormat> {
 protected:
  MoeTester tester() const {
    return std::move(
        MoeTester().format(GetParam()).activation(Activation::kClampedSwiGlu).biases(true));
  }
};
INSTANTIATE_TEST_SUITE_P(Formats, Moe,
                         ::testing::Values(WeightFormat::kFloat, WeightFormat::kMxfp4),
                         [](const auto& format) {
                           return format.param == WeightFormat::kFloat ? "BF16" : "Mxfp4";
                         });

TEST_P(Moe, OneRow) { tester().uniform_rows(1).compare(); }
TEST_P(Moe, TwoRowsThatShareAnExpert) {
  tester().experts(8, 2).hidden(256).inner(192).rows({{5, 2}, {2, 7}}).compare();
}
TEST_P(Moe, OneAndTwoRowsOfGptOssShape) {
  for (const int rows : {1, 2}) {
    tester().hidden(2880).inner(2880).experts(8, 4).uniform_rows(rows).compare();
  }
}
TEST_P(Moe, EightRowsFillATileHalf) {
  tester().experts(2, 1).rows({{0}, {0}, {0}, {0}, {0}, {0}, {0}, {0}}).compare();
}
TEST_P(Moe, NineRowsSpillIntoTheSecondHalf) {
  tester().experts(2, 1).rows(std::vector<std::vector<int>>(9, {1})).compare();
}
TEST_P(Moe, SeventeenRowsOfOneExpertNeedTwoTiles) {
  tester().experts(4, 1).rows(std::vector<std::vector<int>>(17, {2})).compare();
}
TEST_P(Moe, ThreeRowsOnOneExpertAndSixtyOnAnother) {
  std::vector<std::vector<int>> wanted(60, {3});
  wanted.insert(wanted.end(), 3, {0});
  tester().experts(4, 1).rows(std::move(wanted)).compare();
}
// One block, or a few, takes tiles whose activations fit beside each other, the larger one first or
// second, and tiles whose do not.
TEST_P(Moe, TilesThatShareABlock) {
  const std::vector<int> rows_of_expert = {12, 3, 3, 12, 8, 8, 9, 7};
  std::vector<std::vector<int>> wanted;
  std::vector<int32_t> adapters;
  for (int expert = 0; expert < 8; ++expert) {
    for (int i = 0; i < rows_of_expert[expert]; ++i) {
      wanted.push_back({expert});
      adapters.push_back(i % 4 == 0 ? kNoAdapter : 1 + i % 2);
    }
  }
  for (const int num_sms : {1, 3}) {
    for (const bool lora : {false, true}) {
      MoeTester layer = tester();
      layer.hidden(256).inner(192).experts(8, 1).rows(wanted);
      if (lora) layer.adapter(1, {}).adapter(2, {.gate_up_rank = 40}).adapter_of_row(adapters);
      layer.before_running([num_sms](cuda::Context& context) { context.num_sms = num_sms; });
      layer.compare();
    }
  }
}
TEST_P(Moe, EmptyExpertsBetween) {
  tester().experts(16, 2).hidden(128).rows({{1, 9}, {9, 14}, {1, 14}}).compare();
}
TEST_P(Moe, ColumnsNoMultipleOfABlock) { tester().hidden(96).inner(160).uniform_rows(5).compare(); }
TEST_P(Moe, GptOssShape) {
  tester().hidden(2880).inner(2880).experts(8, 4).uniform_rows(12).compare();
}
TEST_P(Moe, ManyRowsUniform) {
  tester().hidden(256).inner(192).experts(32, 4).uniform_rows(64).compare();
}
TEST_P(Moe, SwiGluWithoutBiases) {
  tester().activation(Activation::kSwiGlu).biases(false).uniform_rows(7).compare();
}
TEST_P(Moe, SoftmaxOverAllExperts) {
  tester().router(RouterKind::kSoftmaxThenTopK, false).experts(8, 3).uniform_rows(6).compare();
}
TEST_P(Moe, SoftmaxNormalised) {
  tester().router(RouterKind::kSoftmaxThenTopK, true).experts(8, 3).uniform_rows(6).compare();
}
TEST_P(Moe, HundredTwentyEightExperts) {
  tester().hidden(256).experts(128, 8).uniform_rows(16).compare();
}

TEST_P(Moe, OneRowWithAnyAdapter) {
  for (const AdapterShape& shape : std::vector<AdapterShape>{
           {},
           {.gate_up_rank = 1, .down_rank = 7},
           {.gate_up_rank = 144, .down_rank = 512},
           {.gate_up_rank = 24, .split_gate_up = true},
           {.gate_up_rank = 200, .per_expert_a = false, .split_gate_up = true},
           {.gate_up = false},
           {.down = false}}) {
    MoeTester layer = tester();
    layer.hidden(256).inner(192).experts(8, 3).uniform_rows(1).adapter(1, shape);
    layer.adapter_of_row({1}).compare();
  }
}
TEST_P(Moe, OneRowOfGptOssShapeWithAdapter) {
  for (const bool split_gate_up : {false, true}) {
    MoeTester layer = tester();
    layer.hidden(2880).inner(2880).experts(8, 4).uniform_rows(1);
    layer.adapter(0, {.gate_up_rank = 32, .down_rank = 32, .split_gate_up = split_gate_up});
    layer.adapter_of_row({0}).compare();
  }
}
TEST_P(Moe, OneAdapter) {
  tester().uniform_rows(4).adapter(2, {}).adapter_of_row({2, 2, 2, 2}).compare();
}
TEST_P(Moe, BaseRowsBetweenAdapterRows) { base_rows_between_adapter_rows(tester()); }
TEST_P(Moe, RanksOneToTwoHundredInOneStep) { ranks_one_to_two_hundred_in_one_step(tester()); }
TEST_P(Moe, RankFiveHundredTwelve) { rank_five_hundred_twelve(tester()); }
TEST_P(Moe, GateAndUpWithAnAEach) { gate_and_up_with_an_a_each(tester()); }
TEST_P(Moe, OneAForAllExperts) { one_a_for_all_experts(tester()); }
TEST_P(Moe, MissingProjections) { missing_projections(tester()); }
TEST_P(Moe, SixteenAdaptersInOneTile) { sixteen_adapters_in_one_tile(tester()); }
TEST_P(Moe, AdapterRunsAcrossTiles) {
  tester()
      .experts(2, 1)
      .rows(std::vector<std::vector<int>>(40, {1}))
      .adapter(0, {.gate_up_rank = 33})
      .adapter(1, {.down_rank = 17})
      .adapter_of_row(cycle(40, {0, 0, 0, 1, -1}))
      .compare();
}
TEST_P(Moe, GptOssShapeWithAdapters) {
  tester()
      .hidden(2880)
      .inner(2880)
      .experts(4, 2)
      .uniform_rows(10)
      .adapter(0, {.gate_up_rank = 32, .down_rank = 32})
      .adapter(1, {.gate_up_rank = 32, .down_rank = 32, .split_gate_up = true})
      .adapter_of_row(cycle(10, {0, 1, -1}))
      .compare();
}

// Dependent launch: whoever writes an op's input has triggered long before the input is there.
TEST_P(Moe, SlowPredecessors) {
  tester().hidden(256).inner(192).experts(8, 2).uniform_rows(9).slow_predecessors().compare();
}
// down asks for its weights while gate_up runs.
TEST_P(Moe, SlowPredecessorsOfOneRow) {
  tester().hidden(256).inner(192).experts(8, 2).uniform_rows(1).slow_predecessors().compare();
}
TEST_P(Moe, SlowPredecessorsWithAdapters) {
  tester()
      .hidden(256)
      .inner(192)
      .experts(8, 2)
      .uniform_rows(9)
      .adapter(0, {})
      .adapter_of_row(cycle(9, {0, -1}))
      .slow_predecessors()
      .compare();
}

// Shrinks that are shared out while the product runs: whatever part of the grid runs at a time, and
// however late a share counts as done, nobody waits for a share that nobody works on.
class ShrinksWhileMultiplying : public Moe {
 protected:
  MoeTester layer() const {
    MoeTester layer = tester();
    layer.hidden(256).inner(192).experts(8, 2).uniform_rows(24);
    layer.adapter(0, {}).adapter(1, {.gate_up_rank = 40}).adapter_of_row(cycle(24, {-1, 0, 1}));
    return layer;
  }
  MoeTester one_row() const {
    MoeTester layer = tester();
    layer.hidden(256).inner(192).experts(8, 2).uniform_rows(1);
    layer.adapter(0, {.gate_up_rank = 32, .down_rank = 16}).adapter_of_row({0});
    return layer;
  }
  // All but one multiprocessor are taken.
  static void compare_beside_hog(MoeTester layer) {
    cuda::CudaStream other;
    layer
        .before_running([&](cuda::Context& context) {
          launch_hog(context.num_sms - 1, /*milliseconds=*/20, cuda::cuda_stream(other));
        })
        .compare();
  }
};
INSTANTIATE_TEST_SUITE_P(Formats, ShrinksWhileMultiplying,
                         ::testing::Values(WeightFormat::kFloat, WeightFormat::kMxfp4),
                         [](const auto& format) {
                           return format.param == WeightFormat::kFloat ? "BF16" : "Mxfp4";
                         });

TEST_P(ShrinksWhileMultiplying, GridOfOneBlock) {
  layer().before_running([](cuda::Context& context) { context.num_sms = 1; }).compare();
}
// A block takes its units in several turns.
TEST_P(ShrinksWhileMultiplying, GridOfOneBlockOfOneRow) {
  one_row().before_running([](cuda::Context& context) { context.num_sms = 1; }).compare();
}
TEST_P(ShrinksWhileMultiplying, GridOfTwiceWhatFitsOfOneRow) {
  one_row().before_running([](cuda::Context& context) { context.num_sms *= 2; }).compare();
}
TEST_P(ShrinksWhileMultiplying, GridOfTwiceWhatFits) {
  layer().before_running([](cuda::Context& context) { context.num_sms *= 2; }).compare();
}
TEST_P(ShrinksWhileMultiplying, AnotherKernelHasNearlyAllMultiprocessors) {
  compare_beside_hog(layer());
}
TEST_P(ShrinksWhileMultiplying, AnotherKernelHasNearlyAllMultiprocessorsOfOneRow) {
  compare_beside_hog(one_row());
}
TEST_P(ShrinksWhileMultiplying, LateSharesChangeNothing) {
  Side cuda = Side::cuda();
  const MoeTester::Outputs prompt = layer().run(cuda);
  for (const uint32_t delay_ns : {1000u, 20000u, 200000u}) {
    const MoeTester::Outputs late =
        layer()
            .before_running([=](cuda::Context& context) { context.delay_ns = delay_ns; })
            .run(cuda);
    EXPECT_EQ(prompt.h, late.h) << delay_ns;
    EXPECT_EQ(prompt.y, late.y) << delay_ns;
  }
}
// One row: down starts beside gate_up, and multiplies pair by pair as gate_up counts their units.
TEST_P(ShrinksWhileMultiplying, LateUnitsAndSharesOfOneRow) {
  Side cuda = Side::cuda();
  for (const bool adapter : {false, true}) {
    const auto layer = [&] {
      MoeTester row = one_row();
      if (!adapter) row.adapter_of_row({-1});
      return row;
    };
    layer().compare();
    for (const int num_sms : {132, 3, 1}) {
      const auto run = [&](uint32_t delay_ns) {
        return layer()
            .before_running([=](cuda::Context& context) {
              context.num_sms = num_sms;
              context.delay_ns = delay_ns;
            })
            .run(cuda);
      };
      const MoeTester::Outputs prompt = run(0);
      const MoeTester::Outputs late = run(50000);
      EXPECT_EQ(prompt.h, late.h) << num_sms;
      EXPECT_EQ(prompt.y, late.y) << num_sms;
    }
  }
}

// Rows of the base model must not notice the adapters beside them.
TEST_P(Moe, BaseRowsAreBitwiseEqualWithAndWithoutAdapters) {
  const auto make = [&] {
    return std::move(tester().hidden(256).inner(192).experts(8, 2).uniform_rows(24));
  };
  MoeTester base = make();
  MoeTester mixed = make();
  mixed.adapter(0, {}).adapter(1, {.gate_up_rank = 40}).adapter_of_row(cycle(24, {-1, 0, 1}));
  Side cuda = Side::cuda();
  const MoeTester::Outputs alone = base.run(cuda);
  const MoeTester::Outputs beside = mixed.run(cuda);
  int differing = 0;
  for (int row = 0; row < 24; ++row) {
    for (int i = 0; i < 256; ++i) {
      const bool same = alone.residual[row * 256 + i] == beside.residual[row * 256 + i];
      if (row % 3 == 0) {
        ASSERT_TRUE(same) << "row " << row << ", element " << i;
      } else {
        differing += !same;
      }
    }
  }
  EXPECT_GT(differing, 0) << "adapters changed nothing";
}

TEST_P(Moe, ReplaysAreBitwiseEqual) {
  MoeTester layer = std::move(tester().hidden(256).inner(192).experts(8, 2).uniform_rows(24));
  layer.adapter(0, {}).adapter(1, {.gate_up_rank = 40}).adapter_of_row(cycle(24, {-1, 0, 1}));
  Side cuda = Side::cuda();
  const MoeTester::Outputs first = layer.run(cuda);
  for (int i = 0; i < 10; ++i) {
    const MoeTester::Outputs again = layer.run(cuda);
    ASSERT_EQ(first.h, again.h) << i;
    ASSERT_EQ(first.y, again.y) << i;
    ASSERT_EQ(first.residual, again.residual) << i;
  }
}

}  // namespace
}  // namespace medley::testing
