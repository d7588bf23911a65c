#include <algorithm>
#include <array>
#include <numeric>
#include <tuple>

#include "cpu/routing.h"
#include "cuda/routing.h"
#include "moe_tester.h"

// add_norm_route: which experts, which weights, and where each (row, expert) pair goes, for any
// number of pairs; and what the expert products make of many rows.

namespace medley::testing {
namespace {

constexpr int kSlots = 300;

template <class T>
std::vector<T> read(const T* device, size_t count) {
  std::vector<T> host(count);
  MEDLEY_CUDA_CHECK(cudaMemcpy(host.data(), device, count * sizeof(T), cudaMemcpyDeviceToHost));
  return host;
}

struct RouteCase {
  std::string name;
  int num_experts = 8;
  int experts_per_token = 2;
  RouterKind kind = RouterKind::kTopKThenSoftmax;
  bool normalize = true;
  int hidden = 64;
  std::vector<std::vector<int>> wanted = {};  // by row, best first
  std::vector<int32_t> adapter_of_row = {};   // empty: the base model
  // Ranks of the router's adapters, by slot; 0 = the slot's adapter has none.
  std::vector<int> router_ranks = {};
  // Where s is large, so is what one rounding of it the other way is worth.
  float lora_b_scale = 1.0f;
};

std::vector<std::vector<int>> uniform(int rows, int num_experts, int k, uint32_t seed = 3) {
  std::mt19937 engine(seed);
  std::vector<int> all(num_experts);
  std::iota(all.begin(), all.end(), 0);
  std::vector<std::vector<int>> wanted;
  for (int row = 0; row < rows; ++row) {
    std::shuffle(all.begin(), all.end(), engine);
    wanted.emplace_back(all.begin(), all.begin() + k);
  }
  return wanted;
}

std::vector<int32_t> cycle(int count, std::vector<int32_t> slots) {
  std::vector<int32_t> out(count);
  for (int i = 0; i < count; ++i) out[i] = slots[i % slots.size()];
  return out;
}

std::vector<int32_t> random_slots(int count, int num_slots) {
  std::mt19937 engine(11);
  std::vector<int32_t> out(count);
  for (int32_t& slot : out) slot = static_cast<int32_t>(engine() % (num_slots + 1)) - 1;
  return out;
}

class RouteTester {
 public:
  explicit RouteTester(const RouteCase& c)
      : case_(c), rows_(static_cast<int>(c.wanted.size())), moe_(moe_of(c)) {
    if (case_.adapter_of_row.empty()) case_.adapter_of_row.assign(rows_, kNoAdapter);
    const int64_t hidden = c.hidden;
    router_.assign(c.num_experts * hidden, 0.0f);
    for (int e = 0; e < c.num_experts; ++e) router_[e * hidden + e] = 1.0f;
    bias_ = random_values(c.num_experts, 7, 0.01f);
    norm_ = random_values(hidden, 8, 0.1f);
    for (float& value : norm_) value += 1.0f;
    for (int e = 0; e < c.num_experts; ++e) norm_[e] = 1.0f;
    residual_ = random_values(rows_ * hidden, 9);
    for (int row = 0; row < rows_; ++row) {
      float* features = residual_.data() + row * hidden;
      for (int e = 0; e < c.num_experts; ++e) {
        features[e] = -2.0f + 0.01f * static_cast<float>(e % 7);
      }
      for (size_t j = 0; j < c.wanted[row].size(); ++j) {
        features[c.wanted[row][j]] = 3.0f - 0.25f * static_cast<float>(j);
      }
    }
    delta_ = random_values(rows_ * hidden, 10);
    for (int row = 0; row < rows_; ++row) {
      std::fill_n(delta_.begin() + row * hidden, c.num_experts, 0.0f);
    }
    for (size_t slot = 0; slot < c.router_ranks.size(); ++slot) {
      const int64_t rank = c.router_ranks[slot];
      const auto seed = static_cast<uint32_t>(100 + slot);
      lora_a_.push_back(random_values(rank * hidden, seed, 0.1f));
      lora_b_.push_back(random_values(c.num_experts * rank, seed + 50, c.lora_b_scale));
    }
  }

