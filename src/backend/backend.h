#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "backend/ops.h"
#include "backend/sampler.h"
#include "backend/step.h"
#include "backend/weights.h"
#include "base/error.h"

namespace medley {

// Work runs in order on a stream. The CPU backend runs it inside the call.
class Stream {
 public:
  virtual ~Stream() = default;
  virtual void synchronize() = 0;
};

// Marks a point of a stream; wait() returns once the stream has passed it.
class Event {
 public:
  virtual ~Event() = default;
  virtual void record(Stream& stream) = 0;
  // An error is a fault of the device, which runs nothing from then on.
  virtual Result<void> wait() = 0;
};

// What was enqueued on a stream, recorded once; launching it costs the host one call.
class Graph {
 public:
  virtual ~Graph() = default;
  virtual void launch(Stream& stream) = 0;
};

// Device memory, freed by the destructor.
class Buffer {
 public:
  virtual ~Buffer() = default;
  virtual void* data() = 0;
  virtual size_t num_bytes() const = 0;
};

// A weight in the backend's own layout, resident on the device.
class PackedWeight {
 public:
  virtual ~PackedWeight() = default;
  virtual size_t num_bytes() const = 0;
};

// An adapter in the backend's own layout, in host memory, ready to be uploaded.
class PackedAdapter {
 public:
  virtual ~PackedAdapter() = default;
  virtual size_t num_bytes() const = 0;
  // What its device copy takes of AdapterMemory::pool_bytes.
  virtual size_t device_bytes() const { return num_bytes(); }
};

// A packed adapter's copy on the device, in any number of slots or none. It may refer to the packed
// adapter, which must outlive it, as the backend must both. Destroyed on any thread, once the slots
// that it was in have been cleared or set anew: work that was enqueued before still finds it.
class DeviceAdapter {
 public:
  virtual ~DeviceAdapter() = default;
  // Whether all of it has arrived; wait() returns once it has, or the device has failed. Any
  // thread.
  virtual bool is_complete() const { return true; }
  virtual Result<void> wait() { return {}; }
};

// The device copy of a step's inputs, at fixed addresses.
class Step {
 public:
  virtual ~Step() = default;
  // `inputs` may be reused by the caller as soon as this returns.
  virtual void update(const StepInputs& inputs, Stream& stream) = 0;
  virtual int num_rows() const = 0;
  virtual int num_logit_rows() const = 0;
  // Steps of one key make the same launches on the same addresses, so one graph serves them all;
  // nothing: the step's ops are to be run one by one.
  virtual std::optional<int> graph_key() const { return std::nullopt; }
  // Rows of the decode steps (one row a sequence) that differ in their keys.
  virtual std::vector<int> graph_batches() const { return {}; }
};

struct KvCacheDesc {
  int num_layers = 0;
  int num_pages = 0;
  int page_size = 16;  // tokens
  int num_kv_heads = 0;
  int head_dim = 0;
  DType dtype = DType::kBF16;
};

// Paged keys and values of all layers.
class KvCache {
 public:
  virtual ~KvCache() = default;
  virtual const KvCacheDesc& desc() const = 0;
};

// How many weights a layer's routing asks for.
struct RoutingCounts {
  int num_experts = 0;          // distinct
  int num_expert_adapters = 0;  // distinct pairs of an expert and an adapter, base rows left out
};

// Where each (row, choice) of a step goes: chosen experts, weights, and the grouping by expert,
// then adapter.
class Routing {
 public:
  virtual ~Routing() = default;
  // Of what was routed last on `stream`. Waits for the device: for measurements, not for steps.
  virtual RoutingCounts counts(Stream& stream) const = 0;
};
struct RoutingDesc {
  int max_rows = 0;
  MoeSpec moe;
};

struct LoraTableDesc {
  int max_slots = 0;
  int num_layers = 0;
  size_t pool_bytes = 0;    // device memory for adapters, taken at once; 0: no pool, no limit
  size_t pinned_bytes = 0;  // host memory for packed adapters that is made ready at once
};

// The device pool of adapters; all zero where there is none.
struct AdapterMemory {
  size_t pool_bytes = 0;
  size_t used_bytes = 0;
  size_t largest_free_bytes = 0;  // the largest module that would fit
};

struct DeviceMemory {
  size_t free_bytes = 0;
  size_t total_bytes = 0;
};

// What packing weights spent its time on, in seconds; nothing where it can't be told apart.
struct PackingTimes {
  double read_s = 0.0;    // copying from the checkpoint's memory, page faults included
  double upload_s = 0.0;  // waiting for the device to take and pack what was read
  double pack_s = 0.0;    // kernels, which run beside both
};

// A device. Plans and packs are made at start-up (or by adapter loaders); only ops' run(),
// Step::update and Sampler run inside a step. Not thread-safe, except pack_adapter, upload_adapter,
// start_upload and adapter_memory, which any thread may call at any time.
class Backend {
 public:
  virtual ~Backend() = default;

