#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_set>
#include <vector>

#include "api/request.h"
#include "api/sampling.h"
#include "base/queue.h"
#include "engine/engine.h"
#include "server/adapter_directory.h"
#include "server/output_worker.h"
#include "text/chat.h"
#include "text/tokenizer.h"

namespace medley::server {

struct GenerationServiceOptions {
  std::vector<std::string> base_names;  // the base model's; the first is what answers show
  int64_t vocab_size = 0;               // ids that a prompt may hold
  int64_t max_model_len = 0;
  api::SamplingDefaults defaults;
  bool harmony = false;  // chat answers are in GPT-OSS's format
  int num_text_workers = 2;
  size_t queue_capacity = 1024;  // requests waiting for a text worker
  std::optional<uint64_t> seed;  // of requests that give none; absent: a random one
};

// What generation needs of the rest; everything outlives the service.
struct GenerationServiceParts {
  const text::TextTokenizer& tokenizer;
  const text::ChatRenderer& chat;
  AdapterDirectory& adapters;
  OutputWorkers& outputs;
  Engine& engine;
};

// From a request's bytes to the engine: parsing, chat template and tokens on text workers, answers
// on output workers. Thread-safe.
class GenerationService {
 public:
  GenerationService(GenerationServiceOptions options, const GenerationServiceParts& parts);
  ~GenerationService();

  // Answers through `exchange`, at once or later.
  void submit(api::Shape shape, std::string body, std::shared_ptr<Exchange> exchange);

  // New requests are refused from now on; those that wait for a text worker still run.
  void stop_accepting() { accepting_ = false; }

 private:
  struct Job {
    api::Shape shape = api::Shape::kChat;
    std::string body;
    std::shared_ptr<Exchange> exchange;
    int64_t arrival_ns = 0;
  };

  void run();
  Result<void> start(Job& job);
  // The adapter that the model name means; empty for the base model. Sets an absent name.
  Result<std::string> find_adapter(std::string& model);
  Result<std::vector<std::vector<int32_t>>> tokenize(const api::GenerationRequest& request) const;
  Result<void> check_logit_bias(const api::GenerationRequest& request) const;
  Result<std::vector<std::string>> echoes(const api::GenerationRequest& request,
                                          const std::vector<std::vector<int32_t>>& prompts) const;
  std::vector<Sequence> make_sequences(const api::GenerationRequest& request,
                                       RequestId first_id) const;
  void submit_sequences(const std::shared_ptr<Generation>& generation, const std::string& adapter,
                        const std::vector<SamplingParams>& sampling);
  void warn_unknown(const std::vector<std::string>& fields);
  uint64_t draw_seed();

  const GenerationServiceOptions options_;
  const GenerationServiceParts parts_;
  const std::optional<text::HarmonyTokens> harmony_;
  BoundedQueue<Job> jobs_;
  std::atomic<bool> accepting_ = true;
  std::atomic<uint64_t> next_generation_ = 1;
  std::mutex mutex_;  // below
  std::mt19937_64 random_;
  std::unordered_set<std::string> warned_fields_;
  std::vector<std::thread> threads_;
};

}  // namespace medley::server
