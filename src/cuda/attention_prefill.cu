#include "cuda/attention_tiled.cuh"

namespace medley::cuda {
namespace {

// 64 keys of head size 128 would spill registers.
template <int kHeadDim>
constexpr int kKeyTile = kHeadDim == 64 ? 64 : 32;

template <int kHeadDim>
using Prefill = TiledKernel<kHeadDim, kPrefillTile, kKeyTile<kHeadDim>, __nv_bfloat16>;

template <int kHeadDim>
void launch_prefill(const AttentionInputs& inputs, const PrefillWork& work, __nv_bfloat16* out,
                    int num_items, cudaStream_t stream) {
  auto params = Prefill<kHeadDim>::make_params(inputs);
  params.o = out;
  params.request_indices = const_cast<int32_t*>(work.seq_of_item);
  params.qo_tile_indices = const_cast<int32_t*>(work.tile_of_item);
  params.kv_tile_indices = const_cast<int32_t*>(work.chunk_of_item);
  params.o_indptr = const_cast<int32_t*>(inputs.q_indptr);
  params.kv_chunk_size_ptr = const_cast<int32_t*>(work.chunk_size);
  Prefill<kHeadDim>::launch(params, num_items, inputs.num_kv_heads, stream);
}

}  // namespace

void prepare_prefill_attention(int head_dim) {
  if (head_dim == 64) {
    Prefill<64>::prepare();
  } else {
    Prefill<128>::prepare();
  }
}

void launch_prefill_attention(int head_dim, const AttentionInputs& inputs, const PrefillWork& work,
                              __nv_bfloat16* out, int num_items, cudaStream_t stream) {
  if (head_dim == 64) return launch_prefill<64>(inputs, work, out, num_items, stream);
  launch_prefill<128>(inputs, work, out, num_items, stream);
}

}  // namespace medley::cuda
