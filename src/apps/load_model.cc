#include "apps/load_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "apps/host_memory.h"
#include "apps/make_backend.h"
#include "apps/memory_plan.h"
#include "apps/pack_progress.h"
#include "base/clock.h"
#include "base/log.h"
#include "engine/kv_plan.h"
#include "engine/model_executor.h"
#include "weights/model_weights.h"

namespace medley::apps {
namespace {

constexpr int kDefaultMaxLoras = 8;
constexpr int64_t kPinnedAtStartBytes = int64_t{2} << 30;  // takes 0.2 s

double seconds_since(int64_t start_ns) { return static_cast<double>(now_ns() - start_ns) * 1e-9; }
double mib(int64_t bytes) { return static_cast<double>(bytes) / (1 << 20); }

// As many as there are slots go on to the device.
Result<void> load_lora_modules(const ModelFlags& flags, int max_loras, AdapterStore& store) {
  int num_loaded = 0;
  for (const std::string& text : flags.lora_modules) {
    MEDLEY_TRY_ASSIGN(const LoraModule module, parse_lora_module(text));
    const Result<AdapterInfo> info =
        store.load(module.name, module.path, {.to_device = num_loaded++ < max_loras});
    if (!info.ok()) {
      Error error = info.error();
      error.message = fmt::format("adapter {} in {}: {}", module.name, module.path, error.message);
      return error;
    }
  }
  return {};
}

int max_loras_of(const ModelFlags& flags) {
  if (!flags.enable_lora && flags.lora_modules.empty() && flags.adapter_root.empty()) return 0;
  if (flags.max_loras > 0) return flags.max_loras;
  return std::max(kDefaultMaxLoras, static_cast<int>(flags.lora_modules.size()));
}

// Of the host memory of adapters, what is page-locked before the first comes.
size_t pinned_bytes(const MemoryPlan& plan) {
  return static_cast<size_t>(std::min(plan.adapter_bytes, kPinnedAtStartBytes));
}

// The tensors of the base model, kept in `loaded`.
Result<const TensorMap*> open_weights(const ModelFlags& flags, LoadedModel& loaded) {
  if (flags.load_format == "dummy") {
    MEDLEY_TRY_ASSIGN(DummyWeights made,
                      DummyWeights::make(loaded.folder.spec, flags.seed.value_or(0)));
    loaded.dummy_weights = std::make_unique<DummyWeights>(std::move(made));
    return &loaded.dummy_weights->tensors();
  }
  MEDLEY_TRY_ASSIGN(Checkpoint opened, Checkpoint::open_folder(flags.model));
  loaded.checkpoint = std::make_unique<Checkpoint>(std::move(opened));
  return &loaded.checkpoint->tensors();
}

}  // namespace

Result<LoadedModel> load_model(const ModelFlags& flags, ModelFolder folder,
                               const LoadOptions& options) {
  LoadedModel loaded;
  loaded.folder = std::move(folder);
  const ModelSpec& spec = loaded.folder.spec;
  loaded.max_model_len = flags.max_model_len > 0 ? flags.max_model_len : spec.max_position;
  if (loaded.max_model_len > spec.max_position) {
    return invalid_argument(fmt::format("--max-model-len is {}; the model goes to {} tokens",
                                        loaded.max_model_len, spec.max_position),
                            "--max-model-len");
  }
  loaded.max_loras = max_loras_of(flags);
  MEDLEY_TRY_ASSIGN(const TensorMap* tensors, open_weights(flags, loaded));
  MEDLEY_TRY_ASSIGN(loaded.backend,
                    make_backend({.device = flags.device, .num_threads = flags.num_threads}));

  MEDLEY_TRY_ASSIGN(
      const DType dtype,
      parse_dtype(flags.dtype, loaded.backend->memory() ? DType::kBF16 : spec.checkpoint_dtype));
  const int64_t start_ns = now_ns();
  MEDLEY_TRY_ASSIGN(const ModelWeights weights, read_model_weights(spec, *tensors));
  MEDLEY_TRY_ASSIGN(std::unique_ptr<Model> model,
                    Model::create(spec, weights, *loaded.backend,
                                  {.dtype = dtype,
                                   .max_rows = flags.max_num_batched_tokens,
                                   .max_seqs = flags.max_num_seqs,
                                   .on_progress = show_pack_progress(),
                                   .routing_observer = options.routing_observer}));
  log::info("{} on {}: {} layers, {:.1f} MiB of weights in {:.2f} s, {}", spec.family,
            loaded.backend->name(), spec.num_layers(),
            mib(static_cast<int64_t>(model->num_weight_bytes())), seconds_since(start_ns),
            to_string(dtype));

  const KvPlanDesc kv{.max_num_seqs = flags.max_num_seqs,
                      .max_model_len = loaded.max_model_len,
                      .page_size = kPageSize,
                      .dtype = dtype};
  MEDLEY_TRY_ASSIGN(const MemoryPlan plan, plan_memory(flags, spec,
                                                       {.device = loaded.backend->memory(),
                                                        .host_bytes = host_memory_bytes(),
                                                        .has_adapters = loaded.max_loras > 0},
                                                       kv));
  if (loaded.max_loras > 0) {
    MEDLEY_TRY_ASSIGN(
        loaded.adapters,
        AdapterStore::create(spec, *loaded.backend,
                             {.max_loras = loaded.max_loras,
                              .max_lora_rank = flags.max_lora_rank,
                              .pool_bytes = static_cast<size_t>(plan.adapter_bytes),
                              .pinned_bytes = pinned_bytes(plan),
                              .max_host_bytes = static_cast<size_t>(plan.adapter_host_bytes),
                              .adapter_root = flags.adapter_root,
                              .base_tensors = tensors,
                              .reader = options.adapter_reader}));
    MEDLEY_TRY(load_lora_modules(flags, loaded.max_loras, *loaded.adapters));
  }
  MEDLEY_TRY_ASSIGN(loaded.executor,
                    make_model_executor(*loaded.backend, std::move(model),
                                        {.step = {.max_rows = flags.max_num_batched_tokens,
                                                  .max_seqs = flags.max_num_seqs,
                                                  .max_pages = plan_page_table(kv, plan.num_pages)},
                                         .num_pages = plan.num_pages,
                                         .page_size = kPageSize}));
  log::info("{} KV pages of {} tokens, {:.1f} MiB", plan.num_pages, kPageSize, mib(plan.kv_bytes));
  return loaded;
}

}  // namespace medley::apps
