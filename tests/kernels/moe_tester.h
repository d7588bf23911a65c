#pragma once

#include <functional>
#include <map>
#include <optional>

#include "cuda/context.h"
#include "cuda/split_ops.h"
#include "side.h"

// Builds one MoE layer with chosen routing and adapters, and runs route, gate_up, down and the
// combining add_norm on a backend. The routing is steered through the router: expert e looks at
// feature e of the hidden state, and each row's features say which experts it wants, best first.

namespace medley::testing {

struct AdapterShape {
  int gate_up_rank = 8;
  int down_rank = 8;
  bool per_expert_a = true;    // else one A for gate and up of all experts
  bool split_gate_up = false;  // an A for gate and one for up
  bool gate_up = true;
  bool down = true;
};

class MoeTester {
 public:
  MoeTester& hidden(int value) { return hidden_ = value, *this; }
  MoeTester& inner(int value) { return spec_.intermediate_size = value, *this; }
  MoeTester& experts(int count, int per_token) {
    spec_.num_experts = count;
    spec_.experts_per_token = per_token;
    return *this;
  }
  MoeTester& format(WeightFormat value) { return spec_.format = value, *this; }
  MoeTester& activation(Activation kind) { return spec_.activation.kind = kind, *this; }
  MoeTester& router(RouterKind kind, bool normalize) {
    spec_.router = kind;
    spec_.normalize_topk = normalize;
    return *this;
  }
  MoeTester& biases(bool value) {
    spec_.expert_bias = spec_.router_bias = value;
    return *this;
  }
  // wanted[row] = experts, best first
  MoeTester& rows(std::vector<std::vector<int>> wanted) {
    return wanted_ = std::move(wanted), adapter_of_row_.assign(wanted_.size(), kNoAdapter), *this;
  }
  // `count` rows whose experts are drawn uniformly.
  MoeTester& uniform_rows(int count, uint32_t seed = 3);
  MoeTester& adapter(int slot, const AdapterShape& shape) { return adapters_[slot] = shape, *this; }
  MoeTester& adapter_of_row(std::vector<int32_t> slots) {
    return adapter_of_row_ = std::move(slots), *this;
  }

  // Inputs reach the CUDA ops through a kernel that triggers its dependents, sleeps, then writes.
  MoeTester& slow_predecessors() { return slow_ = true, *this; }

  // What to do to the CUDA backend right before the layer runs.
  MoeTester& before_running(std::function<void(cuda::Context&)> change) {
    return before_running_ = std::move(change), *this;
  }

  // On CUDA, LoRA as launches of its own.
  MoeTester& split(const cuda::SplitLoraOptions& options) { return split_ = options, *this; }

  // Runs on both backends, each op from the CPU's inputs, and compares every op's output.
  void compare();

  struct Outputs {
    std::vector<float> normed, h, y, residual;
  };
  // All ops on one backend, each on its own results.
  Outputs run(Side& side) { return run_layer(side, nullptr); }

 private:
  struct ExpertHost {
    std::vector<float> values;
    std::vector<uint8_t> codes, scales;
    MatrixView view;
  };
  struct LayerHost {
    std::vector<ExpertHost> gate, up, down;
    std::vector<std::vector<float>> gate_bias, up_bias, down_bias;
    std::vector<float> router, router_bias, norm, residual;
  };

  ExpertHost make_expert(int rows, int cols, uint32_t seed) const;
  const LayerHost& host();
  std::unique_ptr<PackedAdapter> pack_adapter(Side& side, int slot, const AdapterShape& shape);
  Outputs run_layer(Side& side, const Outputs* given);
  std::unique_ptr<MoeGateUp> plan(Side& side, const MoeGateUpDesc& desc);
  std::unique_ptr<MoeDown> plan(Side& side, const MoeDownDesc& desc);

  TensorView deliver(Side& side, const std::vector<float>& values, Shape shape) const;

  int hidden_ = 64;
  bool slow_ = false;
  std::function<void(cuda::Context&)> before_running_;
  std::optional<cuda::SplitLoraOptions> split_;
  std::shared_ptr<cuda::SplitWorkspace> workspace_;
  MoeSpec spec_ = {.num_experts = 4, .experts_per_token = 2, .intermediate_size = 32};
  std::vector<std::vector<int>> wanted_;
  std::vector<int32_t> adapter_of_row_;
  std::map<int, AdapterShape> adapters_;
  std::unique_ptr<LayerHost> host_;
  std::vector<std::unique_ptr<std::vector<float>>> lora_values_;
};

}  // namespace medley::testing
