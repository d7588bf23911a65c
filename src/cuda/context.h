#pragma once

#include "cuda/device_rope_table.h"
#include "cuda/lora_adapter.h"
#include "cuda/memory.h"
#include "cuda/step.h"
#include "cuda/stream.h"

namespace medley::cuda {

// What all ops of a backend share.
struct Context {
  int num_sms = 0;          // blocks of expert_gemm
  uint32_t delay_ns = 0;    // for tests (expert_gemm_kernel.h, dense_gemm_kernel.h)
  size_t shared_limit = 0;  // dynamic shared memory of a block of expert_gemm
  LoraTable lora;
  DeviceBuffer shrink_out;          // (pairs, kShrinkStride) bfloat16
  DeviceBuffer dense_shrink;        // the words of a DenseShrinkQueue
  DeviceBuffer mlp_inner;           // (max_rows, I) bfloat16: between dense_mlp's two products
  DeviceBuffer last_token_of_slot;  // (kMaxSamplerSlots) int32: what each sampler slot sampled last
  StepDesc step;                    // the largest so far
  std::vector<std::unique_ptr<StepPlanner>> planners;
  DeviceRopeTables rope_tables;

  // Makes room for a step of `max_pairs` pairs. At start-up only: recorded graphs hold the address.
  Result<void> reserve_pairs(int max_pairs);
  // Once, before the first step is planned.
  Result<void> make_dense_shrink();
  // The same for steps of these capacities, in what planners hold.
  Result<void> reserve_step(const StepDesc& desc);
};

// q, k and v may each have an A of the largest rank.
inline constexpr int kShrinkStride = 3 * kMaxRank;
inline constexpr int kMaxSamplerSlots = 4096;

Result<std::unique_ptr<Embed>> plan_embed(Context& context, const EmbedDesc& desc);
Result<std::unique_ptr<AddNorm>> plan_add_norm(const AddNormDesc& desc);
Result<std::unique_ptr<AddNormRoute>> plan_add_norm_route(Context& context,
                                                          const AddNormRouteDesc& desc);
Result<std::unique_ptr<MoeGateUp>> plan_moe_gate_up(Context& context, const MoeGateUpDesc& desc);
Result<std::unique_ptr<MoeDown>> plan_moe_down(Context& context, const MoeDownDesc& desc);
Result<std::unique_ptr<Linear>> plan_linear(Context& context, const LinearDesc& desc);
Result<std::unique_ptr<QkNormRopeAppend>> plan_qk_norm_rope(Context& context,
                                                            const QkNormRopeAppendDesc& desc);
Result<std::unique_ptr<Attention>> plan_attention(Context& context, const AttentionDesc& desc);
Result<std::unique_ptr<DenseMlp>> plan_dense_mlp(Context& context, const DenseMlpDesc& desc);
Result<std::unique_ptr<LmHead>> plan_lm_head(Context& context, const LmHeadDesc& desc);

}  // namespace medley::cuda
