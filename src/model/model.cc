#include "model/model.h"

#include <string>
#include <utility>

#include "base/trace_range.h"

namespace medley {
namespace {

struct Layer {
  std::string name;
  std::unique_ptr<AddNorm> input_add_norm;
  std::unique_ptr<Linear> qkv, o;
  std::unique_ptr<QkNormRopeAppend> qk_norm_rope_append;
  std::unique_ptr<Attention> attention;
  // MoE layer
  std::unique_ptr<AddNormRoute> add_norm_route;
  std::unique_ptr<MoeGateUp> moe_gate_up;
  std::unique_ptr<MoeDown> moe_down;
  // dense layer
  std::unique_ptr<AddNorm> post_add_norm;
  std::unique_ptr<DenseMlp> dense_mlp;
};

class ModelImpl final : public Model {
 public:
  ModelImpl(const ModelSpec& spec, Backend& backend, const ModelOptions& options)
      : spec_(spec), backend_(backend), options_(options) {}

  Result<void> init(const ModelWeights& weights) {
    MEDLEY_TRY(make_buffers());
    MEDLEY_TRY(plan_ends());
    layers_.resize(spec_.num_layers());
    for (int l = 0; l < spec_.num_layers(); ++l) {
      layers_[l].name = "layer " + std::to_string(l);
      MEDLEY_TRY(plan_attention(l));
      if (spec_.layers[l].moe) {
        MEDLEY_TRY(plan_moe(l));
      } else {
        MEDLEY_TRY(plan_mlp(l));
      }
    }
    MEDLEY_TRY_ASSIGN(weights_, pack_model(spec_, weights, backend_, options_.on_progress));
    return {};
  }

  Result<void> make_kv_cache(int num_pages, int page_size) override {
    MEDLEY_TRY_ASSIGN(kv_, backend_.make_kv_cache({.num_layers = spec_.num_layers(),
                                                   .num_pages = num_pages,
                                                   .page_size = page_size,
                                                   .num_kv_heads = spec_.attention.num_kv_heads,
                                                   .head_dim = spec_.attention.head_dim,
                                                   .dtype = options_.dtype}));
    return {};
  }

  void forward(const Step& step, Stream& stream) override {
    const TraceRange range("forward");
    backend_.wait_for_adapters(/*layer=*/0);
    embed_->run({.table = weights_.embedding.get(), .residual = residual_}, step, stream);
    for (size_t l = 0; l < layers_.size(); ++l) {
      const Layer& layer = layers_[l];
      const TraceRange layer_range(layer.name.c_str());
      const PackedLayer& packed = weights_.layers[l];
      if (l > 0) backend_.wait_for_adapters(static_cast<int>(l));
      layer.input_add_norm->run(
          add_norm_args(l == 0 ? Delta::kNone : delta_after(l - 1), packed.input_norm.get()), step,
          stream);
      layer.qkv->run({.x = x_, .weight = packed.qkv.get(), .out = qkv_}, step, stream);
      layer.qk_norm_rope_append->run({.qkv = qkv_,
                                      .q_norm = packed.q_norm.get(),
                                      .k_norm = packed.k_norm.get(),
                                      .kv = kv_.get()},
                                     step, stream);
      layer.attention->run(
          {.qkv = qkv_, .kv = kv_.get(), .sinks = packed.sinks.get(), .out = attention_}, step,
          stream);
      layer.o->run({.x = attention_, .weight = packed.o.get(), .out = delta_}, step, stream);
      const AddNormArgs post = add_norm_args(Delta::kDense, packed.post_attention_norm.get());
      if (layer.add_norm_route) {
        layer.add_norm_route->run(
            {.add_norm = post, .router = packed.router.get(), .routing = routing_.get()}, step,
            stream);
        if (is_observed()) {
          options_.routing_observer->on_routing(static_cast<int>(l), step.num_rows(),
                                                routing_->counts(stream));
        }
        layer.moe_gate_up->run({.x = x_,
                                .routing = routing_.get(),
                                .weight = packed.gate_up.get(),
                                .out = routed_hidden_},
                               step, stream);
        layer.moe_down->run({.x = routed_hidden_,
                             .routing = routing_.get(),
                             .weight = packed.down.get(),
                             .out = routed_out_},
                            step, stream);
      } else {
        layer.post_add_norm->run(post, step, stream);
        layer.dense_mlp->run(
            {.x = x_, .gate_up = packed.gate_up.get(), .down = packed.down.get(), .out = delta_},
            step, stream);
      }
    }
    final_add_norm_->run(add_norm_args(delta_after(layers_.size() - 1), weights_.final_norm.get()),
                         step, stream);
    lm_head_->run({.x = x_, .weight = weights_.lm_head.get(), .logits = logits_}, step, stream);
  }

