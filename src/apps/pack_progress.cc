#include "apps/pack_progress.h"

#include <unistd.h>

#include <cstdio>
#include <memory>
#include <utility>

#include <fmt/format.h>

#include "base/clock.h"
#include "base/log.h"

namespace medley::apps {
namespace {

constexpr int64_t kTerminalIntervalNs = 100'000'000;
constexpr int64_t kLogIntervalNs = 2'000'000'000;

void show_on_terminal(const std::string& text, bool done) {
  // Carriage return, then "erase to the end of the line" (ECMA-48).
  fmt::print(stderr, "\r\033[K{}", done ? std::string() : text);
  std::fflush(stderr);
}

void show_in_log(const std::string& text, bool done) {
  if (!done) log::info("{}", text);
}

}  // namespace

std::string pack_progress_text(const PackProgress& progress, double seconds) {
  const double done = static_cast<double>(progress.done_bytes) * 1e-9;
  const double total = static_cast<double>(progress.total_bytes) * 1e-9;
  return fmt::format("weights: {:.1f} of {:.1f} GB, {:.0f} %, {:.1f} GB/s", done, total,
                     total > 0.0 ? 100.0 * done / total : 100.0,
                     seconds > 0.0 ? done / seconds : 0.0);
}

PackProgressReport::PackProgressReport(int64_t interval_ns, Say say, std::function<int64_t()> clock)
    : interval_ns_(interval_ns),
      say_(std::move(say)),
      clock_(std::move(clock)),
      start_ns_(clock_()),
      said_ns_(start_ns_) {}

void PackProgressReport::update(const PackProgress& progress) {
  const int64_t now = clock_();
  const bool done = progress.done_bytes == progress.total_bytes;
  if (done ? said_ns_ == start_ns_ : now - said_ns_ < interval_ns_) return;
  said_ns_ = now;
  say_(pack_progress_text(progress, static_cast<double>(now - start_ns_) * 1e-9), done);
}

OnPackProgress show_pack_progress() {
  const bool terminal = ::isatty(STDERR_FILENO) == 1;
  const auto report =
      std::make_shared<PackProgressReport>(terminal ? kTerminalIntervalNs : kLogIntervalNs,
                                           terminal ? show_on_terminal : show_in_log, now_ns);
  return [report](const PackProgress& progress) { report->update(progress); };
}

}  // namespace medley::apps
