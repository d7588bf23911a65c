#include "apps/serve.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "adapter/store.h"
#include "apps/make_backend.h"
#include "apps/model_folder.h"
#include "apps/store_directory.h"
#include "base/clock.h"
#include "base/log.h"
#include "engine/kv_plan.h"
#include "engine/model_executor.h"
#include "engine/start_engine.h"
#include "model/model.h"
#include "server/adapter_routes.h"
#include "server/generation_service.h"
#include "server/http_server.h"
#include "server/router.h"
#include "server/token_routes.h"
#include "text/chat.h"
#include "text/tokenizer.h"
#include "weights/checkpoint.h"
#include "weights/model_weights.h"

namespace medley::apps {
namespace {

constexpr int kPageSize = 16;
constexpr int kDefaultMaxLoras = 8;
constexpr int64_t kNsPerS = 1'000'000'000;
constexpr int64_t kFlushTimeoutNs = 5 * kNsPerS;

double seconds_since(int64_t start_ns) { return static_cast<double>(now_ns() - start_ns) * 1e-9; }

sigset_t stop_signals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  return signals;
}

struct Loaded {
  ModelFolder folder;
  text::TextTokenizer tokenizer;
  text::ChatRenderer chat;
  std::unique_ptr<Checkpoint> checkpoint;
  std::unique_ptr<Backend> backend;
  std::unique_ptr<AdapterStore> adapters;  // null: base model only
  std::unique_ptr<Executor> executor;
  int64_t max_model_len = 0;
  int max_loras = 0;
};

Result<text::ChatRenderer> load_chat(const ServeFlags& flags,
                                     const text::TextTokenizer& tokenizer) {
  std::optional<std::string> source;
  if (!flags.chat_template.empty()) {
    source = flags.chat_template;
    std::error_code ec;
    if (std::filesystem::is_regular_file(flags.chat_template, ec)) {
      std::ifstream file(flags.chat_template, std::ios::binary);
      source = std::string(std::istreambuf_iterator<char>(file), {});
    } else if (flags.chat_template.find('{') == std::string::npos) {
      return not_found(
          fmt::format("--chat-template {} is neither a file nor a template", flags.chat_template));
    }
  }
  return text::ChatRenderer::create(tokenizer.config(), source);
}

Result<std::unique_ptr<AdapterStore>> open_adapters(const ServeFlags& flags, const ModelSpec& spec,
                                                    const Checkpoint& checkpoint, Backend& backend,
                                                    int max_loras) {
  if (max_loras == 0) return std::unique_ptr<AdapterStore>();
  MEDLEY_TRY_ASSIGN(std::unique_ptr<AdapterStore> store,
                    AdapterStore::create(spec, backend,
                                         {.max_loras = max_loras,
                                          .max_lora_rank = flags.max_lora_rank,
                                          .adapter_root = flags.adapter_root,
                                          .base_tensors = &checkpoint.tensors()}));
  for (const std::string& text : flags.lora_modules) {
    MEDLEY_TRY_ASSIGN(const LoraModule module, parse_lora_module(text));
    const Result<AdapterInfo> info = store->load(module.name, module.path);
    if (!info.ok()) {
      Error error = info.error();
      error.message = fmt::format("adapter {} in {}: {}", module.name, module.path, error.message);
      return error;
    }
  }
  return store;
}

Result<std::unique_ptr<Executor>> load_executor(const ServeFlags& flags, const ModelFolder& folder,
                                                const Checkpoint& checkpoint, Backend& backend,
                                                int64_t max_model_len) {
  MEDLEY_TRY_ASSIGN(const DType dtype, parse_dtype(flags.dtype, folder.spec.checkpoint_dtype));
  const KvPlanDesc kv{.max_num_seqs = flags.max_num_seqs,
                      .max_model_len = max_model_len,
                      .page_size = kPageSize,
                      .dtype = dtype,
                      .budget_bytes = flags.kv_cache_memory_bytes};
  MEDLEY_TRY_ASSIGN(const int num_pages, plan_kv_pages(folder.spec, kv));
  const int64_t start_ns = now_ns();
  MEDLEY_TRY_ASSIGN(const ModelWeights weights,
                    read_model_weights(folder.spec, checkpoint.tensors()));
  const ModelOptions options{.dtype = dtype,
                             .step = {.max_rows = flags.max_num_batched_tokens,
                                      .max_seqs = flags.max_num_seqs,
                                      .max_pages = plan_page_table(kv, num_pages)},
                             .num_pages = num_pages,
                             .page_size = kPageSize};
  MEDLEY_TRY_ASSIGN(std::unique_ptr<Model> model,
                    Model::create(folder.spec, weights, backend, options));
  log::info("{} on {}: {} layers, {:.1f} MiB of weights in {:.2f} s, {} KV pages of {} tokens, {}",
            folder.spec.family, backend.name(), folder.spec.num_layers(),
            static_cast<double>(model->num_weight_bytes()) / (1 << 20), seconds_since(start_ns),
            num_pages, kPageSize, to_string(dtype));
  return make_model_executor(backend, std::move(model), options);
}

Result<Loaded> load(const ServeFlags& flags) {
  MEDLEY_TRY_ASSIGN(ModelFolder folder, read_model_folder(flags.model));
  MEDLEY_TRY_ASSIGN(text::TextTokenizer tokenizer, text::TextTokenizer::load(flags.model));
  MEDLEY_TRY_ASSIGN(text::ChatRenderer chat, load_chat(flags, tokenizer));
  MEDLEY_TRY_ASSIGN(Checkpoint opened, Checkpoint::open_folder(flags.model));
  auto checkpoint = std::make_unique<Checkpoint>(std::move(opened));
  MEDLEY_TRY_ASSIGN(std::unique_ptr<Backend> backend,
                    make_backend({.num_threads = flags.num_threads}));
  const int64_t max_model_len =
      flags.max_model_len > 0 ? flags.max_model_len : folder.spec.max_position;
  if (max_model_len > folder.spec.max_position) {
    return invalid_argument(fmt::format("--max-model-len is {}; the model goes to {} tokens",
                                        max_model_len, folder.spec.max_position),
                            "--max-model-len");
  }
  int max_loras = 0;
  if (flags.enable_lora || !flags.lora_modules.empty() || !flags.adapter_root.empty()) {
    max_loras = flags.max_loras > 0
                    ? flags.max_loras
                    : std::max(kDefaultMaxLoras, static_cast<int>(flags.lora_modules.size()));
  }
  MEDLEY_TRY_ASSIGN(std::unique_ptr<AdapterStore> adapters,
                    open_adapters(flags, folder.spec, *checkpoint, *backend, max_loras));
  MEDLEY_TRY_ASSIGN(std::unique_ptr<Executor> executor,
                    load_executor(flags, folder, *checkpoint, *backend, max_model_len));
  return Loaded{.folder = std::move(folder),
                .tokenizer = std::move(tokenizer),
                .chat = std::move(chat),
                .checkpoint = std::move(checkpoint),
                .backend = std::move(backend),
                .adapters = std::move(adapters),
                .executor = std::move(executor),
                .max_model_len = max_model_len,
                .max_loras = max_loras};
}

// The model's own, and the tokenizer's where that names another.
std::vector<int32_t> end_tokens(const Loaded& loaded) {
  std::vector<int32_t> ids = loaded.folder.generation.eos_token_ids;
  const std::optional<int32_t> own = loaded.tokenizer.eos_id();
  if (own && std::ranges::find(ids, *own) == ids.end()) ids.push_back(*own);
  return ids;
}

// Until a signal comes (then nothing is returned) or the engine has failed.
Result<void> wait_for_the_end(const Engine& engine) {
  const sigset_t signals = stop_signals();
  const timespec pause{.tv_sec = 0, .tv_nsec = 200'000'000};
  for (;;) {
    const int signal = sigtimedwait(&signals, nullptr, &pause);
    if (signal > 0) {
      log::info("{}: finishing what runs", signal == SIGTERM ? "SIGTERM" : "SIGINT");
      return {};
    }
    if (!engine.stats().healthy) return internal_error("the engine has stopped after a fault");
  }
}

// A second signal ends the process at once.
void unblock_stop_signals() {
  const sigset_t signals = stop_signals();
  pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);
}

