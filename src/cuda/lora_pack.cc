#include "cuda/lora_pack.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "cuda/matrix_layout.h"
#include "cuda/read_bf16.h"

namespace medley::cuda {
namespace {

constexpr int kHalfUnit = kUnitRows / 2;
constexpr int kBlockCols = block_cols(StreamFormat::kBF16);
constexpr int kBlockBytes = block_bytes(StreamFormat::kBF16);

std::string describe(const LoraSite& site) {
  return fmt::format("layer {} {}", site.layer, to_string(site.module));
}

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

// Where output row `row` of unit `unit` stands: its part and the row within the part; part -1 is
// padding.
struct UnitRow {
  int part = -1;
  int64_t row = 0;
};
UnitRow unit_row(const LoraSiteShape& shape, int unit, int row) {
  if (shape.parts_share_units) {
    const int64_t at = int64_t{unit} * kHalfUnit + row % kHalfUnit;
    return at < shape.part_rows[0] ? UnitRow{row / kHalfUnit, at} : UnitRow{};
  }
  int64_t at = static_cast<int64_t>(unit) * kUnitRows + row;
  for (size_t part = 0; part < shape.part_rows.size(); ++part) {
    if (at < shape.part_rows[part]) return {static_cast<int>(part), at};
    at -= shape.part_rows[part];
  }
  return {};
}

int num_units(const LoraSiteShape& shape) {
  if (shape.parts_share_units) {
    return static_cast<int>((shape.part_rows[0] + kHalfUnit - 1) / kHalfUnit);
  }
  int64_t rows = 0;
  for (const int64_t part : shape.part_rows) rows += part;
  return static_cast<int>((rows + kUnitRows - 1) / kUnitRows);
}

int num_blocks(const LoraModulePlan& plan) {
  return static_cast<int>((plan.shape.in_size + kBlockCols - 1) / kBlockCols);
}

// Rows of a pair's matrix from `first_row` on, of which `num_rows` exist.
struct Rows {
  const LoraPair* pair = nullptr;
  int first_row = 0;
  int num_rows = 0;
};
Rows a_rows(const LoraModulePlan& plan, int unit) {
  const int at = unit * kUnitRows;
  const LoraPair* pair = plan.parts[at / plan.rank].pair;
  const int first = at % plan.rank;
  if (pair == nullptr) return {};
  return {pair, first, std::clamp(pair->rank - first, 0, kUnitRows)};
}

bool are_b_interleaved(const LoraModulePlan& plan) {
  return std::ranges::all_of(plan.parts, [](const LoraModulePlan::Part& part) {
    return part.pair == nullptr || are_interleaved(part.pair->b);
  });
}

void pack_a(const LoraPackTask& task) {
  const LoraModulePlan& plan = *task.plan;
  const int units = plan.num_a * plan.rank / kUnitRows;
  const size_t unit_bytes = size_t{kBlockBytes} * num_blocks(plan);
  // Blocks outside, matrices inside: where the experts lie side by side, they share cache lines.
  for (int block = task.begin; block < task.end; ++block) {
    const int64_t col = int64_t{block} * kBlockCols;
    const int count = static_cast<int>(std::min<int64_t>(kBlockCols, plan.shape.in_size - col));
    for (int matrix = task.matrix_begin; matrix < task.matrix_end; ++matrix) {
      for (int unit = 0; unit < units; ++unit) {
        uint8_t* out =
            task.module + plan.a_bytes * matrix + unit_bytes * unit + size_t{kBlockBytes} * block;
        const Rows rows = a_rows(plan, unit);
        const MatrixView* a = rows.pair == nullptr ? nullptr : &of_expert(rows.pair->a, matrix);
        const int num_rows = a != nullptr && has_rows(*a) ? rows.num_rows : 0;
        if (num_rows < kUnitRows || count < kBlockCols) std::memset(out, 0, kBlockBytes);
        if (num_rows == 0) continue;
        read_bf16_tile(*a,
                       {.row = rows.first_row, .col = col, .num_rows = num_rows, .num_cols = count},
                       reinterpret_cast<uint16_t*>(out), kBlockCols);
      }
    }
  }
}

// The source of an output row of a unit of B: a row of the pair's matrices, or padding.
struct BSource {
  const LoraPair* pair = nullptr;
  int64_t row = 0;
};
using BSources = std::array<BSource, kUnitRows>;

BSources b_sources(const LoraModulePlan& plan, int unit) {
  BSources sources;
  for (int i = 0; i < kUnitRows; ++i) {
    const UnitRow at = unit_row(plan.shape, unit, i);
    if (at.part < 0 || plan.parts[at.part].pair == nullptr) continue;
    const LoraModulePlan::Part& part = plan.parts[at.part];
    sources[i] = {part.pair, part.pair->b_row(part.offset + at.row)};
  }
  return sources;
}

// Rows g and g + 8 of a unit: `rank` values each.
void put_b_rows(const uint16_t* low, const uint16_t* high, int blocks, int g, uint8_t* unit) {
  for (int64_t block = 0; block < blocks; ++block) {
    interleave_pairs(low + block * kRankBlock, high + block * kRankBlock,
                     unit + block * kRankBlockBytes + int64_t{g} * kBlockBytes / kUnitRows);
  }
}

void pack_b(const LoraPackTask& task) {
  const LoraModulePlan& plan = *task.plan;
  const int blocks = plan.rank / kRankBlock;
  const int num_matrices = task.matrix_end - task.matrix_begin;
  const bool interleaved = are_b_interleaved(plan) && num_matrices == plan.num_b_matrices;
  // Two rows of the unit: of all matrices where these lie side by side, else of one.
  const size_t rows_size = static_cast<size_t>(plan.rank) * (interleaved ? num_matrices : 1);
  std::vector<uint16_t> low(rows_size), high(rows_size), together(interleaved ? rows_size : 0);
  const auto unit_of = [&](int matrix, int unit) {
    return task.module + plan.b_offset() + plan.b_bytes * matrix +
           static_cast<size_t>(unit) * blocks * kRankBlockBytes;
  };
  for (int unit = task.begin; unit < task.end; ++unit) {
    const BSources sources = b_sources(plan, unit);
    if (interleaved) {
      const auto read = [&](const BSource& source, std::vector<uint16_t>& out) {
        if (source.pair == nullptr) return static_cast<void>(std::ranges::fill(out, 0));
        const MatrixView& first = source.pair->b[0];
        const MatrixView row = {.dtype = first.dtype,
                                .data = first.data,
                                .rows = first.rows,
                                .cols = first.cols * num_matrices,
                                .row_stride = first.row_stride};
        read_bf16(row, source.row, 0, row.cols, together.data());
        std::fill(together.begin() + row.cols, together.end(), 0);
        transpose(together.data(), plan.rank, num_matrices, out.data());
      };
      for (int g = 0; g < kHalfUnit; ++g) {
        read(sources[g], low);
        read(sources[g + kHalfUnit], high);
        for (int matrix = 0; matrix < num_matrices; ++matrix) {
          const auto row = static_cast<ptrdiff_t>(matrix) * plan.rank;
          put_b_rows(low.data() + row, high.data() + row, blocks, g, unit_of(matrix, unit));
        }
      }
      continue;
    }
    for (int matrix = task.matrix_begin; matrix < task.matrix_end; ++matrix) {
      const auto read = [&](const BSource& source, std::vector<uint16_t>& out) {
        const MatrixView* b = source.pair == nullptr ? nullptr : &of_expert(source.pair->b, matrix);
        const int64_t count = b != nullptr && has_rows(*b) ? b->cols : 0;
        if (count > 0) read_bf16(*b, source.row, 0, count, out.data());
        std::fill(out.begin() + count, out.end(), 0);
      };
      for (int g = 0; g < kHalfUnit; ++g) {
        read(sources[g], low);
        read(sources[g + kHalfUnit], high);
        put_b_rows(low.data(), high.data(), blocks, g, unit_of(matrix, unit));
      }
    }
  }
}

void pack_scales(const LoraPackTask& task) {
  const LoraModulePlan& plan = *task.plan;
  uint8_t* out = task.module + plan.scale_offset();
  for (int i = 0; i < plan.num_a; ++i) {
    const LoraPair* pair = plan.parts[i].pair;
    const size_t count = pair == nullptr ? 0 : pair->scale.size();
    if (count > 0) std::memcpy(out, pair->scale.data(), sizeof(float) * count);
    std::memset(out + sizeof(float) * count, 0, sizeof(float) * (plan.rank - count));
    out += sizeof(float) * plan.rank;
  }
}

// Whether neighbours of a row lie side by side.
bool rows_are_contiguous(const LoraModulePlan& plan, bool of_a) {
  for (const LoraModulePlan::Part& part : plan.parts) {
    if (part.pair == nullptr) continue;
    for (const MatrixView& matrix : of_a ? part.pair->a : part.pair->b) {
      if (has_rows(matrix) && matrix.col_stride != 1) return false;
    }
  }
  return true;
}

}  // namespace

LoraEntry LoraModulePlan::entry(const uint8_t* base) const {
  return {.a = base,
          .b = base + b_offset(),
          .scale = reinterpret_cast<const float*>(base + scale_offset()),
          .a_expert_bytes = static_cast<int64_t>(num_a_matrices > 1 ? a_bytes : 0),
          .b_expert_bytes = static_cast<int64_t>(num_b_matrices > 1 ? b_bytes : 0),
          .rank = rank,
          .num_a = num_a};
}

Result<LoraModulePlan> plan_lora_module(const LoraModuleWeights& module,
                                        const LoraSiteShape& shape) {
  LoraModulePlan plan = {.site = module.site, .shape = shape};
  std::vector<int64_t> part_begin;
  int64_t begin = 0;
  for (const int64_t rows : shape.part_rows) {
    part_begin.push_back(begin);
    begin += rows;
  }
  plan.parts.resize(shape.part_rows.size());
  bool whole = false;
  for (const LoraPair& pair : module.pairs) {
    MEDLEY_TRY(check_pair(module, shape, pair));
    plan.rank = std::max(plan.rank, (pair.rank + kRankBlock - 1) / kRankBlock * kRankBlock);
    if (pair.a.size() > 1) plan.num_a_matrices = shape.num_experts;
    if (pair.b.size() > 1) plan.num_b_matrices = shape.num_experts;
    int64_t covered = pair.row_begin;
    for (size_t part = 0; part < shape.part_rows.size(); ++part) {
      if (part_begin[part] != covered || covered >= pair.row_end) continue;
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
  plan.a_bytes =
      static_cast<size_t>(plan.num_a) * plan.rank / kUnitRows * kBlockBytes * num_blocks(plan);
  plan.b_bytes = static_cast<size_t>(num_units(shape)) * plan.rank / kRankBlock * kRankBlockBytes;
  return plan;
}

void add_pack_tasks(const LoraModulePlan& plan, uint8_t* module, std::vector<LoraPackTask>& tasks) {
  using What = LoraPackTask::What;
  const auto add = [&](What what, int num_matrices, int count, bool contiguous) {
    // Contiguous rows: matrix after matrix, each read in order. Else a few columns or rows of all
    // matrices at a time.
    constexpr int kChunk = 16;
    const int matrices = contiguous ? 1 : num_matrices;
    const int chunk = contiguous && num_matrices > 1 ? count : kChunk;
    for (int matrix = 0; matrix < num_matrices; matrix += matrices) {
      for (int begin = 0; begin < count; begin += chunk) {
        tasks.push_back({.plan = &plan,
                         .module = module,
                         .what = what,
                         .matrix_begin = matrix,
                         .matrix_end = matrix + matrices,
                         .begin = begin,
                         .end = std::min(begin + chunk, count)});
      }
    }
  };
  add(What::kA, plan.num_a_matrices, num_blocks(plan), rows_are_contiguous(plan, /*of_a=*/true));
  add(What::kB, plan.num_b_matrices, num_units(plan.shape),
      rows_are_contiguous(plan, /*of_a=*/false));
  tasks.push_back({.plan = &plan, .module = module, .what = What::kScales});
}

void run_pack_task(const LoraPackTask& task) {
  switch (task.what) {
    case LoraPackTask::What::kA:
      pack_a(task);
      break;
    case LoraPackTask::What::kB:
      pack_b(task);
      break;
    case LoraPackTask::What::kScales:
      pack_scales(task);
      break;
  }
  finish_streaming();
}

}  // namespace medley::cuda
