#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "adapter/store.h"
#include "apps/model_folder.h"
#include "backend/backend.h"
#include "base/error.h"
#include "engine/executor.h"
#include "model/model.h"
#include "weights/checkpoint.h"
#include "weights/dummy_weights.h"

namespace CLI {
class App;
}

namespace medley::apps {

struct LoraModule {
  std::string name;
  std::string path;
};

// What is to be run and how much of it: the flags that every command with a model has. Names and
// meanings are vLLM's where it has the flag.
struct ModelFlags {
  std::string model;
  std::string load_format = "auto";
  std::string device = "auto";
  std::string dtype = "auto";
  int64_t max_model_len = 0;
  int max_num_seqs = 64;
  int max_num_batched_tokens = 2048;
  int64_t kv_cache_memory_bytes = 0;
  double gpu_memory_utilization = 0.92;
  int64_t adapter_host_memory_bytes = 0;
  std::optional<uint64_t> seed;
  int num_threads = 0;
  bool enable_lora = false;
  std::vector<std::string> lora_modules;
  int max_loras = 0;
  int max_lora_rank = 0;
  std::string adapter_root;
};

void add_model_flags(CLI::App& app, ModelFlags& flags);

// "name=path", or an object {"name": ..., "path": ...}.
Result<LoraModule> parse_lora_module(const std::string& text);

// "auto" is the checkpoint's own type where it can be computed in, else bfloat16.
Result<DType> parse_dtype(const std::string& text, DType checkpoint);

inline constexpr int kPageSize = 16;  // tokens of a KV page

// A model ready to run, its adapters registered. Members are in the order in which they depend on
// each other.
struct LoadedModel {
  ModelFolder folder;
  std::unique_ptr<Checkpoint> checkpoint;  // null: dummy weights
  std::unique_ptr<DummyWeights> dummy_weights;
  std::unique_ptr<Backend> backend;
  std::unique_ptr<AdapterStore> adapters;  // null: base model only
  std::unique_ptr<Executor> executor;
  int64_t max_model_len = 0;
  int max_loras = 0;
};

struct LoadOptions {
  AdapterReader adapter_reader;                 // empty: paths of adapters are PEFT folders
  RoutingObserver* routing_observer = nullptr;  // outlives the model
};

// `folder` is that of `flags`.
Result<LoadedModel> load_model(const ModelFlags& flags, ModelFolder folder,
                               const LoadOptions& options = {});

}  // namespace medley::apps
