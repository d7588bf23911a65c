#include "bench/step_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "base/check.h"

namespace medley::bench {
namespace {

constexpr double kNsPerUs = 1e3;

}  // namespace

StepTable make_step_table(std::span<const DeviceWork> work, int num_steps) {
  MEDLEY_CHECK(!work.empty(), "the trace holds no work of the device");
  struct Sums {
    int64_t launches = 0;
    int64_t alone_ns = 0;
    int64_t idle_ns = 0;
    int64_t total_ns = 0;
  };
  std::map<std::string, Sums> sums;
  StepTable table;
  int64_t num_kernels = 0;
  int64_t busy_ns = 0;
  int64_t reached_ns = work.front().start_ns;
  for (const DeviceWork& each : work) {
    const int64_t alone_ns =
        std::max<int64_t>(0, each.end_ns - std::max(each.start_ns, reached_ns));
    Sums& sum = sums[each.name];
    sum.idle_ns += std::max<int64_t>(0, each.start_ns - reached_ns);
    reached_ns = std::max(reached_ns, each.end_ns);
    ++sum.launches;
    sum.alone_ns += alone_ns;
    sum.total_ns += each.end_ns - each.start_ns;
    busy_ns += alone_ns;
    num_kernels += each.is_kernel ? 1 : 0;
  }
  const double per_step = 1.0 / num_steps;
  for (const auto& [name, sum] : sums) {
    table.rows.push_back({.name = name,
                          .launches = sum.launches * per_step,
                          .alone_us = sum.alone_ns / kNsPerUs * per_step,
                          .idle_us = sum.idle_ns / kNsPerUs * per_step,
                          .mean_us = sum.total_ns / kNsPerUs / static_cast<double>(sum.launches)});
  }
  std::ranges::sort(table.rows, std::ranges::greater(), &StepTable::Row::alone_us);
  table.num_kernels = static_cast<double>(num_kernels) * per_step;
  table.busy_us = static_cast<double>(busy_ns) / kNsPerUs * per_step;
  table.traced_step_us =
      static_cast<double>(reached_ns - work.front().start_ns) / kNsPerUs * per_step;
  return table;
}

void print(const StepTable& table, double step_us) {
  const double beyond_us = step_us - table.busy_us;
  fmt::print(
      "  step {:.0f} us, {:.0f} us ({:.1f} %) beyond its kernels and copies; {:.0f} kernels\n",
      step_us, beyond_us, 100.0 * beyond_us / step_us, table.num_kernels);
  fmt::print("  traced {:.0f} us, of which nothing runs for {:.0f} us\n", table.traced_step_us,
             table.traced_step_us - table.busy_us);
  fmt::print("  {:>8} {:>9} {:>7} {:>7}  {}\n", "launches", "us/step", "share", "us each",
             "kernel");
  for (const StepTable::Row& row : table.rows) {
    fmt::print("  {:8.1f} {:9.1f} {:6.1f}% {:7.1f} {:11.1f}  {}\n", row.launches, row.alone_us,
               100.0 * row.alone_us / table.busy_us, row.mean_us, row.idle_us, row.name);
  }
}

}  // namespace medley::bench