  virtual std::string name() const = 0;  // "cpu", "cuda (NVIDIA H200)"
  // Of a device with memory of its own; nothing where that is the host's.
  virtual std::optional<DeviceMemory> memory() const { return std::nullopt; }

  virtual std::unique_ptr<Stream> make_stream() = 0;
  virtual std::unique_ptr<Event> make_event() = 0;
  // Records what `work` enqueues on `stream`, without running it; null where there are no graphs.
  virtual std::unique_ptr<Graph> record(Stream& stream, const std::function<void()>& work) {
    static_cast<void>(stream), static_cast<void>(work);
    return nullptr;
  }
  // kOverloaded with both numbers when memory is short.
  virtual Result<std::unique_ptr<Buffer>> allocate(size_t num_bytes) = 0;
  virtual Result<std::unique_ptr<Step>> make_step(const StepDesc& desc) = 0;
  virtual Result<std::unique_ptr<KvCache>> make_kv_cache(const KvCacheDesc& desc) = 0;
  virtual Result<std::unique_ptr<Routing>> make_routing(const RoutingDesc& desc) = 0;

  // Weights: host views are read during the call only. kInvalidArgument on non-finite scales (E8M0
  // 255).
  virtual Result<std::unique_ptr<PackedWeight>> pack_embedding(const MatrixView& table) = 0;
  virtual Result<std::unique_ptr<PackedWeight>> pack_vector(const VectorView& vector) = 0;
  virtual Result<std::unique_ptr<PackedWeight>> pack_linear(const LinearWeights& weights) = 0;
  virtual Result<std::unique_ptr<PackedWeight>> pack_experts(
      const ExpertGateUpWeights& weights) = 0;
  virtual Result<std::unique_ptr<PackedWeight>> pack_experts(const ExpertDownWeights& weights) = 0;
  // After the last weight: frees what only packing needed. Returns the times since the last call.
  virtual PackingTimes finish_packing() { return {}; }

  // LoRA: one table of slots, read by every op that has a LoRA site.
  virtual Result<void> make_lora_table(const LoraTableDesc& desc) = 0;
  virtual Result<std::unique_ptr<PackedAdapter>> pack_adapter(
      std::span<const LoraModuleWeights> modules) = 0;
  // Returns when the copy is complete; steps go on meanwhile. kOverloaded, with both numbers, when
  // the pool is short.
  virtual Result<std::unique_ptr<DeviceAdapter>> upload_adapter(const PackedAdapter& adapter) = 0;
  // The same in two: the copy that is returned may be set, but its layers come, in order, within
  // its wait(), which must be called. Steps are to wait for what they need of it
  // (wait_for_adapters).
  virtual Result<std::unique_ptr<DeviceAdapter>> start_upload(const PackedAdapter& adapter) {
    return upload_adapter(adapter);
  }
  virtual AdapterMemory adapter_memory() const { return {}; }
  // Both only enqueue, on the stream that runs the steps: steps enqueued before are not touched.
  virtual void set_adapter(int slot, const DeviceAdapter& adapter, Stream& stream) = 0;
  virtual void clear_adapter(int slot, Stream& stream) = 0;
  // Before the ops of a layer are enqueued, where they are not part of a graph: returns once the
  // layer's part of every adapter that was set has arrived, and those of the layers below.
  virtual void wait_for_adapters(int layer) { static_cast<void>(layer); }

  virtual Result<std::unique_ptr<Embed>> plan(const EmbedDesc& desc) = 0;
  virtual Result<std::unique_ptr<AddNorm>> plan(const AddNormDesc& desc) = 0;
  virtual Result<std::unique_ptr<Linear>> plan(const LinearDesc& desc) = 0;
  virtual Result<std::unique_ptr<QkNormRopeAppend>> plan(const QkNormRopeAppendDesc& desc) = 0;
  virtual Result<std::unique_ptr<Attention>> plan(const AttentionDesc& desc) = 0;
  virtual Result<std::unique_ptr<AddNormRoute>> plan(const AddNormRouteDesc& desc) = 0;
  virtual Result<std::unique_ptr<MoeGateUp>> plan(const MoeGateUpDesc& desc) = 0;
  virtual Result<std::unique_ptr<MoeDown>> plan(const MoeDownDesc& desc) = 0;
  virtual Result<std::unique_ptr<DenseMlp>> plan(const DenseMlpDesc& desc) = 0;
  virtual Result<std::unique_ptr<LmHead>> plan(const LmHeadDesc& desc) = 0;
  virtual Result<std::unique_ptr<Sampler>> plan(const SamplerDesc& desc) = 0;
};

}  // namespace medley