  void compare() {
    Side cpu = Side::cpu();
    Side cuda = Side::cuda();
    const Routed by_cpu = run(cpu);
    const Routed by_cuda = run(cuda);
    expect_close(by_cpu.normed, by_cuda.normed, "normalised");
    EXPECT_EQ(by_cpu.residual, by_cuda.residual) << "residual + delta, rounded";
    const auto& want = static_cast<const cpu::CpuRouting&>(*by_cpu.routing);
    const auto& routing = static_cast<const cuda::CudaRouting&>(*by_cuda.routing);
    const size_t pairs = static_cast<size_t>(rows_) * case_.experts_per_token;
    const cuda::RoutingView view = routing.view();
    const auto experts = read(view.expert_of_choice, pairs);
    ASSERT_EQ(std::vector<int32_t>(want.experts.begin(), want.experts.begin() + pairs), experts);
    const auto weights = read(view.weight_of_choice, pairs);
    for (size_t i = 0; i < pairs; ++i) {
      ASSERT_NEAR(want.weights[i], weights[i], 2e-5f + 2e-3f * has_router_lora()) << "choice " << i;
    }
    ASSERT_EQ(
        std::vector<int32_t>(want.routed_of_pair.begin(), want.routed_of_pair.begin() + pairs),
        read(view.pair_of_choice, pairs));
    const auto rows = read(view.row_of_pair, pairs);
    ASSERT_EQ(std::vector<int32_t>(want.row_of_routed.begin(), want.row_of_routed.begin() + pairs),
              rows);
    check_tiles(view, experts, rows);
    const RoutingCounts want_counts = want.counts(cpu.stream());
    const RoutingCounts counts = routing.counts(cuda.stream());
    EXPECT_EQ(want_counts.num_experts, counts.num_experts);
    EXPECT_EQ(want_counts.num_expert_adapters, counts.num_expert_adapters);
  }

 private:
  static MoeSpec moe_of(const RouteCase& c) {
    MoeSpec moe = {.num_experts = c.num_experts,
                   .experts_per_token = c.experts_per_token,
                   .intermediate_size = 32};
    moe.router = c.kind;
    moe.normalize_topk = c.normalize;
    moe.router_bias = true;
    return moe;
  }
  bool has_router_lora() const { return !case_.router_ranks.empty(); }

  struct Routed {
    std::unique_ptr<Routing> routing;
    std::vector<float> normed, residual;
  };

  // Tiles and segments follow from the sorted pairs: cut each expert's into runs of 16 (8, where
  // experts get few), and each of those where the adapter changes.
  void check_tiles(const cuda::RoutingView& view, const std::vector<int32_t>& experts,
                   const std::vector<int32_t>& rows) const {
    std::vector<int> count_of_expert(case_.num_experts, 0);
    for (const int32_t e : experts) ++count_of_expert[e];
    const int num_tiles = read(view.num_tiles, 1)[0];
    int tiles_of_16 = 0;
    for (const int count : count_of_expert) tiles_of_16 += (count + 15) / 16;
    const int tile_rows = num_tiles == tiles_of_16 ? 16 : 8;
    std::vector<std::array<int, 5>> tiles;     // expert, begin, count, first segment, segments
    std::vector<std::array<int, 4>> segments;  // expert, slot, begin, count
    int begin = 0;
    for (int e = 0; e < case_.num_experts; ++e) {
      const int end = begin + count_of_expert[e];
      while (begin < end) {
        const int tile_end = std::min(end, begin + tile_rows);
        tiles.push_back({e, begin, tile_end - begin, static_cast<int>(segments.size()), 0});
        for (int i = begin; i < tile_end; ++i) {
          const int slot = case_.adapter_of_row[rows[i]];
          if (slot < 0) continue;
          if (i == begin || case_.adapter_of_row[rows[i - 1]] != slot) {
            segments.push_back({e, slot, i, 0});
            ++tiles.back()[4];
          }
          ++segments.back()[3];
        }
        begin = tile_end;
      }
    }
    ASSERT_EQ(num_tiles, static_cast<int>(tiles.size()));
    ASSERT_EQ(read(view.num_segments, 1)[0], static_cast<int>(segments.size()));
    const auto found_tiles = read(view.tiles, tiles.size());
    for (size_t i = 0; i < tiles.size(); ++i) {
      const cuda::RouteTile& t = found_tiles[i];
      ASSERT_EQ(tiles[i],
                (std::array<int, 5>{t.expert, t.begin, t.count, t.segment_begin, t.segment_count}))
          << "tile " << i;
    }
    const auto found_segments = read(view.segments, segments.size());
    for (size_t i = 0; i < segments.size(); ++i) {
      const cuda::RouteSegment& s = found_segments[i];
      ASSERT_EQ(segments[i], (std::array<int, 4>{s.expert, s.slot, s.begin, s.count}))
          << "segment " << i;
    }
  }

