#include <algorithm>
#include <numeric>
#include <set>

#include "cpu/routing.h"
#include "cpu/testing.h"

namespace medley::cpu {
namespace {

struct MoeCase {
  MoeSpec moe;
  std::vector<int> adapters;  // one row each
  int hidden = 20;
  DType dtype = DType::kF32;
};

MoeSpec spec(int num_experts, int k) {
  return {.num_experts = num_experts, .experts_per_token = k, .intermediate_size = 12};
}

// add_norm_route, moe_gate_up, moe_down and the combining add_norm against the definitions.
class MoeTest {
 public:
  MoeTest(const MoeCase& c, std::vector<TestModule> adapters)
      : c_(c),
        adapters_(std::move(adapters)),
        residual_(rounded(random_floats(num_rows() * c.hidden, 1), c.dtype)),
        delta_(rounded(random_floats(num_rows() * c.hidden, 2), c.dtype)),
        norm_(random_floats(c.hidden, 3)),
        router_(random_floats(c.moe.num_experts * c.hidden, 4)),
        router_bias_(random_floats(c.moe.num_experts, 5)) {
    for (int e = 0; e < c.moe.num_experts; ++e) {
      gate_up_.push_back(random_floats(2 * inner() * c.hidden, 100 + e, 0.5f));
      gate_up_bias_.push_back(random_floats(2 * inner(), 200 + e, 4.0f));
      down_.push_back(random_floats(c.hidden * inner(), 300 + e, 0.5f));
      down_bias_.push_back(random_floats(c.hidden, 400 + e));
    }
  }

  // All rows go to this expert first.
  void favour(int expert) { router_bias_[expert] = 100.0f; }
  // No row goes to this expert.
  void avoid(int expert) { router_bias_[expert] = -100.0f; }

  void check() {
    run();
    std::vector<double> want_residual, want_out;
    for (int row = 0; row < num_rows(); ++row) append_reference(row, want_residual, want_out);
    expect_close(got_residual_, want_residual, c_.dtype);
    expect_close(got_out_, want_out, c_.dtype);
  }

 private:
  int num_rows() const { return static_cast<int>(c_.adapters.size()); }
  int inner() const { return c_.moe.intermediate_size; }

