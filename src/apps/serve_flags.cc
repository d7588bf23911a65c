#include "apps/serve_flags.h"

#include <algorithm>
#include <cctype>

#include <CLI/CLI.hpp>

#include "base/log.h"

namespace medley::apps {
namespace {

void read_from_environment(CLI::App& app) {
  for (CLI::Option* option : app.get_options()) {
    if (option->get_lnames().empty() || option->get_lnames().front() == "help") continue;
    std::string name = "MEDLEY_" + option->get_lnames().front();
    for (char& c : name) c = c == '-' ? '_' : static_cast<char>(std::toupper(c));
    option->envname(name);
  }
}

void add_foreign_flags(CLI::App& app, ServeFlags& flags) {
  const std::string group = "vLLM's flags without effect here";
  app.add_flag("--enable-chunked-prefill,!--no-enable-chunked-prefill",
               flags.enable_chunked_prefill, "always on")
      ->group(group);
  app.add_option("--kv-cache-dtype", flags.kv_cache_dtype, "only auto: that of --dtype")
      ->group(group);
  app.add_option("--tensor-parallel-size", flags.tensor_parallel_size, "only 1")->group(group);
  app.add_flag("--enable-prompt-tokens-details", flags.enable_prompt_tokens_details,
               "usage always has them")
      ->group(group);
  app.add_flag("--enable-auto-tool-choice", flags.enable_auto_tool_choice,
               "requests with tools are refused")
      ->group(group);
  app.add_option("--tool-call-parser", flags.tool_call_parser, "requests with tools are refused")
      ->group(group);
  app.add_option("--reasoning-parser", flags.reasoning_parser,
                 "chosen by the model: GPT-OSS's format is recognised")
      ->group(group);
  app.add_option("--max-cpu-loras", flags.max_cpu_loras, "see --adapter-host-memory-bytes")
      ->group(group);
  app.add_option("--lora-dtype", flags.lora_dtype, "the backend's own")->group(group);
  app.add_option("--lora-target-modules", flags.lora_target_modules,
                 "an adapter's own modules, all of them")
      ->group(group);
}

}  // namespace

void add_serve_flags(CLI::App& app, ServeFlags& flags) {
  add_model_flags(app, flags);
  app.add_option("--host", flags.host, "address to listen on")->capture_default_str();
  app.add_option("--port", flags.port, "port to listen on; 0 = any free one, which is logged")
      ->check(CLI::Range(0, 65535))
      ->capture_default_str();
  app.add_option("--served-model-name", flags.served_model_names,
                 "the base model's name(s) in requests; the first is shown in answers [the folder]")
      ->expected(-1);
  app.add_option("--api-key", flags.api_key, "what clients must send as bearer token");
  app.add_flag("--enable-prefix-caching,!--no-enable-prefix-caching", flags.enable_prefix_caching,
               "keep keys and values of prompts' beginnings for the requests that share them [on]");
  app.add_option("--chat-template", flags.chat_template,
                 "file of a Jinja template, or the template itself [the model's]");
  app.add_option("--generation-config", flags.generation_config,
                 "default sampling: auto = the model's generation_config.json, vllm = neutral")
      ->check(CLI::IsMember({"auto", "vllm"}))
      ->capture_default_str();
  app.add_option("--shutdown-timeout", flags.drain_timeout_s,
                 "seconds that running requests may take after SIGTERM")
      ->check(CLI::Range(0, 86400))
      ->capture_default_str();

  add_foreign_flags(app, flags);
  read_from_environment(app);
}

Result<void> check_foreign_flags(const ServeFlags& flags) {
  const auto only = [](const char* flag, const std::string& value,
                       std::initializer_list<const char*> allowed) -> Result<void> {
    if (value.empty() || std::ranges::find(allowed, value) != allowed.end()) return {};
    return unsupported(fmt::format("{} {} is not supported; it must be {}", flag, value,
                                   fmt::join(allowed, " or ")),
                       flag);
  };
  MEDLEY_TRY(only("--kv-cache-dtype", flags.kv_cache_dtype, {"auto"}));
  MEDLEY_TRY(only("--tensor-parallel-size", flags.tensor_parallel_size, {"1"}));
  const auto note = [](const char* flag, bool given, const char* instead) {
    if (given) log::warn("{} has no effect: {}", flag, instead);
  };
  note("--enable-chunked-prefill", flags.enable_chunked_prefill, "prefill is always chunked");
  note("--enable-prompt-tokens-details", flags.enable_prompt_tokens_details,
       "usage always has them");
  note("--enable-auto-tool-choice", flags.enable_auto_tool_choice,
       "requests with tools are refused");
  note("--tool-call-parser", !flags.tool_call_parser.empty(), "requests with tools are refused");
  note("--reasoning-parser", !flags.reasoning_parser.empty(),
       "the model decides; GPT-OSS's format is recognised");
  note("--max-cpu-loras", !flags.max_cpu_loras.empty(),
       "--adapter-host-memory-bytes limits it in bytes");
  note("--lora-dtype", !flags.lora_dtype.empty(), "the backend has its own");
  note("--lora-target-modules", !flags.lora_target_modules.empty(),
       "all modules of an adapter are used");
  return {};
}

}  // namespace medley::apps
