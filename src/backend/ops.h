#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "backend/weights.h"
#include "spec/lora_site.h"
#include "spec/model_spec.h"
#include "tensor/tensor.h"

// The op interface: these ops and no smaller. Each is planned once, at start-up, from a plain
// description, and then run on views of device memory. run() never allocates, never returns a host
// value and never waits for the device. Views have capacity shapes (max_rows, ...); the rows in use
// are those of the Step.
//
// Values round to the activation type only where an op writes its output; inside, sums are float32.

namespace medley {

class Stream;
class Step;
class PackedWeight;
class KvCache;
class Routing;

template <class Desc, class Args>
class Op {
 public:
  virtual ~Op() = default;
  virtual void run(const Args& args, const Step& step, Stream& stream) = 0;
};

// out[row] = table[token of row]. LoRA on embed_tokens is a site of its own.
struct EmbedDesc {
  int64_t vocab_size = 0;
  int hidden_size = 0;
  DType dtype = DType::kBF16;  // activations; the residual stream has this type too
  bool lora = false;
};
struct EmbedArgs {
  const PackedWeight* table = nullptr;
  TensorView residual;  // (max_rows, H)
};
using Embed = Op<EmbedDesc, EmbedArgs>;

// residual += delta (a dense output, or the weighted sum of a token's routed rows); out =
// rms_norm(residual) * weight.
struct AddNormDesc {
  enum class Delta : uint8_t { kNone, kDense, kRouted };
  int hidden_size = 0;
  float eps = 1e-6f;
  DType dtype = DType::kBF16;
  Delta delta = Delta::kNone;
  int experts_per_token = 0;  // kRouted
};
struct AddNormArgs {
  TensorView residual;  // (max_rows, H), in and out
  ConstTensorView
      delta;  // kDense: (max_rows, H); kRouted: (max_rows * k, H), in the order of `routing`
  const Routing* routing = nullptr;  // kRouted
  const PackedWeight* norm = nullptr;
  TensorView out;  // (max_rows, H)
};
using AddNorm = Op<AddNormDesc, AddNormArgs>;

// out = W x + bias + LoRA. Parts (q, k, v) are stacked along the output.
struct LinearDesc {
  int in_size = 0;
  std::vector<int> out_sizes;
  bool bias = false;
  DType dtype = DType::kBF16;
  std::optional<LoraSite> lora;  // the site that adapters may change; none = never
};
struct LinearArgs {
  ConstTensorView x;  // (max_rows, in)
  const PackedWeight* weight = nullptr;
  TensorView out;  // (max_rows, sum of out_sizes)
};
using Linear = Op<LinearDesc, LinearArgs>;

// Per row: optional RMS norm of each q and k head, rotary embedding of q and k (in place), and k, v
// appended to the sequence's pages at the row's position.
struct QkNormRopeAppendDesc {
  AttentionSpec attention;
  RopeSpec rope;
  int64_t max_position = 0;
  bool rope_enabled = true;
  float norm_eps = 1e-6f;
  DType dtype = DType::kBF16;
  int layer = 0;
};
struct QkNormRopeAppendArgs {
  TensorView qkv;  // (max_rows, (heads + 2 kv_heads) * head_dim); q is rotated in place
  const PackedWeight* q_norm = nullptr;  // (head_dim) when attention.qk_norm
  const PackedWeight* k_norm = nullptr;
  KvCache* kv = nullptr;
};
using QkNormRopeAppend = Op<QkNormRopeAppendDesc, QkNormRopeAppendArgs>;

// Causal attention of each row over its sequence's pages, positions [max(0, p - window + 1), p].
struct AttentionDesc {
  AttentionSpec attention;
  int window = 0;  // 0 = full
  DType dtype = DType::kBF16;
  int layer = 0;
};
struct AttentionArgs {
  ConstTensorView qkv;  // (max_rows, (heads + 2 kv_heads) * head_dim); only q is read
  const KvCache* kv = nullptr;
  const PackedWeight* sinks = nullptr;  // (heads) when attention.sinks
  TensorView out;                       // (max_rows, heads * head_dim)
};
using Attention = Op<AttentionDesc, AttentionArgs>;

// add_norm (kDense), then router logits in float32, top-k, weights, and the grouping of (row,
// choice) pairs by expert, then adapter. Ties in logits choose the lower expert.
struct AddNormRouteDesc {
  AddNormDesc add_norm;
  MoeSpec moe;
  std::optional<LoraSite> lora;  // adapters on the router itself
};
struct AddNormRouteArgs {
  AddNormArgs add_norm;
  const PackedWeight* router = nullptr;  // (E, H), bias when moe.router_bias
  Routing* routing = nullptr;            // out
};
using AddNormRoute = Op<AddNormRouteDesc, AddNormRouteArgs>;

// For each routed (row, expert): act(W_gate x + ..., W_up x + ...), biases and LoRA before the
// activation.
struct MoeGateUpDesc {
  int hidden_size = 0;
  MoeSpec moe;
  DType dtype = DType::kBF16;
  LoraSite lora;
};
struct MoeGateUpArgs {
  ConstTensorView x;                 // (max_rows, H)
  const Routing* routing = nullptr;  // serves one run of gate_up and one of down
  const PackedWeight* weight = nullptr;
  TensorView out;  // (max_rows * k, I), in the order of `routing`
};
using MoeGateUp = Op<MoeGateUpDesc, MoeGateUpArgs>;

// For each routed (row, expert): W_down h + bias + LoRA. The sum over a row's experts is the next
// add_norm's.
struct MoeDownDesc {
  int hidden_size = 0;
  MoeSpec moe;
  DType dtype = DType::kBF16;
  LoraSite lora;
};
struct MoeDownArgs {
  ConstTensorView x;  // (max_rows * k, I)
  const Routing* routing = nullptr;
  const PackedWeight* weight = nullptr;
  TensorView out;  // (max_rows * k, H)
};
using MoeDown = Op<MoeDownDesc, MoeDownArgs>;

// W_down act(W_gate x, W_up x), with LoRA on both; the intermediate lives in the op's own
// workspace.
struct DenseMlpDesc {
  int hidden_size = 0;
  MlpSpec mlp;
  DType dtype = DType::kBF16;
  int max_rows = 0;
  LoraSite gate_up_lora;
  LoraSite down_lora;
};
struct DenseMlpArgs {
  ConstTensorView x;                      // (max_rows, H)
  const PackedWeight* gate_up = nullptr;  // parts gate, up
  const PackedWeight* down = nullptr;
  TensorView out;  // (max_rows, H)
};
using DenseMlp = Op<DenseMlpDesc, DenseMlpArgs>;

// logits[i] = W x[step.logit_rows[i]], float32.
struct LmHeadDesc {
  int hidden_size = 0;
  int64_t vocab_size = 0;
  DType dtype = DType::kBF16;
  bool lora = false;
};
struct LmHeadArgs {
  ConstTensorView x;  // (max_rows, H)
  const PackedWeight* weight = nullptr;
  TensorView logits;  // (max_seqs, V) float32
};
using LmHead = Op<LmHeadDesc, LmHeadArgs>;

}  // namespace medley
