#include "cuda/attention_tiled.cuh"

namespace medley::cuda {
namespace {

// 64 keys of head size 128 would spill registers.
template <int kHeadDim>
using Prefill =
    TiledKernel<kHeadDim, kPrefillTile, kHeadDim == 64 ? 64 : 32, __nv_bfloat16, /*kMinBlocks=*/2>;

template <int kHeadDim>
void launch_prefill(const AttentionInputs& inputs, const AttentionItems& items, __nv_bfloat16* out,
                    int max_items, cudaStream_t stream) {
  auto params = Prefill<kHeadDim>::make_params(inputs, items);
  params.o = out;
  Prefill<kHeadDim>::launch(params, max_items, inputs.num_kv_heads, stream);
}

}  // namespace

void prepare_prefill_attention(int head_dim) {
  if (head_dim == 64) {
    Prefill<64>::prepare();
  } else {
    Prefill<128>::prepare();
  }
}

void launch_prefill_attention(int head_dim, const AttentionInputs& inputs,
                              const AttentionItems& items, __nv_bfloat16* out, int max_items,
                              cudaStream_t stream) {
  if (head_dim == 64) return launch_prefill<64>(inputs, items, out, max_items, stream);
  launch_prefill<128>(inputs, items, out, max_items, stream);
}

}  // namespace medley::cuda
