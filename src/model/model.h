#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "base/error.h"
#include "model/packed_model.h"
#include "spec/model_spec.h"
#include "weights/model_weights.h"

namespace medley {

// Is told of every layer's routing, on the engine thread, while it is enabled. Steps wait for the
// device then and are not run as graphs: for measurements only.
struct RoutingObserver {
  std::atomic<bool> enabled = false;
  std::function<void(int layer, int num_rows, const RoutingCounts& counts)> on_routing;
};

struct ModelOptions {
  DType dtype = DType::kBF16;  // activations, residual stream and KV cache
  int max_rows = 0;            // of a step
  int max_seqs = 0;
  OnPackProgress on_progress = {};
  RoutingObserver* routing_observer = nullptr;  // outlives the model
};

// One forward pass, built from the spec's layers out of the backend's ops. Engine thread only.
class Model {
 public:
  // Packs the weights, plans every op and makes the buffers between them.
  static Result<std::unique_ptr<Model>> create(const ModelSpec& spec, const ModelWeights& weights,
                                               Backend& backend, const ModelOptions& options);
  virtual ~Model() = default;

  // Of the buffers between the ops.
  static int64_t buffer_bytes(const ModelSpec& spec, const ModelOptions& options);

  // Before the first step, once it is known how much memory the weights have left. After this a
  // step allocates nothing.
  virtual Result<void> make_kv_cache(int num_pages, int page_size) = 0;

  // Enqueues one step. Afterwards logits() holds step.num_logit_rows() rows.
  virtual void forward(const Step& step, Stream& stream) = 0;
  // Whether forward() is to be called now, rather than a graph that was recorded of it launched.
  virtual bool is_observed() const = 0;

  virtual ConstTensorView logits() const = 0;  // (max_seqs, V) float32, device memory
  virtual const ModelSpec& spec() const = 0;
  virtual size_t num_weight_bytes() const = 0;
};

}  // namespace medley
