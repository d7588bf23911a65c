#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

#include "cuda/lora_entry.h"

namespace medley::cuda {

// residual[row] = table[token of row], and with an adapter on embed_tokens B (scale * A[:, token])
// added before the rounding. A and B lie as lora_entry.h says, A with a column per token.
struct EmbedParams {
  const int32_t* num_rows = nullptr;            // (1)
  const int32_t* token_ids = nullptr;           // (rows) or kTokenFromSampler
  const int32_t* seq_of_row = nullptr;          // (rows)
  const int32_t* sampler_slots = nullptr;       // (seqs)
  const int32_t* last_token_of_slot = nullptr;  // (slots)
  const int32_t* adapter_of_row = nullptr;      // (rows)
  const LoraEntry* lora = nullptr;              // (slots), or none
  const __nv_bfloat16* table = nullptr;         // (V, H)
  __nv_bfloat16* residual = nullptr;            // (rows, H)
  int vocab_size = 0;
  int hidden_size = 0;  // a multiple of 8
};

void launch_embed(const EmbedParams& params, int max_rows, cudaStream_t stream);

}  // namespace medley::cuda
