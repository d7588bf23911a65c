#pragma once

#include "cpu/testing.h"

// A model of one layer with both kinds of MLP, every LoRA site, and three adapters, in slots 0 to
// 2, of ranks 3, 11 and 19.
namespace medley::cpu {

inline constexpr int kHidden = 40, kHeads = 4, kKvHeads = 2, kHeadDim = 12, kInner = 28,
                     kVocab = 101;
inline constexpr int kQkv = (kHeads + 2 * kKvHeads) * kHeadDim, kAttention = kHeads * kHeadDim;
inline constexpr int kMaxRows = 512, kMaxSequences = 70;

inline MoeSpec moe() {
  return {.num_experts = 6,
          .experts_per_token = 2,
          .intermediate_size = kInner,
          .router = RouterKind::kTopKThenSoftmax,
          .router_bias = true,
          .expert_bias = true,
          .activation = {.kind = Activation::kClampedSwiGlu}};
}

inline AttentionSpec attention() {
  return {.num_heads = kHeads,
          .num_kv_heads = kKvHeads,
          .head_dim = kHeadDim,
          .scale = 0.3f,
          .qkv_bias = true,
          .qk_norm = true,
          .sinks = true};
}

inline std::vector<TestModule> adapter(uint32_t seed, int rank) {
  return {{{LoraModule::kEmbed, 0}, {TestPair(0, kHidden, rank, kVocab, seed)}},
          {{LoraModule::kQkv, 0}, {TestPair(0, kQkv, rank, kHidden, seed + 1)}},
          {{LoraModule::kO, 0}, {TestPair(0, kHidden, rank, kAttention, seed + 2)}},
          {{LoraModule::kRouter, 0}, {TestPair(0, 6, rank, kHidden, seed + 3)}},
          {{LoraModule::kExpertGateUp, 0},
           {TestPair(0, kInner, rank, kHidden, seed + 4, 6, 6),
            TestPair(kInner, 2 * kInner, rank, kHidden, seed + 5, 6, 6)}},
          {{LoraModule::kExpertDown, 0}, {TestPair(0, kHidden, rank, kInner, seed + 6, 1, 6)}},
          {{LoraModule::kMlpGateUp, 0}, {TestPair(0, 2 * kInner, rank, kHidden, seed + 7)}},
          {{LoraModule::kMlpDown, 0}, {TestPair(0, kHidden, rank, kInner, seed + 8)}},
          {{LoraModule::kLmHead, 0}, {TestPair(0, kVocab, rank, kHidden, seed + 9)}}};
}

class SmallModel {
 public:
  SmallModel(DType dtype, int num_threads) : test_(num_threads), dtype_(dtype) {
    kv_ = test_.backend
              ->make_kv_cache({.num_layers = 1,
                               .num_pages = kMaxSequences,
                               .num_kv_heads = kKvHeads,
                               .head_dim = kHeadDim,
                               .dtype = dtype})
              .value();
    routing_ = test_.backend->make_routing({.max_rows = kMaxRows, .moe = moe()}).value();
    pack_weights();
    plan();
    for (int slot = 0; slot < 3; ++slot) {
      test_.set_adapter(slot, adapter(1000 * (slot + 1), 3 + 8 * slot));
    }
  }

  TestBackend& test() { return test_; }
  Sampler& sampler() { return *sampler_; }
  const SampleOutput& out() const { return out_; }

