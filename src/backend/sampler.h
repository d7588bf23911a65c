#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>

#include "tensor/tensor.h"

namespace medley {

class Stream;
class Step;

inline constexpr int kMaxTopLogprobs = 20;

struct SamplerDesc {
  int max_seqs = 0;  // slots
  int64_t vocab_size = 0;
};

// Added to a token's logit while the sequence has fewer than `num_outputs` output tokens; -infinity
// rules the token out.
struct LogitEdit {
  int32_t token_id = 0;
  float add = 0.0f;
  int32_t num_outputs = std::numeric_limits<int32_t>::max();
};
inline constexpr int kMaxLogitEdits = 2048;  // per slot

// How one sequence is sampled. First the logits change: edits, then repetition, frequency and
// presence penalty (as in vLLM). temperature 0 is greedy (ties: lower id). Filters apply to the
// temperature-scaled distribution in the order top_k, top_p, min_p. The random number of a token
// depends on (seed, position) alone. The spans are read during set_slot() only.
struct SamplerParams {
  float temperature = 1.0f;
  float top_p = 1.0f;
  int top_k = 0;  // 0 = off
  float min_p = 0.0f;
  uint64_t seed = 0;
  int num_top_logprobs = -1;     // -1: no log-probabilities; else up to kMaxTopLogprobs
  int num_prompt_logprobs = -1;  // the same for rows whose token is known
  // Tokens of prompt or output: a positive logit is divided by it, any other multiplied.
  float repetition_penalty = 1.0f;
  float frequency_penalty = 0.0f;  // times the token's count in the output, subtracted
  float presence_penalty = 0.0f;   // subtracted once from tokens of the output
  std::span<const int32_t> prompt_ids = {};
  std::span<const int32_t> output_ids = {};  // sampled before the sequence took the slot
  std::span<const LogitEdit> edits = {};     // up to kMaxLogitEdits
};

// Results of one step for its selected rows, in host memory that the device can write.
// Log-probabilities are of the unmodified distribution (edits, penalties, temperature and filters
// do not change them), natural logarithm.
struct SampleOutput {
  using Memory = std::unique_ptr<void, void (*)(void*)>;

  // In plain host memory.
  explicit SampleOutput(int max_rows);
  // In `block`, num_bytes(max_rows) bytes aligned to 4: the arrays below, one after the other.
  SampleOutput(Memory block, int max_rows);
  static size_t num_bytes(int max_rows);

  std::span<int32_t> token_ids;  // (max_rows)
  std::span<float> logprobs;     // where asked for, as all below
  std::span<int32_t> ranks;      // the token's place by falling logit, from 1; ties: lower id first
  std::span<int32_t> top_ids;    // (max_rows, kMaxTopLogprobs), best first
  std::span<float> top_logprobs;

  Memory memory;
};

// The sample op with its per-slot state on the device.
class Sampler {
 public:
  virtual ~Sampler() = default;
  // Room for max_seqs rows, in memory that copy_output() reaches without waiting.
  virtual SampleOutput make_output() const = 0;
  // Takes effect for steps run later on the stream. A slot is set anew for each sequence that takes
  // it.
  virtual void set_slot(int slot, const SamplerParams& params, Stream& stream) = 0;
  // Samples selected row i from logits[i] (float32, (max_seqs, V)) with the state of its sequence's
  // slot; leaves the id in the slot for the next step's embed and counts it as output. A row whose
  // token is known gets that token's log-probability and changes no slot. May be recorded as part
  // of a graph.
  virtual void run(const ConstTensorView& logits, const Step& step, Stream& stream) = 0;
  // Brings the results of the last run() to `out`: complete once the stream has passed this point,
  // and untouched until the next copy to the same `out`.
  virtual void copy_output(const Step& step, Stream& stream, SampleOutput& out) = 0;
};

}  // namespace medley
