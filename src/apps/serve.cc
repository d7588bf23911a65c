#include "apps/serve.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "apps/load_model.h"
#include "apps/store_directory.h"
#include "base/clock.h"
#include "base/log.h"
#include "engine/start_engine.h"
#include "server/adapter_routes.h"
#include "server/generation_service.h"
#include "server/http_server.h"
#include "server/router.h"
#include "server/token_routes.h"
#include "text/chat.h"
#include "text/tokenizer.h"

namespace medley::apps {
namespace {

constexpr int64_t kNsPerS = 1'000'000'000;
constexpr int64_t kFlushTimeoutNs = 5 * kNsPerS;

sigset_t stop_signals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  return signals;
}

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

// The model's own, and the tokenizer's where that names another.
std::vector<int32_t> end_tokens(const GenerationConfig& generation,
                                const text::TextTokenizer& tokenizer) {
  std::vector<int32_t> ids = generation.eos_token_ids;
  const std::optional<int32_t> own = tokenizer.eos_id();
  if (own && std::ranges::find(ids, *own) == ids.end()) ids.push_back(*own);
  return ids;
}

// `metrics` outlives `store`.
void observe_loads(AdapterStore& store, server::Metrics& metrics) {
  store.set_load_observer([&metrics](const AdapterLoad& load) {
    metrics.on_adapter_load({.adapter = load.name,
                             .source = to_string(load.source),
                             .duration_ns = load.duration_ns,
                             .ok = load.ok});
  });
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

server::GenerationServiceOptions service_options(const ServeFlags& flags, const LoadedModel& loaded,
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
  MEDLEY_TRY_ASSIGN(ModelFolder folder, read_model_folder(flags.model));
  MEDLEY_TRY_ASSIGN(const text::TextTokenizer tokenizer, text::TextTokenizer::load(flags.model));
  MEDLEY_TRY_ASSIGN(const text::ChatRenderer chat, load_chat(flags, tokenizer));
  std::vector<std::string> names = flags.served_model_names;
  if (names.empty()) names.push_back(flags.model);
  server::Metrics metrics(names.front());
  MEDLEY_TRY_ASSIGN(LoadedModel loaded, load_model(flags, std::move(folder)));
  if (loaded.adapters != nullptr) observe_loads(*loaded.adapters, metrics);

  server::OutputWorkers outputs(tokenizer.pieces(), metrics, /*num_workers=*/1);
  MEDLEY_TRY_ASSIGN(
      const std::unique_ptr<Engine> engine,
      start_engine({.max_num_seqs = flags.max_num_seqs,
                    .max_num_batched_tokens = flags.max_num_batched_tokens,
                    .max_model_len = loaded.max_model_len,
                    .eos_token_ids = end_tokens(loaded.folder.generation, tokenizer),
                    .max_loras = loaded.max_loras,
                    .enable_prefix_caching = flags.enable_prefix_caching},
                   std::move(loaded.executor), loaded.adapters.get(), outputs.sink()));
  outputs.set_engine(*engine);
  StoreDirectory adapters(loaded.adapters.get(), loaded.max_loras, flags.adapter_root);
  server::GenerationService service(service_options(flags, loaded, names), {.tokenizer = tokenizer,
                                                                            .chat = chat,
                                                                            .adapters = adapters,
                                                                            .outputs = outputs,
                                                                            .engine = *engine});
  server::AdapterRoutes adapter_routes(adapters, loaded.max_loras, names);
  server::TokenRoutes token_routes({.base_names = names, .max_model_len = loaded.max_model_len},
                                   {.tokenizer = tokenizer, .chat = chat, .adapters = adapters});
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
