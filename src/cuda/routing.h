#pragma once

#include "backend/backend.h"
#include "cuda/memory.h"
#include "cuda/routing_view.h"

namespace medley::cuda {

class CudaRouting : public Routing {
 public:
  // Room for max_pairs pairs.
  explicit CudaRouting(int max_pairs);
  RoutingCounts counts(Stream& stream) const override;
  const RoutingView& view() const { return view_; }
  int max_pairs() const { return max_pairs_; }
  uint32_t* keys() const { return keys_; }  // (pairs) what the grouping of many pairs needs

 private:
  DeviceBuffer buffer_;
  uint32_t* keys_ = nullptr;
  RoutingView view_;
  int max_pairs_;
};

}  // namespace medley::cuda
