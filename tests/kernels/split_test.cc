#include "moe_lora_cases.h"
#include "moe_tester.h"

// The split path against the CPU backend: every setting of its switches over the edges that a
// segment, a tile, a unit or a split might get wrong.

namespace medley::testing {
namespace {

using cuda::SplitK;
using cuda::SplitLoraOptions;
using cuda::SplitSwitches;

struct Setting {
  const char* name;
  SplitSwitches switches;
};
constexpr Setting kSettings[] = {
    {"AllOn", {}},
    {"SplitKOff", {.split_k = SplitK::kOff}},
    {"SplitKAtomic", {.split_k = SplitK::kAtomic}},
    {"PlainOrder", {.swizzle = false}},
    {"TailPredicates", {.even_k = false}},
    {"DeltaThenAdd", {.fused_add = false}},
    {"Untuned", {.tuned = false}},
    {"AllOff", {SplitK::kOff, false, false, false, false}},
};

MoeTester tester(const SplitSwitches& switches) {
  MoeTester out;
  out.activation(Activation::kClampedSwiGlu).biases(true).split({.switches = switches});
  return out;
}

class Split : public ::testing::TestWithParam<Setting> {
 protected:
  MoeTester tester() const { return testing::tester(GetParam().switches); }
};
INSTANTIATE_TEST_SUITE_P(Settings, Split, ::testing::ValuesIn(kSettings),
                         [](const auto& setting) { return setting.param.name; });

TEST_P(Split, OneRowOfTheBaseModel) { tester().uniform_rows(1).compare(); }
TEST_P(Split, OneRow) { tester().uniform_rows(1).adapter(2, {}).adapter_of_row({2}).compare(); }
TEST_P(Split, NineRowsOfOneAdapterSpillIntoTheSecondHalf) {
  tester()
      .experts(2, 1)
      .rows(std::vector<std::vector<int>>(9, {1}))
      .adapter(0, {})
      .adapter_of_row(cycle(9, {0}))
      .compare();
}
TEST_P(Split, ThreeRowsOnOneExpertAndSixtyOnAnother) {
  std::vector<std::vector<int>> wanted(60, {3});
  wanted.insert(wanted.end(), 3, {0});
  tester()
      .experts(4, 1)
      .rows(std::move(wanted))
      .adapter(0, {})
      .adapter(1, {})
      .adapter_of_row(cycle(63, {0, 0, 0, 1, -1}))
      .compare();
}
TEST_P(Split, BaseRowsBetweenAdapterRows) { base_rows_between_adapter_rows(tester()); }
TEST_P(Split, RanksOneToTwoHundredInOneStep) { ranks_one_to_two_hundred_in_one_step(tester()); }
TEST_P(Split, RankFiveHundredTwelve) { rank_five_hundred_twelve(tester()); }
TEST_P(Split, GateAndUpWithAnAEach) { gate_and_up_with_an_a_each(tester()); }
TEST_P(Split, OneAForAllExperts) { one_a_for_all_experts(tester()); }
TEST_P(Split, MissingProjections) { missing_projections(tester()); }
TEST_P(Split, SixteenAdaptersInOneTile) { sixteen_adapters_in_one_tile(tester()); }
TEST_P(Split, ColumnsAndUnitsNoMultipleOfATile) {
  tester()
      .hidden(96)
      .inner(168)
      .format(WeightFormat::kFloat)
      .uniform_rows(5)
      .adapter(0, {})
      .adapter_of_row(cycle(5, {0}))
      .compare();
}
TEST_P(Split, GptOssShape) {
  tester()
      .hidden(2880)
      .inner(2880)
      .experts(4, 2)
      .format(WeightFormat::kMxfp4)
      .uniform_rows(10)
      .adapter(0, {.gate_up_rank = 32, .down_rank = 32})
      .adapter(1, {.gate_up_rank = 48, .down_rank = 32, .split_gate_up = true})
      .adapter_of_row(cycle(10, {0, 1, -1}))
      .compare();
}
TEST_P(Split, SlowPredecessors) {
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

TEST(SplitExpand, NoTailPredicatesWhereRanksAreMultiplesOfAStep) {
  for (const bool fused_add : {true, false}) {
    MoeTester layer = tester({});
    layer.split({.switches = {.fused_add = fused_add}, .rank_multiple = 32})
        .hidden(256)
        .inner(192)
        .uniform_rows(9)
        .adapter(0, {.gate_up_rank = 32, .down_rank = 64})
        .adapter(1, {.gate_up_rank = 96, .down_rank = 32, .split_gate_up = true})
        .adapter_of_row(cycle(9, {0, 1, -1}))
        .compare();
  }
}

TEST(SplitExpand, WarpsThatTakeSeveralTilesEach) {
  for (const int repeats : {2, 6}) {
    MoeTester layer = tester({});
    // 34 and 26 units: the last block's tile is cut at every place.
    layer.split({.expand = cuda::SplitExpandConfig{.num_warps = 2, .repeats = repeats, .group = 4}})
        .hidden(416)
        .inner(272)
        .format(WeightFormat::kFloat)
        .uniform_rows(9)
        .adapter(0, {.gate_up_rank = 40, .down_rank = 16})
        .adapter_of_row(cycle(9, {0, -1}))
        .compare();
  }
}

MoeTester mixed_layer(const SplitSwitches& switches) {
  MoeTester layer = tester(switches);
  layer.hidden(256).inner(192).experts(8, 2).uniform_rows(24).adapter(0, {}).adapter(
      1, {.gate_up_rank = 40});
  return layer;
}

// Rows of the base model must not notice the adapters beside them.
TEST(SplitRows, BaseRowsAreBitwiseEqualWithAndWithoutAdapters) {
  for (const Setting& setting : kSettings) {
    MoeTester base = mixed_layer(setting.switches);
    MoeTester mixed = mixed_layer(setting.switches);
    mixed.adapter_of_row(cycle(24, {-1, 0, 1}));
    Side cuda = Side::cuda();
    const MoeTester::Outputs alone = base.run(cuda);
    const MoeTester::Outputs beside = mixed.run(cuda);
    int differing = 0;
    for (int row = 0; row < 24; ++row) {
      for (int i = 0; i < 256; ++i) {
        const bool same = alone.residual[row * 256 + i] == beside.residual[row * 256 + i];
        if (row % 3 == 0) {
          ASSERT_TRUE(same) << setting.name << ": row " << row << ", element " << i;
        } else {
          differing += !same;
        }
      }
    }
    EXPECT_GT(differing, 0) << setting.name << ": adapters changed nothing";
  }
}

TEST(SplitRows, ReplaysAreBitwiseEqualUnlessSumsAreAtomic) {
  for (const Setting& setting : kSettings) {
    if (setting.switches.split_k == SplitK::kAtomic) continue;
    MoeTester layer = mixed_layer(setting.switches);
    layer.adapter_of_row(cycle(24, {-1, 0, 1}));
    Side cuda = Side::cuda();
    const MoeTester::Outputs first = layer.run(cuda);
    for (int i = 0; i < 10; ++i) {
      const MoeTester::Outputs again = layer.run(cuda);
      ASSERT_EQ(first.h, again.h) << setting.name << ", replay " << i;
      ASSERT_EQ(first.y, again.y) << setting.name << ", replay " << i;
    }
  }
}

}  // namespace
}  // namespace medley::testing
