#pragma once

#include <cstdint>
#include <vector>

#include "backend/weights.h"
#include "base/error.h"
#include "cuda/lora_entry.h"

namespace medley::cuda {

// What a planned op says about its site: the shape that an adapter's pairs must fit.
struct LoraSiteShape {
  int64_t in_size = 0;
  std::vector<int64_t> part_rows;  // q, k, v; or gate, up; or one
  bool parts_share_units = false;  // gate and up of experts: 8 + 8 rows
  int num_experts = 1;
};

// How one module of an adapter lies in memory: A of all experts (one matrix if they share it), then
// B likewise, then the scales. Offsets and sizes are multiples of 512, save the end.
struct LoraModulePlan {
  // The pair that fills a part of the output, or null; `offset` is the part's first row within the
  // pair.
  struct Part {
    const LoraPair* pair = nullptr;
    int64_t offset = 0;
  };

  LoraSite site;
  LoraSiteShape shape;
  std::vector<Part> parts;
  int rank = 0;   // of each A, padded to a multiple of 16
  int num_a = 1;  // 1, or one for each part
  int num_a_matrices = 1;
  int num_b_matrices = 1;
  size_t a_bytes = 0;  // of one matrix
  size_t b_bytes = 0;

  size_t b_offset() const { return a_bytes * num_a_matrices; }
  size_t scale_offset() const { return b_offset() + b_bytes * num_b_matrices; }
  size_t num_bytes() const { return scale_offset() + sizeof(float) * num_a * rank; }
  // Of the module at `base`.
  LoraEntry entry(const uint8_t* base) const;
};

// The plan points into `module`. kInvalidArgument for shapes that do not fit the site; kUnsupported
// for ranks above kMaxRank and for pairs that split a part.
Result<LoraModulePlan> plan_lora_module(const LoraModuleWeights& module,
                                        const LoraSiteShape& shape);

// A part of a module's packing that no other part touches, for threads to share.
struct LoraPackTask {
  enum class What : uint8_t { kA, kB, kScales };

  const LoraModulePlan* plan = nullptr;
  uint8_t* module = nullptr;  // plan->num_bytes()
  What what = What::kA;
  int matrix_begin = 0;
  int matrix_end = 0;
  int begin = 0;  // blocks of 32 columns of A; units of 16 rows of B
  int end = 0;
};

// All tasks of a module, which begins at a multiple of 64 bytes; together they write every byte of
// it.
void add_pack_tasks(const LoraModulePlan& plan, uint8_t* module, std::vector<LoraPackTask>& tasks);
void run_pack_task(const LoraPackTask& task);

}  // namespace medley::cuda
