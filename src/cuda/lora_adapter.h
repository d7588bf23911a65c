#pragma once

#include <map>
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

// Its copy on the device: the modules, and its entries of all sites (layers, modules).
struct CudaDeviceAdapter : DeviceAdapter {
  PoolRanges memory;  // entries, then modules
};

// The slots, and the memory of adapters on both sides. Sites are announced by plan(). pack(),
// upload() and memory() may run on any thread; set() and clear() on the one that runs steps.
class LoraTable {
 public:
  Result<void> make(const LoraTableDesc& desc);
  void announce(const LoraSite& site, const LoraSiteShape& shape);
  // Uses several threads. kInvalidArgument for a site that no op has, or shapes that do not fit it;
  // kUnsupported for ranks above kMaxRank and for pairs that split a part.
  Result<std::unique_ptr<PackedAdapter>> pack(std::span<const LoraModuleWeights> modules);
  Result<std::unique_ptr<DeviceAdapter>> upload(const CudaPackedAdapter& adapter);
  // Both only enqueue. Memory of an adapter that was destroyed after its slot was cleared or set
  // anew is written only once `stream` has passed that.
  void set(int slot, const CudaDeviceAdapter& adapter, cudaStream_t stream);
  void clear(int slot, cudaStream_t stream);
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

  CudaStream copy_stream_;
  std::mutex released_mutex_;
  CudaEvent released_;  // the last clear() or set()
};

}  // namespace medley::cuda
