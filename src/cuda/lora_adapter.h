#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "backend/backend.h"
#include "cuda/adapter_pool.h"
#include "cuda/lora_pack.h"
#include "cuda/pinned_arena.h"
#include "cuda/stream.h"

namespace medley::cuda {

struct PackedLoraModule {
  LoraSite site;
  LoraEntry entry;  // its pointers are those of the host copy
  PinnedRange memory;
};

// An adapter in the layouts of lora_entry.h, in page-locked host memory, by layer.
class CudaPackedAdapter : public PackedAdapter {
 public:
  size_t num_bytes() const override;
  size_t device_bytes() const override;
  std::vector<PackedLoraModule> modules;
  size_t entries_bytes = 0;  // on the device: entries of all sites
};

// What has been copied of an adapter: its entries, then its layers in order. Any thread.
class AdapterCopy {
 public:
  explicit AdapterCopy(int num_layers);
  void record_entries(cudaStream_t stream);
  void record_layer(int layer, cudaStream_t stream);
  // Both enqueue on the stream.
  void wait_for_entries(cudaStream_t stream) const;
  void wait_for_layer(int layer, cudaStream_t stream) const;
  bool is_complete() const;
  Result<void> wait();

 private:
  CudaEvent entries_;
  std::vector<std::unique_ptr<CudaEvent>> layers_;
  CudaEvent all_{CudaEvent::Wait::kSleep};
};

// Its copy on the device: the modules, and its entries of all sites (layers, modules).
struct CudaDeviceAdapter : DeviceAdapter {
  bool is_complete() const override { return copy->is_complete(); }
  Result<void> wait() override { return copy->wait(); }

  PoolRanges memory;    // entries, then modules
  PinnedRange staging;  // the entries, on the host
  std::shared_ptr<AdapterCopy> copy;
};

// The slots, and the memory of adapters on both sides. Sites are announced by plan(). pack(),
// upload() and memory() may run on any thread; the others on the one that runs steps.
class LoraTable {
 public:
  Result<void> make(const LoraTableDesc& desc);
  void announce(const LoraSite& site, const LoraSiteShape& shape);
  // Uses several threads. kInvalidArgument for a site that no op has, or shapes that do not fit it;
  // kUnsupported for ranks above kMaxRank and for pairs that split a part.
  Result<std::unique_ptr<PackedAdapter>> pack(std::span<const LoraModuleWeights> modules);
  // Enqueues the copy, on a stream of its own.
  Result<std::unique_ptr<DeviceAdapter>> upload(const CudaPackedAdapter& adapter);
  // Both only enqueue. Memory of an adapter that was destroyed after its slot was cleared or set
  // anew is written only once `stream` has passed that.
  void set(int slot, const CudaDeviceAdapter& adapter, cudaStream_t stream);
  void clear(int slot, cudaStream_t stream);
  // What is enqueued on `stream` from here on runs once this layer, and those below, of all
  // adapters that were set have arrived.
  void wait_for_layer(int layer, cudaStream_t stream);
  void wait_for_all(cudaStream_t stream) { wait_for_layer(desc_.num_layers - 1, stream); }
  AdapterMemory memory() const { return pool_.memory(); }
  // (slots) entries of a site; null before make().
  const LoraEntry* entries(const LoraSite& site) const;

 private:
  size_t num_sites() const { return static_cast<size_t>(desc_.num_layers) * kNumLoraModules; }
  size_t index(const LoraSite& site) const;
  void copy(const PinnedRange& source, uint8_t* target);

  LoraTableDesc desc_;
  DeviceBuffer entries_;  // (layers, modules, slots)
  std::mutex shapes_mutex_;
  std::map<LoraSite, LoraSiteShape> shapes_;
  PinnedArena host_;
  AdapterPool pool_;

  std::mutex copy_mutex_;  // one adapter's copies after another's
  CudaStream copy_stream_;
  std::mutex released_mutex_;
  CudaEvent released_;                                        // the last clear() or set()
  std::vector<std::shared_ptr<const AdapterCopy>> arriving_;  // of adapters that were set
};

}  // namespace medley::cuda