  // One pass over the step of test(); note(op, its output) after each op.
  template <class Note>
  void forward(const Note& note) {
    const Step& step = *test_.step;
    Stream& stream = *test_.stream;
    const auto add = [&](const TensorView& from) {
      return AddNormArgs{.residual = residual_out_.view(),
                         .delta = from,
                         .routing = routing_.get(),
                         .norm = norm_w_.get(),
                         .out = x_out_.view()};
    };
    embed_->run({.table = embed_w_.get(), .residual = residual_out_.view()}, step, stream);
    note("embed", residual_out_.view());
    first_norm_->run(add(delta_out_.view()), step, stream);
    note("first norm", x_out_.view());
    qkv_->run({.x = x_out_.view(), .weight = qkv_w_.get(), .out = qkv_out_.view()}, step, stream);
    note("qkv", qkv_out_.view());
    rope_->run({.qkv = qkv_out_.view(),
                .q_norm = head_norm_w_.get(),
                .k_norm = head_norm_w_.get(),
                .kv = kv_.get()},
               step, stream);
    note("rope", qkv_out_.view());
    attention_->run(
        {.qkv = qkv_out_.view(), .kv = kv_.get(), .sinks = sinks_w_.get(), .out = att_out_.view()},
        step, stream);
    note("attention", att_out_.view());
    o_->run({.x = att_out_.view(), .weight = o_w_.get(), .out = delta_out_.view()}, step, stream);
    note("o", delta_out_.view());
    route_->run(
        {.add_norm = add(delta_out_.view()), .router = router_w_.get(), .routing = routing_.get()},
        step, stream);
    note("route", x_out_.view());
    gate_up_->run({.x = x_out_.view(),
                   .routing = routing_.get(),
                   .weight = gate_up_w_.get(),
                   .out = inner_out_.view()},
                  step, stream);
    down_->run({.x = inner_out_.view(),
                .routing = routing_.get(),
                .weight = down_w_.get(),
                .out = routed_out_.view()},
               step, stream);
    combine_->run(add(routed_out_.view()), step, stream);
    note("combine", residual_out_.view());
    mlp_->run({.x = x_out_.view(),
               .gate_up = mlp_up_w_.get(),
               .down = mlp_down_w_.get(),
               .out = delta_out_.view()},
              step, stream);
    note("mlp", delta_out_.view());
    add_norm_->run(add(delta_out_.view()), step, stream);
    note("norm", x_out_.view());
    head_->run({.x = x_out_.view(), .weight = head_w_.get(), .logits = logits_out_.view()}, step,
               stream);
    note("logits", logits_out_.view());
    sampler_->run(logits_out_.view(), step, stream);
    sampler_->copy_output(step, stream, out_);
  }

 private:
  std::unique_ptr<PackedWeight> linear(int rows, int cols, uint32_t seed, bool bias) {
    const Floats w = random_floats(rows * cols, seed, 0.4f), b = random_floats(rows, seed + 50);
    LinearWeights weights{{matrix(w, rows, cols)}, {}};
    if (bias) weights.biases.push_back(vector_view(b));
    return test_.backend->pack_linear(weights).value();
  }

  void pack_weights() {
    const Floats table = random_floats(kVocab * kHidden, 1);
    embed_w_ = test_.backend->pack_embedding(matrix(table, kVocab, kHidden)).value();
    norm_w_ = test_.vector(random_floats(kHidden, 2));
    head_norm_w_ = test_.vector(random_floats(kHeadDim, 3));
    sinks_w_ = test_.vector(random_floats(kHeads, 4));
    qkv_w_ = linear(kQkv, kHidden, 5, true);
    o_w_ = linear(kHidden, kAttention, 6, false);
    router_w_ = linear(6, kHidden, 7, true);
    mlp_up_w_ = linear(2 * kInner, kHidden, 8, false);
    mlp_down_w_ = linear(kHidden, kInner, 9, false);
    head_w_ = linear(kVocab, kHidden, 10, false);
    std::vector<Floats> keep;
    for (int e = 0; e < 6; ++e) {
      keep.push_back(random_floats(kInner * kHidden, 20 + e, 0.4f));
      keep.push_back(random_floats(kInner * kHidden, 30 + e, 0.4f));
      keep.push_back(random_floats(kHidden * kInner, 40 + e, 0.4f));
    }
    const Floats bias = random_floats(kHidden, 60);
    ExpertGateUpWeights gate_up;
    ExpertDownWeights down;
    for (int e = 0; e < 6; ++e) {
      gate_up.gate.push_back(matrix(keep[3 * e], kInner, kHidden));
      gate_up.up.push_back(matrix(keep[3 * e + 1], kInner, kHidden));
      down.down.push_back(matrix(keep[3 * e + 2], kHidden, kInner));
      for (auto* list : {&gate_up.gate_bias, &gate_up.up_bias}) {
        list->push_back({.dtype = DType::kF32, .data = bias.data(), .size = kInner});
      }
      down.bias.push_back(vector_view(bias));
    }
    gate_up_w_ = test_.backend->pack_experts(gate_up).value();
    down_w_ = test_.backend->pack_experts(down).value();
  }

