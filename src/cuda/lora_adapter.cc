#include "cuda/lora_adapter.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "cuda/check.h"
#include "cuda/pack_matrix.h"

namespace medley::cuda {
namespace {

constexpr size_t kAlignment = 128;

std::string describe(const LoraSite& site) {
  return fmt::format("layer {} {}", site.layer, to_string(site.module));
}

// The pair that fills part `part`, or null; `offset` is the part's first row within the pair.
struct PartOfPair {
  const LoraPair* pair = nullptr;
  int64_t offset = 0;
};

struct ModulePlan {
  std::vector<PartOfPair> parts;
  std::vector<int64_t> part_begin;
  int rank = 0;
  int num_a = 1;
  bool a_per_expert = false;
  bool b_per_expert = false;
};

bool has_rows(const MatrixView& matrix) { return matrix.rows > 0; }
const MatrixView& of_expert(const std::vector<MatrixView>& matrices, int expert) {
  return matrices[matrices.size() == 1 ? 0 : expert];
}

Result<void> check_pair(const LoraModuleWeights& module, const LoraSiteShape& shape,
                        const LoraPair& pair) {
  const auto wrong = [&](std::string_view what, int64_t expected, int64_t found) {
    return invalid_argument(fmt::format("LoRA of {}: expected {} {}, found {}",
                                        describe(module.site), what, expected, found));
  };
  if (pair.rank > kMaxRank) {
    return unsupported(fmt::format("LoRA of {}: ranks up to {}, found {}", describe(module.site),
                                   kMaxRank, pair.rank));
  }
  if (static_cast<int>(pair.scale.size()) != pair.rank) {
    return wrong("scales", pair.rank, pair.scale.size());
  }
  for (const auto* matrices : {&pair.a, &pair.b}) {
    if (matrices->size() != 1 && static_cast<int>(matrices->size()) != shape.num_experts) {
      return wrong("matrices", shape.num_experts, matrices->size());
    }
  }
  for (const MatrixView& a : pair.a) {
    if (!has_rows(a)) continue;
    if (a.cols != shape.in_size) return wrong("columns of A", shape.in_size, a.cols);
    if (a.rows != pair.rank) return wrong("rows of A", pair.rank, a.rows);
  }
  for (const MatrixView& b : pair.b) {
    if (!has_rows(b)) continue;
    if (b.cols != pair.rank) return wrong("columns of B", pair.rank, b.cols);
    if (b.rows != pair.row_end - pair.row_begin) {
      return wrong("rows of B", pair.row_end - pair.row_begin, b.rows);
    }
  }
  return {};
}

Result<ModulePlan> plan_module(const LoraModuleWeights& module, const LoraSiteShape& shape) {
  ModulePlan plan;
  int64_t begin = 0;
  for (const int64_t rows : shape.part_rows) {
    plan.part_begin.push_back(begin);
    begin += rows;
  }
  plan.parts.resize(shape.part_rows.size());
  bool whole = false;
  for (const LoraPair& pair : module.pairs) {
    MEDLEY_TRY(check_pair(module, shape, pair));
    plan.rank = std::max(plan.rank, (pair.rank + kRankBlock - 1) / kRankBlock * kRankBlock);
    plan.a_per_expert |= pair.a.size() > 1;
    plan.b_per_expert |= pair.b.size() > 1;
    int64_t covered = pair.row_begin;
    for (size_t part = 0; part < shape.part_rows.size(); ++part) {
      if (plan.part_begin[part] != covered || covered >= pair.row_end) continue;
      plan.parts[part] = {&pair, covered - pair.row_begin};
      covered += shape.part_rows[part];
    }
    if (covered != pair.row_end || pair.row_end == pair.row_begin) {
      return unsupported(fmt::format("LoRA of {}: rows [{}, {}) are no whole projections",
                                     describe(module.site), pair.row_begin, pair.row_end));
    }
    whole |= pair.row_begin == 0 && pair.row_end == begin;
  }
  plan.num_a = whole ? 1 : static_cast<int>(shape.part_rows.size());
  return plan;
}

// Where output row `row` of unit `unit` stands: its part and the row within the part; part -1 is
// padding.
struct UnitRow {
  int part = -1;
  int64_t row = 0;
};
UnitRow unit_row(const LoraSiteShape& shape, int unit, int row) {
  if (shape.parts_share_units) {
    const int64_t at = int64_t{unit} * 8 + row % 8;
    return at < shape.part_rows[0] ? UnitRow{row / 8, at} : UnitRow{};
  }
  int64_t at = static_cast<int64_t>(unit) * kUnitRows + row;
  for (size_t part = 0; part < shape.part_rows.size(); ++part) {
    if (at < shape.part_rows[part]) return {static_cast<int>(part), at};
    at -= shape.part_rows[part];
  }
  return {};
}

int num_units(const LoraSiteShape& shape) {
  if (shape.parts_share_units) return static_cast<int>((shape.part_rows[0] + 7) / 8);
  int64_t rows = 0;
  for (const int64_t part : shape.part_rows) rows += part;
  return static_cast<int>((rows + kUnitRows - 1) / kUnitRows);
}

void pack_b(const LoraSiteShape& shape, const ModulePlan& plan, int expert, uint8_t* out) {
  const int blocks = plan.rank / kRankBlock;
  std::vector<float> values;
  for (int unit = 0; unit < num_units(shape); ++unit) {
    for (int row = 0; row < kUnitRows; ++row) {
      const UnitRow at = unit_row(shape, unit, row);
      if (at.part < 0 || plan.parts[at.part].pair == nullptr) continue;
      const PartOfPair& part = plan.parts[at.part];
      const MatrixView& b = of_expert(part.pair->b, expert);
      if (!has_rows(b)) continue;
      values.resize(b.cols);
      row_to_float(b, part.offset + at.row, values.data());
      for (int rank = 0; rank < part.pair->rank; ++rank) {
        const int64_t in_block = rank % kRankBlock;
        const int64_t lane = int64_t{row} % 8 * 4 + in_block / 4;
        const int64_t word = in_block % 4 / 2 * 2 + row / 8;
        const uint16_t bits = float_to_bf16(values[rank]);
        std::memcpy(
            out + (static_cast<int64_t>(unit) * blocks + rank / kRankBlock) * kRankBlockBytes +
                lane * 16 + word * 4 + in_block % 2 * 2,
            &bits, 2);
      }
    }
  }
}

Result<void> pack_a(const LoraSiteShape& shape, const ModulePlan& plan, int expert, uint8_t* out) {
  const MatrixLayout layout =
      make_matrix_layout(StreamFormat::kBF16, int64_t{plan.num_a} * plan.rank, shape.in_size);
  return pack_matrix(
      layout,
      [&](int unit, int row) {
        const int at = unit * kUnitRows + row;
        const LoraPair* pair = plan.parts[at / plan.rank].pair;
        if (pair == nullptr || at % plan.rank >= pair->rank) return SourceRow{};
        const MatrixView& a = of_expert(pair->a, expert);
        return has_rows(a) ? SourceRow{&a, at % plan.rank} : SourceRow{};
      },
      out);
}

// Appends `count` bytes, zeroed and aligned, and returns their offset.
size_t append(std::vector<uint8_t>& bytes, size_t count) {
  const size_t offset = (bytes.size() + kAlignment - 1) / kAlignment * kAlignment;
  bytes.resize(offset + count);
  return offset;
}

}  // namespace

Result<void> LoraTable::make(const LoraTableDesc& desc) {
  desc_ = desc;
  adapters_.clear();
  adapters_.resize(desc.max_slots);
  MEDLEY_TRY_ASSIGN(entries_, DeviceBuffer::allocate(sizeof(LoraEntry) * desc.max_slots *
                                                     desc.num_layers * kNumLoraModules));
  entries_.fill_zero();
  return {};
}

void LoraTable::announce(const LoraSite& site, const LoraSiteShape& shape) {
  const std::lock_guard lock(mutex_);
  shapes_[site] = shape;
}

size_t LoraTable::index(const LoraSite& site) const {
  MEDLEY_CHECK_LT(site.layer, desc_.num_layers);
  return (static_cast<size_t>(site.layer) * kNumLoraModules + static_cast<size_t>(site.module)) *
         desc_.max_slots;
}

const LoraEntry* LoraTable::entries(const LoraSite& site) const {
  return entries_.num_bytes() == 0 ? nullptr : entries_.as<LoraEntry>() + index(site);
}

Result<std::unique_ptr<PackedAdapter>> LoraTable::pack(std::span<const LoraModuleWeights> modules) {
  auto adapter = std::make_unique<CudaPackedAdapter>();
  std::vector<uint8_t>& bytes = adapter->bytes;
  for (const LoraModuleWeights& module : modules) {
    LoraSiteShape shape;
    {
      const std::lock_guard lock(mutex_);
      const auto found = shapes_.find(module.site);
      if (found == shapes_.end()) {
        return invalid_argument(
            fmt::format("LoRA of {}: this model has no such module", describe(module.site)));
      }
      shape = found->second;
    }
    MEDLEY_TRY_ASSIGN(const ModulePlan plan, plan_module(module, shape));
    const size_t a_bytes =
        make_matrix_layout(StreamFormat::kBF16, int64_t{plan.num_a} * plan.rank, shape.in_size)
            .matrix_bytes();
    const size_t b_bytes =
        static_cast<size_t>(num_units(shape)) * plan.rank / kRankBlock * kRankBlockBytes;
    const int num_a_experts = plan.a_per_expert ? shape.num_experts : 1;
    const int num_b_experts = plan.b_per_expert ? shape.num_experts : 1;
    const size_t a = append(bytes, a_bytes * num_a_experts);
    const size_t b = append(bytes, b_bytes * num_b_experts);
    const size_t scale = append(bytes, sizeof(float) * plan.num_a * plan.rank);
    for (int e = 0; e < num_a_experts; ++e) {
      MEDLEY_TRY(pack_a(shape, plan, e, bytes.data() + a + e * a_bytes));
    }
    for (int e = 0; e < num_b_experts; ++e) {
      pack_b(shape, plan, e, bytes.data() + b + e * b_bytes);
    }
    for (int i = 0; i < plan.num_a; ++i) {
      const LoraPair* pair = plan.parts[i].pair;
      if (pair == nullptr) continue;
      std::memcpy(bytes.data() + scale + sizeof(float) * i * plan.rank, pair->scale.data(),
                  sizeof(float) * pair->rank);
    }
    adapter->modules.push_back(
        {.site = module.site,
         .entry = {.a_expert_bytes = static_cast<int64_t>(plan.a_per_expert ? a_bytes : 0),
                   .b_expert_bytes = static_cast<int64_t>(plan.b_per_expert ? b_bytes : 0),
                   .rank = plan.rank,
                   .num_a = plan.num_a},
         .a_offset = a,
         .b_offset = b,
         .scale_offset = scale});
  }
  return std::unique_ptr<PackedAdapter>(std::move(adapter));
}

Result<void> LoraTable::set(int slot, const CudaPackedAdapter& adapter, cudaStream_t stream) {
  MEDLEY_CHECK_LT(slot, desc_.max_slots);
  clear(slot, stream);
  MEDLEY_TRY_ASSIGN(DeviceBuffer buffer, DeviceBuffer::allocate(adapter.bytes.size()));
  MEDLEY_CUDA_CHECK(cudaMemcpyAsync(buffer.data(), adapter.bytes.data(), adapter.bytes.size(),
                                    cudaMemcpyHostToDevice, stream));
  const auto* base = buffer.as<uint8_t>();
  for (const PackedLoraModule& module : adapter.modules) {
    LoraEntry entry = module.entry;
    entry.a = base + module.a_offset;
    entry.b = base + module.b_offset;
    entry.scale = reinterpret_cast<const float*>(base + module.scale_offset);
    MEDLEY_CUDA_CHECK(cudaMemcpyAsync(entries_.as<LoraEntry>() + index(module.site) + slot, &entry,
                                      sizeof(entry), cudaMemcpyHostToDevice, stream));
  }
  adapters_[slot] = std::move(buffer);
  return {};
}

void LoraTable::clear(int slot, cudaStream_t stream) {
  MEDLEY_CHECK_LT(slot, desc_.max_slots);
  for (int site = 0; site < desc_.num_layers * kNumLoraModules; ++site) {
    MEDLEY_CUDA_CHECK(cudaMemsetAsync(
        entries_.as<LoraEntry>() + static_cast<size_t>(site) * desc_.max_slots + slot, 0,
        sizeof(LoraEntry), stream));
  }
  MEDLEY_CUDA_CHECK(cudaStreamSynchronize(stream));
  adapters_[slot] = DeviceBuffer();
}

}  // namespace medley::cuda
