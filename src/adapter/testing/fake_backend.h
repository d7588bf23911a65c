#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "backend/backend.h"

namespace medley::testing {

struct FakePackedAdapter final : PackedAdapter {
  explicit FakePackedAdapter(std::atomic<int>* live) : live(live) { ++*live; }
  ~FakePackedAdapter() override { --*live; }
  size_t num_bytes() const override { return 1000; }
  std::atomic<int>* live;
};

struct FakeStream final : Stream {
  void synchronize() override { ++num_synchronized; }
  int num_synchronized = 0;
};

// A backend that only knows LoRA slots. Checks that what is in a slot is alive.
class FakeBackend final : public Backend {
 public:
  // What the device holds, by slot; null = empty.
  std::vector<const PackedAdapter*> slots;
  std::atomic<int> num_live = 0;  // packed adapters in host memory
  int memory_for = 1 << 20;       // adapters that fit on the device

  std::string name() const override { return "fake"; }
  Result<void> make_lora_table(const LoraTableDesc& desc) override {
    slots.assign(desc.max_slots, nullptr);
    return {};
  }
  Result<std::unique_ptr<PackedAdapter>> pack_adapter(
      std::span<const LoraModuleWeights> modules) override {
    std::lock_guard lock(mutex_);
    if (modules.empty()) return internal_error("nothing to pack");
    return std::unique_ptr<PackedAdapter>(std::make_unique<FakePackedAdapter>(&num_live));
  }
  Result<void> set_adapter(int slot, const PackedAdapter& adapter, Stream&) override {
    int num_held = 0;
    for (const PackedAdapter* held : slots) num_held += held != nullptr;
    if (num_held >= memory_for) return Error{ErrorCode::kOverloaded, "out of device memory"};
    slots.at(slot) = &adapter;
    return {};
  }
  void clear_adapter(int slot, Stream&) override { slots.at(slot) = nullptr; }

  std::unique_ptr<Stream> make_stream() override { return std::make_unique<FakeStream>(); }
  std::unique_ptr<Event> make_event() override { return nullptr; }
  Result<std::unique_ptr<Buffer>> allocate(size_t) override { return unused(); }
  Result<std::unique_ptr<Step>> make_step(const StepDesc&) override { return unused(); }
  Result<std::unique_ptr<KvCache>> make_kv_cache(const KvCacheDesc&) override { return unused(); }
  Result<std::unique_ptr<Routing>> make_routing(const RoutingDesc&) override { return unused(); }
  using Packed = Result<std::unique_ptr<PackedWeight>>;
  Packed pack_embedding(const MatrixView&) override { return unused(); }
  Packed pack_vector(const VectorView&) override { return unused(); }
  Packed pack_linear(const LinearWeights&) override { return unused(); }
  Packed pack_experts(const ExpertGateUpWeights&) override { return unused(); }
  Packed pack_experts(const ExpertDownWeights&) override { return unused(); }
  Result<std::unique_ptr<Embed>> plan(const EmbedDesc&) override { return unused(); }
  Result<std::unique_ptr<AddNorm>> plan(const AddNormDesc&) override { return unused(); }
  Result<std::unique_ptr<Linear>> plan(const LinearDesc&) override { return unused(); }
  Result<std::unique_ptr<QkNormRopeAppend>> plan(const QkNormRopeAppendDesc&) override {
    return unused();
  }
  Result<std::unique_ptr<Attention>> plan(const AttentionDesc&) override { return unused(); }
  Result<std::unique_ptr<AddNormRoute>> plan(const AddNormRouteDesc&) override { return unused(); }
  Result<std::unique_ptr<MoeGateUp>> plan(const MoeGateUpDesc&) override { return unused(); }
  Result<std::unique_ptr<MoeDown>> plan(const MoeDownDesc&) override { return unused(); }
  Result<std::unique_ptr<DenseMlp>> plan(const DenseMlpDesc&) override { return unused(); }
  Result<std::unique_ptr<LmHead>> plan(const LmHeadDesc&) override { return unused(); }
  Result<std::unique_ptr<Sampler>> plan(const SamplerDesc&) override { return unused(); }

 private:
  static Error unused() { return internal_error("the store does not use this"); }
  std::mutex mutex_;
};

}  // namespace medley::testing
