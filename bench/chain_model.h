#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cuda/cuda_backend.h"
#include "cuda/packed_weights.h"
#include "cuda/split_ops.h"
#include "cuda/stream.h"

// The MoE half of a model with random weights on the device, made to be timed: per layer
// add_norm_route (with the combine of the layer before), moe_gate_up and moe_down, with their real
// dependencies. Routing is made by the kernels, by a random router of each layer's own. The
// residual starts random and far larger than what a layer adds, so that rows stay independent of
// each other and choose experts evenly. Every adapter slot has a device copy of its own.

namespace medley::bench {

struct ChainShape {
  std::string name;
  int num_layers = 0;
  int hidden_size = 0;
  MoeSpec moe;
  int num_adapters = 8;
  int rank = 32;
  int num_free_slots = 0;  // beyond those of the adapters
  size_t pool_bytes = 0;   // LoraTableDesc

  double base_bytes(double experts_a_layer) const;   // of one layer
  double adapter_bytes(double pairs_a_layer) const;  // of one layer
};
ChainShape gpt_oss_20b();
ChainShape qwen3_30b_a3b();

// What a step's routing looked like, a layer's mean.
struct Spread {
  double experts = 0.0;
  double pairs = 0.0;  // distinct (expert, adapter)
};
// The expectation where each row chooses experts uniformly.
Spread uniform_spread(const ChainShape& shape, std::span<const int32_t> adapter_of_row);
// A time counts where both numbers are within 5 % of the uniform ones.
bool is_uniform(const Spread& found, const Spread& uniform);

class Chain {
 public:
  Chain(const ChainShape& shape, int max_rows);

  // Rows take adapters round robin, or none.
  void set_batch(int rows, bool adapters);
  // Which ops do gate_up and down from now on; at first the fused ones.
  void use_fused();
  void use_split(const cuda::SplitLoraOptions& gate_up, const cuda::SplitLoraOptions& down);
  void run() { run(shape_.num_layers); }  // enqueues one step
  void run(int num_layers);               // the step's first layers
  // All layers' gate_up or down alone, with the routing and the activations of the last step.
  void run_gate_ups();
  void run_downs();
  Spread spread() const;
  Spread uniform_spread() const { return bench::uniform_spread(shape_, adapter_of_row_); }
  // The residual stream of the last step; the step before starts from `set_batch`'s.
  std::vector<float> residual();
  void reset_residual();
  // The routed rows that the last layer to run left.
  std::vector<float> last_output();
  const ChainShape& shape() const { return shape_; }
  int num_rows() const { return rows_; }
  cuda::CudaStream& stream() { return *stream_; }
  Backend& backend() { return *backend_; }
  const PackedAdapter& adapter() const { return *adapter_; }
  const std::string device() const { return backend_->name(); }

 private:
  struct Layer {
    std::unique_ptr<PackedWeight> router, gate_up, down;
    std::unique_ptr<AddNormRoute> route;
    std::unique_ptr<MoeGateUp> run_gate_up;
    std::unique_ptr<MoeDown> run_down;
    std::unique_ptr<Routing> routing;
  };

  struct Views {
    TensorView residual, x, h, y;
  };
  Views views() const;
  std::vector<float> download(Buffer& buffer, size_t count);
  void run_gate_up(Layer& layer, const Views& views);
  void run_down(Layer& layer, const Views& views);
  MoeGateUpDesc gate_up_desc(int layer) const;
  MoeDownDesc down_desc(int layer) const;

  ChainShape shape_;
  int rows_ = 0;
  std::vector<int32_t> adapter_of_row_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<cuda::CudaStream> stream_;
  std::unique_ptr<Step> step_;
  std::unique_ptr<PackedWeight> norm_;
  std::unique_ptr<PackedAdapter> adapter_;
  std::vector<std::unique_ptr<DeviceAdapter>> on_device_;
  std::vector<Layer> layers_;
  std::vector<uint16_t> start_;
  std::unique_ptr<Buffer> residual_, x_, h_, y_;
  std::shared_ptr<cuda::SplitWorkspace> workspace_;
};

}  // namespace medley::bench
