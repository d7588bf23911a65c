#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "api/models.h"
#include "core/token_event.h"
#include "engine/engine.h"

namespace medley::server {

// What /metrics adds to its own counts at the time of a scrape.
struct MetricsSnapshot {
  EngineStats engine;
  int max_adapters = 0;
  std::vector<api::ModelCard> adapters;
};

// How long a request that gave a token was in each phase.
struct RequestPhases {
  int64_t queue_ns = 0;    // from its arrival to its first step
  int64_t prefill_ns = 0;  // from there to its first token
  int64_t decode_ns = 0;   // from there to its last token
};

// One attempt to bring an adapter a step nearer.
struct AdapterLoadSample {
  std::string adapter;
  std::string source;  // "disk": to host memory; "host": to the device
  int64_t duration_ns = 0;
  bool ok = true;
};

// Counters and histograms under vLLM's names (vLLM's docs, "Production metrics"), all labelled with
// model_name, and medley:adapter_*, in Prometheus' text format 0.0.4. `adapter` is a request's;
// empty: the base model. Thread-safe.
class Metrics {
 public:
  explicit Metrics(const std::string& model_name);
  ~Metrics();

  void on_first_token(int64_t num_prompt_tokens, int64_t time_to_first_token_ns,
                      const std::string& adapter = {});
  void on_token(int64_t num_tokens, const std::string& adapter = {});
  void on_inter_token(int64_t latency_ns, const std::string& adapter = {});
  void on_phases(const RequestPhases& phases);
  void on_adapter_load(const AdapterLoadSample& load);
  void on_finish(FinishReason reason, int64_t e2e_latency_ns, const std::string& adapter = {});

  std::string render(const MetricsSnapshot& snapshot);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace medley::server
