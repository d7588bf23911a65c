#pragma once

#include <memory>
#include <optional>

#include "cuda/context.h"
#include "cuda/split_lora.h"

namespace medley::cuda {

// Launches of a split op, for benches that time them alone.
enum SplitPart : uint8_t {
  kSplitShrink = 1,
  kSplitBase = 2,
  kSplitExpand = 4,  // with the pass that adds, where the add is not fused
  kSplitActivate = 8,
  kAllSplitParts = 15,
};

struct SplitLoraOptions {
  SplitSwitches switches;
  // What the rank of every adapter ever in a slot divides by, once padded to 16: 32 lets expand do
  // without tail predicates. A kernel that meets another rank traps.
  int rank_multiple = 16;
  uint8_t parts = kAllSplitParts;
  std::optional<SplitShrinkConfig> shrink;  // instead of the selected one
  std::optional<SplitExpandConfig> expand;
};

// What the ops of a backend write between their launches. One at a time uses it.
struct SplitWorkspace {
  DeviceBuffer sums;   // (kMaxSplits, kMaxRoutedPairs, kSplitStride) float32
  DeviceBuffer raw;    // (kMaxRoutedPairs, 2 I) bfloat16: gate and up
  DeviceBuffer delta;  // (kMaxRoutedPairs, 2 I or H) bfloat16
  static Result<std::shared_ptr<SplitWorkspace>> make(int max_columns);
};

// Ops with the meaning of MoeGateUp and MoeDown, as the split path does them, for steps of up to
// kMaxRoutedPairs pairs. Gate, up and down's output round to bfloat16 before LoRA is added to them,
// once more than the interface asks for: the published form does so. Launches in order: [zero]
// shrink, base, expand [add], activate. Errors are those of plan_moe_gate_up and plan_moe_down;
// kOverloaded without memory for the workspace.
Result<std::unique_ptr<MoeGateUp>> plan_split_gate_up(Context& context,
                                                      std::shared_ptr<SplitWorkspace> workspace,
                                                      const MoeGateUpDesc& desc,
                                                      const SplitLoraOptions& options);
Result<std::unique_ptr<MoeDown>> plan_split_down(Context& context,
                                                 std::shared_ptr<SplitWorkspace> workspace,
                                                 const MoeDownDesc& desc,
                                                 const SplitLoraOptions& options);

}  // namespace medley::cuda
