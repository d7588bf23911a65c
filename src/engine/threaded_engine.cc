#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>
#include <variant>

#include "base/queue.h"
#include "engine/engine_core.h"
#include "engine/start_engine.h"
#include "kv/page_table.h"

namespace medley {
namespace {

struct Abort {
  RequestId id = 0;
};
struct AbortAll {};
struct Wake {};  // an adapter may have arrived
struct Stop {};
using Instruction = std::variant<Request, Abort, AbortAll, Wake, Stop>;

Result<void> check_options(const EngineOptions& options, const ExecutorDesc& desc) {
  const auto at_most = [](const char* name, int64_t value, const char* limit_name,
                          int64_t limit) -> Result<void> {
    if (value >= 1 && value <= limit) return {};
    return invalid_argument(
        fmt::format("{} is {}, expected 1 to {} ({})", name, value, limit, limit_name), name);
  };
  MEDLEY_TRY(
      at_most("max_num_seqs", options.max_num_seqs, "sequences of a step", desc.step.max_seqs));
  MEDLEY_TRY(at_most("max_num_batched_tokens", options.max_num_batched_tokens, "rows of a step",
                     desc.step.max_rows));
  MEDLEY_TRY(at_most("max_num_seqs", options.max_num_seqs, "max_num_batched_tokens",
                     options.max_num_batched_tokens));
  MEDLEY_TRY(at_most("max_model_len", options.max_model_len, "tokens in all KV pages",
                     static_cast<int64_t>(desc.num_pages) * desc.page_size));
  return at_most("max_model_len", options.max_model_len, "tokens in the page tables of a step",
                 static_cast<int64_t>(desc.step.max_pages) * desc.page_size);
}

class ThreadedEngine final : public Engine {
 public:
  ThreadedEngine(const EngineOptions& options, std::unique_ptr<Executor> executor,
                 AdapterStore* adapters, TokenEventSink sink)
      : options_(options),
        executor_(std::move(executor)),
        vocab_size_(executor_->desc().vocab_size),
        adapters_(adapters),
        sink_(std::move(sink)),
        queue_(options.queue_capacity),
        stats_(EngineCore(options, *executor_, adapters).stats()),
        thread_([this] { run(); }) {
    if (adapters_ != nullptr) {
      adapters_->set_wake([this] { (void)queue_.push_over(Wake{}); });
      (void)queue_.push_over(Wake{});  // for what came before
    }
  }

  ~ThreadedEngine() override {
    if (adapters_ != nullptr) adapters_->set_wake({});
    {
      std::lock_guard lock(mutex_);
      is_accepting_ = false;
    }
    (void)queue_.push_over(Stop{});
    thread_.join();
  }

  Result<void> submit(Request request) override {
    MEDLEY_TRY(check(request));
    std::lock_guard lock(mutex_);
    if (!stats_.healthy) return Error{ErrorCode::kUnavailable, "the engine has failed"};
    if (!is_accepting_) return Error{ErrorCode::kUnavailable, "the server is shutting down"};
    if (num_queued_ >= options_.queue_capacity) {
      return Error{ErrorCode::kOverloaded, fmt::format("{} requests are waiting, at most {} may",
                                                       num_queued_, options_.queue_capacity)};
    }
    ++num_queued_;
    ++num_open_;
    (void)queue_.push_over(std::move(request));
    return {};
  }

  void abort(RequestId id) override { (void)queue_.push_over(Abort{id}); }

  EngineStats stats() const override {
    std::lock_guard lock(mutex_);
    EngineStats stats = stats_;
    stats.num_waiting = num_open_ - stats.num_running;
    return stats;
  }

  void drain(int64_t timeout_ns) override {
    std::unique_lock lock(mutex_);
    is_accepting_ = false;
    const auto is_done = [this] { return num_open_ == 0; };
    if (all_ended_.wait_for(lock, std::chrono::nanoseconds(timeout_ns), is_done)) return;
    (void)queue_.push_over(AbortAll{});
    all_ended_.wait(lock, is_done);
  }

