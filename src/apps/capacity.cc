#include "apps/capacity.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>

#include <CLI/CLI.hpp>

#include "apps/make_backend.h"
#include "apps/memory_plan.h"
#include "engine/kv_plan.h"
#include "model/model.h"
#include "weights/dummy_adapters.h"

namespace medley::apps {
namespace {

constexpr double kGib = 1 << 30;
constexpr int64_t kAnyHost = int64_t{1} << 60;  // only --adapter-host-memory-bytes is a limit
double gib(int64_t bytes) { return static_cast<double>(bytes) / kGib; }

// Of the checkpoint, which packing changes by less than a percent.
Result<int64_t> weight_bytes(const CapacityFlags& flags, const ModelSpec& spec) {
  if (flags.load_format != "dummy") {
    MEDLEY_TRY_ASSIGN(const Checkpoint checkpoint, Checkpoint::open_folder(flags.model));
    return static_cast<int64_t>(checkpoint.num_bytes());
  }
  MEDLEY_TRY_ASSIGN(const DummyWeights weights, DummyWeights::make(spec, 0));
  int64_t sum = 0;
  for (const auto& [name, tensor] : weights.tensors()) {
    sum += static_cast<int64_t>(tensor.num_bytes());
  }
  return sum;
}

// In bfloat16, of an adapter of all attention, expert and dense modules.
Result<int64_t> adapter_bytes(const ModelSpec& spec, int rank) {
  MEDLEY_TRY_ASSIGN(const DummyAdapters adapters, DummyAdapters::make(spec, {.rank = rank}));
  int64_t values = 0;
  for (const LoraModuleWeights& module : adapters.modules(0)) {
    for (const LoraPair& pair : module.pairs) {
      for (const MatrixView& a : pair.a) values += a.rows * a.cols;
      for (const MatrixView& b : pair.b) values += b.rows * b.cols;
    }
  }
  return values * 2;
}

Result<int64_t> memory_of_device(const CapacityFlags& flags) {
  if (flags.device_memory_gib > 0) {
    return static_cast<int64_t>(flags.device_memory_gib * kGib);
  }
  MEDLEY_TRY_ASSIGN(const std::unique_ptr<Backend> backend, make_backend({.device = flags.device}));
  const std::optional<DeviceMemory> memory = backend->memory();
  if (!memory) {
    return unsupported("no GPU here: say how large it is with --device-memory-gib",
                       "--device-memory-gib");
  }
  return static_cast<int64_t>(memory->total_bytes);
}

}  // namespace

void add_capacity_flags(CLI::App& app, CapacityFlags& flags) {
  add_model_flags(app, flags);
  app.add_option("--device-memory-gib", flags.device_memory_gib,
                 "of the GPU [that of this machine]")
      ->check(CLI::Range(1.0, 100000.0));
  app.add_option("--adapter-rank", flags.adapter_rank, "of the adapters counted")
      ->check(CLI::Range(1, 512))
      ->capture_default_str();
}

Result<void> capacity(const CapacityFlags& flags) {
  MEDLEY_TRY_ASSIGN(const ModelFolder folder, read_model_folder(flags.model));
  const ModelSpec& spec = folder.spec;
  MEDLEY_TRY_ASSIGN(const int64_t memory, memory_of_device(flags));
  MEDLEY_TRY_ASSIGN(const int64_t weights, weight_bytes(flags, spec));
  MEDLEY_TRY_ASSIGN(const int64_t adapter, adapter_bytes(spec, flags.adapter_rank));
  const int64_t model_len = flags.max_model_len > 0 ? flags.max_model_len : spec.max_position;
  const int64_t step = Model::buffer_bytes(
      spec, {.max_rows = flags.max_num_batched_tokens, .max_seqs = flags.max_num_seqs});
  const int64_t used = weights + step;
  fmt::print("GPU             {:8.2f} GiB, {:.0f} % of it used\n", gib(memory),
             flags.gpu_memory_utilization * 100);
  fmt::print("weights         {:8.2f} GiB\n", gib(weights));
  fmt::print("a step          {:8.2f} GiB for {} tokens of {} requests\n", gib(step),
             flags.max_num_batched_tokens, flags.max_num_seqs);
  std::fflush(stdout);
  const KvPlanDesc kv{
      .max_num_seqs = flags.max_num_seqs, .max_model_len = model_len, .page_size = kPageSize};
  MEDLEY_TRY_ASSIGN(const MemoryPlan plan,
                    plan_memory(flags, spec,
                                {.device = DeviceMemory{.free_bytes = static_cast<size_t>(
                                                            std::max<int64_t>(0, memory - used)),
                                                        .total_bytes = static_cast<size_t>(memory)},
                                 .host_bytes = kAnyHost,
                                 .has_adapters = true},
                                kv));
  const int64_t token_bytes = kv_page_bytes(spec, DType::kBF16, kPageSize) / kPageSize;
  fmt::print(
      "keys and values {:8.2f} GiB, {} tokens of {:.1f} KiB; {} requests of {} would fill {:.2f}\n",
      gib(plan.kv_bytes), int64_t{plan.num_pages} * kPageSize,
      static_cast<double>(token_bytes) / 1024, flags.max_num_seqs, model_len,
      gib(token_bytes * model_len * flags.max_num_seqs));
  fmt::print("adapters        {:8.2f} GiB, and as much of the host's memory\n",
             gib(plan.adapter_bytes));
  fmt::print("of rank {:3}     {:8.3f} GiB each: {} at once\n", flags.adapter_rank, gib(adapter),
             plan.adapter_bytes / adapter);
  return {};
}

}  // namespace medley::apps