  void run() {
    TestBackend test;
    test.set_adapter(0, adapters_);
    ExpertGateUpWeights gate_up;
    ExpertDownWeights down;
    for (int e = 0; e < c_.moe.num_experts; ++e) {
      gate_up.gate.push_back(matrix(gate_up_[e], inner(), c_.hidden));
      gate_up.up.push_back(gate_up.gate.back());
      gate_up.up.back().data = gate_up_[e].data() + inner() * c_.hidden;
      down.down.push_back(matrix(down_[e], c_.hidden, inner()));
      if (!c_.moe.expert_bias) continue;
      const float* bias = gate_up_bias_[e].data();
      gate_up.gate_bias.push_back({.dtype = DType::kF32, .data = bias, .size = inner()});
      gate_up.up_bias.push_back({.dtype = DType::kF32, .data = bias + inner(), .size = inner()});
      down.bias.push_back(vector_view(down_bias_[e]));
    }
    LinearWeights router{{matrix(router_, c_.moe.num_experts, c_.hidden)}, {}};
    if (c_.moe.router_bias) router.biases.push_back(vector_view(router_bias_));
    const auto packed_router = test.backend->pack_linear(router).value();
    const auto packed_gate_up = test.backend->pack_experts(gate_up).value();
    const auto packed_down = test.backend->pack_experts(down).value();
    const auto norm = test.vector(norm_);
    const auto routing = test.backend->make_routing({.max_rows = 128, .moe = c_.moe}).value();

    AddNormDesc add{
        .hidden_size = c_.hidden, .dtype = c_.dtype, .delta = AddNormDesc::Delta::kDense};
    const auto route = test.plan(
        AddNormRouteDesc{.add_norm = add, .moe = c_.moe, .lora = LoraSite{LoraModule::kRouter, 0}});
    const auto gate_up_op = test.plan(MoeGateUpDesc{.hidden_size = c_.hidden,
                                                    .moe = c_.moe,
                                                    .dtype = c_.dtype,
                                                    .lora = {LoraModule::kExpertGateUp, 0}});
    const auto down_op = test.plan(MoeDownDesc{.hidden_size = c_.hidden,
                                               .moe = c_.moe,
                                               .dtype = c_.dtype,
                                               .lora = {LoraModule::kExpertDown, 0}});
    add.delta = AddNormDesc::Delta::kRouted;
    add.experts_per_token = c_.moe.experts_per_token;
    const auto combine = test.plan(add);

    test.set_step(rows_with_adapters(c_.adapters));
    const int64_t rows = num_rows(), routed = rows * c_.moe.experts_per_token;
    HostTensor residual = tensor(c_.dtype, {rows, c_.hidden}, residual_);
    HostTensor delta = tensor(c_.dtype, {rows, c_.hidden}, delta_);
    HostTensor x = tensor(c_.dtype, {rows, c_.hidden});
    HostTensor h = tensor(c_.dtype, {routed, inner()}), y = tensor(c_.dtype, {routed, c_.hidden});
    route->run({.add_norm = {.residual = residual.view(),
                             .delta = delta.view(),
                             .norm = norm.get(),
                             .out = x.view()},
                .router = packed_router.get(),
                .routing = routing.get()},
               *test.step, *test.stream);
    gate_up_op->run(
        {.x = x.view(), .routing = routing.get(), .weight = packed_gate_up.get(), .out = h.view()},
        *test.step, *test.stream);
    down_op->run(
        {.x = h.view(), .routing = routing.get(), .weight = packed_down.get(), .out = y.view()},
        *test.step, *test.stream);
    combine->run({.residual = residual.view(),
                  .delta = y.view(),
                  .routing = routing.get(),
                  .norm = norm.get(),
                  .out = x.view()},
                 *test.step, *test.stream);
    check_grouping(static_cast<const CpuRouting&>(*routing));
    check_counts(static_cast<const CpuRouting&>(*routing), routing->counts(*test.stream));
    got_residual_ = values_of(residual);
    got_out_ = values_of(x);
  }

  void check_counts(const CpuRouting& routing, const RoutingCounts& counts) const {
    const int k = c_.moe.experts_per_token;
    std::set<int> experts;
    std::set<std::pair<int, int>> expert_adapters;
    for (int pair = 0; pair < num_rows() * k; ++pair) {
      const int adapter = c_.adapters[pair / k];
      experts.insert(routing.experts[pair]);
      if (adapter != kNoAdapter) expert_adapters.emplace(routing.experts[pair], adapter);
    }
    EXPECT_EQ(counts.num_experts, static_cast<int>(experts.size()));
    EXPECT_EQ(counts.num_expert_adapters, static_cast<int>(expert_adapters.size()));
  }

  // By expert, then adapter, base rows first; every pair once.
  void check_grouping(const CpuRouting& routing) const {
    std::vector<std::pair<int, int>> seen;
    int next = 0;
    for (const RoutingSegment& segment : routing.segments) {
      ASSERT_EQ(segment.begin, next);
      ASSERT_LT(segment.begin, segment.end);
      seen.emplace_back(segment.expert, segment.slot);
      next = segment.end;
      for (int r = segment.begin; r < segment.end; ++r) {
        ASSERT_EQ(c_.adapters[routing.row_of_routed[r]], segment.slot);
      }
    }
    ASSERT_EQ(next, num_rows() * c_.moe.experts_per_token);
    EXPECT_TRUE(std::is_sorted(seen.begin(), seen.end()));
    EXPECT_EQ(std::adjacent_find(seen.begin(), seen.end()), seen.end());
  }

  void add_lora(LoraModule module, int row, int expert, const double* x, double* y) const {
    for (const TestModule& m : adapters_) {
      if (m.site.module == module && c_.adapters[row] == 0) m.add_to(x, expert, y);
    }
  }

