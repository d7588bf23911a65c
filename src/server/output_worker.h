#pragma once

#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <vector>

#include "base/queue.h"
#include "core/token_event.h"
#include "engine/engine.h"
#include "server/generation.h"
#include "server/metrics.h"

namespace medley::server {

// Turns token events into bytes for clients: each request on one worker, so its events stay in
// order. Never waits for a client. Thread-safe, except that set_engine() comes before everything
// else.
class OutputWorkers {
 public:
  OutputWorkers(const ffi::TokenPieces& pieces, Metrics& metrics, int num_workers);
  ~OutputWorkers();

  // For the engine's making: events go to the workers. They outlive the engine.
  TokenEventSink sink();
  void set_engine(Engine& engine) { engine_ = &engine; }

  // A number for a new generation; its sequence i gets the id first_id(number) + i.
  static RequestId first_id(uint64_t generation_idx) { return generation_idx << kSequenceBits; }

  // Takes over the generation; its sequences may be submitted to the engine afterwards.
  void add(std::shared_ptr<Generation> generation);
  // Ends a sequence that the engine did not take.
  void fail(RequestId id, Error error);

 private:
  static constexpr int kSequenceBits = 10;

  struct Entry {
    std::shared_ptr<Generation> generation;
    size_t sequence_idx = 0;
  };
  struct Worker {
    BoundedQueue<std::vector<TokenEvent>> queue{4096};
    std::mutex mutex;
    std::unordered_map<RequestId, Entry> entries;
    std::thread thread;
  };

  Worker& worker_of(RequestId id) { return *workers_[(id >> kSequenceBits) % workers_.size()]; }
  void run(Worker& worker);
  void handle(Worker& worker, TokenEvent& event);
  void add_prompt_token(const api::GenerationRequest& request, Sequence& sequence,
                        api::TokenLogprobs token) const;
  void add_prompt_logprobs(const api::GenerationRequest& request, Sequence& sequence,
                           const TokenEvent& event) const;
  void add_token(Generation& generation, Sequence& sequence, const TokenEvent& event);
  void finish(Generation& generation, Sequence& sequence, FinishReason reason,
              api::StopReason stop_reason);
  void send_chunk(Generation& generation, Sequence& sequence);
  void end(Generation& generation);
  void abandon(Generation& generation, const Error& error);
  api::LogprobEntry logprob_entry(int32_t token_id, float logprob, int rank = 0) const;

  const ffi::TokenPieces& pieces_;
  Metrics& metrics_;
  Engine* engine_ = nullptr;
  std::vector<std::unique_ptr<Worker>> workers_;
};

}  // namespace medley::server