  bool is_observed() const override {
    return options_.routing_observer != nullptr && options_.routing_observer->enabled;
  }

  ConstTensorView logits() const override { return logits_; }
  const ModelSpec& spec() const override { return spec_; }
  size_t num_weight_bytes() const override { return weights_.num_bytes; }

 private:
  using Delta = AddNormDesc::Delta;

  Delta delta_after(size_t l) const { return spec_.layers[l].moe ? Delta::kRouted : Delta::kDense; }

  int experts_per_token() const { return spec_.moe ? spec_.moe->experts_per_token : 0; }

  AddNormArgs add_norm_args(Delta delta, const PackedWeight* norm) const {
    AddNormArgs args{.residual = residual_, .norm = norm, .out = x_};
    if (delta == Delta::kDense) args.delta = delta_;
    if (delta == Delta::kRouted) {
      args.delta = routed_out_;
      args.routing = routing_.get();
    }
    return args;
  }

  AddNormDesc add_norm_desc(Delta delta) const {
    return {.hidden_size = spec_.hidden_size,
            .eps = spec_.norm_eps,
            .dtype = options_.dtype,
            .delta = delta,
            .experts_per_token = delta == Delta::kRouted ? experts_per_token() : 0};
  }

  Result<TensorView> make_tensor(DType dtype, Shape shape) {
    TensorView view{nullptr, dtype, shape};
    MEDLEY_TRY_ASSIGN(auto buffer, backend_.allocate(view.num_bytes()));
    view.data = buffer->data();
    buffers_.push_back(std::move(buffer));
    return view;
  }

  Result<void> make_buffers() {
    const int64_t rows = options_.max_rows;
    const int64_t hidden = spec_.hidden_size;
    const DType dtype = options_.dtype;
    MEDLEY_TRY_ASSIGN(residual_, make_tensor(dtype, {rows, hidden}));
    MEDLEY_TRY_ASSIGN(x_, make_tensor(dtype, {rows, hidden}));
    MEDLEY_TRY_ASSIGN(delta_, make_tensor(dtype, {rows, hidden}));
    MEDLEY_TRY_ASSIGN(qkv_, make_tensor(dtype, {rows, spec_.qkv_size()}));
    MEDLEY_TRY_ASSIGN(attention_, make_tensor(dtype, {rows, int64_t{spec_.attention.num_heads} *
                                                                spec_.attention.head_dim}));
    MEDLEY_TRY_ASSIGN(logits_, make_tensor(DType::kF32, {options_.max_seqs, spec_.vocab_size}));
    if (spec_.moe) {
      const int64_t routed_rows = rows * experts_per_token();
      MEDLEY_TRY_ASSIGN(routed_hidden_,
                        make_tensor(dtype, {routed_rows, spec_.moe->intermediate_size}));
      MEDLEY_TRY_ASSIGN(routed_out_, make_tensor(dtype, {routed_rows, hidden}));
      MEDLEY_TRY_ASSIGN(routing_,
                        backend_.make_routing({.max_rows = options_.max_rows, .moe = *spec_.moe}));
    }
    return {};
  }

  Result<void> plan_ends() {
    MEDLEY_TRY_ASSIGN(embed_, backend_.plan(EmbedDesc{.vocab_size = spec_.vocab_size,
                                                      .hidden_size = spec_.hidden_size,
                                                      .dtype = options_.dtype,
                                                      .lora = true}));
    MEDLEY_TRY_ASSIGN(final_add_norm_,
                      backend_.plan(add_norm_desc(delta_after(spec_.num_layers() - 1))));
    MEDLEY_TRY_ASSIGN(lm_head_, backend_.plan(LmHeadDesc{.hidden_size = spec_.hidden_size,
                                                         .vocab_size = spec_.vocab_size,
                                                         .dtype = options_.dtype,
                                                         .lora = true}));
    return {};
  }

