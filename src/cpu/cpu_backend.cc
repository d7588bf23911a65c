#include "cpu/cpu_backend.h"

#include <unistd.h>

#include <algorithm>
#include <thread>

#include "cpu/context.h"
#include "cpu/kv_cache.h"
#include "cpu/packed_weights.h"
#include "cpu/planned_ops.h"
#include "cpu/routing.h"
#include "cpu/step.h"

namespace medley {
namespace cpu {

Result<void> check_dtype(DType dtype) {
  if (dtype == DType::kF32 || dtype == DType::kBF16) return {};
  return unsupported(
      fmt::format("the CPU backend computes in float32 or bfloat16, not {}", to_string(dtype)));
}

namespace {

class CpuStream : public Stream {
 public:
  void synchronize() override {}
};

class CpuEvent : public Event {
 public:
  void record(Stream&) override {}
  Result<void> wait() override { return {}; }
};

class CpuBuffer : public Buffer {
 public:
  explicit CpuBuffer(size_t num_bytes) : buffer_(num_bytes) {}
  void* data() override { return buffer_.data(); }
  size_t num_bytes() const override { return buffer_.num_bytes(); }

 private:
  AlignedBuffer buffer_;
};

Result<void> check_memory(size_t num_bytes) {
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const size_t free = static_cast<size_t>(sysconf(_SC_AVPHYS_PAGES)) * page;
  const size_t total = static_cast<size_t>(sysconf(_SC_PHYS_PAGES)) * page;
  if (num_bytes <= total) return {};
  return Error{ErrorCode::kOverloaded, fmt::format("{} bytes of host memory wanted, {} free of {}",
                                                   num_bytes, free, total)};
}

Result<void> check_positive(std::string_view what, int64_t value) {
  if (value > 0) return {};
  return invalid_argument(fmt::format("{}: expected at least 1, found {}", what, value));
}

class CpuBackend : public Backend {
 public:
  explicit CpuBackend(const CpuBackendOptions& options, int num_threads)
      : options_(options), context_(num_threads) {}

  std::string name() const override { return "cpu"; }

  std::unique_ptr<Stream> make_stream() override { return std::make_unique<CpuStream>(); }
  std::unique_ptr<Event> make_event() override { return std::make_unique<CpuEvent>(); }

  Result<std::unique_ptr<Buffer>> allocate(size_t num_bytes) override {
    MEDLEY_TRY(check_memory(num_bytes));
    return std::unique_ptr<Buffer>(std::make_unique<CpuBuffer>(num_bytes));
  }

  Result<std::unique_ptr<Step>> make_step(const StepDesc& desc) override {
    MEDLEY_TRY(check_positive("max_rows", desc.max_rows));
    MEDLEY_TRY(check_positive("max_seqs", desc.max_seqs));
    MEDLEY_TRY(check_positive("max_pages", desc.max_pages));
    StepDesc& largest = context_.step;
    largest.max_rows = std::max(largest.max_rows, desc.max_rows);
    largest.max_seqs = std::max(largest.max_seqs, desc.max_seqs);
    largest.max_pages = std::max(largest.max_pages, desc.max_pages);
    if (context_.sampled_ids.size() < static_cast<size_t>(desc.max_seqs)) {
      context_.sampled_ids.resize(desc.max_seqs);
    }
    return std::unique_ptr<Step>(std::make_unique<CpuStep>(desc));
  }

  Result<std::unique_ptr<KvCache>> make_kv_cache(const KvCacheDesc& desc) override {
    MEDLEY_TRY(check_dtype(desc.dtype));
    MEDLEY_TRY(check_positive("num_layers", desc.num_layers));
    MEDLEY_TRY(check_positive("num_pages", desc.num_pages));
    MEDLEY_TRY(check_positive("page_size", desc.page_size));
    MEDLEY_TRY(check_positive("num_kv_heads", desc.num_kv_heads));
    MEDLEY_TRY(check_positive("head_dim", desc.head_dim));
    MEDLEY_TRY(check_memory(size_t{2} * desc.num_layers * desc.num_pages * desc.page_size *
                            desc.num_kv_heads * desc.head_dim * size_of(desc.dtype)));
    return std::unique_ptr<KvCache>(std::make_unique<CpuKvCache>(desc));
  }

  Result<std::unique_ptr<Routing>> make_routing(const RoutingDesc& desc) override {
    MEDLEY_TRY(check_positive("max_rows", desc.max_rows));
    MEDLEY_TRY(check_positive("experts_per_token", desc.moe.experts_per_token));
    context_.max_routed_rows =
        std::max(context_.max_routed_rows, desc.max_rows * desc.moe.experts_per_token);
    return std::unique_ptr<Routing>(std::make_unique<CpuRouting>(desc));
  }

