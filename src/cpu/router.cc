#include <algorithm>
#include <cmath>

#include "cpu/norm.h"
#include "cpu/parallel.h"
#include "cpu/planned_ops.h"
#include "cpu/routing.h"
#include "cpu/simd.h"
#include "cpu/step.h"

namespace medley::cpu {
namespace {

class CpuRouter : public AddNormRoute {
 public:
  CpuRouter(Context& context, const AddNormRouteDesc& desc)
      : context_(context), desc_(desc), cursor_(desc.moe.num_experts + 1) {}

  void run(const AddNormRouteArgs& args, const Step& generic, Stream&) override {
    const CpuStep& step = cpu_step(generic);
    const int rows = step.num_rows();
    run_add_norm(context_, desc_.add_norm, args.add_norm, rows);

    const auto& router = static_cast<const PackedLinear&>(*args.router);
    const int64_t num_experts = desc_.moe.num_experts;
    MEDLEY_CHECK_EQ(router.matrix.rows, num_experts);
    MEDLEY_CHECK_EQ(router.bias.empty(), !desc_.moe.router_bias);
    const TensorView logits{context_.workspace.inner.reserve(rows * num_experts), DType::kF32,
                            Shape()};
    const float* const* x =
        widen_rows(context_, args.add_norm.out, rows, desc_.add_norm.hidden_size);
    float* const* acc = accumulator_rows(context_, logits, rows, num_experts);
    const GemmProblem problem{&router.matrix, x, acc, rows};
    gemm({&problem, 1}, context_.pool);
    if (desc_.lora) {
      apply_dense_lora(context_, *desc_.lora, step.row_groups,
                       {.x = x,
                        .out = acc,
                        .in_size = desc_.add_norm.hidden_size,
                        .out_size = num_experts,
                        .round_s = desc_.add_norm.dtype == DType::kBF16});
    }
    finish_rows(context_, acc, router.bias_or_null(), logits, rows, num_experts);

    auto& routing = static_cast<CpuRouting&>(*args.routing);
    const int k = desc_.moe.experts_per_token;
    MEDLEY_CHECK_LE(static_cast<size_t>(rows) * k, routing.experts.size());
    for (int row = 0; row < rows; ++row) {
      choose(acc[row], routing.experts.data() + int64_t{row} * k,
             routing.weights.data() + int64_t{row} * k);
    }
    group(step, routing);
  }

 private:
  // The k largest logits, largest first, ties to the lower expert; and their weights.
  void choose(const float* logits, int32_t* experts, float* weights) const {
    const MoeSpec& moe = desc_.moe;
    const int k = moe.experts_per_token;
    for (int j = 0; j < k; ++j) {
      int best = -1;
      for (int e = 0; e < moe.num_experts; ++e) {
        if (std::find(experts, experts + j, e) != experts + j) continue;
        if (best < 0 || logits[e] > logits[best]) best = e;
      }
      experts[j] = best;
    }
    const float max = logits[experts[0]];
    float chosen_sum = 0.0f;
    for (int j = 0; j < k; ++j) {
      weights[j] = std::exp(logits[experts[j]] - max);
      chosen_sum += weights[j];
    }
    float sum = chosen_sum;
    if (moe.router == RouterKind::kSoftmaxThenTopK && !moe.normalize_topk) {
      sum = 0.0f;
      for (int e = 0; e < moe.num_experts; ++e) sum += std::exp(logits[e] - max);
    }
    for (int j = 0; j < k; ++j) weights[j] /= sum;
  }

  // A counting sort by expert over rows that come sorted by adapter.
  void group(const CpuStep& step, CpuRouting& routing) {
    const int k = desc_.moe.experts_per_token;
    const int num_pairs = step.num_rows() * k;
    routing.num_routed = num_pairs;
    std::fill(cursor_.begin(), cursor_.end(), 0);
    for (int pair = 0; pair < num_pairs; ++pair) ++cursor_[routing.experts[pair] + 1];
    for (int e = 0; e < desc_.moe.num_experts; ++e) cursor_[e + 1] += cursor_[e];
    const auto place = [&](int row) {
      for (int pair = row * k; pair < (row + 1) * k; ++pair) {
        const int routed = cursor_[routing.experts[pair]]++;
        routing.routed_of_pair[pair] = routed;
        routing.row_of_routed[routed] = row;
      }
    };
    for (int row = 0; row < step.num_rows(); ++row) {
      if (step.adapter_of_row[row] == kNoAdapter) place(row);
    }
    for (const int32_t row : step.row_groups.order) place(row);

    // cursor_[e] is now the end of expert e.
    routing.segments.clear();
    int routed = 0;
    for (int e = 0; e < desc_.moe.num_experts; ++e) {
      for (bool first = true; routed < cursor_[e]; ++routed, first = false) {
        const int slot = step.adapter_of_row[routing.row_of_routed[routed]];
        if (first || routing.segments.back().slot != slot) {
          routing.segments.push_back({e, slot, routed, routed});
        }
        routing.segments.back().end = routed + 1;
      }
    }
  }

  Context& context_;
  AddNormRouteDesc desc_;
  std::vector<int> cursor_;
};

}  // namespace

RoutingCounts CpuRouting::counts(Stream&) const {
  RoutingCounts counts;
  int last_expert = -1;
  for (const RoutingSegment& segment : segments) {
    if (segment.expert != last_expert) ++counts.num_experts;
    if (segment.slot != kNoAdapter) ++counts.num_expert_adapters;
    last_expert = segment.expert;
  }
  return counts;
}

Result<std::unique_ptr<AddNormRoute>> make_router(Context& context, const AddNormRouteDesc& desc) {
  MEDLEY_TRY(check_dtype(desc.add_norm.dtype));
  const MoeSpec& moe = desc.moe;
  if (moe.experts_per_token < 1 || moe.experts_per_token > moe.num_experts) {
    return invalid_argument(fmt::format("experts_per_token {}: expected 1 to {}",
                                        moe.experts_per_token, moe.num_experts));
  }
  reserve_rows(context, desc.add_norm.hidden_size, int64_t{3} * desc.add_norm.hidden_size);
  context.workspace.inner.reserve(static_cast<int64_t>(context.step.max_rows) * moe.num_experts);
  return std::unique_ptr<AddNormRoute>(std::make_unique<CpuRouter>(context, desc));
}

}  // namespace medley::cpu
