#include "weights/dummy_adapters.h"

#include <algorithm>
#include <cmath>
#include <map>

#include <fmt/format.h>

namespace medley {
namespace {

// Of the base projection's output.
constexpr float kDeltaShare = 0.25f;

DummyFill fill_of(float fan_in) {
  return {
      .kind = DummyFill::Kind::kNormal, .dtype = DType::kBF16, .sigma = 1.0f / std::sqrt(fan_in)};
}

}  // namespace

std::vector<DummyAdapters::PairShape> DummyAdapters::shapes() const {
  const int64_t hidden = spec_.hidden_size;
  const AttentionSpec& attention = spec_.attention;
  const int64_t q_size = int64_t{attention.num_heads} * attention.head_dim;
  const int64_t kv_size = int64_t{attention.num_kv_heads} * attention.head_dim;
  std::vector<PairShape> shapes;
  const auto add = [&](LoraSite site, int64_t row_begin, int64_t rows, int64_t inputs,
                       int num_matrices = 1) {
    shapes.push_back({.site = site,
                      .row_begin = row_begin,
                      .row_end = row_begin + rows,
                      .inputs = inputs,
                      .num_matrices = num_matrices});
  };
  const auto add_layer = [&](LoraModule module, int l) {
    const bool moe = spec_.layers[l].moe;
    switch (module) {
      case LoraModule::kQkv:
        add({module, l}, 0, q_size, hidden);
        add({module, l}, q_size, kv_size, hidden);
        add({module, l}, q_size + kv_size, kv_size, hidden);
        return;
      case LoraModule::kO:
        return add({module, l}, 0, hidden, q_size);
      case LoraModule::kRouter:
        if (moe) add({module, l}, 0, spec_.moe->num_experts, hidden);
        return;
      case LoraModule::kExpertGateUp:
        if (!moe) return;
        return add({module, l}, 0, 2 * int64_t{spec_.moe->intermediate_size}, hidden,
                   spec_.moe->num_experts);
      case LoraModule::kExpertDown:
        if (!moe) return;
        return add({module, l}, 0, hidden, spec_.moe->intermediate_size, spec_.moe->num_experts);
      case LoraModule::kMlpGateUp:
        if (moe) return;
        add({module, l}, 0, spec_.mlp->intermediate_size, hidden);
        add({module, l}, spec_.mlp->intermediate_size, spec_.mlp->intermediate_size, hidden);
        return;
      case LoraModule::kMlpDown:
        if (!moe) add({module, l}, 0, hidden, spec_.mlp->intermediate_size);
        return;
      case LoraModule::kLmHead:
        if (l == 0) add({module, 0}, 0, spec_.vocab_size, hidden);
        return;
      case LoraModule::kEmbed:
        if (l == 0) add({module, 0}, 0, hidden, spec_.vocab_size);
        return;
    }
  };
  for (const LoraModule module : desc_.modules) {
    for (int l = 0; l < spec_.num_layers(); ++l) add_layer(module, l);
  }
  return shapes;
}

Result<DummyAdapters> DummyAdapters::make(const ModelSpec& spec, const DummyAdapterDesc& desc) {
  MEDLEY_CHECK_GT(desc.rank, 0);
  DummyAdapters adapters(spec, desc);
  std::map<DummyFill, size_t> max_bytes;
  const auto want = [&](int64_t rows, int64_t cols) {
    size_t& largest = max_bytes[fill_of(static_cast<float>(cols))];
    largest = std::max<size_t>(largest, rows * cols * size_of(DType::kBF16));
  };
  for (const PairShape& shape : adapters.shapes()) {
    want(desc.rank, shape.inputs);
    want(shape.row_end - shape.row_begin, desc.rank);
  }
  MEDLEY_TRY(adapters.pool_.make(max_bytes));
  return adapters;
}

MatrixView DummyAdapters::matrix(const std::string& name, int64_t rows, int64_t cols) const {
  const ConstTensorView view =
      pool_.view(fill_of(static_cast<float>(cols)), name, Shape({rows, cols}));
  return {.dtype = view.dtype, .data = view.data, .rows = rows, .cols = cols, .row_stride = cols};
}

std::vector<LoraModuleWeights> DummyAdapters::modules(uint64_t id) const {
  std::vector<LoraModuleWeights> modules;
  for (const PairShape& shape : shapes()) {
    if (modules.empty() || modules.back().site != shape.site) {
      modules.push_back({.site = shape.site, .pairs = {}});
    }
    LoraPair pair{.row_begin = shape.row_begin,
                  .row_end = shape.row_end,
                  .rank = desc_.rank,
                  .scale = std::vector<float>(desc_.rank, kDeltaShare)};
    for (int i = 0; i < shape.num_matrices; ++i) {
      const std::string name = fmt::format("{} {} {} {} {}", id, to_string(shape.site.module),
                                           shape.site.layer, shape.row_begin, i);
      pair.a.push_back(matrix(name + " a", desc_.rank, shape.inputs));
      pair.b.push_back(matrix(name + " b", shape.row_end - shape.row_begin, desc_.rank));
    }
    modules.back().pairs.push_back(std::move(pair));
  }
  return modules;
}

}  // namespace medley
