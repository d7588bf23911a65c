#pragma once

#include <memory>
#include <span>
#include <string>

#include "backend/backend.h"

namespace medley::testing {

// Answers every call with an error: the base of fakes that offer the few a test needs.
class UnusedBackend : public Backend {
 public:
  using Packed = Result<std::unique_ptr<PackedWeight>>;

  std::string name() const override { return "fake"; }
  std::unique_ptr<Stream> make_stream() override { return nullptr; }
  std::unique_ptr<Event> make_event() override { return nullptr; }
  Result<std::unique_ptr<Buffer>> allocate(size_t) override { return unused(); }
  Result<std::unique_ptr<Step>> make_step(const StepDesc&) override { return unused(); }
  Result<std::unique_ptr<KvCache>> make_kv_cache(const KvCacheDesc&) override { return unused(); }
  Result<std::unique_ptr<Routing>> make_routing(const RoutingDesc&) override { return unused(); }
  Packed pack_embedding(const MatrixView&) override { return unused(); }
  Packed pack_vector(const VectorView&) override { return unused(); }
  Packed pack_linear(const LinearWeights&) override { return unused(); }
  Packed pack_experts(const ExpertGateUpWeights&) override { return unused(); }
  Packed pack_experts(const ExpertDownWeights&) override { return unused(); }
  Result<void> make_lora_table(const LoraTableDesc&) override { return unused(); }
  Result<std::unique_ptr<PackedAdapter>> pack_adapter(std::span<const LoraModuleWeights>) override {
    return unused();
  }
  Result<std::unique_ptr<DeviceAdapter>> upload_adapter(const PackedAdapter&) override {
    return unused();
  }
  void set_adapter(int, const DeviceAdapter&, Stream&) override {}
  void clear_adapter(int, Stream&) override {}
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
  static Error unused() { return internal_error("this test's backend does not offer that"); }
};

}  // namespace medley::testing
