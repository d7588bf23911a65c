#include "cpu/lora.h"

#include <algorithm>

#include "cpu/context.h"
#include "cpu/parallel.h"
#include "cpu/simd.h"
#include "cpu/step.h"

namespace medley::cpu {
namespace {

Error bad_pair(LoraSite site, std::string_view what, int64_t expected, int64_t found) {
  return invalid_argument(fmt::format("LoRA {} of layer {}: {}: expected {}, found {}",
                                      to_string(site.module), site.layer, what, expected, found));
}

bool absent(const MatrixView& view) { return view.data == nullptr || view.rows == 0; }

Result<void> check_pair(LoraSite site, const LoraPair& pair) {
  const int64_t rows = pair.row_end - pair.row_begin;
  if (pair.rank < 1) return bad_pair(site, "rank", 1, pair.rank);
  if (static_cast<int>(pair.scale.size()) != pair.rank) {
    return bad_pair(site, "number of scales", pair.rank, pair.scale.size());
  }
  if (pair.a.empty() || pair.b.empty()) {
    return bad_pair(site, "number of A and B matrices, at least", 1, 0);
  }
  const auto check = [&](const std::vector<MatrixView>& list, std::string_view name,
                         int64_t want_rows, int64_t want_cols) -> Result<void> {
    for (const MatrixView& m : list) {
      if (absent(m)) continue;
      if (m.rows != want_rows) {
        return bad_pair(site, fmt::format("rows of {}", name), want_rows, m.rows);
      }
      if (m.cols != want_cols) {
        return bad_pair(site, fmt::format("columns of {}", name), want_cols, m.cols);
      }
    }
    return {};
  };
  MEDLEY_TRY(check(pair.a, "A", pair.rank, pair.a[0].cols));
  MEDLEY_TRY(check(pair.b, "B", rows, pair.rank));
  if (pair.a.size() > 1 && pair.b.size() > 1 && pair.a.size() != pair.b.size()) {
    return bad_pair(site, "number of B matrices", pair.a.size(), pair.b.size());
  }
  return {};
}

// Every second row, from `first` on.
MatrixView every_second(MatrixView view, int64_t first) {
  view.data = static_cast<const char*>(view.data) +
              first * view.row_stride * static_cast<int64_t>(size_of(view.dtype));
  view.rows = (view.rows - first + 1) / 2;
  view.row_stride *= 2;
  return view;
}

std::vector<PackedMatrix> pack_list(const std::vector<MatrixView>& list, bool to_bf16,
                                    bool interleaved = false) {
  std::vector<PackedMatrix> out;
  for (const MatrixView& view : list) {
    if (absent(view)) {
      out.emplace_back();
    } else if (interleaved) {
      const MatrixView parts[] = {every_second(view, 0), every_second(view, 1)};
      out.push_back(pack_matrix(parts, to_bf16, nullptr));
    } else {
      out.push_back(pack_matrix({&view, 1}, to_bf16, nullptr));
    }
  }
  return out;
}

MatrixView transposed(MatrixView view) {
  std::swap(view.rows, view.cols);
  std::swap(view.row_stride, view.col_stride);
  return view;
}

void run_task(const LoraTask& task, const LoraRows& rows, float* s, int s_stride) {
  float* s_rows[kLoraTaskRows];
  float* out_rows[kLoraTaskRows];
  for (int i = 0; i < task.count; ++i) s_rows[i] = s + static_cast<int64_t>(i) * s_stride;
  for (const PackedPair& pair : task.module->pairs) {
    const PackedMatrix& a = pair.a_of(task.expert);
    const PackedMatrix& b = pair.b_of(task.expert);
    if (a.rows == 0 || b.rows == 0) continue;
    MEDLEY_CHECK_EQ(a.cols, rows.in_size);
    MEDLEY_CHECK_LE(pair.row_begin + b.rows, rows.out_size);
    gemm({.weight = &a, .x = rows.x + task.first, .out = s_rows, .num_rows = task.count});
    for (int i = 0; i < task.count; ++i) {
      for (int j = 0; j < pair.rank; ++j) {
        s_rows[i][j] *= pair.scale[j];
        if (rows.round_s) s_rows[i][j] = round_to_bf16(s_rows[i][j]);
      }
      out_rows[i] = rows.out[task.first + i] + pair.row_begin;
    }
    gemm({.weight = &b, .x = s_rows, .out = out_rows, .num_rows = task.count, .accumulate = true});
  }
}

}  // namespace

size_t CpuPackedAdapter::num_bytes() const {
  size_t sum = 0;
  for (const PackedModule& module : modules) {
    for (const PackedPair& pair : module.pairs) {
      sum += pair.a_table.num_bytes() + pair.scale.size() * sizeof(float);
      for (const PackedMatrix& m : pair.a) sum += m.data.num_bytes();
      for (const PackedMatrix& m : pair.b) sum += m.data.num_bytes();
    }
  }
  return sum;
}

Result<std::unique_ptr<PackedAdapter>> pack_adapter(std::span<const LoraModuleWeights> modules,
                                                    bool to_bf16) {
  auto adapter = std::make_unique<CpuPackedAdapter>();
  for (const LoraModuleWeights& module : modules) {
    PackedModule packed{.site = module.site, .pairs = {}};
    for (const LoraPair& pair : module.pairs) {
      MEDLEY_TRY(check_pair(module.site, pair));
      PackedPair out{.row_begin = pair.row_begin, .rank = pair.rank, .scale = pair.scale};
      if (module.site.module == LoraModule::kEmbed) {
        out.a_table = pack_table(transposed(pair.a[0]), to_bf16);
      } else {
        out.a = pack_list(pair.a, to_bf16);
      }
      out.b = pack_list(pair.b, to_bf16, pair.b_interleaved);
      packed.pairs.push_back(std::move(out));
      adapter->max_rank = std::max(adapter->max_rank, pair.rank);
    }
    adapter->modules.push_back(std::move(packed));
  }
  return std::unique_ptr<PackedAdapter>(std::move(adapter));
}

void LoraTable::resize(const LoraTableDesc& desc) {
  desc_ = desc;
  entries_.assign(static_cast<size_t>(desc.max_slots) * desc.num_layers * kNumLoraModules, nullptr);
}

size_t LoraTable::index(int slot, LoraSite site) const {
  MEDLEY_CHECK(valid(slot), fmt::format("LoRA slot {} of {}", slot, desc_.max_slots));
  MEDLEY_CHECK_LT(site.layer, desc_.num_layers);
  return (static_cast<size_t>(slot) * desc_.num_layers + site.layer) * kNumLoraModules +
         static_cast<size_t>(site.module);
}

void LoraTable::set(int slot, const CpuPackedAdapter& adapter) {
  clear(slot);
  for (const PackedModule& module : adapter.modules) {
    entries_[index(slot, module.site)] = &module;
  }
  max_rank_ = std::max(max_rank_, adapter.max_rank);
}

void LoraTable::clear(int slot) {
  const size_t begin = index(slot, {LoraModule::kQkv, 0});
  std::fill_n(entries_.begin() + begin, desc_.num_layers * kNumLoraModules, nullptr);
}

void add_lora_tasks(const PackedModule* module, int expert, int first, int count,
                    std::span<LoraTask> tasks, int& num_tasks) {
  if (module == nullptr) return;
  for (int done = 0; done < count; done += kLoraTaskRows) {
    tasks[num_tasks++] = {.module = module,
                          .expert = expert,
                          .first = first + done,
                          .count = std::min(count - done, kLoraTaskRows)};
  }
}

void apply_lora(Context& context, std::span<const LoraTask> tasks, const LoraRows& rows) {
  if (tasks.empty()) return;
  const int rank = context.lora.max_rank();
  int64_t num_rows = 0;
  int64_t work = 0;
  for (const LoraTask& task : tasks) {
    num_rows = std::max<int64_t>(num_rows, task.first + task.count);
    for (const PackedPair& pair : task.module->pairs) {
      work += task.count * (pair.a_of(task.expert).cols + pair.b_of(task.expert).rows) * pair.rank;
    }
  }
  float* s = context.workspace.lora_s.reserve(num_rows * rank);
  parallel_items(context.pool, tasks.size(), work, [&](int64_t i) {
    run_task(tasks[i], rows, s + static_cast<int64_t>(tasks[i].first) * rank, rank);
  });
}

void apply_dense_lora(Context& context, LoraSite site, const RowGroups& groups,
                      const LoraRows& rows) {
  if (groups.order.empty()) return;
  const int num_rows = static_cast<int>(groups.order.size());
  Workspace& workspace = context.workspace;
  const int capacity = max_lora_tasks(num_rows, static_cast<int>(groups.groups.size()));
  const std::span<LoraTask> tasks(workspace.tasks.reserve(capacity), capacity);
  int num_tasks = 0;
  for (const RowGroup& group : groups.groups) {
    add_lora_tasks(context.lora.find(group.slot, site), /*expert=*/0, group.begin,
                   group.end - group.begin, tasks, num_tasks);
  }
  if (num_tasks == 0) return;
  const float** x = workspace.lora_x.reserve(num_rows);
  float** out = workspace.lora_out.reserve(num_rows);
  for (int i = 0; i < num_rows; ++i) {
    x[i] = rows.x[groups.order[i]];
    out[i] = rows.out[groups.order[i]];
  }
  LoraRows gathered = rows;
  gathered.x = x;
  gathered.out = out;
  apply_lora(context, tasks.first(num_tasks), gathered);
}

}  // namespace medley::cpu
