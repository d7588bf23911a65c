#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/token_event.h"
#include "engine/engine.h"

namespace medley::server {

// What /metrics adds to its own counts at the time of a scrape.
struct MetricsSnapshot {
  EngineStats engine;
  int max_adapters = 0;
  std::vector<std::string> resident_adapters;
};

// Counters and histograms under vLLM's names (vLLM's docs, "Production metrics"), all labelled with
// model_name, in Prometheus' text format 0.0.4. Thread-safe.
class Metrics {
 public:
  explicit Metrics(const std::string& model_name);
  ~Metrics();

  void on_first_token(int64_t num_prompt_tokens, int64_t time_to_first_token_ns);
  void on_token(int64_t num_tokens);
  void on_inter_token(int64_t latency_ns);
  void on_finish(FinishReason reason, int64_t e2e_latency_ns);

  std::string render(const MetricsSnapshot& snapshot);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace medley::server
