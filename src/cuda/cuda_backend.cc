#include "cuda/cuda_backend.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

#include "cuda/check.h"
#include "cuda/context.h"
#include "cuda/kv_cache.h"
#include "cuda/packed_weights.h"
#include "cuda/route_kernel.h"
#include "cuda/routing.h"
#include "cuda/sampler.h"
#include "cuda/step.h"

namespace medley {
namespace cuda {
namespace {

// Static shared memory of expert_gemm, and what the driver keeps of a block's share.
constexpr size_t kReservedShared = 8192;

class CudaBackend : public Backend {
 public:
  static Result<std::unique_ptr<Backend>> make() {
    // A module that is loaded when it is first used would halt a step.
    setenv("CUDA_MODULE_LOADING", "EAGER", /*overwrite=*/0);
    int count = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) {
      cudaGetLastError();
      return Error{ErrorCode::kUnavailable, "CUDA: no device found"};
    }
    cudaDeviceProp properties = {};
    MEDLEY_CUDA_CHECK(cudaGetDeviceProperties(&properties, 0));
    if (properties.major != 9 || properties.minor != 0) {
      return Error{ErrorCode::kUnavailable,
                   fmt::format("CUDA: kernels are for compute capability 9.0, found {} with {}.{}",
                               properties.name, properties.major, properties.minor)};
    }
    auto backend = std::make_unique<CudaBackend>();
    backend->name_ = fmt::format("cuda ({})", properties.name);
    backend->context_.num_sms = properties.multiProcessorCount;
    backend->context_.shared_limit = properties.sharedMemPerBlockOptin - kReservedShared;
    MEDLEY_TRY_ASSIGN(backend->context_.last_token_of_slot,
                      DeviceBuffer::allocate(kMaxSamplerSlots * sizeof(int32_t)));
    backend->context_.last_token_of_slot.fill_zero();
    return std::unique_ptr<Backend>(std::move(backend));
  }

  Context& context() { return context_; }

  std::string name() const override { return name_; }
  std::unique_ptr<Stream> make_stream() override { return std::make_unique<CudaStream>(); }
  std::optional<DeviceMemory> memory() const override {
    DeviceMemory memory;
    MEDLEY_CUDA_CHECK(cudaMemGetInfo(&memory.free_bytes, &memory.total_bytes));
    return memory;
  }
  std::unique_ptr<Graph> record(Stream& stream, const std::function<void()>& work) override {
    return std::make_unique<CudaGraph>(static_cast<CudaStream&>(stream), work);
  }
  std::unique_ptr<Event> make_event() override { return std::make_unique<CudaEvent>(); }
  Result<std::unique_ptr<Buffer>> allocate(size_t num_bytes) override {
    MEDLEY_TRY_ASSIGN(DeviceBuffer buffer, DeviceBuffer::allocate(num_bytes));
    return std::unique_ptr<Buffer>(std::make_unique<DeviceBuffer>(std::move(buffer)));
  }
  Result<std::unique_ptr<Step>> make_step(const StepDesc& desc) override {
    MEDLEY_TRY(context_.reserve_pairs(padded_rows(std::max(desc.max_rows, desc.max_seqs))));
    MEDLEY_TRY(context_.reserve_step(desc));
    MEDLEY_TRY(context_.make_dense_shrink());
    return std::unique_ptr<Step>(
        std::make_unique<CudaStep>(desc, context_.planners, context_.lora));
  }
  Result<std::unique_ptr<KvCache>> make_kv_cache(const KvCacheDesc& desc) override {
    return CudaKvCache::make(desc);
  }
  Result<std::unique_ptr<Routing>> make_routing(const RoutingDesc& desc) override {
    const int max_pairs = padded_rows(desc.max_rows) * desc.moe.experts_per_token;
    MEDLEY_TRY(context_.reserve_pairs(max_pairs));
    return std::unique_ptr<Routing>(
        std::make_unique<CudaRouting>(max_pairs, desc.moe.intermediate_size));
  }

