#include "apps/bench_records.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <utility>

#include "base/clock.h"

namespace medley::apps {

double ttft_ms(const RequestRecord& record) {
  return ms_between(record.sent_ns, record.token_ns.front());
}

int BenchRecords::add(RequestRecord record) {
  const std::lock_guard lock(mutex_);
  records_.push_back(std::move(record));
  return num_taken_ + static_cast<int>(records_.size()) - 1;
}

void BenchRecords::update(std::span<const RecordUpdate> updates) {
  const std::lock_guard lock(mutex_);
  for (const RecordUpdate& update : updates) {
    RequestRecord& record = at(update.request);
    if (update.token_ns != 0) {
      record.token_ns.push_back(update.token_ns);
      ++record.num_tokens;
    }
    if (!update.error.empty()) record.error = update.error;
    if (update.ended && !std::exchange(record.ended, true)) ++num_ended_;
  }
  changed_.notify_all();
}

RequestRecord BenchRecords::wait(int request, int num_tokens) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return at(request).ended || at(request).num_tokens >= num_tokens; });
  return at(request);
}

RequestRecord BenchRecords::wait_for_end(int request) {
  return wait(request, std::numeric_limits<int>::max());
}

int BenchRecords::wait_beyond(int num, int64_t deadline_ns) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, std::chrono::nanoseconds(std::max<int64_t>(0, deadline_ns - now_ns())),
                    [&] { return num_ended_ > num; });
  return num_ended_;
}

std::vector<RequestRecord> BenchRecords::take() {
  const std::lock_guard lock(mutex_);
  num_taken_ += static_cast<int>(records_.size());
  num_ended_ = 0;
  return std::exchange(records_, {});
}

}  // namespace medley::apps
