#include "server/adapter_metrics.h"

#include <algorithm>
#include <utility>

namespace medley::server {
namespace {

using prometheus::Counter;
using prometheus::Family;
using prometheus::Gauge;
using prometheus::Histogram;
using prometheus::Labels;
using prometheus::Registry;

// Fewer than those of the whole server: every adapter has a set.
const Histogram::BucketBoundaries kFirstTokenBuckets = {0.01, 0.05, 0.1, 0.25, 0.5,
                                                        1.0,  2.5,  5.0, 10.0, 60.0};
const Histogram::BucketBoundaries kInterTokenBuckets = {0.005, 0.01, 0.025, 0.05, 0.1,
                                                        0.25,  0.5,  1.0,   5.0};
const Histogram::BucketBoundaries kLoadBuckets = {0.001, 0.005, 0.02, 0.05, 0.1,
                                                  0.25,  0.5,   1.0,  5.0,  30.0};

Family<Counter>& counters(Registry& registry, const char* name, const char* help) {
  return prometheus::BuildCounter().Name(name).Help(help).Register(registry);
}
Family<Gauge>& gauges(Registry& registry, const char* name, const char* help) {
  return prometheus::BuildGauge().Name(name).Help(help).Register(registry);
}
Family<Histogram>& histograms(Registry& registry, const char* name, const char* help) {
  return prometheus::BuildHistogram().Name(name).Help(help).Register(registry);
}

}  // namespace

AdapterMetrics::AdapterMetrics(Registry& registry, std::string model_name)
    : model_name_(std::move(model_name)),
      requests_(counters(registry, "medley:adapter_requests_total",
                         "An adapter's requests that have ended, by reason.")),
      errors_(counters(registry, "medley:adapter_errors_total",
                       "An adapter's requests that ended in an error, and its loads that failed.")),
      loads_(counters(registry, "medley:adapter_loads_total",
                      "From disk: read, checked and packed; from host: copied to the device.")),
      load_seconds_(
          histograms(registry, "medley:adapter_load_seconds", "How long an adapter's loads took.")),
      prompt_tokens_(counters(registry, "medley:adapter_prompt_tokens_total",
                              "Prompt tokens of an adapter's requests that gave a token.")),
      generation_tokens_(counters(registry, "medley:adapter_generation_tokens_total",
                                  "Tokens generated with an adapter.")),
      time_to_first_token_(histograms(registry, "medley:adapter_time_to_first_token_seconds",
                                      "From a request's arrival to its first token.")),
      inter_token_(histograms(registry, "medley:adapter_inter_token_latency_seconds",
                              "Between tokens of one request.")),
      states_(gauges(registry, "medley:adapter_state", "1 for the state that an adapter is in.")),
      bytes_(gauges(registry, "medley:adapter_bytes", "An adapter's size once it is read.")) {}

void AdapterMetrics::on_first_token(const std::string& adapter, int64_t num_prompt_tokens,
                                    double seconds) {
  std::lock_guard lock(mutex_);
  Series& series = series_of(adapter);
  series.prompt_tokens.Increment(static_cast<double>(num_prompt_tokens));
  series.time_to_first_token.Observe(seconds);
}

void AdapterMetrics::on_token(const std::string& adapter, int64_t num_tokens) {
  std::lock_guard lock(mutex_);
  series_of(adapter).generation_tokens.Increment(static_cast<double>(num_tokens));
}

void AdapterMetrics::on_inter_token(const std::string& adapter, double seconds) {
  std::lock_guard lock(mutex_);
  series_of(adapter).inter_token.Observe(seconds);
}

void AdapterMetrics::on_finish(const std::string& adapter, FinishReason reason) {
  std::lock_guard lock(mutex_);
  requests_.Add(labels_with(adapter, "finished_reason", to_string(reason))).Increment();
  if (reason == FinishReason::kError) {
    errors_.Add(labels_with(adapter, "kind", "request")).Increment();
  }
}

void AdapterMetrics::on_load(const std::string& adapter, const std::string& source,
                             double seconds) {
  std::lock_guard lock(mutex_);
  const Labels all = labels_with(adapter, "source", source);
  loads_.Add(all).Increment();
  load_seconds_.Add(all, kLoadBuckets).Observe(seconds);
}

void AdapterMetrics::on_load_error(const std::string& adapter) {
  std::lock_guard lock(mutex_);
  errors_.Add(labels_with(adapter, "kind", "load")).Increment();
}

void AdapterMetrics::show(const std::vector<api::ModelCard>& cards) {
  std::lock_guard lock(mutex_);
  for (Gauge* gauge : std::exchange(shown_states_, {})) states_.Remove(gauge);
  for (Gauge* gauge : std::exchange(shown_bytes_, {})) bytes_.Remove(gauge);
  for (size_t i = 0; i < std::min(cards.size(), kMaxAdapters); ++i) {
    Labels all = labels(cards[i].id);
    shown_bytes_.push_back(&bytes_.Add(all));
    shown_bytes_.back()->Set(static_cast<double>(cards[i].num_bytes));
    all.emplace("state", cards[i].state);
    shown_states_.push_back(&states_.Add(all));
    shown_states_.back()->Set(1.0);
  }
}

Labels AdapterMetrics::labels(const std::string& adapter) const {
  return {{"model_name", model_name_}, {"adapter", adapter}};
}

Labels AdapterMetrics::labels_with(const std::string& adapter, const char* label,
                                   const std::string& value) {
  series_of(adapter);
  Labels all = labels(series_.contains(adapter) ? adapter : kOthers);
  all.emplace(label, value);
  return all;
}

AdapterMetrics::Series& AdapterMetrics::series_of(const std::string& adapter) {
  if (const auto found = series_.find(adapter); found != series_.end()) return found->second;
  if (adapter != kOthers && series_.size() >= kMaxAdapters) return series_of(kOthers);
  const Labels all = labels(adapter);
  const Series series{.prompt_tokens = prompt_tokens_.Add(all),
                      .generation_tokens = generation_tokens_.Add(all),
                      .time_to_first_token = time_to_first_token_.Add(all, kFirstTokenBuckets),
                      .inter_token = inter_token_.Add(all, kInterTokenBuckets)};
  return series_.emplace(adapter, series).first->second;
}

}  // namespace medley::server
