#include "adapter/target_map.h"

#include <fmt/format.h>

namespace medley {
namespace {

std::string at_layer(std::string name, int layer) {
  const size_t mark = name.find("{l}");
  return mark == std::string::npos ? name : name.replace(mark, 3, std::to_string(layer));
}

std::string without_weight(const std::string& name) {
  return name.substr(0, name.size() - std::string_view(".weight").size());
}

void add(TargetMap& map, const std::string& prefix, const std::string& name,
         const std::string& alias, AdapterTarget target) {
  if (!alias.empty()) {
    target.alias = prefix + alias;
    AdapterTarget other = target;
    other.alias = prefix + name;
    other.is_alias = true;
    map.modules.emplace(prefix + alias, std::move(other));
  }
  map.modules.emplace(prefix + name, std::move(target));
}

// The three projections of a gated MLP, of one expert or dense.
struct GatedMlp {
  LoraSite gate_up;
  LoraSite down;
  int64_t hidden = 0;
  int64_t inner = 0;
  int expert = -1;
};

void add_mlp(TargetMap& map, const std::string& prefix, const GatedMlp& mlp, bool with_aliases) {
  const auto alias = [&](const char* name) { return std::string(with_aliases ? name : ""); };
  const AdapterTarget gate{.site = mlp.gate_up,
                           .row_begin = 0,
                           .row_end = mlp.inner,
                           .in = mlp.hidden,
                           .expert = mlp.expert};
  AdapterTarget up = gate;
  up.row_begin = mlp.inner;
  up.row_end = 2 * mlp.inner;
  const AdapterTarget down{.site = mlp.down,
                           .row_begin = 0,
                           .row_end = mlp.hidden,
                           .in = mlp.inner,
                           .expert = mlp.expert};
  add(map, prefix, "gate_proj", alias("w1"), gate);
  add(map, prefix, "up_proj", alias("w3"), up);
  add(map, prefix, "down_proj", alias("w2"), down);
}

void add_attention(TargetMap& map, const ModelSpec& spec, int layer) {
  const int64_t head_dim = spec.attention.head_dim;
  const int64_t q = spec.attention.num_heads * head_dim;
  const int64_t kv = spec.attention.num_kv_heads * head_dim;
  const std::string prefix = at_layer(spec.names.attention, layer);
  const LoraSite qkv{LoraModule::kQkv, layer};
  int64_t row = 0;
  for (const auto& [name, size] : {std::pair("q_proj", q), {"k_proj", kv}, {"v_proj", kv}}) {
    map.modules.emplace(
        prefix + name,
        AdapterTarget{
            .site = qkv, .row_begin = row, .row_end = row + size, .in = spec.hidden_size});
    row += size;
  }
  map.modules.emplace(
      prefix + "o_proj",
      AdapterTarget{.site = {LoraModule::kO, layer}, .row_end = spec.hidden_size, .in = q});
}

void add_moe(TargetMap& map, const ModelSpec& spec, int layer) {
  const MoeSpec& moe = *spec.moe;
  const std::string prefix = at_layer(spec.names.mlp, layer);
  const LoraSite gate_up{LoraModule::kExpertGateUp, layer};
  const LoraSite down{LoraModule::kExpertDown, layer};
  map.modules.emplace(prefix + spec.names.router,
                      AdapterTarget{.site = {LoraModule::kRouter, layer},
                                    .row_end = moe.num_experts,
                                    .in = spec.hidden_size});
  for (int e = 0; e < moe.num_experts; ++e) {
    add_mlp(map, fmt::format("{}experts.{}.", prefix, e),
            {gate_up, down, spec.hidden_size, moe.intermediate_size, e}, /*with_aliases=*/true);
  }
  const bool gpt_oss = spec.names.experts != ExpertLayout::kPerExpert;
  const FusedTarget fused{.site = gate_up,
                          .num_experts = moe.num_experts,
                          .in = spec.hidden_size,
                          .out = 2 * int64_t{moe.intermediate_size},
                          .in_first = gpt_oss,
                          .interleaved = gpt_oss};
  map.parameters.emplace(prefix + "experts.gate_up_proj", fused);
  map.parameters.emplace(prefix + "experts.down_proj", FusedTarget{.site = down,
                                                                   .num_experts = moe.num_experts,
                                                                   .in = moe.intermediate_size,
                                                                   .out = spec.hidden_size,
                                                                   .in_first = gpt_oss});
  const StackedTarget all{.site = gate_up,
                          .row_end = fused.out,
                          .in = spec.hidden_size,
                          .num_experts = moe.num_experts,
                          .experts = prefix + "experts",
                          .names = {"gate_up_proj"},
                          .rows_unclear = gpt_oss};
  StackedTarget gate = all;
  gate.names = {"gate_proj", "w1"};
  gate.row_end = moe.intermediate_size;
  gate.rows_unclear = false;
  StackedTarget up = gate;
  up.names = {"up_proj", "w3"};
  up.row_begin = gate.row_end;
  up.row_end = fused.out;
  StackedTarget all_down = gate;
  all_down.names = {"down_proj", "w2"};
  all_down.site = down;
  all_down.row_end = spec.hidden_size;
  all_down.in = moe.intermediate_size;
  map.stacked.insert(map.stacked.end(), {all, gate, up, all_down});
}

}  // namespace

TargetMap make_target_map(const ModelSpec& spec) {
  TargetMap map;
  for (int layer = 0; layer < spec.num_layers(); ++layer) {
    add_attention(map, spec, layer);
    if (spec.layers[layer].moe) {
      add_moe(map, spec, layer);
    } else {
      add_mlp(map, at_layer(spec.names.mlp, layer),
              {.gate_up = {LoraModule::kMlpGateUp, layer},
               .down = {LoraModule::kMlpDown, layer},
               .hidden = spec.hidden_size,
               .inner = spec.mlp->intermediate_size},
              /*with_aliases=*/false);
    }
  }
  map.modules.emplace(
      without_weight(spec.names.lm_head),
      AdapterTarget{
          .site = {LoraModule::kLmHead, 0}, .row_end = spec.vocab_size, .in = spec.hidden_size});
  map.modules.emplace(
      without_weight(spec.names.embed),
      AdapterTarget{
          .site = {LoraModule::kEmbed, 0}, .row_end = spec.hidden_size, .in = spec.vocab_size});
  return map;
}

}  // namespace medley
