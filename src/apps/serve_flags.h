#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "tensor/dtype.h"

namespace CLI {
class App;
}

namespace medley::apps {

struct LoraModule {
  std::string name;
  std::string path;
};

// What `medley serve` was asked for. Names and meanings are vLLM's where it has the flag.
struct ServeFlags {
  std::string model;
  std::string host = "0.0.0.0";
  int port = 8000;
  std::vector<std::string> served_model_names;
  std::string api_key;
  std::string dtype = "auto";
  int64_t max_model_len = 0;
  int max_num_seqs = 64;
  int max_num_batched_tokens = 2048;
  int64_t kv_cache_memory_bytes = int64_t{4} << 30;
  std::optional<uint64_t> seed;
  std::string chat_template;
  std::string generation_config = "auto";
  int num_threads = 0;
  bool enable_lora = false;
  std::vector<std::string> lora_modules;
  int max_loras = 0;
  int max_lora_rank = 0;
  std::string adapter_root;
  int drain_timeout_s = 30;
  bool enable_prefix_caching = true;

  // Accepted with a warning, or refused with a value that would change something.
  bool enable_chunked_prefill = false;
  bool enable_auto_tool_choice = false;
  std::string gpu_memory_utilization, kv_cache_dtype, tensor_parallel_size, load_format;
  std::string tool_call_parser, reasoning_parser;
  std::string max_cpu_loras, lora_dtype, lora_target_modules;
};

// Declares the flags of `medley serve`; each is also read from MEDLEY_<FLAG> in the environment.
void add_serve_flags(CLI::App& app, ServeFlags& flags);

// Logs what happens instead of flags that have no meaning here; kUnsupported for values that would
// need something that does not exist.
Result<void> check_foreign_flags(const ServeFlags& flags);

// "name=path", or an object {"name": ..., "path": ...}.
Result<LoraModule> parse_lora_module(const std::string& text);

// "auto" is the checkpoint's own type where it can be computed in, else bfloat16.
Result<DType> parse_dtype(const std::string& text, DType checkpoint);

}  // namespace medley::apps