  void normalise(std::vector<double>& x) const {
    double sum = 0;
    for (const double v : x) sum += v * v;
    for (size_t i = 0; i < x.size(); ++i) x[i] *= norm_[i] / std::sqrt(sum / x.size() + 1e-6);
  }

  void round(std::vector<double>& x) const {
    if (c_.dtype != DType::kBF16) return;
    for (double& v : x) v = bf16_to_float(float_to_bf16(static_cast<float>(v)));
  }

  void append_reference(int row, std::vector<double>& residuals, std::vector<double>& outs) const {
    std::vector<double> residual(c_.hidden);
    for (int i = 0; i < c_.hidden; ++i) {
      residual[i] =
          static_cast<double>(residual_[row * c_.hidden + i]) + delta_[row * c_.hidden + i];
    }
    round(residual);
    std::vector<double> x = residual;
    normalise(x);
    round(x);

    std::vector<double> logits(c_.moe.num_experts);
    add_product(router_, x.data(), c_.moe.num_experts, c_.hidden, logits.data());
    add_lora(LoraModule::kRouter, row, 0, x.data(), logits.data());
    for (int e = 0; c_.moe.router_bias && e < c_.moe.num_experts; ++e) logits[e] += router_bias_[e];
    std::vector<int> order(c_.moe.num_experts);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](int a, int b) { return logits[a] > logits[b]; });
    double all = 0, chosen = 0;
    for (const double logit : logits) all += std::exp(logit);
    for (int j = 0; j < c_.moe.experts_per_token; ++j) chosen += std::exp(logits[order[j]]);
    const bool over_all = c_.moe.router == RouterKind::kSoftmaxThenTopK && !c_.moe.normalize_topk;

    for (int j = 0; j < c_.moe.experts_per_token; ++j) {
      const int e = order[j];
      const std::vector<double> y = run_expert(row, e, x);
      for (int i = 0; i < c_.hidden; ++i) {
        residual[i] += std::exp(logits[e]) / (over_all ? all : chosen) * y[i];
      }
    }
    round(residual);
    residuals.insert(residuals.end(), residual.begin(), residual.end());
    normalise(residual);
    outs.insert(outs.end(), residual.begin(), residual.end());
  }

  std::vector<double> run_expert(int row, int e, const std::vector<double>& x) const {
    const int n = inner();
    std::vector<double> h(2 * n), act(n), y(c_.hidden);
    add_product(gate_up_[e], x.data(), 2 * n, c_.hidden, h.data());
    add_lora(LoraModule::kExpertGateUp, row, e, x.data(), h.data());
    for (int i = 0; c_.moe.expert_bias && i < 2 * n; ++i) h[i] += gate_up_bias_[e][i];
    for (int i = 0; i < n; ++i) {
      if (c_.moe.activation.kind == Activation::kSwiGlu) {
        act[i] = h[i] / (1 + std::exp(-h[i])) * h[n + i];
      } else {
        const double gate = std::min(h[i], 7.0), up = std::clamp(h[n + i], -7.0, 7.0);
        act[i] = (up + 1) * gate / (1 + std::exp(-1.702 * gate));
      }
    }
    round(act);
    add_product(down_[e], act.data(), c_.hidden, n, y.data());
    add_lora(LoraModule::kExpertDown, row, e, act.data(), y.data());
    for (int i = 0; c_.moe.expert_bias && i < c_.hidden; ++i) y[i] += down_bias_[e][i];
    round(y);
    return y;
  }

  MoeCase c_;
  std::vector<TestModule> adapters_;
  Floats residual_, delta_, norm_, router_, router_bias_;
  std::vector<Floats> gate_up_, gate_up_bias_, down_, down_bias_;
  Floats got_residual_, got_out_;
};

MoeSpec gpt_oss(int num_experts, int k) {
  MoeSpec s = spec(num_experts, k);
  s.router = RouterKind::kTopKThenSoftmax;
  s.router_bias = s.expert_bias = true;
  s.activation = {.kind = Activation::kClampedSwiGlu};
  return s;
}

MoeSpec qwen(int num_experts, int k, bool normalize) {
  MoeSpec s = spec(num_experts, k);
  s.normalize_topk = normalize;
  return s;
}

