#pragma once

#include <cstdint>
#include <vector>

#include "backend/sampler.h"

namespace medley::cpu {

// What the sampler keeps of each slot's sequence from token to token. Different slots may be used
// by different threads.
class SamplerSlots {
 public:
  explicit SamplerSlots(const SamplerDesc& desc);

  void set(int slot, const SamplerParams& params);
  const SamplerParams& params(int slot) const { return slots_[slot].params; }  // without the spans

  // The logits to sample from: `logits` where the slot changes nothing, else `scratch`, filled.
  // Both hold V values.
  const float* adjust(int slot, const float* logits, float* scratch) const;
  void add_output(int slot, int32_t token_id);

 private:
  struct Slot {
    SamplerParams params;
    int num_edits = 0;
    int32_t edits_end = 0;  // from so many output tokens on no edit applies
    int32_t num_outputs = 0;
    bool has_penalties = false;
  };

  uint32_t* counts(int slot) { return counts_.data() + slot * vocab_size_; }

  const int64_t vocab_size_;
  std::vector<Slot> slots_;
  std::vector<LogitEdit> edits_;  // (max_seqs, kMaxLogitEdits)
  std::vector<uint32_t> counts_;  // (max_seqs, V): times in the output, and whether in the prompt
};

}  // namespace medley::cpu
