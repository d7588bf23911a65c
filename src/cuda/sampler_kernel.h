#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace medley::cuda {

inline constexpr int kMaxSlotEdits = 2048;
inline constexpr int kMaxTopTokens = 20;
inline constexpr int kSampleBlocks = 8;  // of the cluster that takes a row
// Weights are summed as multiples of 2^-45 of the best token's, in 64 bits.
inline constexpr int kMaxSampledVocab = 1 << 18;

// A token whose logit changes while the sequence has fewer than `num_outputs` output tokens.
struct SlotEdit {
  int32_t token_id = 0;
  float add = 0.0f;
  int32_t num_outputs = 0;
};

// How a slot's sequence is sampled, as SamplerParams; num_outputs is the kernel's to count.
struct SlotState {
  uint64_t seed = 0;
  double inverse_temperature = 1.0;
  float temperature = 1.0f;
  float top_p = 1.0f;
  float min_p = 0.0f;
  int32_t top_k = 0;
  float repetition_penalty = 1.0f;
  float frequency_penalty = 0.0f;
  float presence_penalty = 0.0f;
  int32_t has_penalties = 0;
  int32_t num_top_logprobs = -1;
  int32_t num_prompt_logprobs = -1;
  int32_t num_edits = 0;
  int32_t edits_end = 0;  // from so many output tokens on no edit applies
  int32_t num_outputs = 0;
};

// Edits of one token stand together, in the order in which they are added.
struct SlotRecord {
  SlotState state;
  SlotEdit edits[kMaxSlotEdits];
};

// A token's count in the output, and whether it is in the prompt.
inline constexpr uint32_t kInPrompt = uint32_t{1} << 31;

// Pointers are device memory.
struct SampleParams {
  const float* logits = nullptr;  // (rows, vocab_size)
  int vocab_size = 0;
  int block_size = 0;  // ids of a row that each block of its cluster takes, a multiple of 4
  const int32_t* num_rows = nullptr;
  const int32_t* logit_rows = nullptr;     // (rows) rows of the step
  const int32_t* logit_seqs = nullptr;     // (rows)
  const int32_t* logit_targets = nullptr;  // (rows) known token, or negative
  const int32_t* positions = nullptr;      // by row of the step
  const int32_t* sampler_slots = nullptr;  // by sequence
  SlotRecord* slots = nullptr;
  uint32_t* counts = nullptr;     // (slots, vocab_size)
  int32_t* last_token = nullptr;  // by slot
  int32_t* token_ids = nullptr;   // (rows), out, as all below
  float* logprobs = nullptr;      // (rows)
  int32_t* ranks = nullptr;       // (rows)
  int32_t* top_ids = nullptr;     // (rows, kMaxTopTokens)
  float* top_logprobs = nullptr;  // (rows, kMaxTopTokens)
};

// One cluster of blocks per row, which keeps the row in shared memory.
void launch_sample(const SampleParams& params, int max_rows, cudaStream_t stream);

// A slot's counts: every id of `ids` (host memory that the device reads, or device memory) is
// marked as of the prompt, or counted as output.
void launch_mark_prompt(const int32_t* ids, int count, uint32_t* counts, cudaStream_t stream);
void launch_count_outputs(const int32_t* ids, int count, uint32_t* counts, cudaStream_t stream);

}  // namespace medley::cuda
