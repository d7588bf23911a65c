#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "apps/bench_records.h"
#include "base/error.h"

namespace medley::apps {

// Greedy, end tokens ignored.
struct BenchRequest {
  std::string adapter;  // empty = the base model
  std::vector<int32_t> prompt;
  int output_len = 1;
};

// Where an adapter is before the first request for it.
enum class ColdTier : uint8_t {
  kHost,  // packed in host memory
  kDisk,  // only registered: its files are in the page cache
};

// What the benchmarks of single requests send them to. One thread at a time.
class BenchTarget {
 public:
  virtual ~BenchTarget() = default;

  // Starts a request and returns its number in records().
  virtual Result<int> send(BenchRequest request) = 0;
  // The rest of its answer is not wanted. It may still come.
  virtual void stop(int request) = 0;
  virtual BenchRecords& records() = 0;

  // The adapter that is cold, again and again.
  virtual std::string cold_adapter() const = 0;
  // Makes it so, with content that was never seen before or is nowhere else. No request for it may
  // run. kUnsupported for a tier that can't be had here.
  virtual Result<void> make_cold(ColdTier tier) = 0;
  // When the last load of the cold adapter was complete on the device; nothing where that can't be
  // told.
  virtual std::optional<int64_t> usable_ns() = 0;
};

// Sends a request and waits for its end. An error where it failed or gave no token; `whose` begins
// that message.
Result<RequestRecord> answer_of(BenchTarget& target, BenchRequest request, std::string_view whose);

}  // namespace medley::apps