  Result<std::unique_ptr<PackedWeight>> pack_embedding(const MatrixView& table) override {
    return cuda::pack_table(packer_, table);
  }
  Result<std::unique_ptr<PackedWeight>> pack_vector(const VectorView& vector) override {
    return cuda::pack_vector(vector);
  }
  Result<std::unique_ptr<PackedWeight>> pack_linear(const LinearWeights& weights) override {
    return cuda::pack_linear(packer_, weights);
  }
  Result<std::unique_ptr<PackedWeight>> pack_experts(const ExpertGateUpWeights& weights) override {
    return cuda::pack_experts(packer_, weights);
  }
  Result<std::unique_ptr<PackedWeight>> pack_experts(const ExpertDownWeights& weights) override {
    return cuda::pack_experts(packer_, weights);
  }
  PackingTimes finish_packing() override { return packer_.finish(); }

  Result<void> make_lora_table(const LoraTableDesc& desc) override {
    if (desc.max_slots > kMaxRoutedSlots) {
      return unsupported(
          fmt::format("LoRA on CUDA: up to {} slots, found {}", kMaxRoutedSlots, desc.max_slots));
    }
    return context_.lora.make(desc);
  }
  Result<std::unique_ptr<PackedAdapter>> pack_adapter(
      std::span<const LoraModuleWeights> modules) override {
    return context_.lora.pack(modules);
  }
  Result<std::unique_ptr<DeviceAdapter>> upload_adapter(const PackedAdapter& adapter) override {
    MEDLEY_TRY_ASSIGN(std::unique_ptr<DeviceAdapter> copy, start_upload(adapter));
    MEDLEY_TRY(copy->wait());
    return copy;
  }
  Result<std::unique_ptr<DeviceAdapter>> start_upload(const PackedAdapter& adapter) override {
    return context_.lora.start_upload(static_cast<const CudaPackedAdapter&>(adapter));
  }
  AdapterMemory adapter_memory() const override { return context_.lora.memory(); }
  void set_adapter(int slot, const DeviceAdapter& adapter, Stream& stream) override {
    context_.lora.set(slot, static_cast<const CudaDeviceAdapter&>(adapter), cuda_stream(stream));
  }
  void clear_adapter(int slot, Stream& stream) override {
    context_.lora.clear(slot, cuda_stream(stream));
  }
  void wait_for_adapters(int layer) override { context_.lora.wait_for_layer(layer); }

  Result<std::unique_ptr<Embed>> plan(const EmbedDesc& desc) override {
    return plan_embed(context_, desc);
  }
  Result<std::unique_ptr<AddNorm>> plan(const AddNormDesc& desc) override {
    return plan_add_norm(desc);
  }
  Result<std::unique_ptr<Linear>> plan(const LinearDesc& desc) override {
    return plan_linear(context_, desc);
  }
  Result<std::unique_ptr<QkNormRopeAppend>> plan(const QkNormRopeAppendDesc& desc) override {
    return plan_qk_norm_rope(context_, desc);
  }
  Result<std::unique_ptr<Attention>> plan(const AttentionDesc& desc) override {
    return plan_attention(context_, desc);
  }
  Result<std::unique_ptr<AddNormRoute>> plan(const AddNormRouteDesc& desc) override {
    return plan_add_norm_route(context_, desc);
  }
  Result<std::unique_ptr<MoeGateUp>> plan(const MoeGateUpDesc& desc) override {
    return plan_moe_gate_up(context_, desc);
  }
  Result<std::unique_ptr<MoeDown>> plan(const MoeDownDesc& desc) override {
    return plan_moe_down(context_, desc);
  }
  Result<std::unique_ptr<DenseMlp>> plan(const DenseMlpDesc& desc) override {
    return plan_dense_mlp(context_, desc);
  }
  Result<std::unique_ptr<LmHead>> plan(const LmHeadDesc& desc) override {
    return plan_lm_head(context_, desc);
  }
  Result<std::unique_ptr<Sampler>> plan(const SamplerDesc& desc) override {
    return plan_sampler(context_, desc);
  }

 private:
  std::string name_;
  WeightPacker packer_;
  Context context_;
};

}  // namespace
}  // namespace cuda

cuda::Context& cuda_context(Backend& backend) {
  return static_cast<cuda::CudaBackend&>(backend).context();
}

Result<std::unique_ptr<Backend>> make_cuda_backend() { return cuda::CudaBackend::make(); }

}  // namespace medley
