#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/executor.h"

namespace medley::testing {

// Runs steps of an executor by hand, with greedy sequences that keep their pages: sequence i has
// sampler slot i. Not thread-safe.
class StepDriver {
 public:
  // As many sequences as the executor has sampler slots, of up to `max_len` tokens each.
  StepDriver(Executor& executor, int max_len);

  // What a step computes of one sequence: tokens that follow those it has, or, where there are
  // none, the token it sampled last.
  struct Piece {
    int seq = 0;
    std::vector<int32_t> tokens = {};
  };

  // The sequence is empty again; its rows use this slot of the LoRA table.
  void restart(int seq, int32_t adapter);
  void set_adapter(int seq, int32_t adapter) { seqs_[seq].adapter = adapter; }
  // Forgets all but the first `len` tokens.
  void rewind(int seq, int len);
  int len(int seq) const { return seqs_[seq].len; }

  // Starts a step that samples after every piece; output i is piece i's.
  StepTicket launch(std::span<const Piece> pieces);
  const SampleOutput& wait(StepTicket ticket);
  const SampleOutput& run(std::span<const Piece> pieces) { return wait(launch(pieces)); }

 private:
  struct Seq {
    int32_t adapter = kNoAdapter;
    int len = 0;
    bool has_slot = false;
  };

  void add(const Piece& piece);

  Executor& executor_;
  const int pages_per_seq_;
  std::vector<Seq> seqs_;
  std::vector<SlotUpdate> updates_;
  std::vector<int32_t> token_ids_, positions_, seq_of_row_, adapter_of_row_, q_indptr_, kv_lens_,
      page_indptr_, page_ids_, slots_, logit_rows_, logit_seqs_;
};

}  // namespace medley::testing