const std::vector<int> kBaseOnly(13, kNoAdapter);
const std::vector<int> kMixed = {0, -1, 0, 0, -1, -1, 0, -1, 0};
constexpr LoraSite kGateUp{LoraModule::kExpertGateUp, 0}, kDown{LoraModule::kExpertDown, 0};

TEST(Moe, GptOss) { MoeTest({gpt_oss(8, 4), kBaseOnly}, {}).check(); }
TEST(Moe, QwenNormalised) { MoeTest({qwen(8, 2, true), kBaseOnly}, {}).check(); }
TEST(Moe, QwenNotNormalised) { MoeTest({qwen(8, 2, false), kBaseOnly}, {}).check(); }
TEST(Moe, OneRow) { MoeTest({gpt_oss(8, 4), {kNoAdapter}}, {}).check(); }
TEST(Moe, AllExpertsChosen) { MoeTest({qwen(3, 3, true), kBaseOnly}, {}).check(); }

TEST(Moe, AllRowsToOneExpertAndAnEmptyOne) {
  MoeTest test({gpt_oss(6, 2), std::vector<int>(70, kNoAdapter)}, {});
  test.favour(3);
  test.avoid(0);
  test.check();
}

TEST(Moe, FusedAdapterWithOneAPerExpert) {
  MoeTest({gpt_oss(8, 4), kMixed},
          {{kGateUp, {TestPair(0, 24, 7, 20, 10, /*num_a=*/8, /*num_b=*/8)}},
           {kDown, {TestPair(0, 20, 3, 12, 50, 8, 8)}}})
      .check();
}

TEST(Moe, SeparateAForGateAndUp) {
  MoeTest({qwen(8, 2, true), kMixed},
          {{kGateUp, {TestPair(0, 12, 2, 20, 10, 8, 8), TestPair(12, 24, 5, 20, 60, 8, 8)}}})
      .check();
}

TEST(Moe, GateOnlyWithSharedA) {
  MoeTest({qwen(8, 2, true), kMixed}, {{kGateUp, {TestPair(0, 12, 1, 20, 10, 1, 8)}}}).check();
}

TEST(Moe, DownOnlyWithSharedB) {
  MoeTest({qwen(8, 2, true), kMixed}, {{kDown, {TestPair(0, 20, 16, 12, 10, 8, 1)}}}).check();
}

TEST(Moe, WhatExpertsShareIsPackedOnce) {
  const auto num_bytes = [](int num_a, int num_b) {
    const LoraModuleWeights weights =
        TestModule{kGateUp, {TestPair(0, 24, 7, 20, 10, num_a, num_b)}}.view();
    TestBackend test;
    return test.backend->pack_adapter({&weights, 1}).value()->num_bytes();
  };
  EXPECT_GE(num_bytes(8, 8) - num_bytes(1, 8), 7 * (7 * 20) * sizeof(float));
  EXPECT_GE(num_bytes(8, 8) - num_bytes(8, 1), 7 * (24 * 7) * sizeof(float));
}

TEST(Moe, RouterAdapter) {
  MoeTest({gpt_oss(8, 4), kMixed}, {{{LoraModule::kRouter, 0}, {TestPair(0, 8, 4, 20, 10)}}})
      .check();
}

TEST(Moe, BFloat16) {
  MoeTest({.moe = gpt_oss(8, 4), .adapters = kBaseOnly, .dtype = DType::kBF16}, {}).check();
}

