#pragma once

#include <condition_variable>
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

class LoraTable;

// How much of an adapter has arrived: its layers in order. Any thread.
class AdapterArrival {
 public:
  explicit AdapterArrival(int num_layers) : num_layers_(num_layers) {}
  void add_layer();
  // The device has failed: nothing more comes, and nobody waits.
  void give_up();
  bool is_complete() const;
  void wait_for_layer(int layer) const;

 private:
  const int num_layers_;
  mutable std::mutex mutex_;
  mutable std::condition_variable arrived_;
  int num_arrived_ = 0;
};

// Its copy on the device: the modules, and its entries of all sites (layers, modules).
class CudaDeviceAdapter : public DeviceAdapter {
 public:
  CudaDeviceAdapter(LoraTable& table, const CudaPackedAdapter& packed, PoolRanges memory);
  bool is_complete() const override { return arrival_->is_complete(); }
  // Brings the layers, in the first call.
  Result<void> wait() override;

  const CudaPackedAdapter& packed() const { return packed_; }
  const PoolRanges& memory() const { return memory_; }  // entries, then modules
  const std::shared_ptr<AdapterArrival>& arrival() const { return arrival_; }

 private:
  LoraTable& table_;
  const CudaPackedAdapter& packed_;
  const PoolRanges memory_;
  const std::shared_ptr<AdapterArrival> arrival_;
  std::once_flag copied_;
  Result<void> result_;
};

// The slots, and the memory of adapters on both sides. Sites are announced by plan(). pack(),
// start_upload(), CudaDeviceAdapter::wait() and memory() may run on any thread; the others on
// the one that runs steps.
class LoraTable {
 public:
  Result<void> make(const LoraTableDesc& desc);
  void announce(const LoraSite& site, const LoraSiteShape& shape);
  // Uses several threads. kInvalidArgument for a site that no op has, or shapes that do not fit it;
  // kUnsupported for ranks above kMaxRank and for pairs that split a part.
  Result<std::unique_ptr<PackedAdapter>> pack(std::span<const LoraModuleWeights> modules);
  // Room for the adapter, and its entries there: it may be set. CudaDeviceAdapter::wait() brings
  // the layers.
  Result<std::unique_ptr<DeviceAdapter>> start_upload(const CudaPackedAdapter& adapter);
  // Both only enqueue. Memory of an adapter that was destroyed after its slot was cleared or set
  // anew is written only once `stream` has passed that.
  void set(int slot, const CudaDeviceAdapter& adapter, cudaStream_t stream);
  void clear(int slot, cudaStream_t stream);
  // Returns once this layer, and those below, of all adapters that were set have arrived.
  void wait_for_layer(int layer);
  void wait_for_all() { wait_for_layer(desc_.num_layers - 1); }
  AdapterMemory memory() const { return pool_.memory(); }
  // (slots) entries of a site; null before make().
  const LoraEntry* entries(const LoraSite& site) const;

 private:
  size_t num_sites() const { return static_cast<size_t>(desc_.num_layers) * kNumLoraModules; }
  size_t index(const LoraSite& site) const;
  friend class CudaDeviceAdapter;
  Result<void> copy_layers(const CudaDeviceAdapter& adapter);
  Result<void> copy(const PinnedRange& source, uint8_t* target);

  LoraTableDesc desc_;
  DeviceBuffer entries_;  // (layers, modules, slots)
  std::mutex shapes_mutex_;
  std::map<LoraSite, LoraSiteShape> shapes_;
  PinnedArena host_;
  AdapterPool pool_;

  std::mutex copy_mutex_;  // one adapter's copies after another's
  CudaStream copy_stream_;
  CudaEvent copied_;
  std::mutex released_mutex_;
  CudaEvent released_;                                           // the last clear() or set()
  std::vector<std::shared_ptr<const AdapterArrival>> arriving_;  // of adapters that were set
};

}  // namespace medley::cuda
