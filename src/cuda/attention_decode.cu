#include "cuda/attention_tiled.cuh"

namespace medley::cuda {
namespace {

// Partial results stay in float32.
template <int kHeadDim>
using Decode = TiledKernel<kHeadDim, kDecodeTile, decode_key_tile(kHeadDim), float>;

template <int kHeadDim>
void launch_decode(const AttentionInputs& inputs, const DecodeWork& work, int num_items,
                   cudaStream_t stream) {
  auto params = Decode<kHeadDim>::make_params(inputs);
  params.o = work.partial_out;
  params.lse = work.partial_lse;
  params.request_indices = const_cast<int32_t*>(work.seq_of_item);
  params.qo_tile_indices = const_cast<int32_t*>(work.tile_of_item);
  params.kv_tile_indices = const_cast<int32_t*>(work.chunk_of_item);
  params.o_indptr = const_cast<int32_t*>(work.chunk_indptr);
  params.block_valid_mask = const_cast<bool*>(work.item_is_valid);
  params.kv_chunk_size_ptr = const_cast<int32_t*>(work.chunk_size);
  params.partition_kv = true;
  Decode<kHeadDim>::launch(params, num_items, inputs.num_kv_heads, stream);
}

}  // namespace

int prepare_decode_attention(int head_dim) {
  return head_dim == 64 ? Decode<64>::prepare() : Decode<128>::prepare();
}

void launch_decode_attention(int head_dim, const AttentionInputs& inputs, const DecodeWork& work,
                             int num_items, cudaStream_t stream) {
  if (head_dim == 64) return launch_decode<64>(inputs, work, num_items, stream);
  launch_decode<128>(inputs, work, num_items, stream);
}

}  // namespace medley::cuda