  Result<void> plan_attention(int l) {
    Layer& layer = layers_[l];
    const AttentionSpec& attention = spec_.attention;
    const int q_size = attention.num_heads * attention.head_dim;
    const int kv_size = attention.num_kv_heads * attention.head_dim;
    MEDLEY_TRY_ASSIGN(layer.input_add_norm,
                      backend_.plan(add_norm_desc(l == 0 ? Delta::kNone : delta_after(l - 1))));
    MEDLEY_TRY_ASSIGN(layer.qkv, backend_.plan(LinearDesc{.in_size = spec_.hidden_size,
                                                          .out_sizes = {q_size, kv_size, kv_size},
                                                          .bias = attention.qkv_bias,
                                                          .dtype = options_.dtype,
                                                          .lora = LoraSite{LoraModule::kQkv, l}}));
    MEDLEY_TRY_ASSIGN(layer.qk_norm_rope_append,
                      backend_.plan(QkNormRopeAppendDesc{.attention = attention,
                                                         .rope = spec_.rope,
                                                         .max_position = spec_.max_position,
                                                         .rope_enabled = spec_.layers[l].rope,
                                                         .norm_eps = spec_.norm_eps,
                                                         .dtype = options_.dtype,
                                                         .layer = l}));
    MEDLEY_TRY_ASSIGN(layer.attention, backend_.plan(AttentionDesc{.attention = attention,
                                                                   .window = spec_.layers[l].window,
                                                                   .dtype = options_.dtype,
                                                                   .layer = l}));
    MEDLEY_TRY_ASSIGN(layer.o, backend_.plan(LinearDesc{.in_size = q_size,
                                                        .out_sizes = {spec_.hidden_size},
                                                        .bias = attention.o_bias,
                                                        .dtype = options_.dtype,
                                                        .lora = LoraSite{LoraModule::kO, l}}));
    return {};
  }

  Result<void> plan_moe(int l) {
    Layer& layer = layers_[l];
    MEDLEY_TRY_ASSIGN(layer.add_norm_route,
                      backend_.plan(AddNormRouteDesc{.add_norm = add_norm_desc(Delta::kDense),
                                                     .moe = *spec_.moe,
                                                     .lora = LoraSite{LoraModule::kRouter, l}}));
    MEDLEY_TRY_ASSIGN(layer.moe_gate_up,
                      backend_.plan(MoeGateUpDesc{.hidden_size = spec_.hidden_size,
                                                  .moe = *spec_.moe,
                                                  .dtype = options_.dtype,
                                                  .lora = {LoraModule::kExpertGateUp, l}}));
    MEDLEY_TRY_ASSIGN(layer.moe_down,
                      backend_.plan(MoeDownDesc{.hidden_size = spec_.hidden_size,
                                                .moe = *spec_.moe,
                                                .dtype = options_.dtype,
                                                .lora = {LoraModule::kExpertDown, l}}));
    return {};
  }

  Result<void> plan_mlp(int l) {
    Layer& layer = layers_[l];
    MEDLEY_TRY_ASSIGN(layer.post_add_norm, backend_.plan(add_norm_desc(Delta::kDense)));
    MEDLEY_TRY_ASSIGN(layer.dense_mlp,
                      backend_.plan(DenseMlpDesc{.hidden_size = spec_.hidden_size,
                                                 .mlp = *spec_.mlp,
                                                 .dtype = options_.dtype,
                                                 .max_rows = options_.max_rows,
                                                 .gate_up_lora = {LoraModule::kMlpGateUp, l},
                                                 .down_lora = {LoraModule::kMlpDown, l}}));
    return {};
  }

  const ModelSpec spec_;
  Backend& backend_;
  const ModelOptions options_;
  PackedModel weights_;

  std::vector<std::unique_ptr<Buffer>> buffers_;
  TensorView residual_, x_, delta_, qkv_, attention_, routed_hidden_, routed_out_, logits_;
  std::unique_ptr<KvCache> kv_;
  std::unique_ptr<Routing> routing_;

  std::unique_ptr<Embed> embed_;
  std::unique_ptr<AddNorm> final_add_norm_;
  std::unique_ptr<LmHead> lm_head_;
  std::vector<Layer> layers_;
};

}  // namespace

int64_t Model::buffer_bytes(const ModelSpec& spec, const ModelOptions& options) {
  const int64_t routed = spec.moe ? spec.moe->experts_per_token *
                                        (int64_t{spec.moe->intermediate_size} + spec.hidden_size)
                                  : 0;
  const int64_t attention_size = int64_t{spec.attention.num_heads} * spec.attention.head_dim;
  const int64_t row_values = 3 * spec.hidden_size + spec.qkv_size() + attention_size + routed;
  return options.max_rows * row_values * static_cast<int64_t>(size_of(options.dtype)) +
         options.max_seqs * spec.vocab_size * static_cast<int64_t>(size_of(DType::kF32));
}

Result<std::unique_ptr<Model>> Model::create(const ModelSpec& spec, const ModelWeights& weights,
                                             Backend& backend, const ModelOptions& options) {
  auto model = std::make_unique<ModelImpl>(spec, backend, options);
  MEDLEY_TRY(model->init(weights));
  return std::unique_ptr<Model>(std::move(model));
}

}  // namespace medley