 private:
  Result<void> check(const Request& request) const {
    const int64_t num_prompt = static_cast<int64_t>(request.prompt.size());
    if (num_prompt == 0) return invalid_argument("the prompt is empty", "prompt");
    if (num_prompt > options_.max_model_len - 1) {
      return invalid_argument(
          fmt::format("the prompt has {} tokens, but with room for one token of output the model's "
                      "context of {} takes at most {}",
                      num_prompt, options_.max_model_len, options_.max_model_len - 1),
          "prompt");
    }
    for (const int32_t id : request.prompt) {
      if (id >= 0 && id < vocab_size_) continue;
      return invalid_argument(
          fmt::format("token id {} of the prompt is not in [0, {})", id, vocab_size_), "prompt");
    }
    const SamplingParams& sampling = request.sampling;
    if (sampling.max_tokens < 1) {
      return invalid_argument(
          fmt::format("max_tokens is {}, expected at least 1", sampling.max_tokens), "max_tokens");
    }
    if (sampling.num_top_logprobs > kMaxTopLogprobs) {
      return invalid_argument(fmt::format("top_logprobs is {}, expected at most {}",
                                          sampling.num_top_logprobs, kMaxTopLogprobs),
                              "top_logprobs");
    }
    if (sampling.num_prompt_logprobs > kMaxTopLogprobs) {
      return invalid_argument(fmt::format("prompt_logprobs is {}, expected at most {}",
                                          sampling.num_prompt_logprobs, kMaxTopLogprobs),
                              "prompt_logprobs");
    }
    const size_t num_edits = logit_edits(sampling, options_.eos_token_ids, vocab_size_).size();
    if (num_edits > kMaxLogitEdits) {
      return invalid_argument(
          fmt::format("logit_bias, and the end and stop tokens that min_tokens rules out, are {} "
                      "entries, expected at most {}",
                      num_edits, kMaxLogitEdits),
          "logit_bias");
    }
    if (!request.adapter.empty() && adapters_ == nullptr) {
      return not_found(fmt::format("adapter '{}': this server serves no adapters", request.adapter),
                       "model");
    }
    return {};
  }

  void run() {
    EngineCore core(options_, *executor_, adapters_);
    bool is_idle = true;
    bool is_stopping = false;
    while (!is_stopping) {
      std::optional<Instruction> instruction = is_idle ? queue_.pop() : queue_.try_pop();
      for (; instruction; instruction = queue_.try_pop()) {
        is_stopping |= !apply(std::move(*instruction), core);
      }
      if (is_stopping) core.abort_all();
      is_idle = !core.step();
      hand_over(core);
    }
    while (core.step()) hand_over(core);
  }

  // False: stop.
  static bool apply(Instruction&& instruction, EngineCore& core) {
    if (auto* request = std::get_if<Request>(&instruction)) {
      core.add(std::move(*request));
    } else if (const auto* abort = std::get_if<Abort>(&instruction)) {
      core.abort(abort->id);
    } else if (std::holds_alternative<AbortAll>(instruction)) {
      core.abort_all();
    } else if (std::holds_alternative<Wake>(instruction)) {
      core.fill_adapter_slots();
    }
    return !std::holds_alternative<Stop>(instruction);
  }

  void hand_over(EngineCore& core) {
    std::vector<TokenEvent> events = core.take_events();
    int num_ended = 0;
    for (const TokenEvent& event : events) num_ended += event.finish.has_value();
    EngineStats stats = core.stats();
    const uint64_t num_left_queue = core.num_left_queue();
    if (!events.empty()) sink_(std::move(events));

    std::lock_guard lock(mutex_);
    stats_ = std::move(stats);
    num_queued_ -= static_cast<int>(num_left_queue - num_left_queue_seen_);
    num_left_queue_seen_ = num_left_queue;
    num_open_ -= num_ended;
    if (num_open_ == 0) all_ended_.notify_all();
  }

  const EngineOptions options_;
  const std::unique_ptr<Executor> executor_;
  const int64_t vocab_size_;
  AdapterStore* const adapters_;
  const TokenEventSink sink_;

  // Bounded by num_queued_: an abort must get through when submissions no longer do.
  BoundedQueue<Instruction> queue_;

  mutable std::mutex mutex_;
  std::condition_variable all_ended_;
  bool is_accepting_ = true;
  int num_queued_ = 0;  // submitted, never in a step yet
  int num_open_ = 0;    // submitted, not ended
  uint64_t num_left_queue_seen_ = 0;
  EngineStats stats_;

  std::thread thread_;
};

}  // namespace

Result<std::unique_ptr<Engine>> start_engine(const EngineOptions& options,
                                             std::unique_ptr<Executor> executor,
                                             AdapterStore* adapters, TokenEventSink sink) {
  MEDLEY_TRY(check_options(options, executor->desc()));
  return std::unique_ptr<Engine>(
      std::make_unique<ThreadedEngine>(options, std::move(executor), adapters, std::move(sink)));
}

}  // namespace medley