  Routed run(Side& side) const {
    Backend& backend = side.backend();
    const auto step =
        backend.make_step({.max_rows = rows_, .max_seqs = rows_, .max_pages = 1}).value();
    Routed out = {.routing = backend.make_routing({.max_rows = rows_, .moe = moe_}).value()};
    EXPECT_TRUE(backend.make_lora_table({.max_slots = kSlots, .num_layers = 1}).ok());
    const int64_t hidden = case_.hidden;
    const auto router =
        backend
            .pack_linear({.parts = {matrix_view(router_, case_.num_experts, hidden)},
                          .biases = {vector_view(bias_)}})
            .value();
    const auto norm = backend.pack_vector(vector_view(norm_)).value();
    const LoraSite site = {LoraModule::kRouter, 0};
    const auto op = backend
                        .plan(AddNormRouteDesc{.add_norm = {.hidden_size = case_.hidden,
                                                            .delta = AddNormDesc::Delta::kDense},
                                               .moe = moe_,
                                               .lora = site})
                        .value();
    const auto adapters = upload_adapters(side, site);
    const std::vector<int32_t> zeros(rows_, 0);
    const std::vector<int32_t> zero = {0}, indptr = {0, rows_}, lens = {rows_}, pages = {0, 1};
    step->update({.token_ids = zeros,
                  .positions = zeros,
                  .seq_of_row = zeros,
                  .adapter_of_row = case_.adapter_of_row,
                  .q_indptr = indptr,
                  .kv_lens = lens,
                  .page_indptr = pages,
                  .page_ids = zero,
                  .sampler_slots = zero},
                 side.stream());
    const TensorView residual = side.upload(residual_, DType::kBF16, {rows_, hidden});
    const TensorView delta = side.upload(delta_, DType::kBF16, {rows_, hidden});
    const TensorView normed = side.empty(DType::kBF16, {rows_, hidden});
    op->run({.add_norm = {.residual = residual, .delta = delta, .norm = norm.get(), .out = normed},
             .router = router.get(),
             .routing = out.routing.get()},
            *step, side.stream());
    out.normed = side.download(normed);
    out.residual = side.download(residual);
    return out;
  }

  struct Uploaded {
    std::unique_ptr<PackedAdapter> packed;
    std::unique_ptr<DeviceAdapter> on_device;
  };
  std::vector<Uploaded> upload_adapters(Side& side, const LoraSite& site) const {
    std::vector<Uploaded> out;
    for (size_t slot = 0; slot < case_.router_ranks.size(); ++slot) {
      const int rank = case_.router_ranks[slot];
      if (rank == 0) continue;
      const LoraModuleWeights module = {
          .site = site,
          .pairs = {{.row_begin = 0,
                     .row_end = case_.num_experts,
                     .rank = rank,
                     .a = {matrix_view(lora_a_[slot], rank, case_.hidden)},
                     .b = {matrix_view(lora_b_[slot], case_.num_experts, rank)},
                     .scale = random_values(rank, static_cast<uint32_t>(slot), 0.3f)}}};
      Uploaded adapter = {.packed = side.backend().pack_adapter({&module, 1}).value()};
      adapter.on_device = side.backend().upload_adapter(*adapter.packed).value();
      side.backend().set_adapter(static_cast<int>(slot), *adapter.on_device, side.stream());
      out.push_back(std::move(adapter));
    }
    return out;
  }

  static VectorView vector_view(const std::vector<float>& values) {
    return {
        .dtype = DType::kF32, .data = values.data(), .size = static_cast<int64_t>(values.size())};
  }
  static MatrixView matrix_view(const std::vector<float>& values, int64_t rows, int64_t cols) {
    return {.dtype = DType::kF32,
            .data = values.data(),
            .rows = rows,
            .cols = cols,
            .row_stride = cols};
  }

