#pragma once

#include <cstdint>

#include "base/error.h"
#include "spec/model_spec.h"
#include "weights/checkpoint.h"
#include "weights/dummy_fill.h"

namespace medley {

// A checkpoint of a model that exists only as a config: every tensor that read_model_weights wants,
// under its name and shape, with random values and none of them zero throughout. A few pieces of
// 16 MiB hold them all.
//
// Made so that speed measured with them is that of real weights: activations stay of order one over
// all layers, tokens differ from each other to the end (what a layer adds to the residual stream is
// small beside the token's own embedding), and routers therefore spread tokens evenly over experts.
class DummyWeights {
 public:
  static Result<DummyWeights> make(const ModelSpec& spec, uint64_t seed);

  // Views of memory that lives as long as this does.
  const TensorMap& tensors() const { return tensors_; }

 private:
  explicit DummyWeights(uint64_t seed) : pool_(seed) {}

  DummyPool pool_;
  TensorMap tensors_;
};

}  // namespace medley
