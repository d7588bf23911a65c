#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "core/request.h"
#include "core/token_event.h"

namespace medley {

struct EngineOptions {
  int max_num_seqs = 64;              // sequences in a step
  int max_num_batched_tokens = 2048;  // rows in a step
  int64_t max_model_len = 0;          // prompt + output of one request
  int queue_capacity = 1024;          // waiting submissions; beyond it submit() answers kOverloaded
  std::vector<int32_t> eos_token_ids = {};  // the model's end tokens
  int max_loras = 0;                        // device slots of the adapter store; 0 = no limit known
  bool enable_prefix_caching = true;        // keys and values of equal beginnings are reused
};

// Bounds of EngineStats::num_steps_by_size: steps of at most so many tokens. Those of vLLM.
inline constexpr std::array kStepSizeBounds = {1,   8,    16,   32,   64,   128,  256,
                                               512, 1024, 2048, 4096, 8192, 16384};

// A snapshot for /metrics and the dashboard.
struct EngineStats {
  int num_running = 0;
  int num_waiting = 0;
  int num_pages = 0;       // KV pages in all
  int num_free_pages = 0;  // with those that the prefix cache would give up
  int page_size = 0;
  uint64_t num_steps = 0;
  uint64_t num_step_tokens = 0;  // rows of all steps: prefilled, and sampled to go on from
  // Each step under the first bound that holds it, the last place being for those above all bounds.
  std::array<uint64_t, kStepSizeBounds.size() + 1> num_steps_by_size = {};
  uint64_t num_prompt_tokens = 0;  // computed in prefill
  uint64_t num_generation_tokens = 0;
  uint64_t num_preemptions = 0;
  // Tokens of first admissions that were looked up in the prefix cache, and of these found there.
  uint64_t num_prefix_cache_queries = 0;
  uint64_t num_prefix_cache_hits = 0;
  bool prefix_caching = false;
  std::vector<std::string> running_adapters;  // of requests in steps now
  std::vector<std::string> waiting_adapters;
  bool healthy = true;
};

// Receives all events of one step together, on the engine's thread; must return quickly and never
// wait for a client.
using TokenEventSink = std::function<void(std::vector<TokenEvent>&&)>;

// Runs requests: one loop on one thread, one step ahead of the host. All members are thread-safe.
class Engine {
 public:
  virtual ~Engine() = default;  // aborts what is left and joins the thread

  // Takes the request, or refuses it at once: kOverloaded (queue full), kUnavailable (draining or
  // dead), kInvalidArgument (empty prompt; longer than max_model_len - 1, both numbers named). Once
  // taken, its end is an event.
  virtual Result<void> submit(Request request) = 0;

  // The request leaves the step after the next at the latest and its pages are free; its last event
  // is kAbort. Unknown or finished ids are ignored.
  virtual void abort(RequestId id) = 0;

  virtual EngineStats stats() const = 0;

  // Takes nothing new; returns when every request has ended or `timeout_ns` has passed (the rest is
  // aborted then).
  virtual void drain(int64_t timeout_ns) = 0;
};

}  // namespace medley
