#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

namespace medley::cuda {

// What every attention kernel reads: queries of the step's rows and one layer's pages. Pages are
// (kv_heads, page_size, head_dim), keys and values apart.
struct AttentionInputs {
  const __nv_bfloat16* q = nullptr;  // (rows, q_stride)
  int q_stride = 0;
  const __nv_bfloat16* keys = nullptr;    // (pages, kv_heads, page_size, head_dim)
  const __nv_bfloat16* values = nullptr;  // the same
  const float* sinks = nullptr;           // (heads) or null
  const int32_t* num_seqs = nullptr;      // device
  const int32_t* q_indptr = nullptr;      // (seqs + 1)
  const int32_t* kv_lens = nullptr;       // (seqs)
  // (max_seqs + 1): entries past the step's sequences repeat the last
  const int32_t* page_indptr = nullptr;
  const int32_t* page_ids = nullptr;
  int max_seqs = 0;
  int page_size = 0;
  int num_heads = 0;
  int num_kv_heads = 0;
  int window = 0;  // 0 = full
  float scale = 0.0f;
};

// Query rows of one block: those of a sequence's rows times the heads that share a kv head.
inline constexpr int kDecodeTile = 16;
inline constexpr int kPrefillTile = 128;
// Keys that a block of the decode kernel takes at a time.
constexpr int decode_key_tile(int head_dim) { return head_dim == 64 ? 128 : 64; }

// What the blocks of a launch work on. Item i is tile `tile_of_item` of the query rows of a
// sequence and chunk `chunk_of_item` of its keys; all chunks are `chunk_size` long and counted from
// the first key inside the window.
struct AttentionItems {
  const int32_t* num_items = nullptr;      // device
  const int32_t* seq_of_item = nullptr;    // (items)
  const int32_t* tile_of_item = nullptr;   // (items)
  const int32_t* chunk_of_item = nullptr;  // (items)
  const int32_t* chunk_size = nullptr;     // one value, in tokens
};

// Where the chunks of sequences with one row leave their results: chunk c of sequence s in row
// chunk_indptr[s] + c. A sequence without chunks is left alone.
struct AttentionChunks {
  const int32_t* chunk_indptr = nullptr;  // (seqs + 1)
  float* out = nullptr;                   // (chunks, heads, head_dim)
  float* lse = nullptr;                   // (chunks, heads), base 2
};

// FlashInfer's kernels exist for these.
constexpr bool is_tiled_head_dim(int head_dim) { return head_dim == 64 || head_dim == 128; }

// Let the kernels of `head_dim` have their shared memory: to be called once, before any launch. The
// first returns the decode blocks that a multiprocessor holds at once.
int prepare_decode_attention(int head_dim);
void prepare_prefill_attention(int head_dim);

// All only for is_tiled_head_dim(). `max_items` fixes the grid; `out` is (rows, heads, head_dim).
// Tiles of kPrefillTile rows, one chunk of keys.
void launch_prefill_attention(int head_dim, const AttentionInputs& inputs,
                              const AttentionItems& items, __nv_bfloat16* out, int max_items,
                              cudaStream_t stream);
// Sequences with one row, in tiles of kDecodeTile heads; all their keys in one chunk.
void launch_decode_attention(int head_dim, const AttentionInputs& inputs,
                             const AttentionItems& items, __nv_bfloat16* out, int max_items,
                             cudaStream_t stream);
// The same in chunks, which launch_merge_chunks joins, in their order.
void launch_chunked_attention(int head_dim, const AttentionInputs& inputs,
                              const AttentionItems& items, const AttentionChunks& chunks,
                              int max_items, cudaStream_t stream);

struct MergeParams {
  const int32_t* num_seqs = nullptr;  // device
  const int32_t* q_indptr = nullptr;  // (seqs + 1)
  AttentionChunks chunks;
  __nv_bfloat16* out = nullptr;  // (rows, heads, head_dim)
  int num_heads = 0;
  int head_dim = 0;  // a multiple of 4
};
void launch_merge_chunks(const MergeParams& params, int max_seqs, cudaStream_t stream);

// Any head_dim that is a multiple of 4, up to 256: one warp per row and head, without tensor cores.
// For the head sizes of small test models.
struct PlainAttentionParams {
  AttentionInputs inputs;
  const int32_t* num_rows = nullptr;    // device
  const int32_t* positions = nullptr;   // (rows)
  const int32_t* seq_of_row = nullptr;  // (rows)
  __nv_bfloat16* out = nullptr;
  int head_dim = 0;
};
inline constexpr int kMaxPlainHeadDim = 256;
void launch_plain_attention(const PlainAttentionParams& params, int max_rows, cudaStream_t stream);

}  // namespace medley::cuda
