#pragma once

#include <memory>

#include "backend/backend.h"
#include "cpu/context.h"

// One factory per op; `context` outlives the op. kUnsupported or kInvalidArgument names the field
// of the description that cannot be.
namespace medley::cpu {

Result<std::unique_ptr<Embed>> make_embed(Context& context, const EmbedDesc& desc);
Result<std::unique_ptr<AddNorm>> make_add_norm(Context& context, const AddNormDesc& desc);
Result<std::unique_ptr<Linear>> make_linear(Context& context, const LinearDesc& desc);
Result<std::unique_ptr<QkNormRopeAppend>> make_qk_norm_rope(Context& context,
                                                            const QkNormRopeAppendDesc& desc);
Result<std::unique_ptr<Attention>> make_attention(Context& context, const AttentionDesc& desc);
Result<std::unique_ptr<AddNormRoute>> make_router(Context& context, const AddNormRouteDesc& desc);
Result<std::unique_ptr<MoeGateUp>> make_moe_gate_up(Context& context, const MoeGateUpDesc& desc);
Result<std::unique_ptr<MoeDown>> make_moe_down(Context& context, const MoeDownDesc& desc);
Result<std::unique_ptr<DenseMlp>> make_dense_mlp(Context& context, const DenseMlpDesc& desc);
Result<std::unique_ptr<LmHead>> make_lm_head(Context& context, const LmHeadDesc& desc);
Result<std::unique_ptr<Sampler>> make_sampler(Context& context, const SamplerDesc& desc);

// Activations are float32 or bfloat16.
Result<void> check_dtype(DType dtype);

}  // namespace medley::cpu
