#pragma once

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "apps/bench_target.h"
#include "apps/http_client.h"

namespace medley::apps {

// Body of a streamed /v1/completions request.
std::string completion_body(const std::string& model, const std::vector<int32_t>& prompt,
                            int output_len);
// Notes a chunk with text, or the count of tokens in the last one: tokens that end within a
// character come with the next.
void note_chunk(std::string_view data, int64_t time_ns, RequestRecord& record);

// A server of the OpenAI API; its cold adapter is a folder on the server, loaded and unloaded by
// vLLM's routes.
class HttpTarget final : public BenchTarget {
 public:
  struct Desc {
    ServerAddress address;
    std::string model;        // the base model's name
    std::string cold_folder;  // empty: no cold adapter
  };
  explicit HttpTarget(Desc desc) : desc_(std::move(desc)) {}
  // Waits for the requests and unloads the cold adapter.
  ~HttpTarget() override;

  Result<int> send(BenchRequest request) override;
  void stop(int) override {}
  BenchRecords& records() override { return records_; }
  std::string cold_adapter() const override { return "bench-cold"; }
  Result<void> make_cold(ColdTier tier) override;
  std::optional<int64_t> usable_ns() override { return std::nullopt; }

 private:
  Result<void> unload_cold();

  const Desc desc_;
  BenchRecords records_;
  bool cold_is_loaded_ = false;
  std::vector<std::jthread> clients_;  // of requests that may still run
};

}  // namespace medley::apps