  RouteCase case_;
  int rows_;
  MoeSpec moe_;
  std::vector<float> router_, bias_, norm_, residual_, delta_;
  std::vector<std::vector<float>> lora_a_, lora_b_;
};

void compare(RouteCase c) { RouteTester(std::move(c)).compare(); }

TEST(Route, PairsThatOneBlockGroups) {
  compare(
      {.num_experts = 8, .wanted = uniform(512, 8, 2), .adapter_of_row = random_slots(512, 20)});
}
TEST(Route, OnePairMore) {
  compare({.num_experts = 32,
           .experts_per_token = 1,
           .wanted = uniform(1025, 32, 1),
           .adapter_of_row = random_slots(1025, 20)});
}
TEST(Route, AllPairsOnOneExpert) {
  compare({.num_experts = 16,
           .experts_per_token = 1,
           .wanted = std::vector<std::vector<int>>(1600, {9})});
}
TEST(Route, AllPairsOnTheLastExpertWithOneAdapterEach) {
  compare({.num_experts = 16,
           .experts_per_token = 1,
           .wanted = std::vector<std::vector<int>>(1600, {15}),
           .adapter_of_row = random_slots(1600, 299)});
}
TEST(Route, EmptyExperts) {
  std::vector<std::vector<int>> wanted = uniform(900, 4, 2);
  for (auto& row : wanted) {
    for (int& expert : row) expert = 3 + 31 * expert;
  }
  compare({.num_experts = 128,
           .hidden = 128,
           .wanted = std::move(wanted),
           .adapter_of_row = cycle(900, {-1, 7, 7, 2})});
}
TEST(Route, ThreeRowsOnOneExpertAndManyOnAnother) {
  std::vector<std::vector<int>> wanted(1300, {2});
  for (const int row : {0, 700, 1299}) wanted[row] = {5};
  compare({.experts_per_token = 1, .wanted = std::move(wanted)});
}
TEST(Route, GptOssPrefill) {
  compare({.num_experts = 32,
           .experts_per_token = 4,
           .wanted = uniform(1600, 32, 4),
           .adapter_of_row = random_slots(1600, 8)});
}
TEST(Route, QwenPrefillWithThreeHundredSlots) {
  compare({.num_experts = 128,
           .experts_per_token = 8,
           .kind = RouterKind::kSoftmaxThenTopK,
           .hidden = 128,
           .wanted = uniform(2000, 128, 8),
           .adapter_of_row = random_slots(2000, 300)});
}
TEST(Route, SixtyFiveThousandPairs) {
  compare({.num_experts = 128,
           .experts_per_token = 8,
           .kind = RouterKind::kSoftmaxThenTopK,
           .normalize = false,
           .hidden = 128,
           .wanted = uniform(8192, 128, 8),
           .adapter_of_row = random_slots(8192, 40)});
}

TEST(RouterLora, FewRows) {
  compare(
      {.wanted = uniform(6, 8, 2), .adapter_of_row = cycle(6, {0, -1, 1}), .router_ranks = {8, 3}});
}
TEST(RouterLora, RanksOneToFiveHundredTwelve) {
  compare({.num_experts = 40,
           .hidden = 96,
           .wanted = uniform(24, 40, 2),
           .adapter_of_row = cycle(24, {0, 1, 2, 3, 4, 5, -1}),
           .router_ranks = {1, 7, 16, 64, 200, 512}});
}
TEST(RouterLora, AdaptersThatLeaveTheRouterAsItIs) {
  compare({.num_experts = 32,
           .experts_per_token = 4,
           .wanted = uniform(40, 32, 4),
           .adapter_of_row = cycle(40, {0, 1, 2, -1}),
           .router_ranks = {0, 16, 0}});
}
TEST(RouterLora, ManyRows) {
  compare({.num_experts = 32,
           .experts_per_token = 4,
           .wanted = uniform(700, 32, 4),
           .adapter_of_row = random_slots(700, 5),
           .router_ranks = {8, 0, 24, 64, 5}});
}
TEST(RouterLora, GptOssShape) {
  compare({.num_experts = 32,
           .experts_per_token = 4,
           .hidden = 2880,
           .wanted = uniform(9, 32, 4),
           .adapter_of_row = cycle(9, {0, -1}),
           .router_ranks = {32},
           .lora_b_scale = 0.1f});
}

// The expert products for more rows than decode ever has.
class Prefill : public ::testing::TestWithParam<std::tuple<WeightFormat, int>> {
 protected:
  int rows() const { return std::get<1>(GetParam()); }
  MoeTester tester() const {
    return std::move(MoeTester()
                         .format(std::get<0>(GetParam()))
                         .activation(Activation::kClampedSwiGlu)
                         .biases(true)
                         .hidden(128)
                         .inner(96));
  }
};
INSTANTIATE_TEST_SUITE_P(
    Rows, Prefill,
    ::testing::Combine(::testing::Values(WeightFormat::kFloat, WeightFormat::kMxfp4),
                       ::testing::Values(128, 512, 1600)),
    [](const auto& info) {
      return std::string(std::get<0>(info.param) == WeightFormat::kFloat ? "BF16" : "Mxfp4") + "x" +
             std::to_string(std::get<1>(info.param));
    });

TEST_P(Prefill, Uniform) { tester().experts(32, 4).uniform_rows(rows()).compare(); }
TEST_P(Prefill, UniformWithAdapters) {
  tester()
      .experts(32, 4)
      .uniform_rows(rows())
      .adapter(0, {.gate_up_rank = 32, .down_rank = 32})
      .adapter(3, {.gate_up_rank = 7, .down_rank = 40, .split_gate_up = true})
      .adapter(9, {.down = false})
      .adapter_of_row(cycle(rows(), {0, -1, 3, 9, 9}))
      .compare();
}
TEST_P(Prefill, ThreeRowsOnOneExpertAndTheRestOnAnother) {
  std::vector<std::vector<int>> wanted(rows(), {3, 0});
  for (const int row : {1, 50, 120}) wanted[row] = {2, 0};
  tester()
      .experts(8, 2)
      .rows(std::move(wanted))
      .adapter(1, {.gate_up_rank = 16, .down_rank = 16})
      .adapter_of_row(cycle(rows(), {1, 1, 1, -1}))
      .compare();
}

}  // namespace
}  // namespace medley::testing
