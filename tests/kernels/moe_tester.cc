#include "moe_tester.h"

#include "slow_copy.h"

#include <algorithm>
#include <numeric>

namespace medley::testing {
namespace {

constexpr int kMaxSlots = 16;

VectorView vector_view(const std::vector<float>& values) {
  return {.dtype = DType::kF32, .data = values.data(), .size = static_cast<int64_t>(values.size())};
}

MatrixView matrix_view(const std::vector<float>& values, int64_t rows, int64_t cols) {
  return {
      .dtype = DType::kF32, .data = values.data(), .rows = rows, .cols = cols, .row_stride = cols};
}

std::vector<float> bf16_values(int64_t count, uint32_t seed, float scale) {
  std::vector<float> values = random_values(count, seed, scale);
  for (float& value : values) value = bf16_to_float(float_to_bf16(value));
  return values;
}

}  // namespace

MoeTester& MoeTester::uniform_rows(int count, uint32_t seed) {
  std::mt19937 engine(seed);
  std::vector<std::vector<int>> wanted(count);
  for (auto& row : wanted) {
    row.resize(spec_.num_experts);
    std::iota(row.begin(), row.end(), 0);
    std::shuffle(row.begin(), row.end(), engine);
    row.resize(spec_.experts_per_token);
  }
  return rows(std::move(wanted));
}

MoeTester::ExpertHost MoeTester::make_expert(int rows, int cols, uint32_t seed) const {
  ExpertHost expert;
  if (spec_.format == WeightFormat::kFloat) {
    expert.values = bf16_values(static_cast<int64_t>(rows) * cols, seed, 1.0f / std::sqrt(cols));
    expert.view = matrix_view(expert.values, rows, cols);
    return expert;
  }
  std::mt19937 engine(seed);
  expert.codes.resize(static_cast<size_t>(rows) * cols / 2);
  expert.scales.resize(static_cast<size_t>(rows) * cols / 32);
  for (uint8_t& byte : expert.codes) byte = static_cast<uint8_t>(engine());
  const int base = 125 - static_cast<int>(std::lround(std::log2(cols) / 2));
  for (uint8_t& scale : expert.scales) scale = static_cast<uint8_t>(base - engine() % 4);
  expert.view = {.format = WeightFormat::kMxfp4,
                 .data = expert.codes.data(),
                 .scales = expert.scales.data(),
                 .rows = rows,
                 .cols = cols,
                 .row_stride = cols / 2,
                 .scale_row_stride = cols / 32};
  return expert;
}

const MoeTester::LayerHost& MoeTester::host() {
  if (host_) return *host_;
  host_ = std::make_unique<LayerHost>();
  const int inner = spec_.intermediate_size;
  for (int e = 0; e < spec_.num_experts; ++e) {
    host_->gate.push_back(make_expert(inner, hidden_, 100 + e));
    host_->up.push_back(make_expert(inner, hidden_, 200 + e));
    host_->down.push_back(make_expert(hidden_, inner, 300 + e));
    host_->gate_bias.push_back(random_values(inner, 400 + e, 0.3f));
    host_->up_bias.push_back(random_values(inner, 500 + e, 0.3f));
    host_->down_bias.push_back(random_values(hidden_, 600 + e, 0.3f));
  }
  const int rows = static_cast<int>(wanted_.size());
  host_->router.assign(static_cast<size_t>(spec_.num_experts) * hidden_, 0.0f);
  for (int e = 0; e < spec_.num_experts; ++e) host_->router[e * hidden_ + e] = 1.0f;
  host_->router_bias = random_values(spec_.num_experts, 7, 0.01f);
  host_->norm = random_values(hidden_, 8, 0.1f);
  for (float& value : host_->norm) value += 1.0f;
  host_->residual = random_values(static_cast<int64_t>(rows) * hidden_, 9);
  for (int row = 0; row < rows; ++row) {
    float* features = host_->residual.data() + static_cast<int64_t>(row) * hidden_;
    for (int e = 0; e < spec_.num_experts; ++e) {
      features[e] = -2.0f + 0.01f * static_cast<float>(e % 7);
      host_->norm[e] = 1.0f;
    }
    for (size_t j = 0; j < wanted_[row].size(); ++j) {
      features[wanted_[row][j]] = 3.0f - 0.25f * static_cast<float>(j);
    }
  }
  return *host_;
}

std::unique_ptr<PackedAdapter> MoeTester::pack_adapter(Side& side, int slot,
                                                       const AdapterShape& shape) {
  const int inner = spec_.intermediate_size;
  uint32_t seed = 1000 * (slot + 1);
  const auto values = [&](int64_t rows, int64_t cols, float scale) {
    lora_values_.push_back(
        std::make_unique<std::vector<float>>(bf16_values(rows * cols, seed++, scale)));
    return matrix_view(*lora_values_.back(), rows, cols);
  };
  const auto make_pair = [&](int rank, int64_t begin, int64_t end, int in, bool per_expert_a) {
    LoraPair pair = {.row_begin = begin, .row_end = end, .rank = rank};
    for (int e = 0; e < (per_expert_a ? spec_.num_experts : 1); ++e) {
      pair.a.push_back(values(rank, in, 1.0f / std::sqrt(in)));
    }
    for (int e = 0; e < spec_.num_experts; ++e) {
      pair.b.push_back(values(end - begin, rank, 0.5f / std::sqrt(rank)));
    }
    pair.scale = random_values(rank, seed++, 0.3f);
    return pair;
  };
  std::vector<LoraModuleWeights> modules;
  if (shape.gate_up) {
    LoraModuleWeights module = {.site = {LoraModule::kExpertGateUp, 0}};
    if (shape.split_gate_up) {
      module.pairs.push_back(make_pair(shape.gate_up_rank, 0, inner, hidden_, shape.per_expert_a));
      module.pairs.push_back(
          make_pair(shape.gate_up_rank, inner, 2 * inner, hidden_, shape.per_expert_a));
    } else {
      module.pairs.push_back(
          make_pair(shape.gate_up_rank, 0, 2 * inner, hidden_, shape.per_expert_a));
    }
    modules.push_back(std::move(module));
  }
  if (shape.down) {
    LoraModuleWeights module = {.site = {LoraModule::kExpertDown, 0}};
    module.pairs.push_back(make_pair(shape.down_rank, 0, hidden_, inner, shape.per_expert_a));
    modules.push_back(std::move(module));
  }
  return side.backend().pack_adapter(modules).value();
}

TensorView MoeTester::deliver(Side& side, const std::vector<float>& values, Shape shape) const {
  const TensorView source = side.upload(values, DType::kBF16, shape);
  if (!slow_ || !side.is_cuda()) return source;
  const TensorView target = side.empty(DType::kBF16, shape);
  launch_slow_copy(target.data, source.data, source.num_bytes(), cuda::cuda_stream(side.stream()));
  return target;
}

std::unique_ptr<MoeGateUp> MoeTester::plan(Side& side, const MoeGateUpDesc& desc) {
  if (!split_ || !side.is_cuda()) return side.backend().plan(desc).value();
  workspace_ = cuda::SplitWorkspace::make(std::max(2 * spec_.intermediate_size, hidden_)).value();
  return cuda::plan_split_gate_up(cuda_context(side.backend()), workspace_, desc, *split_).value();
}

std::unique_ptr<MoeDown> MoeTester::plan(Side& side, const MoeDownDesc& desc) {
  if (!split_ || !side.is_cuda()) return side.backend().plan(desc).value();
  return cuda::plan_split_down(cuda_context(side.backend()), workspace_, desc, *split_).value();
}

MoeTester::Outputs MoeTester::run_layer(Side& side, const Outputs* given) {
  const LayerHost& layer = host();
  Backend& backend = side.backend();
  const int rows = static_cast<int>(wanted_.size());
  const int k = spec_.experts_per_token;
  const int64_t num_pairs = int64_t{rows} * k;
  const int inner = spec_.intermediate_size;
  const auto step = backend.make_step({.max_rows = rows, .max_seqs = rows, .max_pages = 1}).value();
  const auto routing = backend.make_routing({.max_rows = rows, .moe = spec_}).value();
  EXPECT_TRUE(backend.make_lora_table({.max_slots = kMaxSlots, .num_layers = 1}).ok());

  ExpertGateUpWeights gate_up;
  ExpertDownWeights down;
  for (int e = 0; e < spec_.num_experts; ++e) {
    gate_up.gate.push_back(layer.gate[e].view);
    gate_up.up.push_back(layer.up[e].view);
    down.down.push_back(layer.down[e].view);
    if (!spec_.expert_bias) continue;
    gate_up.gate_bias.push_back(vector_view(layer.gate_bias[e]));
    gate_up.up_bias.push_back(vector_view(layer.up_bias[e]));
    down.bias.push_back(vector_view(layer.down_bias[e]));
  }
  LinearWeights router = {.parts = {matrix_view(layer.router, spec_.num_experts, hidden_)}};
  if (spec_.router_bias) router.biases = {vector_view(layer.router_bias)};
  const auto packed_gate_up = backend.pack_experts(gate_up).value();
  const auto packed_down = backend.pack_experts(down).value();
  const auto packed_router = backend.pack_linear(router).value();
  const auto packed_norm = backend.pack_vector(vector_view(layer.norm)).value();

  const AddNormDesc norm_desc = {.hidden_size = hidden_};
  const auto route = backend.plan(AddNormRouteDesc{.add_norm = norm_desc, .moe = spec_}).value();
  const auto run_gate_up = plan(
      side,
      MoeGateUpDesc{.hidden_size = hidden_, .moe = spec_, .lora = {LoraModule::kExpertGateUp, 0}});
  const auto run_down =
      plan(side,
           MoeDownDesc{.hidden_size = hidden_, .moe = spec_, .lora = {LoraModule::kExpertDown, 0}});
  AddNormDesc combine_desc = norm_desc;
  combine_desc.delta = AddNormDesc::Delta::kRouted;
  combine_desc.experts_per_token = k;
  const auto combine = backend.plan(combine_desc).value();
  for (const auto& [slot, shape] : adapters_) {
    side.set_adapter(slot, pack_adapter(side, slot, shape));
  }

  std::vector<int32_t> zeros(rows, 0);
  std::vector<int32_t> positions(rows);
  std::iota(positions.begin(), positions.end(), 0);
  const std::vector<int32_t> indptr = {0, rows};
  const std::vector<int32_t> kv_lens = {rows};
  const std::vector<int32_t> page_indptr = {0, 1};
  const std::vector<int32_t> one = {0};
  step->update({.token_ids = zeros,
                .positions = positions,
                .seq_of_row = zeros,
                .adapter_of_row = adapter_of_row_,
                .q_indptr = indptr,
                .kv_lens = kv_lens,
                .page_indptr = page_indptr,
                .page_ids = one,
                .sampler_slots = one},
               side.stream());

  const TensorView normed = side.empty(DType::kBF16, {rows, hidden_});
  const TensorView h = side.empty(DType::kBF16, {num_pairs, inner});
  const TensorView y = side.empty(DType::kBF16, {num_pairs, hidden_});
  const TensorView combined = side.empty(DType::kBF16, {rows, hidden_});
  if (before_running_ && side.is_cuda()) before_running_(cuda_context(side.backend()));
  const TensorView residual = deliver(side, layer.residual, {rows, hidden_});
  route->run({.add_norm = {.residual = residual, .norm = packed_norm.get(), .out = normed},
              .router = packed_router.get(),
              .routing = routing.get()},
             *step, side.stream());
  const TensorView x = given != nullptr ? deliver(side, given->normed, {rows, hidden_}) : normed;
  run_gate_up->run({.x = x, .routing = routing.get(), .weight = packed_gate_up.get(), .out = h},
                   *step, side.stream());
  const TensorView down_x = given != nullptr ? deliver(side, given->h, {num_pairs, inner}) : h;
  run_down->run({.x = down_x, .routing = routing.get(), .weight = packed_down.get(), .out = y},
                *step, side.stream());
  const TensorView delta = given != nullptr ? deliver(side, given->y, {num_pairs, hidden_}) : y;
  combine->run({.residual = residual,
                .delta = delta,
                .routing = routing.get(),
                .norm = packed_norm.get(),
                .out = combined},
               *step, side.stream());
  // One after the other on the stream, as in a model.
  return {.normed = side.download(normed),
          .h = side.download(h),
          .y = side.download(y),
          .residual = side.download(residual)};
}

void MoeTester::compare() {
  Side cpu = Side::cpu();
  Side cuda = Side::cuda();
  const Outputs reference = run_layer(cpu, nullptr);
  const Outputs found = run_layer(cuda, &reference);
  expect_close(reference.normed, found.normed, "add_norm_route");
  // The split path rounds gate and up before LoRA is added, and again before the activation.
  expect_close(reference.h, found.h, "moe_gate_up", {.distance = split_ ? 3e-5 : 1e-5});
  expect_close(reference.y, found.y, "moe_down");
  expect_close(reference.residual, found.residual, "add_norm of routed rows");
}

}  // namespace medley::testing
