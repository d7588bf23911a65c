#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "spec/lora_site.h"
#include "spec/model_spec.h"

namespace medley {

// One matrix of the model that an adapter may change, by the module name that PEFT gives it.
struct AdapterTarget {
  LoraSite site;
  int64_t row_begin = 0;  // of the site's canonical output rows
  int64_t row_end = 0;
  int64_t in = 0;
  int expert = -1;        // of an expert site
  std::string alias;      // another name of the same module: w1, w3, w2 for gate, up, down
  bool is_alias = false;  // this entry stands under that other name

  int64_t out() const { return row_end - row_begin; }
};

// One expert parameter W[E, d1, d2] that target_parameters may name.
struct FusedTarget {
  LoraSite site;
  int num_experts = 0;
  int64_t in = 0;
  int64_t out = 0;
  bool in_first = false;     // d1 is the input (GPT-OSS), else the output (transformers 5)
  bool interleaved = false;  // output rows gate, up, gate, up, ...
};

// The same projection of all experts: "model.layers.3.mlp.experts" and a name without a number.
struct StackedTarget {
  LoraSite site;
  int64_t row_begin = 0;
  int64_t row_end = 0;
  int64_t in = 0;
  int num_experts = 0;
  std::string experts;
  std::vector<std::string> names;  // of the projection: {"gate_proj", "w1"}
  bool rows_unclear = false;       // gate_up where the model interleaves: writers differ
};

struct TargetMap {
  std::map<std::string, AdapterTarget> modules;   // aliases too
  std::map<std::string, FusedTarget> parameters;  // "model.layers.3.mlp.experts.gate_up_proj"
  std::vector<StackedTarget> stacked;
};

TargetMap make_target_map(const ModelSpec& spec);

}  // namespace medley
