#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "backend/weights.h"
#include "base/error.h"
#include "spec/model_spec.h"
#include "weights/dummy_fill.h"

namespace medley {

struct DummyAdapterDesc {
  int rank = 32;
  // Those that the model does not have are left out.
  std::vector<LoraModule> modules = {LoraModule::kQkv,          LoraModule::kO,
                                     LoraModule::kExpertGateUp, LoraModule::kExpertDown,
                                     LoraModule::kMlpGateUp,    LoraModule::kMlpDown};
  uint64_t seed = 0;
};

// Random adapters of a model, as many as wanted, in little memory. Experts have an A and a B of
// their own, gate and up share their A; q, k and v have one pair each.
class DummyAdapters {
 public:
  static Result<DummyAdapters> make(const ModelSpec& spec, const DummyAdapterDesc& desc);

  // The modules of adapter `id`, all layers; each matrix begins at a random place of the data.
  // Views of memory that lives as long as this does.
  std::vector<LoraModuleWeights> modules(uint64_t id) const;

 private:
  DummyAdapters(const ModelSpec& spec, const DummyAdapterDesc& desc)
      : spec_(spec), desc_(desc), pool_(desc.seed) {}

  struct PairShape {
    LoraSite site;
    int64_t row_begin = 0;
    int64_t row_end = 0;
    int64_t inputs = 0;
    int num_matrices = 1;
  };
  std::vector<PairShape> shapes() const;
  MatrixView matrix(const std::string& name, int64_t rows, int64_t cols) const;

  ModelSpec spec_;
  DummyAdapterDesc desc_;
  DummyPool pool_;
};

}  // namespace medley
