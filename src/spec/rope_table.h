#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "spec/model_spec.h"

namespace medley {

// cos and sin of each position and frequency, already times attention_factor: (max_position,
// rotary_dim / 2). Computed in double and rounded once.
struct RopeTable {
  int half = 0;  // rotary_dim / 2
  std::vector<float> cos, sin;
};

// Angle per position of each of the rotary_dim / 2 pairs. Scalings as in transformers'
// modeling_rope_utils.py: linear; YaRN (arXiv 2309.00071), with the correction range rounded
// outwards when `truncate`; Llama 3.
std::vector<double> rope_frequencies(const RopeSpec& spec);

// Tables by spec and length, so that layers share them.
class RopeTables {
 public:
  std::shared_ptr<const RopeTable> get(const RopeSpec& spec, int64_t max_position);

 private:
  struct Entry {
    RopeSpec spec;
    int64_t max_position = 0;
    std::shared_ptr<const RopeTable> table;
  };
  std::vector<Entry> entries_;
};

}  // namespace medley
