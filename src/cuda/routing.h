#pragma once

#include <utility>

#include "backend/backend.h"
#include "cuda/memory.h"
#include "cuda/routing_view.h"

namespace medley::cuda {

class CudaRouting : public Routing {
 public:
  // Room for max_pairs pairs of gate_up's outputs, of inner_size values each.
  CudaRouting(int max_pairs, int inner_size);
  RoutingCounts counts(Stream& stream) const override;
  const RoutingView& view() const { return view_; }
  int max_pairs() const { return max_pairs_; }
  uint32_t* keys() const { return keys_; }  // (pairs) what the grouping of many pairs needs

  // What a step of one row hands on early, as its ops are launched; one thread.
  //
  // The router: whether it publishes row_experts.
  void start(bool one_row) const {
    publishes_ = one_row;
    units_of_pair_ = 0;
  }
  bool publishes() const { return publishes_; }
  // gate_up: how many units make a pair of `out` where it counts them (units_done).
  void set_units_of_pair(uint32_t units, const void* out) const {
    units_of_pair_ = units;
    counted_ = out;
  }
  // down: the same, once; 0 where its x is not `out`.
  uint32_t take_units_of_pair(const void* x) const {
    const uint32_t units = std::exchange(units_of_pair_, 0);
    return x == counted_ ? units : 0;
  }

 private:
  DeviceBuffer buffer_;
  uint32_t* keys_ = nullptr;
  RoutingView view_;
  int max_pairs_;
  mutable bool publishes_ = false;
  mutable uint32_t units_of_pair_ = 0;
  mutable const void* counted_ = nullptr;
};

}  // namespace medley::cuda
