#pragma once

#include <map>
#include <optional>
#include <tuple>
#include <vector>

#include "adapter/peft_config.h"
#include "adapter/target_map.h"
#include "backend/weights.h"

namespace medley {

// Joins the pairs of single experts to one LoraPair per projection. Experts without a pair get
// zeros (which take no memory); where ranks or scales differ, the smaller ranks are padded with
// zeros and the scales multiplied into B, in copies.
class ExpertPairs {
 public:
  void add(const AdapterTarget& target, const RankAndScale& rank_and_scale, const MatrixView& a,
           const MatrixView& b);

  // Appends each projection's pair to its site's. `copies` owns what had to be copied.
  void build(int num_experts, std::map<LoraSite, std::vector<LoraPair>>& pairs,
             std::vector<HostTensor>& copies) const;

 private:
  struct Part {
    RankAndScale rank_and_scale;
    MatrixView a, b;
  };
  struct Projection {
    int64_t row_end = 0;
    int64_t in = 0;
    std::map<int, Part> experts;
  };
  std::map<std::pair<LoraSite, int64_t>, Projection> projections_;  // by site and first row
};

}  // namespace medley
