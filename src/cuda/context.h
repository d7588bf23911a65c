#pragma once

#include "cuda/lora_adapter.h"
#include "cuda/memory.h"
#include "cuda/step.h"
#include "cuda/stream.h"

namespace medley::cuda {

// What all ops of a backend share.
struct Context {
  int num_sms = 0;
  size_t shared_limit = 0;  // dynamic shared memory of a block of expert_gemm
  LoraTable lora;
  DeviceBuffer shrink_out;          // (pairs, kShrinkStride) bfloat16
  DeviceBuffer last_token_of_slot;  // (kMaxSamplerSlots) int32: what each sampler slot sampled last
  std::vector<std::unique_ptr<StepPlanner>> planners;

  // Makes room for a step of `max_pairs` pairs. At start-up only: recorded graphs hold the address.
  Result<void> reserve_pairs(int max_pairs);
};

// q, k and v may each have an A of the largest rank.
inline constexpr int kShrinkStride = 3 * kMaxRank;
inline constexpr int kMaxSamplerSlots = 4096;

Result<std::unique_ptr<AddNorm>> plan_add_norm(const AddNormDesc& desc);
Result<std::unique_ptr<AddNormRoute>> plan_add_norm_route(const AddNormRouteDesc& desc);
Result<std::unique_ptr<MoeGateUp>> plan_moe_gate_up(Context& context, const MoeGateUpDesc& desc);
Result<std::unique_ptr<MoeDown>> plan_moe_down(Context& context, const MoeDownDesc& desc);
Result<std::unique_ptr<Linear>> plan_linear(Context& context, const LinearDesc& desc);
Result<std::unique_ptr<LmHead>> plan_lm_head(Context& context, const LmHeadDesc& desc);

}  // namespace medley::cuda
