#pragma once

#include <vector>

#include "backend/step.h"
#include "engine/sequence.h"

namespace medley {

// Collects the rows of one step:
//
//   q_indptr   0     1     2           7
//   rows       | a   | b   | c c c c c |     a, b decode; c is a prefill chunk
//   logit_rows   0     1             6       only the row of a sequence's last token is sampled
//
// Where the prompt's log-probabilities are wanted, the rows before it are logit rows too.
//
// Its vectors are sized once and reused from step to step.
class Batch {
 public:
  explicit Batch(const StepDesc& desc, int page_size);

  void clear();
  // The logit rows of one sequence in a step.
  struct Outputs {
    int num_scored = 0;       // come first
    bool is_sampled = false;  // the sequence's last token is reached
  };
  // The next `num_tokens` tokens of `seq`, which has a slot, a pin and the pages for them.
  Outputs add(const Sequence& seq, int64_t num_tokens);

  int num_rows() const { return static_cast<int>(token_ids_.size()); }
  StepInputs inputs() const;

 private:
  StepDesc desc_;
  int page_size_;
  std::vector<int32_t> token_ids_, positions_, seq_of_row_, adapter_of_row_;
  std::vector<int32_t> q_indptr_, kv_lens_, page_indptr_, page_ids_, sampler_slots_;
  std::vector<int32_t> logit_rows_, logit_seqs_, logit_targets_;
};

}  // namespace medley
