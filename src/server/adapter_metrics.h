#pragma once

#include <cstddef>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>

#include "api/models.h"
#include "core/token_event.h"

namespace medley::server {

// medley:adapter_*{model_name, adapter}: what each adapter's requests have cost and how they fared.
// The first kMaxAdapters names have series of their own, later ones share one: whoever may load
// adapters can't make a scrape grow without end. Thread-safe.
class AdapterMetrics {
 public:
  static constexpr size_t kMaxAdapters = 256;
  static constexpr const char* kOthers = "*others*";  // can't be an adapter's name

  AdapterMetrics(prometheus::Registry& registry, std::string model_name);

  void on_first_token(const std::string& adapter, int64_t num_prompt_tokens, double seconds);
  void on_token(const std::string& adapter, int64_t num_tokens);
  void on_inter_token(const std::string& adapter, double seconds);
  void on_finish(const std::string& adapter, FinishReason reason);
  // `source`: "disk" or "host".
  void on_load(const std::string& adapter, const std::string& source, double seconds);
  void on_load_error(const std::string& adapter);
  // Sets the states and sizes to those of `cards`; of the first kMaxAdapters.
  void show(const std::vector<api::ModelCard>& cards);

 private:
  struct Series {
    prometheus::Counter& prompt_tokens;
    prometheus::Counter& generation_tokens;
    prometheus::Histogram& time_to_first_token;
    prometheus::Histogram& inter_token;
  };

  prometheus::Labels labels(const std::string& adapter) const;
  // The labels of the series that `adapter` has or shares, and one more.
  prometheus::Labels labels_with(const std::string& adapter, const char* label,
                                 const std::string& value);
  Series& series_of(const std::string& adapter);

  const std::string model_name_;
  prometheus::Family<prometheus::Counter>& requests_;
  prometheus::Family<prometheus::Counter>& errors_;
  prometheus::Family<prometheus::Counter>& loads_;
  prometheus::Family<prometheus::Histogram>& load_seconds_;
  prometheus::Family<prometheus::Counter>& prompt_tokens_;
  prometheus::Family<prometheus::Counter>& generation_tokens_;
  prometheus::Family<prometheus::Histogram>& time_to_first_token_;
  prometheus::Family<prometheus::Histogram>& inter_token_;
  prometheus::Family<prometheus::Gauge>& states_;
  prometheus::Family<prometheus::Gauge>& bytes_;

  std::mutex mutex_;  // below
  std::unordered_map<std::string, Series> series_;
  std::vector<prometheus::Gauge*> shown_states_, shown_bytes_;
};

}  // namespace medley::server
