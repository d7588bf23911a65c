#include "server/metrics.h"

#include <array>
#include <chrono>
#include <mutex>

#include <fmt/format.h>
#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include "server/adapter_metrics.h"

namespace medley::server {
namespace {

using prometheus::Counter;
using prometheus::Family;
using prometheus::Gauge;
using prometheus::Histogram;
using prometheus::Labels;
using prometheus::Registry;

// vLLM's buckets, in seconds, so that quantiles on existing dashboards mean the same.
const Histogram::BucketBoundaries kFirstTokenBuckets = {
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1,  0.25,  0.5,   0.75,
    1.0,   2.5,   5.0,  7.5,  10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0};
const Histogram::BucketBoundaries kInterTokenBuckets = {0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2,
                                                        0.3,  0.4,   0.5,  0.75,  1.0, 2.5,  5.0,
                                                        7.5,  10.0,  20.0, 40.0,  80.0};
const Histogram::BucketBoundaries kRequestBuckets = {
    0.3,  0.5,  0.8,  1.0,  1.5,   2.0,   2.5,   5.0,   10.0,   15.0,  20.0,
    30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0};

const Histogram::BucketBoundaries kStepBuckets(kStepSizeBounds.begin(), kStepSizeBounds.end());

void raise_to(uint64_t total, Counter& counter) {
  counter.Increment(static_cast<double>(total) - counter.Value());
}

double to_seconds(int64_t ns) { return static_cast<double>(ns) * 1e-9; }

class Builder {
 public:
  Builder(Registry& registry, const std::string& model_name)
      : registry_(registry), labels_{{"model_name", model_name}} {}

  Counter& counter(const char* name, const char* help) {
    return prometheus::BuildCounter().Name(name).Help(help).Register(registry_).Add(labels_);
  }
  Gauge& gauge(const char* name, const char* help) {
    return prometheus::BuildGauge().Name(name).Help(help).Register(registry_).Add(labels_);
  }
  Histogram& histogram(const char* name, const char* help,
                       const Histogram::BucketBoundaries& buckets) {
    return prometheus::BuildHistogram().Name(name).Help(help).Register(registry_).Add(labels_,
                                                                                      buckets);
  }
  Family<Gauge>& gauges(const char* name, const char* help) {
    return prometheus::BuildGauge().Name(name).Help(help).Register(registry_);
  }

 private:
  Registry& registry_;
  const Labels labels_;
};

constexpr std::array kFinishReasons = {FinishReason::kStop, FinishReason::kLength,
                                       FinishReason::kAbort, FinishReason::kError};

}  // namespace

struct Metrics::State {
  explicit State(const std::string& model_name)
      : model_name(model_name), build(registry, model_name) {
    Family<Counter>& finished = prometheus::BuildCounter()
                                    .Name("vllm:request_success_total")
                                    .Help("Requests that have ended, by reason.")
                                    .Register(registry);
    for (size_t i = 0; i < kFinishReasons.size(); ++i) {
      finished_by_reason[i] = &finished.Add(
          {{"model_name", model_name}, {"finished_reason", to_string(kFinishReasons[i])}});
    }
  }

  const std::string model_name;
  Registry registry;
  Builder build;
  Gauge& running = build.gauge("vllm:num_requests_running", "Requests in steps now.");
  Gauge& waiting = build.gauge("vllm:num_requests_waiting", "Requests not in a step yet.");
  Gauge& kv_usage =
      build.gauge("vllm:kv_cache_usage_perc", "Share of the KV pages in use, 0 to 1.");
  Family<Gauge>& cache_config =
      build.gauges("vllm:cache_config_info", "The KV cache's layout, in labels.");
  Family<Gauge>& lora_info = build.gauges(
      "vllm:lora_requests_info",
      "Adapters on the device and waited for, in labels; the value is the time in seconds.");
  Counter& prompt_tokens =
      build.counter("vllm:prompt_tokens_total", "Prompt tokens of requests that gave a token.");
  Counter& generation_tokens = build.counter("vllm:generation_tokens_total", "Tokens generated.");
  Counter& preemptions =
      build.counter("vllm:num_preemptions_total", "Requests put back for lack of pages.");
  Counter& prefix_cache_queries = build.counter(
      "vllm:prefix_cache_queries_total", "Tokens of requests looked up in the prefix cache.");
  Counter& prefix_cache_hits =
      build.counter("vllm:prefix_cache_hits_total", "Tokens found in the prefix cache.");
  Histogram& step_tokens =
      build.histogram("vllm:iteration_tokens_total", "Tokens computed in a step.", kStepBuckets);
  Histogram& time_to_first_token =
      build.histogram("vllm:time_to_first_token_seconds",
                      "From a request's arrival to its first token.", kFirstTokenBuckets);
  Histogram& inter_token = build.histogram("vllm:inter_token_latency_seconds",
                                           "Between tokens of one request.", kInterTokenBuckets);
  Histogram& e2e = build.histogram("vllm:e2e_request_latency_seconds",
                                   "From a request's arrival to its end.", kRequestBuckets);
  Histogram& queue_time =
      build.histogram("vllm:request_queue_time_seconds",
                      "From a request's arrival to its first step.", kRequestBuckets);
  Histogram& prefill_time =
      build.histogram("vllm:request_prefill_time_seconds",
                      "From a request's first step to its first token.", kRequestBuckets);
  Histogram& decode_time =
      build.histogram("vllm:request_decode_time_seconds",
                      "From a request's first token to its last.", kRequestBuckets);
  std::array<Counter*, kFinishReasons.size()> finished_by_reason;
  AdapterMetrics adapters{registry, model_name};

