#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <span>
#include <string>
#include <vector>

namespace medley::apps {

// One request of a benchmark as its client saw it; times of now_ns().
struct RequestRecord {
  int adapter = -1;  // -1 = base
  int num_prompt_tokens = 0;
  int64_t sent_ns = 0;
  std::vector<int64_t> token_ns;  // when tokens came: one each, or what one chunk brought
  int num_tokens = 0;             // in all
  std::string error;              // why it ended early
  bool ended = false;
};

// From sending to the first token, of which there must be one.
double ttft_ms(const RequestRecord& record);

// What became known of a request.
struct RecordUpdate {
  int request = 0;
  int64_t token_ns = 0;  // of a new token; 0: none came
  bool ended = false;
  std::string error;
};

// The records of requests that run. All members are thread-safe.
class BenchRecords {
 public:
  // Its number: 0, 1, 2 and so on, for the life of this.
  int add(RequestRecord record);
  void update(std::span<const RecordUpdate> updates);

  // Waits until the request has so many tokens, or has ended; what is known of it then.
  RequestRecord wait(int request, int num_tokens);
  RequestRecord wait_for_end(int request);
  // Waits until more than `num` requests have ended, of those that were not taken yet, or until
  // `deadline_ns`; returns how many have.
  int wait_beyond(int num, int64_t deadline_ns);
  // All that were added since the last call.
  std::vector<RequestRecord> take();

 private:
  RequestRecord& at(int request) { return records_.at(request - num_taken_); }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<RequestRecord> records_;
  int num_taken_ = 0;
  int num_ended_ = 0;
};

}  // namespace medley::apps
