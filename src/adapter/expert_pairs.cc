#include "adapter/expert_pairs.h"

#include <algorithm>

namespace medley {
namespace {

constexpr uint32_t kZero = 0;

MatrixView zeros(int64_t rows, int64_t cols) {
  return {.dtype = DType::kF32,
          .data = &kZero,
          .rows = rows,
          .cols = cols,
          .row_stride = 0,
          .col_stride = 0};
}

// `source` times `factor` in the corner of a (rows, cols) matrix of zeros.
MatrixView padded_copy(const MatrixView& source, float factor, int64_t rows, int64_t cols,
                       std::vector<HostTensor>& copies) {
  HostTensor copy(DType::kF32, Shape({rows, cols}));
  for (int64_t r = 0; r < source.rows; ++r) {
    for (int64_t c = 0; c < source.cols; ++c) {
      copy.as<float>()[r * cols + c] = factor * element(source, r, c);
    }
  }
  const MatrixView view{.dtype = DType::kF32,
                        .data = std::as_const(copy).view().data,
                        .rows = rows,
                        .cols = cols,
                        .row_stride = cols};
  copies.push_back(std::move(copy));
  return view;
}

}  // namespace

void ExpertPairs::add(const AdapterTarget& target, const RankAndScale& rank_and_scale,
                      const MatrixView& a, const MatrixView& b) {
  Projection& projection = projections_[{target.site, target.row_begin}];
  projection.row_end = target.row_end;
  projection.in = target.in;
  projection.experts.emplace(target.expert, Part{rank_and_scale, a, b});
}

void ExpertPairs::build(int num_experts, std::map<LoraSite, std::vector<LoraPair>>& pairs,
                        std::vector<HostTensor>& copies) const {
  for (const auto& [key, projection] : projections_) {
    const auto& [site, row_begin] = key;
    const RankAndScale& first = projection.experts.begin()->second.rank_and_scale;
    int rank = 0;
    bool same_scale = true;
    for (const auto& [expert, part] : projection.experts) {
      rank = std::max(rank, part.rank_and_scale.rank);
      same_scale &= part.rank_and_scale.scale == first.scale;
    }
    LoraPair pair{.row_begin = row_begin, .row_end = projection.row_end, .rank = rank};
    pair.scale.assign(rank, same_scale ? first.scale : 1.0f);
    const int64_t rows = projection.row_end - row_begin;
    for (int expert = 0; expert < num_experts; ++expert) {
      const auto found = projection.experts.find(expert);
      if (found == projection.experts.end()) {
        pair.a.push_back(zeros(rank, projection.in));
        pair.b.push_back(zeros(rows, rank));
        continue;
      }
      const Part& part = found->second;
      const bool full = part.rank_and_scale.rank == rank;
      pair.a.push_back(full ? part.a
                            : padded_copy(part.a, /*factor=*/1.0f, rank, projection.in, copies));
      pair.b.push_back(full && same_scale
                           ? part.b
                           : padded_copy(part.b, same_scale ? 1.0f : part.rank_and_scale.scale,
                                         rows, rank, copies));
    }
    pairs[site].push_back(std::move(pair));
  }
}

}  // namespace medley