  std::mutex scrape_mutex;  // below: one scrape at a time
  EngineStats shown;        // what the histogram of steps holds already
  Gauge* cache_config_series = nullptr;
  Gauge* lora_series = nullptr;
};

Metrics::Metrics(const std::string& model_name) : state_(std::make_unique<State>(model_name)) {}
Metrics::~Metrics() = default;

void Metrics::on_first_token(int64_t num_prompt_tokens, int64_t time_to_first_token_ns,
                             const std::string& adapter) {
  state_->prompt_tokens.Increment(static_cast<double>(num_prompt_tokens));
  state_->time_to_first_token.Observe(to_seconds(time_to_first_token_ns));
  if (adapter.empty()) return;
  state_->adapters.on_first_token(adapter, num_prompt_tokens, to_seconds(time_to_first_token_ns));
}

void Metrics::on_token(int64_t num_tokens, const std::string& adapter) {
  state_->generation_tokens.Increment(static_cast<double>(num_tokens));
  if (!adapter.empty()) state_->adapters.on_token(adapter, num_tokens);
}

void Metrics::on_inter_token(int64_t latency_ns, const std::string& adapter) {
  state_->inter_token.Observe(to_seconds(latency_ns));
  if (!adapter.empty()) state_->adapters.on_inter_token(adapter, to_seconds(latency_ns));
}

void Metrics::on_phases(const RequestPhases& phases) {
  state_->queue_time.Observe(to_seconds(phases.queue_ns));
  state_->prefill_time.Observe(to_seconds(phases.prefill_ns));
  state_->decode_time.Observe(to_seconds(phases.decode_ns));
}

void Metrics::on_finish(FinishReason reason, int64_t e2e_latency_ns, const std::string& adapter) {
  state_->finished_by_reason[static_cast<size_t>(reason)]->Increment();
  state_->e2e.Observe(to_seconds(e2e_latency_ns));
  if (!adapter.empty()) state_->adapters.on_finish(adapter, reason);
}

void Metrics::on_adapter_load(const AdapterLoadSample& load) {
  if (load.ok) {
    state_->adapters.on_load(load.adapter, load.source, to_seconds(load.duration_ns));
  } else {
    state_->adapters.on_load_error(load.adapter);
  }
}

std::string Metrics::render(const MetricsSnapshot& snapshot) {
  State& state = *state_;
  const EngineStats& engine = snapshot.engine;
  std::lock_guard lock(state.scrape_mutex);
  state.running.Set(engine.num_running);
  state.waiting.Set(engine.num_waiting);
  state.kv_usage.Set(engine.num_pages == 0
                         ? 0.0
                         : 1.0 - static_cast<double>(engine.num_free_pages) / engine.num_pages);
  raise_to(engine.num_preemptions, state.preemptions);
  raise_to(engine.num_prefix_cache_queries, state.prefix_cache_queries);
  raise_to(engine.num_prefix_cache_hits, state.prefix_cache_hits);
  std::vector<double> new_steps;
  for (size_t i = 0; i < engine.num_steps_by_size.size(); ++i) {
    new_steps.push_back(
        static_cast<double>(engine.num_steps_by_size[i] - state.shown.num_steps_by_size[i]));
  }
  state.step_tokens.ObserveMultiple(
      new_steps, static_cast<double>(engine.num_step_tokens - state.shown.num_step_tokens));
  state.shown = engine;
  if (state.cache_config_series == nullptr) {
    state.cache_config_series = &state.cache_config.Add(
        {{"model_name", state.model_name},
         {"block_size", std::to_string(engine.page_size)},
         {"num_gpu_blocks", std::to_string(engine.num_pages)},
         {"enable_prefix_caching", engine.prefix_caching ? "True" : "False"}});
    state.cache_config_series->Set(1.0);
  }
  state.adapters.show(snapshot.adapters);
  std::vector<std::string> resident;
  for (const api::ModelCard& card : snapshot.adapters) {
    if (card.state == "on_device") resident.push_back(card.id);
  }
  // Exactly one series: routers read the newest, and series that linger would contradict it.
  if (state.lora_series != nullptr) state.lora_info.Remove(state.lora_series);
  state.lora_series = &state.lora_info.Add(
      {{"model_name", state.model_name},
       {"max_lora", std::to_string(snapshot.max_adapters)},
       {"running_lora_adapters", fmt::format("{}", fmt::join(resident, ","))},
       {"waiting_lora_adapters", fmt::format("{}", fmt::join(engine.waiting_adapters, ","))}});
  state.lora_series->SetToCurrentTime();
  return prometheus::TextSerializer().Serialize(state.registry.Collect());
}

}  // namespace medley::server
