#pragma once

#include <cstdint>
#include <vector>

#include "backend/backend.h"

namespace medley::cpu {

// Routed rows [begin, end) of one expert and one adapter slot (or kNoAdapter).
struct RoutingSegment {
  int expert = 0;
  int slot = kNoAdapter;
  int begin = 0;
  int end = 0;
};

// Pair p = row * k + choice, choices by falling logit. Routed rows stand in the order of (expert,
// adapter slot with base rows first, row).
class CpuRouting : public Routing {
 public:
  explicit CpuRouting(const RoutingDesc& desc)
      : experts(pairs(desc)),
        weights(pairs(desc)),
        routed_of_pair(pairs(desc)),
        row_of_routed(pairs(desc)) {
    segments.reserve(pairs(desc));
  }

  RoutingCounts counts(Stream& stream) const override;

  int num_routed = 0;
  std::vector<int32_t> experts;  // by pair
  std::vector<float> weights;    // by pair
  std::vector<int32_t> routed_of_pair;
  std::vector<int32_t> row_of_routed;
  std::vector<RoutingSegment> segments;  // in routed order, without gaps

 private:
  static size_t pairs(const RoutingDesc& desc) {
    return static_cast<size_t>(desc.max_rows) * desc.moe.experts_per_token;
  }
};

}  // namespace medley::cpu
