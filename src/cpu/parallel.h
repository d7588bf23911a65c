#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>

#include "base/thread_pool.h"

namespace medley::cpu {

// Below this many multiply-adds (or elements of like cost) waking threads costs more than it saves.
inline constexpr int64_t kMinParallelWork = int64_t{512} * 1024;

// body(i) for each i in [0, count); `total_work` decides whether the pool is woken.
template <class Body>
void parallel_items(ThreadPool& pool, int64_t count, int64_t total_work, const Body& body) {
  if (count == 1 || total_work < kMinParallelWork) {
    for (int64_t i = 0; i < count; ++i) body(i);
  } else {
    pool.parallel_for(count, std::cref(body));  // by reference: no allocation
  }
}

// body(i) for each i in [0, count), handed out in runs, for many small items.
template <class Body>
void parallel_rows(ThreadPool& pool, int64_t count, int64_t work_per_row, const Body& body) {
  const int64_t num_runs = std::min<int64_t>(count, int64_t{8} * pool.num_threads());
  const auto run = [&](int64_t i) {
    const int64_t end = (i + 1) * count / num_runs;
    for (int64_t row = i * count / num_runs; row < end; ++row) body(row);
  };
  parallel_items(pool, num_runs, count * work_per_row, run);
}

}  // namespace medley::cpu
