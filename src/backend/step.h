#pragma once

#include <cstdint>
#include <span>

namespace medley {

// Capacities of a step; every device buffer is sized by them once, at start-up.
struct StepDesc {
  int max_rows = 0;   // tokens in a step (prefill chunks and decodes together)
  int max_seqs = 0;   // sequences in a step, and sampler slots
  int max_pages = 0;  // page-table entries of all sequences of a step together
};

// A row's token is known on the host, or is the one last sampled in the row's sequence's sampler
// slot (the step before may still be running).
inline constexpr int32_t kTokenFromSampler = -1;
inline constexpr int32_t kNoAdapter = -1;
inline constexpr int32_t kSampleToken = -1;

// One step as the engine describes it, on the host. Rows are grouped by sequence: sequence s owns
// the rows [q_indptr[s], q_indptr[s + 1]), the last tokens of its kv_lens[s] tokens.
struct StepInputs {
  std::span<const int32_t> token_ids;       // (rows) or kTokenFromSampler
  std::span<const int32_t> positions;       // (rows)
  std::span<const int32_t> seq_of_row;      // (rows)
  std::span<const int32_t> adapter_of_row;  // (rows) LoRA slot or kNoAdapter
  std::span<const int32_t> q_indptr;        // (seqs + 1)
  std::span<const int32_t>
      kv_lens;  // (seqs) tokens in the cache once this step's rows are appended
  std::span<const int32_t> page_indptr;  // (seqs + 1)
  std::span<const int32_t>
      page_ids;  // (pages) token t of a sequence lives in its page t / page_size
  std::span<const int32_t> sampler_slots;  // (seqs)
  std::span<const int32_t> logit_rows;  // (selected) rows whose logits are wanted; at most max_seqs
  std::span<const int32_t> logit_seqs;  // (selected) their sequences
  // (selected) kSampleToken, once per sequence at most, or the known token that follows the row and
  // whose log-probability is wanted. Empty: all are sampled.
  std::span<const int32_t> logit_targets = {};

  int num_rows() const { return static_cast<int>(token_ids.size()); }
  int num_seqs() const { return static_cast<int>(kv_lens.size()); }
  int num_logit_rows() const { return static_cast<int>(logit_rows.size()); }
};

}  // namespace medley
