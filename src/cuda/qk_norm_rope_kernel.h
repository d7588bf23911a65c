#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

namespace medley::cuda {

// Per row: RMS norm and rotary embedding of the q heads in place, of the k heads into their page,
// and the v heads copied into theirs.
struct QkNormRopeParams {
  const int32_t* num_rows = nullptr;     // device
  const int32_t* positions = nullptr;    // (rows)
  const int32_t* seq_of_row = nullptr;   // (rows)
  const int32_t* page_indptr = nullptr;  // (seqs + 1)
  const int32_t* page_ids = nullptr;
  __nv_bfloat16* qkv = nullptr;     // (rows, (heads + 2 kv_heads) * head_dim)
  __nv_bfloat16* keys = nullptr;    // (pages, kv_heads, page_size, head_dim)
  __nv_bfloat16* values = nullptr;  // the same
  const float* q_norm = nullptr;    // (head_dim) or null
  const float* k_norm = nullptr;
  const float* cos = nullptr;  // (max_position, rotary_dim / 2)
  const float* sin = nullptr;
  int64_t max_position = 0;
  int num_heads = 0;
  int num_kv_heads = 0;
  int head_dim = 0;    // a multiple of 4, up to kMaxRopeHeadDim
  int rotary_dim = 0;  // a multiple of 4, up to head_dim; 0 = no rotary embedding
  int page_size = 0;
  float eps = 0.0f;
};

inline constexpr int kMaxRopeHeadDim = 256;

void launch_qk_norm_rope(const QkNormRopeParams& params, int max_rows, cudaStream_t stream);

}  // namespace medley::cuda
