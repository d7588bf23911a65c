#include "cuda/attention_tiled.cuh"

namespace medley::cuda {
namespace {

// A fourth block of head size 64 would spill registers.
template <int kHeadDim, class Out>
using Decode = TiledKernel<kHeadDim, kDecodeTile, decode_key_tile(kHeadDim), Out,
                           /*kMinBlocks=*/kHeadDim == 64 ? 3 : 4>;

template <int kHeadDim>
struct Launches {
  using Whole = Decode<kHeadDim, __nv_bfloat16>;
  using Chunked = Decode<kHeadDim, float>;  // what is merged stays in float32

  static int prepare() {
    Whole::prepare();
    return Chunked::prepare();
  }
  static void whole(const AttentionInputs& inputs, const AttentionItems& items, __nv_bfloat16* out,
                    int max_items, cudaStream_t stream) {
    auto params = Whole::make_params(inputs, items);
    params.o = out;
    Whole::launch(params, max_items, inputs.num_kv_heads, stream);
  }
  static void chunked(const AttentionInputs& inputs, const AttentionItems& items,
                      const AttentionChunks& chunks, int max_items, cudaStream_t stream) {
    auto params = Chunked::make_params(inputs, items);
    params.o = chunks.out;
    params.lse = chunks.lse;
    params.o_indptr = const_cast<int32_t*>(chunks.chunk_indptr);
    params.partition_kv = true;
    Chunked::launch(params, max_items, inputs.num_kv_heads, stream);
  }
};

}  // namespace

int prepare_decode_attention(int head_dim) {
  return head_dim == 64 ? Launches<64>::prepare() : Launches<128>::prepare();
}

void launch_decode_attention(int head_dim, const AttentionInputs& inputs,
                             const AttentionItems& items, __nv_bfloat16* out, int max_items,
                             cudaStream_t stream) {
  if (head_dim == 64) return Launches<64>::whole(inputs, items, out, max_items, stream);
  Launches<128>::whole(inputs, items, out, max_items, stream);
}

void launch_chunked_attention(int head_dim, const AttentionInputs& inputs,
                              const AttentionItems& items, const AttentionChunks& chunks,
                              int max_items, cudaStream_t stream) {
  if (head_dim == 64) return Launches<64>::chunked(inputs, items, chunks, max_items, stream);
  Launches<128>::chunked(inputs, items, chunks, max_items, stream);
}

}  // namespace medley::cuda