  void plan() {
    embed_ = test_.plan(
        EmbedDesc{.vocab_size = kVocab, .hidden_size = kHidden, .dtype = dtype_, .lora = true});
    AddNormDesc add{.hidden_size = kHidden, .dtype = dtype_};
    first_norm_ = test_.plan(add);
    add.delta = AddNormDesc::Delta::kDense;
    add_norm_ = test_.plan(add);
    route_ = test_.plan(
        AddNormRouteDesc{.add_norm = add, .moe = moe(), .lora = LoraSite{LoraModule::kRouter, 0}});
    add.delta = AddNormDesc::Delta::kRouted;
    add.experts_per_token = 2;
    combine_ = test_.plan(add);
    qkv_ =
        test_.plan(LinearDesc{.in_size = kHidden,
                              .out_sizes = {kAttention, kKvHeads * kHeadDim, kKvHeads * kHeadDim},
                              .bias = true,
                              .dtype = dtype_,
                              .lora = LoraSite{LoraModule::kQkv, 0}});
    o_ = test_.plan(LinearDesc{.in_size = kAttention,
                               .out_sizes = {kHidden},
                               .dtype = dtype_,
                               .lora = LoraSite{LoraModule::kO, 0}});
    rope_ = test_.plan(QkNormRopeAppendDesc{.attention = attention(),
                                            .rope = {.rotary_dim = kHeadDim},
                                            .max_position = 64,
                                            .dtype = dtype_});
    attention_ = test_.plan(AttentionDesc{.attention = attention(), .window = 4, .dtype = dtype_});
    gate_up_ = test_.plan(MoeGateUpDesc{.hidden_size = kHidden,
                                        .moe = moe(),
                                        .dtype = dtype_,
                                        .lora = {LoraModule::kExpertGateUp, 0}});
    down_ = test_.plan(MoeDownDesc{.hidden_size = kHidden,
                                   .moe = moe(),
                                   .dtype = dtype_,
                                   .lora = {LoraModule::kExpertDown, 0}});
    mlp_ = test_.plan(DenseMlpDesc{.hidden_size = kHidden,
                                   .mlp = {.intermediate_size = kInner, .activation = {}},
                                   .dtype = dtype_,
                                   .max_rows = kMaxRows,
                                   .gate_up_lora = {LoraModule::kMlpGateUp, 0},
                                   .down_lora = {LoraModule::kMlpDown, 0}});
    head_ = test_.plan(
        LmHeadDesc{.hidden_size = kHidden, .vocab_size = kVocab, .dtype = dtype_, .lora = true});
    sampler_ = test_.plan(SamplerDesc{.max_seqs = kMaxSequences, .vocab_size = kVocab});
  }

  TestBackend test_;
  DType dtype_;
  HostTensor residual_out_ = tensor(dtype_, {kMaxRows, kHidden});
  HostTensor x_out_ = tensor(dtype_, {kMaxRows, kHidden});
  HostTensor delta_out_ = tensor(dtype_, {kMaxRows, kHidden});
  HostTensor qkv_out_ = tensor(dtype_, {kMaxRows, kQkv});
  HostTensor att_out_ = tensor(dtype_, {kMaxRows, kAttention});
  HostTensor inner_out_ = tensor(dtype_, {2 * kMaxRows, kInner});
  HostTensor routed_out_ = tensor(dtype_, {2 * kMaxRows, kHidden});
  HostTensor logits_out_ = tensor(DType::kF32, {kMaxSequences, kVocab});
  SampleOutput out_{kMaxSequences};
  std::unique_ptr<KvCache> kv_;
  std::unique_ptr<Routing> routing_;
  std::unique_ptr<PackedWeight> embed_w_, norm_w_, head_norm_w_, sinks_w_, qkv_w_, o_w_, router_w_,
      gate_up_w_, down_w_, mlp_up_w_, mlp_down_w_, head_w_;
  std::unique_ptr<Embed> embed_;
  std::unique_ptr<AddNorm> first_norm_, add_norm_, combine_;
  std::unique_ptr<Linear> qkv_, o_;
  std::unique_ptr<QkNormRopeAppend> rope_;
  std::unique_ptr<Attention> attention_;
  std::unique_ptr<AddNormRoute> route_;
  std::unique_ptr<MoeGateUp> gate_up_;
  std::unique_ptr<MoeDown> down_;
  std::unique_ptr<DenseMlp> mlp_;
  std::unique_ptr<LmHead> head_;
  std::unique_ptr<Sampler> sampler_;
};

}  // namespace medley::cpu
