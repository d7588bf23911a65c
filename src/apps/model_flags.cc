#include <algorithm>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "apps/load_model.h"

namespace medley::apps {

void add_model_flags(CLI::App& app, ModelFlags& flags) {
  app.add_option("model", flags.model, "folder of a Hugging Face checkpoint")->required();
  app.add_option("--load-format", flags.load_format,
                 "auto and safetensors: the folder's; dummy: random weights, only config.json and "
                 "the tokenizer are read")
      ->check(CLI::IsMember({"auto", "safetensors", "dummy"}))
      ->capture_default_str();
  app.add_option("--device", flags.device, "auto = a GPU where there is one, cuda or cpu")
      ->check(CLI::IsMember({"auto", "cuda", "cpu"}))
      ->capture_default_str();
  app.add_option("--dtype", flags.dtype, "activations and KV cache: auto, float32 or bfloat16")
      ->capture_default_str();
  app.add_option("--max-model-len", flags.max_model_len,
                 "tokens of prompt and output together [the model's]")
      ->check(CLI::Range(int64_t{2}, int64_t{1} << 30));
  app.add_option("--max-num-seqs", flags.max_num_seqs, "requests in a step")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  app.add_option("--max-num-batched-tokens", flags.max_num_batched_tokens, "tokens in a step")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  app.add_option("--kv-cache-memory-bytes", flags.kv_cache_memory_bytes,
                 "at most this much for keys and values [what the GPU has left, half of it where "
                 "adapters are served; 4 GiB on the CPU]")
      ->check(CLI::Range(int64_t{1} << 16, int64_t{1} << 50));
  app.add_option("--gpu-memory-utilization", flags.gpu_memory_utilization,
                 "the share of the GPU's memory to plan with")
      ->check(CLI::Range(0.01, 1.0))
      ->capture_default_str();
  app.add_option(
      "--seed", flags.seed,
      "makes requests without a seed repeatable as a sequence, and chooses dummy weights");
  app.add_option("--num-threads", flags.num_threads, "CPU threads for the model [all]")
      ->check(CLI::Range(0, 1024));

  const std::string lora = "Adapters";
  app.add_flag("--enable-lora", flags.enable_lora,
               "serve adapters; implied by --lora-modules and --adapter-root")
      ->group(lora);
  app.add_option("--lora-modules", flags.lora_modules,
                 "adapters to load at the start: NAME=FOLDER ..., or {\"name\":...,\"path\":...}")
      ->expected(-1)
      ->group(lora);
  app.add_option("--adapter-root", flags.adapter_root,
                 "folder whose subfolders are adapters that requests may name")
      ->group(lora);
  app.add_option("--max-loras", flags.max_loras, "adapters in a step [8, or all --lora-modules]")
      ->check(CLI::Range(1, 4096))
      ->group(lora);
  app.add_option("--adapter-host-memory-bytes", flags.adapter_host_memory_bytes,
                 "at most this much host memory for adapters, those on the GPU included: the "
                 "longest unused are read anew when asked for [3/4 of the host's; no limit on the "
                 "CPU]")
      ->check(CLI::Range(int64_t{1} << 16, int64_t{1} << 50))
      ->group(lora);
  app.add_option("--max-lora-rank", flags.max_lora_rank, "larger ranks are refused [no limit]")
      ->check(CLI::Range(1, 1 << 16))
      ->group(lora);
}

Result<LoraModule> parse_lora_module(const std::string& text) {
  const Error error = invalid_argument(
      fmt::format(
          "--lora-modules takes NAME=FOLDER or {{\"name\": ..., \"path\": ...}}, got \"{}\"", text),
      "--lora-modules");
  if (text.starts_with("{")) {
    const auto json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
    const auto string_at = [&](const char* key) -> std::string {
      return json.is_object() && json.contains(key) && json[key].is_string()
                 ? json[key].get<std::string>()
                 : std::string();
    };
    LoraModule module{.name = string_at("name"), .path = string_at("path")};
    if (module.name.empty() || module.path.empty()) return error;
    return module;
  }
  const size_t equals = text.find('=');
  if (equals == std::string::npos || equals == 0 || equals + 1 == text.size()) return error;
  return LoraModule{.name = text.substr(0, equals), .path = text.substr(equals + 1)};
}

Result<DType> parse_dtype(const std::string& text, DType checkpoint) {
  if (text == "auto") return checkpoint == DType::kF32 ? DType::kF32 : DType::kBF16;
  if (text == "float32" || text == "float") return DType::kF32;
  if (text == "bfloat16") return DType::kBF16;
  return unsupported(
      fmt::format("--dtype {} is not supported; it must be auto, float32 or bfloat16", text),
      "--dtype");
}

}  // namespace medley::apps