TEST(Moe, ExpertsThatAnAdapterLeavesOut) {
  TestModule module{kDown, {TestPair(0, 4, 2, 32, 10, 2, 2)}};
  LoraModuleWeights weights = module.view();
  weights.pairs[0].a[1] = weights.pairs[0].b[1] = {};
  TestBackend test;
  test.set_adapter(0, std::span(&weights, 1));
  MoeSpec moe = spec(2, 2);
  moe.intermediate_size = 32;
  moe.router = RouterKind::kTopKThenSoftmax;
  const Floats zeros(4 * 32, 0.0f), x = random_floats(4, 3);
  const Floats router = {0, 0, 0, 0, 0, 0, 0, 0};  // ties: expert 0 first
  const auto packed_router = test.backend->pack_linear({{matrix(router, 2, 4)}, {}}).value();
  const auto down = test.backend
                        ->pack_experts(ExpertDownWeights{
                            .down = {matrix(zeros, 4, 32), matrix(zeros, 4, 32)}, .bias = {}})
                        .value();
  const auto norm = test.vector(Floats(4, 1.0f));
  const auto routing = test.backend->make_routing({.max_rows = 1, .moe = moe}).value();
  const auto route =
      test.plan(AddNormRouteDesc{.add_norm = {.hidden_size = 4, .dtype = DType::kF32}, .moe = moe});
  const auto op =
      test.plan(MoeDownDesc{.hidden_size = 4, .moe = moe, .dtype = DType::kF32, .lora = kDown});
  test.set_step(rows_with_adapters(std::vector<int>{0}));
  HostTensor residual = tensor(DType::kF32, {1, 4}, x), out = tensor(DType::kF32, {1, 4});
  route->run({.add_norm = {.residual = residual.view(), .norm = norm.get(), .out = out.view()},
              .router = packed_router.get(),
              .routing = routing.get()},
             *test.step, *test.stream);
  const auto& grouped = static_cast<const CpuRouting&>(*routing);
  EXPECT_EQ(grouped.experts[0], 0);
  EXPECT_EQ(grouped.experts[1], 1);
  EXPECT_EQ(grouped.weights[0], 0.5f);
  const Floats h = random_floats(64, 4);
  HostTensor ht = tensor(DType::kF32, {2, 32}, h), y = tensor(DType::kF32, {2, 4});
  op->run({.x = ht.view(), .routing = routing.get(), .weight = down.get(), .out = y.view()},
          *test.step, *test.stream);
  std::vector<double> want(8);
  const std::vector<double> hd(h.begin(), h.begin() + 32);
  module.add_to(hd.data(), 0, want.data());
  expect_close(values_of(y), want, DType::kF32);
}

// OCP MX v1.0: nibble 0x2 is 1, 0x7 is 6, 0x9 is -0.5; scale byte 128 is 2, 127 is 1.
TEST(PackExperts, Mxfp4) {
  std::vector<uint8_t> blocks(2 * 16, 0x00), scales = {128, 127};
  blocks[0] = 0x72;   // row 0: columns 0 and 1
  blocks[16] = 0x09;  // row 1: column 0
  const MatrixView view{.format = WeightFormat::kMxfp4,
                        .data = blocks.data(),
                        .scales = scales.data(),
                        .rows = 2,
                        .cols = 32,
                        .row_stride = 16,
                        .scale_row_stride = 1};
  TestBackend test;
  const auto packed = test.backend->pack_linear({{view}, {}}).value();
  const auto op = test.plan(LinearDesc{.in_size = 32, .out_sizes = {2}, .dtype = DType::kF32});
  test.set_step(rows_with_adapters(std::vector<int>{-1}));
  Floats x(32, 0.0f);
  x[0] = 1.0f;
  x[1] = 10.0f;
  HostTensor xt = tensor(DType::kF32, {1, 32}, x), y = tensor(DType::kF32, {1, 2});
  op->run({.x = xt.view(), .weight = packed.get(), .out = y.view()}, *test.step, *test.stream);
  EXPECT_EQ(values_of(y), (Floats{2.0f + 120.0f, -0.5f}));

  scales[1] = 255;
  const auto refused =
      test.backend->pack_experts(ExpertDownWeights{.down = {view, view}, .bias = {}});
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().message,
            "expert 0, down, row 1, block 0: the E8M0 scale is 255 (NaN), expected at most 254");
  scales[1] = 127;
  scales[0] = 254;  // 6 * 2^127 is beyond float32
  EXPECT_FALSE(test.backend->pack_experts(ExpertDownWeights{.down = {view}, .bias = {}}).ok());
}

}  // namespace
}  // namespace medley::cpu
