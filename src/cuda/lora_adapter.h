#pragma once

#include <map>
#include <mutex>
#include <vector>

#include "backend/backend.h"
#include "cuda/lora_entry.h"
#include "cuda/memory.h"

namespace medley::cuda {

// What a planned op says about its site: the shape that an adapter's pairs must fit.
struct LoraSiteShape {
  int64_t in_size = 0;
  std::vector<int64_t> part_rows;  // q, k, v; or gate, up; or one
  bool parts_share_units = false;  // gate and up of experts: 8 + 8 rows
  int num_experts = 1;
};

struct PackedLoraModule {
  LoraSite site;
  LoraEntry entry;  // its pointers are set when the adapter takes a slot: base + these offsets
  size_t a_offset = 0;
  size_t b_offset = 0;
  size_t scale_offset = 0;
};

// An adapter in the layouts of lora_entry.h, in host memory.
class CudaPackedAdapter : public PackedAdapter {
 public:
  size_t num_bytes() const override { return bytes.size(); }
  std::vector<PackedLoraModule> modules;
  std::vector<uint8_t> bytes;
};

// The slots and their device copies. Sites are announced by plan(); packing may run on any thread.
class LoraTable {
 public:
  Result<void> make(const LoraTableDesc& desc);
  void announce(const LoraSite& site, const LoraSiteShape& shape);
  // kInvalidArgument for a site that no op has, or shapes that do not fit it; kUnsupported for
  // ranks above kMaxRank and for pairs that split a part.
  Result<std::unique_ptr<PackedAdapter>> pack(std::span<const LoraModuleWeights> modules);
  Result<void> set(int slot, const CudaPackedAdapter& adapter, cudaStream_t stream);
  void clear(int slot, cudaStream_t stream);
  // (slots) entries of a site; null before make().
  const LoraEntry* entries(const LoraSite& site) const;

 private:
  size_t index(const LoraSite& site) const;

  LoraTableDesc desc_;
  DeviceBuffer entries_;                // (layers, modules, slots)
  std::vector<DeviceBuffer> adapters_;  // by slot
  std::mutex mutex_;
  std::map<LoraSite, LoraSiteShape> shapes_;
};

}  // namespace medley::cuda
