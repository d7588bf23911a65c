#include "model/packed_model.h"

#include <utility>

#include <fmt/format.h>

#include "base/clock.h"
#include "base/log.h"

namespace medley {
namespace {

size_t bytes_of(const MatrixView& view) {
  const size_t count = view.rows * view.cols;
  if (view.format == WeightFormat::kMxfp4) return count / 2 + count / 32;
  return count * size_of(view.dtype);
}
size_t bytes_of(const VectorView& view) { return view.size * size_of(view.dtype); }
template <class View>
size_t bytes_of(const std::vector<View>& views) {
  size_t sum = 0;
  for (const View& view : views) sum += bytes_of(view);
  return sum;
}
size_t bytes_of(const LinearWeights& weights) {
  return bytes_of(weights.parts) + bytes_of(weights.biases);
}
size_t bytes_of(const ExpertGateUpWeights& weights) {
  return bytes_of(weights.gate) + bytes_of(weights.up) + bytes_of(weights.gate_bias) +
         bytes_of(weights.up_bias);
}
size_t bytes_of(const ExpertDownWeights& weights) {
  return bytes_of(weights.down) + bytes_of(weights.bias);
}
template <class T>
size_t bytes_of(const std::optional<T>& weights) {
  return weights ? bytes_of(*weights) : 0;
}

// Calls visit(what, weights, where its packed form goes) for each weight that the model has.
template <class Visit>
Result<void> for_each_weight(const ModelSpec& spec, const ModelWeights& from, PackedModel& to,
                             const Visit& visit) {
  MEDLEY_TRY(visit("embedding", from.embedding, to.embedding));
  MEDLEY_TRY(visit("final norm", from.final_norm, to.final_norm));
  MEDLEY_TRY(visit("lm_head", from.lm_head, to.lm_head));
  for (int l = 0; l < spec.num_layers(); ++l) {
    const LayerWeights& layer = from.layers[l];
    PackedLayer& packed = to.layers[l];
    const auto in_layer = [&](const char* what, const auto& weights,
                              std::unique_ptr<PackedWeight>& slot) {
      return visit(fmt::format("layer {}, {}", l, what), weights, slot);
    };
    MEDLEY_TRY(in_layer("input norm", layer.input_norm, packed.input_norm));
    MEDLEY_TRY(
        in_layer("post-attention norm", layer.post_attention_norm, packed.post_attention_norm));
    MEDLEY_TRY(in_layer("q, k, v", layer.qkv, packed.qkv));
    MEDLEY_TRY(in_layer("o", layer.o, packed.o));
    if (layer.q_norm) MEDLEY_TRY(in_layer("q norm", *layer.q_norm, packed.q_norm));
    if (layer.k_norm) MEDLEY_TRY(in_layer("k norm", *layer.k_norm, packed.k_norm));
    if (layer.sinks) MEDLEY_TRY(in_layer("sinks", *layer.sinks, packed.sinks));
    if (spec.layers[l].moe) {
      MEDLEY_TRY(in_layer("router", layer.router, packed.router));
      MEDLEY_TRY(in_layer("experts' gate and up", layer.expert_gate_up, packed.gate_up));
      MEDLEY_TRY(in_layer("experts' down", layer.expert_down, packed.down));
    } else {
      MEDLEY_TRY(in_layer("gate and up", layer.mlp_gate_up, packed.gate_up));
      MEDLEY_TRY(in_layer("down", layer.mlp_down, packed.down));
    }
  }
  return {};
}

Result<std::unique_ptr<PackedWeight>> pack(Backend& backend, const MatrixView& table) {
  return backend.pack_embedding(table);
}
Result<std::unique_ptr<PackedWeight>> pack(Backend& backend, const VectorView& vector) {
  return backend.pack_vector(vector);
}
Result<std::unique_ptr<PackedWeight>> pack(Backend& backend, const LinearWeights& weights) {
  return backend.pack_linear(weights);
}
template <class Experts>
Result<std::unique_ptr<PackedWeight>> pack(Backend& backend, const Experts& weights) {
  return backend.pack_experts(weights);
}

std::string size_text(double num_bytes) {
  return num_bytes < 1e9 ? fmt::format("{:.1f} MB", num_bytes * 1e-6)
                         : fmt::format("{:.2f} GB", num_bytes * 1e-9);
}

void log_times(size_t num_bytes, double seconds, const PackingTimes& times) {
  const auto bytes = static_cast<double>(num_bytes);
  std::string parts;
  if (times.upload_s > 0.0) {
    parts = fmt::format("; reading {:.2f} s, waiting for the device {:.2f} s, its kernels {:.2f} s",
                        times.read_s, times.upload_s, times.pack_s);
  }
  log::info("weights: {} in {:.2f} s ({:.1f} GB/s){}", size_text(bytes), seconds,
            bytes * 1e-9 / seconds, parts);
}

}  // namespace

Result<PackedModel> pack_model(const ModelSpec& spec, const ModelWeights& weights, Backend& backend,
                               const OnPackProgress& on_progress) {
  MEDLEY_CHECK_EQ(weights.layers.size(), spec.layers.size());
  PackedModel model;
  model.layers.resize(spec.layers.size());
  PackProgress progress;
  MEDLEY_TRY(for_each_weight(spec, weights, model,
                             [&](const std::string&, const auto& from, auto&) -> Result<void> {
                               progress.total_bytes += bytes_of(from);
                               return {};
                             }));
  const int64_t start_ns = now_ns();
  MEDLEY_TRY(for_each_weight(spec, weights, model,
                             [&](const std::string& what, const auto& from,
                                 std::unique_ptr<PackedWeight>& to) -> Result<void> {
                               Result<std::unique_ptr<PackedWeight>> packed = pack(backend, from);
                               if (!packed.ok()) {
                                 Error error = packed.error();
                                 error.message = fmt::format("{}: {}", what, error.message);
                                 return error;
                               }
                               to = std::move(packed).value();
                               model.num_bytes += to->num_bytes();
                               progress.done_bytes += bytes_of(from);
                               if (on_progress) on_progress(progress);
                               return {};
                             }));
  const PackingTimes times = backend.finish_packing();
  log_times(progress.total_bytes, static_cast<double>(now_ns() - start_ns) * 1e-9, times);
  return model;
}

}  // namespace medley
