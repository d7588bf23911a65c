#pragma once

#include <cstdint>
#include <vector>

#include "tensor/tensor.h"

namespace medley {

class Stream;
class Step;

inline constexpr int kMaxTopLogprobs = 20;

struct SamplerDesc {
  int max_seqs = 0;  // slots
  int64_t vocab_size = 0;
};

// How one sequence is sampled. temperature 0 is greedy (ties: lower id). Filters apply to the
// temperature-scaled distribution in the order top_k, top_p, min_p. The random number of a token
// depends on (seed, position) alone.
struct SamplerParams {
  float temperature = 1.0f;
  float top_p = 1.0f;
  int top_k = 0;  // 0 = off
  float min_p = 0.0f;
  uint64_t seed = 0;
  int num_top_logprobs = -1;  // -1: no log-probabilities; else up to kMaxTopLogprobs
};

// Results of one step for its selected rows, in host memory that the device can write.
// Log-probabilities are of the unmodified distribution (temperature and filters do not change
// them), natural logarithm.
struct SampleOutput {
  explicit SampleOutput(int max_seqs)
      : token_ids(max_seqs),
        logprobs(max_seqs),
        top_ids(max_seqs * kMaxTopLogprobs),
        top_logprobs(max_seqs * kMaxTopLogprobs) {}
  std::vector<int32_t> token_ids;
  std::vector<float> logprobs;   // where asked for
  std::vector<int32_t> top_ids;  // (max_seqs, kMaxTopLogprobs), best first
  std::vector<float> top_logprobs;
};

// The sample op with its per-slot state on the device.
class Sampler {
 public:
  virtual ~Sampler() = default;
  // Takes effect for steps run later on the stream. A slot is set anew for each sequence that takes
  // it.
  virtual void set_slot(int slot, const SamplerParams& params, Stream& stream) = 0;
  // Samples selected row i from logits[i] (float32, (max_seqs, V)) with the state of its sequence's
  // slot; leaves the id in the slot for the next step's embed. `out` is complete once the stream
  // has passed this point, and stays untouched until the next run with the same `out`.
  virtual void run(const ConstTensorView& logits, const Step& step, Stream& stream,
                   SampleOutput& out) = 0;
};

}  // namespace medley
