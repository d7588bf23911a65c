#pragma once

#include <condition_variable>
#include <map>
#include <mutex>
#include <thread>

#include "engine/engine.h"

namespace medley::server::testing {

// An engine that knows no model: token i of an answer is token i of the prompt, over and over; for
// an adapter the prompt is read backwards. A prompt's log-probabilities, where asked for, come in
// two steps: token i has -i / 4 and rank i + 1. One step each `step_ns`. Thread-safe.
class FakeEngine : public Engine {
 public:
  struct Options {
    int64_t step_ns = 100'000;
    int max_running = 1 << 20;  // submissions beyond are refused: kOverloaded
    int32_t end_token = -1;
  };
  FakeEngine(Options options, TokenEventSink sink);
  ~FakeEngine() override;

  Result<void> submit(Request request) override;
  void abort(RequestId id) override;
  EngineStats stats() const override;
  void drain(int64_t timeout_ns) override;

  // What runs fails at its next step.
  void break_all();
  // The last request that was submitted.
  Request last_request() const;
  // Waits until nothing runs; false if that takes longer than 10 s.
  bool wait_until_idle();

 private:
  struct Running {
    Request request;
    int num_tokens = 0;
    size_t num_scored = 1;
    bool aborted = false;
    bool broken = false;
  };

  void run();
  TokenEvent step(Running& running);

  const Options options_;
  const TokenEventSink sink_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::map<RequestId, Running> running_;
  Request last_request_;
  bool draining_ = false;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace medley::server::testing