  Result<std::unique_ptr<PackedWeight>> pack_embedding(const MatrixView& table) override {
    return std::unique_ptr<PackedWeight>(
        std::make_unique<PackedTable>(pack_table(table, /*to_bf16=*/false)));
  }

  Result<std::unique_ptr<PackedWeight>> pack_vector(const VectorView& vector) override {
    auto packed = std::make_unique<PackedVector>();
    for (int64_t i = 0; i < vector.size; ++i) packed->values.push_back(element(vector, i));
    return std::unique_ptr<PackedWeight>(std::move(packed));
  }

  Result<std::unique_ptr<PackedWeight>> pack_linear(const LinearWeights& weights) override {
    return cpu::pack_linear(weights, context_.pool);
  }
  Result<std::unique_ptr<PackedWeight>> pack_experts(const ExpertGateUpWeights& weights) override {
    return cpu::pack_experts(weights, context_.pool);
  }
  Result<std::unique_ptr<PackedWeight>> pack_experts(const ExpertDownWeights& weights) override {
    return cpu::pack_experts(weights, context_.pool);
  }

  Result<void> make_lora_table(const LoraTableDesc& desc) override {
    MEDLEY_TRY(check_positive("max_slots", desc.max_slots));
    MEDLEY_TRY(check_positive("num_layers", desc.num_layers));
    context_.lora.resize(desc);
    return {};
  }

  Result<std::unique_ptr<PackedAdapter>> pack_adapter(
      std::span<const LoraModuleWeights> modules) override {
    return cpu::pack_adapter(modules, options_.lora_bf16);
  }

  Result<std::unique_ptr<DeviceAdapter>> upload_adapter(const PackedAdapter& generic) override {
    const auto& adapter = static_cast<const CpuPackedAdapter&>(generic);
    const LoraTableDesc& desc = context_.lora.desc();
    for (const PackedModule& module : adapter.modules) {
      if (module.site.layer < 0 || module.site.layer >= desc.num_layers) {
        return invalid_argument(fmt::format("LoRA {}: layer {}, expected 0 to {}",
                                            to_string(module.site.module), module.site.layer,
                                            desc.num_layers - 1));
      }
    }
    return std::unique_ptr<DeviceAdapter>(std::make_unique<CpuDeviceAdapter>(adapter));
  }
  void set_adapter(int slot, const DeviceAdapter& adapter, Stream&) override {
    context_.lora.set(slot, static_cast<const CpuDeviceAdapter&>(adapter).packed);
    context_.workspace.lora_s.reserve(static_cast<int64_t>(context_.max_rows()) *
                                      context_.lora.max_rank());
  }
  void clear_adapter(int slot, Stream&) override { context_.lora.clear(slot); }

  Result<std::unique_ptr<Embed>> plan(const EmbedDesc& desc) override {
    return make_embed(context_, desc);
  }
  Result<std::unique_ptr<AddNorm>> plan(const AddNormDesc& desc) override {
    return make_add_norm(context_, desc);
  }
  Result<std::unique_ptr<Linear>> plan(const LinearDesc& desc) override {
    return make_linear(context_, desc);
  }
  Result<std::unique_ptr<QkNormRopeAppend>> plan(const QkNormRopeAppendDesc& desc) override {
    return make_qk_norm_rope(context_, desc);
  }
  Result<std::unique_ptr<Attention>> plan(const AttentionDesc& desc) override {
    return make_attention(context_, desc);
  }
  Result<std::unique_ptr<AddNormRoute>> plan(const AddNormRouteDesc& desc) override {
    return make_router(context_, desc);
  }
  Result<std::unique_ptr<MoeGateUp>> plan(const MoeGateUpDesc& desc) override {
    return make_moe_gate_up(context_, desc);
  }
  Result<std::unique_ptr<MoeDown>> plan(const MoeDownDesc& desc) override {
    return make_moe_down(context_, desc);
  }
  Result<std::unique_ptr<DenseMlp>> plan(const DenseMlpDesc& desc) override {
    return make_dense_mlp(context_, desc);
  }
  Result<std::unique_ptr<LmHead>> plan(const LmHeadDesc& desc) override {
    return make_lm_head(context_, desc);
  }
  Result<std::unique_ptr<Sampler>> plan(const SamplerDesc& desc) override {
    return make_sampler(context_, desc);
  }

 private:
  CpuBackendOptions options_;
  Context context_;
};

}  // namespace
}  // namespace cpu

std::unique_ptr<Backend> make_cpu_backend(const CpuBackendOptions& options) {
  const Result<void> supported = cpu_backend_supported();
  MEDLEY_CHECK(supported.ok(), supported.error().message);
  const int hardware = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  return std::make_unique<cpu::CpuBackend>(
      options, options.num_threads > 0 ? options.num_threads : hardware);
}

}  // namespace medley
