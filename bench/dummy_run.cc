#include "bench/dummy_run.h"

#include <fmt/format.h>

#include <fstream>
#include <iterator>
#include <optional>
#include <thread>
#include <utility>

#include "cuda/cuda_backend.h"
#include "engine/model_executor.h"
#include "model/model.h"
#include "spec/read_spec.h"
#include "weights/model_weights.h"

namespace medley::bench {

Result<DummyRun> make_dummy_run(const DummyRunDesc& desc) {
  std::ifstream file(desc.config, std::ios::binary);
  if (!file) return not_found(fmt::format("can't read {}", desc.config));
  MEDLEY_TRY_ASSIGN(const ModelSpec spec,
                    read_model_spec(std::string(std::istreambuf_iterator<char>(file), {})));
  DummyRun run;
  MEDLEY_TRY_ASSIGN(DummyWeights dummy, DummyWeights::make(spec, /*seed=*/0));
  run.weights = std::make_unique<DummyWeights>(std::move(dummy));
  MEDLEY_TRY_ASSIGN(DummyAdapters adapters, DummyAdapters::make(spec, {.rank = desc.adapter_rank}));
  run.random_adapters = std::make_unique<DummyAdapters>(std::move(adapters));
  MEDLEY_TRY_ASSIGN(run.backend, make_cuda_backend());
  MEDLEY_TRY_ASSIGN(const ModelWeights weights, read_model_weights(spec, run.weights->tensors()));
  MEDLEY_TRY_ASSIGN(std::unique_ptr<Model> model, Model::create(spec, weights, *run.backend,
                                                                {.dtype = DType::kBF16,
                                                                 .max_rows = desc.step.max_rows,
                                                                 .max_seqs = desc.step.max_seqs}));
  const auto read = [made = run.random_adapters.get(),
                     rank = desc.adapter_rank](const std::string& path) -> Result<AdapterWeights> {
    AdapterWeights out;
    out.modules = made->modules(std::stoull(path));
    out.max_rank = rank;
    out.hash = "random adapter " + path;
    return out;
  };
  MEDLEY_TRY_ASSIGN(run.adapters, AdapterStore::create(spec, *run.backend,
                                                       {.max_loras = desc.max_loras,
                                                        .pool_bytes = desc.pool_bytes,
                                                        .pinned_bytes = desc.pinned_bytes,
                                                        .reader = read}));
  MEDLEY_TRY_ASSIGN(run.executor,
                    make_model_executor(*run.backend, std::move(model),
                                        {.step = desc.step, .num_pages = desc.num_pages}));
  return run;
}

Result<AdapterPin> bring_to_device(const std::string& name, DummyRun& run) {
  while (true) {
    MEDLEY_TRY_ASSIGN(std::optional<AdapterPin> pin,
                      run.adapters->acquire(name, run.executor->stream()));
    if (pin) return std::move(*pin);
    std::this_thread::yield();
  }
}

}  // namespace medley::bench
