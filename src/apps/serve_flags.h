#pragma once

#include <string>
#include <vector>

#include "apps/load_model.h"
#include "base/error.h"

namespace CLI {
class App;
}

namespace medley::apps {

// What `medley serve` was asked for.
struct ServeFlags : ModelFlags {
  std::string host = "0.0.0.0";
  int port = 8000;
  std::vector<std::string> served_model_names;
  std::string api_key;
  std::string chat_template;
  std::string generation_config = "auto";
  int drain_timeout_s = 30;
  bool enable_prefix_caching = true;

  // Accepted with a warning, or refused with a value that would change something.
  bool enable_chunked_prefill = false;
  bool enable_prompt_tokens_details = false;
  bool enable_auto_tool_choice = false;
  std::string kv_cache_dtype, tensor_parallel_size;
  std::string tool_call_parser, reasoning_parser;
  std::string max_cpu_loras, lora_dtype, lora_target_modules;
};

// Declares the flags of `medley serve`; each is also read from MEDLEY_<FLAG> in the environment.
void add_serve_flags(CLI::App& app, ServeFlags& flags);

// Logs what happens instead of flags that have no meaning here; kUnsupported for values that would
// need something that does not exist.
Result<void> check_foreign_flags(const ServeFlags& flags);

}  // namespace medley::apps
