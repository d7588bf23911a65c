#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "model/packed_model.h"

namespace medley::apps {

// "weights: 6.9 of 13.8 GB, 50 %, 11.2 GB/s"
std::string pack_progress_text(const PackProgress& progress, double seconds);

// Says how far packing is: at most every `interval_ns`, and not before that much has passed.
class PackProgressReport {
 public:
  using Say = std::function<void(const std::string& text, bool done)>;
  PackProgressReport(int64_t interval_ns, Say say, std::function<int64_t()> clock);

  // `done` is said once, if anything was said before.
  void update(const PackProgress& progress);

 private:
  int64_t interval_ns_;
  Say say_;
  std::function<int64_t()> clock_;
  int64_t start_ns_;
  int64_t said_ns_;
};

// One line on stderr that keeps changing where that is a terminal, else a line of log every two
// seconds.
OnPackProgress show_pack_progress();

}  // namespace medley::apps
