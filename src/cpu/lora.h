#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "cpu/gemm.h"
#include "cpu/packed_weights.h"

namespace medley::cpu {

struct PackedPair {
  int64_t row_begin = 0;
  int rank = 0;
  std::vector<float> scale;
  // One matrix, or one per expert. A matrix without rows stands for an expert left as it is.
  std::vector<PackedMatrix> a, b;
  PackedTable a_table;  // embed only, instead of `a`: (V, rank)

  const PackedMatrix& a_of(int expert) const { return a[a.size() == 1 ? 0 : expert]; }
  const PackedMatrix& b_of(int expert) const { return b[b.size() == 1 ? 0 : expert]; }
};

struct PackedModule {
  LoraSite site;
  std::vector<PackedPair> pairs;
};

struct CpuPackedAdapter : PackedAdapter {
  std::vector<PackedModule> modules;
  int max_rank = 0;
  size_t num_bytes() const override;
};

// The packed adapter itself: the device is the host.
struct CpuDeviceAdapter : DeviceAdapter {
  explicit CpuDeviceAdapter(const CpuPackedAdapter& packed) : packed(packed) {}
  const CpuPackedAdapter& packed;
};

// Thread-safe. kInvalidArgument names the site, expected and found where the pairs' shapes do not
// fit each other.
Result<std::unique_ptr<PackedAdapter>> pack_adapter(std::span<const LoraModuleWeights> modules,
                                                    bool to_bf16);

// Slots of adapters.
class LoraTable {
 public:
  void resize(const LoraTableDesc& desc);
  void set(int slot, const CpuPackedAdapter& adapter);
  void clear(int slot);
  // Null where the slot's adapter leaves the site as it is.
  const PackedModule* find(int slot, LoraSite site) const { return entries_[index(slot, site)]; }
  bool valid(int slot) const { return slot >= 0 && slot < desc_.max_slots; }
  const LoraTableDesc& desc() const { return desc_; }
  int max_rank() const { return max_rank_; }  // of all adapters so far

 private:
  size_t index(int slot, LoraSite site) const;

  LoraTableDesc desc_;
  int max_rank_ = 0;
  std::vector<const PackedModule*> entries_;  // (slot, layer, module)
};

// Up to kLoraTaskRows rows of one adapter (and one expert); first, count: into the row arrays given
// to apply_lora.
inline constexpr int kLoraTaskRows = 32;
struct LoraTask {
  const PackedModule* module = nullptr;
  int expert = 0;
  int first = 0;
  int count = 0;
};

struct LoraRows {
  const float* const* x = nullptr;  // (in_size) each
  float* const* out = nullptr;      // (out_size) each: out[i] += B diag(scale) A x[i]
  int64_t in_size = 0;
  int64_t out_size = 0;
  bool round_s = false;  // to bfloat16, after the scale: what a bfloat16 GPU kernel does
};

struct Context;
void apply_lora(Context& context, std::span<const LoraTask> tasks, const LoraRows& rows);

// Appends tasks for `count` rows from `first` on.
void add_lora_tasks(const PackedModule* module, int expert, int first, int count,
                    std::span<LoraTask> tasks, int& num_tasks);

// Tasks that num_rows rows in num_groups groups can need.
inline int max_lora_tasks(int num_rows, int num_groups) {
  return num_groups + num_rows / kLoraTaskRows;
}

struct RowGroups;
// apply_lora for a dense site: `groups` holds indices of `x` and `out`.
void apply_dense_lora(Context& context, LoraSite site, const RowGroups& groups,
                      const LoraRows& rows);

}  // namespace medley::cpu