server::GenerationServiceOptions service_options(const ServeFlags& flags, const Loaded& loaded,
                                                 const std::vector<std::string>& names) {
  server::GenerationServiceOptions options{.base_names = names,
                                           .vocab_size = loaded.folder.spec.vocab_size,
                                           .max_model_len = loaded.max_model_len,
                                           .harmony = loaded.folder.spec.family == "gpt_oss",
                                           .seed = flags.seed};
  if (flags.generation_config == "auto") {
    const GenerationConfig& generation = loaded.folder.generation;
    options.defaults = {.temperature = generation.temperature,
                        .top_p = generation.top_p,
                        .min_p = generation.min_p,
                        .repetition_penalty = generation.repetition_penalty,
                        .top_k = generation.top_k};
  }
  return options;
}

}  // namespace

void block_stop_signals() {
  // A shell may have started us in the background with SIGINT ignored.
  ::signal(SIGTERM, SIG_DFL);
  ::signal(SIGINT, SIG_DFL);
  const sigset_t signals = stop_signals();
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
}

Result<void> serve(const ServeFlags& flags) {
  MEDLEY_TRY(check_foreign_flags(flags));
  // The port is taken first: a clash should show before a model has been loaded.
  MEDLEY_TRY_ASSIGN(
      const std::unique_ptr<server::HttpServer> http,
      server::HttpServer::listen({.host = flags.host, .port = static_cast<uint16_t>(flags.port)}));
  MEDLEY_TRY_ASSIGN(Loaded loaded, load(flags));
  std::vector<std::string> names = flags.served_model_names;
  if (names.empty()) names.push_back(flags.model);

  server::Metrics metrics(names.front());
  server::OutputWorkers outputs(loaded.tokenizer.pieces(), metrics, /*num_workers=*/1);
  MEDLEY_TRY_ASSIGN(
      const std::unique_ptr<Engine> engine,
      start_engine({.max_num_seqs = flags.max_num_seqs,
                    .max_num_batched_tokens = flags.max_num_batched_tokens,
                    .max_model_len = loaded.max_model_len,
                    .eos_token_ids = end_tokens(loaded),
                    .max_loras = loaded.max_loras,
                    .enable_prefix_caching = flags.enable_prefix_caching},
                   std::move(loaded.executor), loaded.adapters.get(), outputs.sink()));
  outputs.set_engine(*engine);
  StoreDirectory adapters(loaded.adapters.get(), loaded.max_loras, flags.adapter_root);
  server::GenerationService service(service_options(flags, loaded, names),
                                    {.tokenizer = loaded.tokenizer,
                                     .chat = loaded.chat,
                                     .adapters = adapters,
                                     .outputs = outputs,
                                     .engine = *engine});
  server::AdapterRoutes adapter_routes(adapters, loaded.max_loras, names);
  server::TokenRoutes token_routes(
      {.base_names = names, .max_model_len = loaded.max_model_len},
      {.tokenizer = loaded.tokenizer, .chat = loaded.chat, .adapters = adapters});
  server::Router router({.base_names = names,
                         .model_root = flags.model,
                         .max_model_len = loaded.max_model_len,
                         .api_key = flags.api_key},
                        {.generation = service,
                         .adapters = adapters,
                         .engine = *engine,
                         .metrics = metrics,
                         .groups = {&adapter_routes, &token_routes}});
  http->start(router);
  router.set_ready(true);
  log::info("serving {} on http://{}:{}", fmt::join(names, ", "), flags.host, http->port());

  const Result<void> result = wait_for_the_end(*engine);
  unblock_stop_signals();
  router.set_ready(false);
  http->stop_accepting();
  service.stop_accepting();
  if (result.ok()) engine->drain(flags.drain_timeout_s * kNsPerS);
  if (!http->wait_until_idle(kFlushTimeoutNs)) log::warn("some answers were cut off");
  http->stop();
  return result;
}

}  // namespace medley::apps
