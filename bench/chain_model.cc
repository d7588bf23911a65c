#include "chain_model.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <numeric>
#include <random>
#include <set>
#include <span>

#include "cuda/check.h"
#include "cuda/route_kernel.h"
#include "cuda/routing.h"

namespace medley::bench {
namespace {

using cuda::MatrixLayout;
using cuda::StreamFormat;

constexpr float kStartScale = 16.0f;

// Random bits of a packed matrix: normal-sized bfloat16 values, or any codes with small scales.
std::vector<uint8_t> random_matrix(const MatrixLayout& layout, uint32_t seed) {
  std::mt19937 engine(seed);
  std::vector<uint8_t> bytes(layout.matrix_bytes());
  if (layout.format == StreamFormat::kBF16) {
    std::normal_distribution<float> normal(0.0f, 0.02f);
    std::vector<uint16_t> pool(65536);
    for (uint16_t& value : pool) value = float_to_bf16(normal(engine));
    auto* values = reinterpret_cast<uint16_t*>(bytes.data());
    for (size_t i = 0; i < bytes.size() / 2; ++i) values[i] = pool[engine() % pool.size()];
    return bytes;
  }
  auto* words = reinterpret_cast<uint32_t*>(bytes.data());
  for (size_t i = 0; i < bytes.size() / 4; ++i) words[i] = static_cast<uint32_t>(engine());
  for (size_t stage = 0; stage < bytes.size() / layout.stage_bytes; ++stage) {
    uint8_t* scales =
        bytes.data() + stage * layout.stage_bytes + layout.stage_blocks * cuda::kCodeBytes;
    for (int i = 0; i < layout.stage_blocks * cuda::kScaleBytes; ++i) {
      scales[i] = static_cast<uint8_t>(cuda::kScaleBias + 118 + scales[i] % 3);
    }
  }
  return bytes;
}

// Four different matrices, repeated: addresses differ, so every byte is read from memory.
std::unique_ptr<PackedWeight> random_experts(const MatrixLayout& layout, const ChainShape& shape,
                                             int64_t in_size, int64_t out_size, bool bias,
                                             const std::vector<std::vector<uint8_t>>& matrices) {
  auto packed = std::make_unique<cuda::CudaMatrices>();
  packed->layout = layout;
  packed->num_experts = shape.moe.num_experts;
  packed->in_size = in_size;
  packed->out_size = out_size;
  const size_t bytes = layout.matrix_bytes();
  packed->weights = cuda::DeviceBuffer::allocate(bytes * packed->num_experts).value();
  for (int e = 0; e < packed->num_experts; ++e) {
    if (e < static_cast<int>(matrices.size())) {
      packed->weights.copy_from_host(matrices[e].data(), bytes, e * bytes);
    } else {
      MEDLEY_CUDA_CHECK(cudaMemcpy(packed->weights.as<uint8_t>(e * bytes),
                                   packed->weights.as<uint8_t>(e % matrices.size() * bytes), bytes,
                                   cudaMemcpyDeviceToDevice));
    }
  }
  MEDLEY_CUDA_CHECK(cudaDeviceSynchronize());
  if (bias) {
    std::vector<float> values(static_cast<size_t>(packed->num_experts) * layout.num_units * 16);
    std::mt19937 engine(1);
    std::normal_distribution<float> normal(0.0f, 0.02f);
    for (float& value : values) value = normal(engine);
    packed->bias = cuda::DeviceBuffer::allocate(values.size() * sizeof(float)).value();
    packed->bias.copy_from_host(values.data(), values.size() * sizeof(float));
  }
  return packed;
}

// One adapter on both projections of all experts; its matrices begin at random places of `values`.
std::vector<LoraModuleWeights> random_adapter(const ChainShape& shape,
                                              const std::vector<uint16_t>& values) {
  std::mt19937 engine(5);
  const auto matrices = [&](int64_t rows, int64_t cols) {
    std::vector<MatrixView> views;
    for (int e = 0; e < shape.moe.num_experts; ++e) {
      const auto last = static_cast<uint32_t>(static_cast<int64_t>(values.size()) - rows * cols);
      views.push_back({.data = values.data() + engine() % last,
                       .rows = rows,
                       .cols = cols,
                       .row_stride = cols});
    }
    return views;
  };
  std::vector<LoraModuleWeights> modules;
  for (int layer = 0; layer < shape.num_layers; ++layer) {
    for (const bool gate_up : {true, false}) {
      const int64_t inner = shape.moe.intermediate_size;
      const int64_t in = gate_up ? shape.hidden_size : inner;
      const int64_t out = gate_up ? 2 * inner : shape.hidden_size;
      modules.push_back(
          {.site = {gate_up ? LoraModule::kExpertGateUp : LoraModule::kExpertDown, layer},
           .pairs = {{.row_end = out,
                      .rank = shape.rank,
                      .a = matrices(shape.rank, in),
                      .b = matrices(out, shape.rank),
                      .scale = std::vector<float>(shape.rank, 1.0f)}}});
    }
  }
  return modules;
}

double bits_a_value(WeightFormat format) { return format == WeightFormat::kMxfp4 ? 4.25 : 16.0; }

}  // namespace

double ChainShape::base_bytes(double experts_a_layer) const {
  return experts_a_layer * 3.0 * hidden_size * moe.intermediate_size * bits_a_value(moe.format) / 8;
}
double ChainShape::adapter_bytes(double pairs_a_layer) const {
  return pairs_a_layer * rank * 2.0 * (2.0 * hidden_size + 3.0 * moe.intermediate_size);
}

ChainShape gpt_oss_20b() {
  return {.name = "gpt-oss-20b",
          .num_layers = 24,
          .hidden_size = 2880,
          .moe = {.num_experts = 32,
                  .experts_per_token = 4,
                  .intermediate_size = 2880,
                  .router = RouterKind::kTopKThenSoftmax,
                  .router_bias = true,
                  .expert_bias = true,
                  .activation = {.kind = Activation::kClampedSwiGlu},
                  .format = WeightFormat::kMxfp4}};
}

ChainShape qwen3_30b_a3b() {
  return {.name = "qwen3-30b-a3b",
          .num_layers = 48,
          .hidden_size = 2048,
          .moe = {.num_experts = 128,
                  .experts_per_token = 8,
                  .intermediate_size = 768,
                  .router = RouterKind::kSoftmaxThenTopK,
                  .normalize_topk = true,
                  .format = WeightFormat::kFloat}};
}

Spread uniform_spread(const ChainShape& shape, std::span<const int32_t> adapter_of_row) {
  const double missed = 1.0 - static_cast<double>(shape.moe.experts_per_token) /
                                  static_cast<double>(shape.moe.num_experts);
  const auto distinct = [&](double rows) {
    return shape.moe.num_experts * (1.0 - std::pow(missed, rows));
  };
  std::map<int32_t, int> rows_of_adapter;
  for (const int32_t slot : adapter_of_row) ++rows_of_adapter[slot];
  Spread spread = {.experts = distinct(static_cast<double>(adapter_of_row.size()))};
  for (const auto& [slot, rows] : rows_of_adapter) {
    if (slot != kNoAdapter) spread.pairs += distinct(rows);
  }
  return spread;
}

bool is_uniform(const Spread& found, const Spread& uniform) {
  const auto near = [](double value, double wanted) {
    return std::abs(value - wanted) <= 0.05 * wanted;
  };
  return near(found.experts, uniform.experts) && near(found.pairs, uniform.pairs);
}

Chain::Chain(const ChainShape& shape, int max_rows)
    : shape_(shape),
      backend_(make_cuda_backend().value()),
      stream_(std::make_unique<cuda::CudaStream>()),
      step_(backend_->make_step({.max_rows = max_rows, .max_seqs = max_rows, .max_pages = 1})
                .value()) {
  const MoeSpec& moe = shape.moe;
  const StreamFormat format = cuda::stream_format(moe.format);
  const MatrixLayout gate_up =
      cuda::gate_up_layout(format, moe.intermediate_size, shape.hidden_size);
  const MatrixLayout down =
      cuda::make_matrix_layout(format, shape.hidden_size, moe.intermediate_size);
  std::vector<std::vector<uint8_t>> gate_up_matrices, down_matrices;
  for (uint32_t i = 0; i < 4; ++i) {
    gate_up_matrices.push_back(random_matrix(gate_up, 10 + i));
    down_matrices.push_back(random_matrix(down, 20 + i));
  }
  MEDLEY_CHECK(
      backend_
          ->make_lora_table({.max_slots = std::max(1, shape.num_adapters + shape.num_free_slots),
                             .num_layers = shape.num_layers,
                             .pool_bytes = shape.pool_bytes})
          .ok());
  std::mt19937 engine(11);
  std::normal_distribution<float> normal;
  std::vector<float> router(static_cast<size_t>(moe.num_experts) * shape.hidden_size);
  std::vector<float> bias(moe.num_experts, 0.0f);
  for (int l = 0; l < shape.num_layers; ++l) {
    Layer layer;
    for (float& value : router) value = normal(engine);
    LinearWeights weights = {.parts = {{.dtype = DType::kF32,
                                        .data = router.data(),
                                        .rows = moe.num_experts,
                                        .cols = shape.hidden_size,
                                        .row_stride = shape.hidden_size}}};
    if (moe.router_bias) {
      weights.biases = {{.dtype = DType::kF32, .data = bias.data(), .size = moe.num_experts}};
    }
    layer.router = backend_->pack_linear(weights).value();
    layer.gate_up = random_experts(gate_up, shape, shape.hidden_size, moe.intermediate_size,
                                   moe.expert_bias, gate_up_matrices);
    layer.down = random_experts(down, shape, moe.intermediate_size, shape.hidden_size,
                                moe.expert_bias, down_matrices);
    AddNormDesc norm = {.hidden_size = shape.hidden_size};
    if (l > 0) {
      norm.delta = AddNormDesc::Delta::kRouted;
      norm.experts_per_token = moe.experts_per_token;
    }
    layer.route = backend_->plan(AddNormRouteDesc{.add_norm = norm, .moe = moe}).value();
    layer.routing = backend_->make_routing({.max_rows = max_rows, .moe = moe}).value();
    layers_.push_back(std::move(layer));
  }
  use_fused();
  if (shape.num_adapters > 0) {
    std::vector<uint16_t> values(1 << 20);
    for (uint16_t& value : values) value = float_to_bf16(0.01f * normal(engine));
    adapter_ = backend_->pack_adapter(random_adapter(shape, values)).value();
    for (int slot = 0; slot < shape.num_adapters; ++slot) {
      on_device_.push_back(backend_->upload_adapter(*adapter_).value());
      backend_->set_adapter(slot, *on_device_.back(), *stream_);
    }
  }
  const std::vector<float> ones(shape.hidden_size, 1.0f);
  norm_ =
      backend_->pack_vector({.dtype = DType::kF32, .data = ones.data(), .size = shape.hidden_size})
          .value();
  const size_t row_bytes = static_cast<size_t>(max_rows) * shape.hidden_size * 2;
  residual_ = backend_->allocate(row_bytes).value();
  x_ = backend_->allocate(row_bytes).value();
  h_ = backend_
           ->allocate(row_bytes / shape.hidden_size * moe.experts_per_token * moe.intermediate_size)
           .value();
  y_ = backend_->allocate(row_bytes * moe.experts_per_token).value();
  start_.resize(static_cast<size_t>(max_rows) * shape.hidden_size);
  for (uint16_t& value : start_) value = float_to_bf16(kStartScale * normal(engine));
}

void Chain::set_batch(int rows, bool adapters) {
  rows_ = rows;
  adapter_of_row_.resize(rows);
  for (int row = 0; row < rows; ++row) {
    adapter_of_row_[row] = adapters ? row % shape_.num_adapters : kNoAdapter;
  }
  const std::vector<int32_t> zeros(rows, 0);
  const std::vector<int32_t> indptr = {0, rows};
  const std::vector<int32_t> kv_lens = {rows};
  const std::vector<int32_t> page_indptr = {0, 1};
  const std::vector<int32_t> zero = {0};
  step_->update({.token_ids = zeros,
                 .positions = zeros,
                 .seq_of_row = zeros,
                 .adapter_of_row = adapter_of_row_,
                 .q_indptr = indptr,
                 .kv_lens = kv_lens,
                 .page_indptr = page_indptr,
                 .page_ids = zero,
                 .sampler_slots = zero},
                *stream_);
  reset_residual();
}

void Chain::reset_residual() {
  stream_->synchronize();
  cuda::copy_to_device(residual_->data(), start_.data(),
                       static_cast<size_t>(rows_) * shape_.hidden_size * 2);
}

MoeGateUpDesc Chain::gate_up_desc(int layer) const {
  return {.hidden_size = shape_.hidden_size,
          .moe = shape_.moe,
          .lora = {LoraModule::kExpertGateUp, layer}};
}

MoeDownDesc Chain::down_desc(int layer) const {
  return {.hidden_size = shape_.hidden_size,
          .moe = shape_.moe,
          .lora = {LoraModule::kExpertDown, layer}};
}

void Chain::use_fused() {
  for (int l = 0; l < shape_.num_layers; ++l) {
    layers_[l].run_gate_up = backend_->plan(gate_up_desc(l)).value();
    layers_[l].run_down = backend_->plan(down_desc(l)).value();
  }
}

void Chain::use_split(const cuda::SplitLoraOptions& gate_up, const cuda::SplitLoraOptions& down) {
  if (workspace_ == nullptr) {
    const int columns = std::max(2 * shape_.moe.intermediate_size, shape_.hidden_size);
    workspace_ = cuda::SplitWorkspace::make(columns).value();
  }
  cuda::Context& context = cuda_context(*backend_);
  for (int l = 0; l < shape_.num_layers; ++l) {
    layers_[l].run_gate_up =
        cuda::plan_split_gate_up(context, workspace_, gate_up_desc(l), gate_up).value();
    layers_[l].run_down = cuda::plan_split_down(context, workspace_, down_desc(l), down).value();
  }
}

Chain::Views Chain::views() const {
  const int64_t pairs = int64_t{rows_} * shape_.moe.experts_per_token;
  const Shape by_row = {rows_, shape_.hidden_size};
  return {.residual = {residual_->data(), DType::kBF16, by_row},
          .x = {x_->data(), DType::kBF16, by_row},
          .h = {h_->data(), DType::kBF16, {pairs, shape_.moe.intermediate_size}},
          .y = {y_->data(), DType::kBF16, {pairs, shape_.hidden_size}}};
}

void Chain::run_gate_up(Layer& layer, const Views& views) {
  layer.run_gate_up->run(
      {.x = views.x, .routing = layer.routing.get(), .weight = layer.gate_up.get(), .out = views.h},
      *step_, *stream_);
}

void Chain::run_down(Layer& layer, const Views& views) {
  layer.run_down->run(
      {.x = views.h, .routing = layer.routing.get(), .weight = layer.down.get(), .out = views.y},
      *step_, *stream_);
}

void Chain::run(int num_layers) {
  const Views all = views();
  const Routing* before = nullptr;
  for (int l = 0; l < num_layers; ++l) {
    Layer& layer = layers_[l];
    layer.route->run({.add_norm = {.residual = all.residual,
                                   .delta = all.y,
                                   .routing = before,
                                   .norm = norm_.get(),
                                   .out = all.x},
                      .router = layer.router.get(),
                      .routing = layer.routing.get()},
                     *step_, *stream_);
    run_gate_up(layer, all);
    run_down(layer, all);
    before = layer.routing.get();
  }
}

void Chain::run_gate_ups() {
  for (Layer& layer : layers_) run_gate_up(layer, views());
}

void Chain::run_downs() {
  for (Layer& layer : layers_) run_down(layer, views());
}

Spread Chain::spread() const {
  const int k = shape_.moe.experts_per_token;
  Spread spread;
  std::vector<int32_t> experts(static_cast<size_t>(rows_) * k);
  for (const Layer& layer : layers_) {
    const auto& view = static_cast<const cuda::CudaRouting&>(*layer.routing).view();
    MEDLEY_CUDA_CHECK(cudaMemcpy(experts.data(), view.expert_of_choice, experts.size() * 4,
                                 cudaMemcpyDeviceToHost));
    spread.experts += static_cast<double>(std::set<int>(experts.begin(), experts.end()).size());
    std::set<std::pair<int, int>> pairs;
    for (size_t i = 0; i < experts.size(); ++i) {
      const int slot = adapter_of_row_[i / k];
      if (slot >= 0) pairs.emplace(experts[i], slot);
    }
    spread.pairs += static_cast<double>(pairs.size());
  }
  spread.experts /= shape_.num_layers;
  spread.pairs /= shape_.num_layers;
  return spread;
}

std::vector<float> Chain::residual() {
  return download(*residual_, static_cast<size_t>(rows_) * shape_.hidden_size);
}

std::vector<float> Chain::last_output() {
  const size_t pairs = static_cast<size_t>(rows_) * shape_.moe.experts_per_token;
  return download(*y_, pairs * shape_.hidden_size);
}

std::vector<float> Chain::download(Buffer& buffer, size_t count) {
  stream_->synchronize();
  std::vector<uint16_t> bits(count);
  MEDLEY_CUDA_CHECK(
      cudaMemcpy(bits.data(), buffer.data(), bits.size() * 2, cudaMemcpyDeviceToHost));
  std::vector<float> values(bits.size());
  for (size_t i = 0; i < bits.size(); ++i) values[i] = bf16_to_float(bits[i]);
  return values;
}

}  // namespace medley::bench
