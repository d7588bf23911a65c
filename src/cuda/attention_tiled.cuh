#pragma once

#include <flashinfer/attention/prefill.cuh>

#include "cuda/attention_kernel.h"
#include "cuda/launch.h"
#include "cuda/primitives.cuh"

// FlashInfer's FA2 paged-prefill (flashinfer 0.6.14, attention/prefill.cuh), with sinks. It waits
// for its predecessor before it reads queries, pages or page ids; what it reads before that was
// copied ahead of the step's first kernel. It lets its dependents start when its results are
// written.

namespace medley::cuda {

// The names of members, and of the two `get` functions, are those the kernel looks for.
template <class Out>
struct TiledParams {
  using DTypeQ = __nv_bfloat16;
  using DTypeKV = __nv_bfloat16;
  using DTypeO = Out;
  using IdType = int32_t;

  DTypeQ* q;
  flashinfer::paged_kv_t<DTypeKV, IdType> paged_kv;
  IdType* q_indptr;
  const IdType* kv_lens;
  DTypeO* o;
  float* lse;
  const float* sinks;
  flashinfer::uint_fastdiv group_size;
  uint32_t num_qo_heads;
  IdType q_stride_n;
  IdType q_stride_h;
  int32_t window_left;
  float sm_scale;

  IdType* request_indices;
  IdType* qo_tile_indices;
  IdType* kv_tile_indices;
  IdType* o_indptr;
  bool* block_valid_mask;  // null
  IdType* kv_chunk_size_ptr;
  bool partition_kv;
  const IdType* num_items;  // read by the kernel around it

  __device__ __forceinline__ uint32_t get_qo_len(uint32_t seq) const {
    return q_indptr[seq + 1] - q_indptr[seq];
  }
  __device__ __forceinline__ uint32_t get_kv_len(uint32_t seq) const { return kv_lens[seq]; }
};

// A window, and sinks that join the softmax's denominator with the first chunk of the keys.
struct SinkAttention : flashinfer::AttentionVariantBase {
  uint32_t qo_len, kv_len, window_left;
  float sm_scale_log2;

  template <class Params>
  __device__ __forceinline__ SinkAttention(const Params& params, uint32_t seq, uint8_t*)
      : qo_len(params.get_qo_len(seq)),
        kv_len(params.get_kv_len(seq)),
        window_left(params.window_left >= 0 ? params.window_left : kv_len),
        sm_scale_log2(params.sm_scale * flashinfer::math::log2e) {}

  template <class Params>
  __device__ __forceinline__ bool LogitsMask(const Params&, uint32_t, uint32_t q_idx,
                                             uint32_t kv_idx, uint32_t, uint32_t) {
    return kv_idx + qo_len + window_left >= kv_len + q_idx;
  }

  // m is in base 2 and already scaled; `scale` is what the sums so far shrink by.
  template <class Params, class Max>
  __device__ __forceinline__ void update_m_d(const Params& params, uint32_t chunk, uint32_t head,
                                             Max& m, float& d, float& scale) {
    scale = 1.0f;
    if (params.sinks == nullptr || chunk != 0) return;
    const float sink = params.sinks[head] * flashinfer::math::log2e;
    const float largest = max(m, sink);
    scale = flashinfer::math::ptx_exp2(m - largest);
    d = d * scale + flashinfer::math::ptx_exp2(sink - largest);
    m = largest;
  }

  template <class Params, class T, class Max>
  __device__ __forceinline__ T OutputTransform(const Params&, T output, uint32_t, uint32_t,
                                               uint32_t, Max&, float& d, float scale) {
    return output * scale * flashinfer::math::ptx_rcp(d);
  }
};

template <int kHeadDim, int kTile, int kKeyTile, class Out>
struct TiledTraits {
  static constexpr uint32_t kWarpsQ = flashinfer::get_num_warps_q(kTile);
  static constexpr uint32_t kWarpsKv = flashinfer::get_num_warps_kv(kTile);
  // The one row of a decode sequence sees all keys of its window.
  static constexpr auto kMask =
      kTile == kDecodeTile ? flashinfer::MaskMode::kNone : flashinfer::MaskMode::kCausal;
  using Params = TiledParams<Out>;
  using Traits =
      flashinfer::KernelTraits<kMask, kTile, flashinfer::get_num_mma_q(kTile),
                               kKeyTile / (16 * kWarpsKv), kHeadDim / 16, kHeadDim / 16, kWarpsQ,
                               kWarpsKv, flashinfer::PosEncodingMode::kNone, __nv_bfloat16,
                               __nv_bfloat16, Out, float, int32_t, SinkAttention>;
  using Storage = typename Traits::SharedStoragePaged;
  static_assert(!Traits::IsInvalid());
};

// Block b works on item b / kv_heads and kv head b % kv_heads: blocks without an item come last, so
// that those with one spread evenly over the multiprocessors, and the heads of a page are read
// together.
template <class Tiled, int kMinBlocks>
__global__ void __launch_bounds__(Tiled::Traits::NUM_THREADS, kMinBlocks)
    tiled_attention_kernel(const __grid_constant__ typename Tiled::Params params) {
  extern __shared__ __align__(16) uint8_t shared[];
  const uint32_t num_kv_heads = params.paged_kv.num_heads;
  const uint32_t item = blockIdx.x / num_kv_heads;
  if (item >= static_cast<uint32_t>(*params.num_items)) {
    wait_for_predecessor();
    return;
  }
  flashinfer::BatchPrefillWithPagedKVCacheDevice<typename Tiled::Traits>(
      params, *reinterpret_cast<typename Tiled::Storage*>(shared), threadIdx, item,
      blockIdx.x % num_kv_heads, num_kv_heads);
}

// kMinBlocks: blocks that must fit a multiprocessor by their registers.
template <int kHeadDim, int kTile, int kKeyTile, class Out, int kMinBlocks>
struct TiledKernel {
  using Tiled = TiledTraits<kHeadDim, kTile, kKeyTile, Out>;
  using Params = typename Tiled::Params;
  static constexpr size_t kSharedBytes = sizeof(typename Tiled::Storage);
  static constexpr auto kKernel = tiled_attention_kernel<Tiled, kMinBlocks>;

  // Returns the blocks that a multiprocessor holds at once.
  static int prepare() {
    MEDLEY_CUDA_CHECK(cudaFuncSetAttribute(kKernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                           static_cast<int>(kSharedBytes)));
    int blocks = 0;
    MEDLEY_CUDA_CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(
        &blocks, kKernel, Tiled::Traits::NUM_THREADS, kSharedBytes));
    return blocks;
  }

  static Params make_params(const AttentionInputs& in, const AttentionItems& items) {
    Params params = {};
    params.q = const_cast<__nv_bfloat16*>(in.q);
    params.paged_kv = {static_cast<uint32_t>(in.num_kv_heads),
                       static_cast<uint32_t>(in.page_size),
                       kHeadDim,
                       static_cast<uint32_t>(in.max_seqs),
                       flashinfer::QKVLayout::kHND,
                       const_cast<__nv_bfloat16*>(in.keys),
                       const_cast<__nv_bfloat16*>(in.values),
                       const_cast<int32_t*>(in.page_ids),
                       const_cast<int32_t*>(in.page_indptr),
                       nullptr};
    params.q_indptr = const_cast<int32_t*>(in.q_indptr);
    params.o_indptr = const_cast<int32_t*>(in.q_indptr);
    params.kv_lens = in.kv_lens;
    params.sinks = in.sinks;
    params.group_size = in.num_heads / in.num_kv_heads;
    params.num_qo_heads = in.num_heads;
    params.q_stride_n = in.q_stride;
    params.q_stride_h = kHeadDim;
    params.window_left = in.window - 1;
    params.sm_scale = in.scale;
    params.num_items = items.num_items;
    params.request_indices = const_cast<int32_t*>(items.seq_of_item);
    params.qo_tile_indices = const_cast<int32_t*>(items.tile_of_item);
    params.kv_tile_indices = const_cast<int32_t*>(items.chunk_of_item);
    params.kv_chunk_size_ptr = const_cast<int32_t*>(items.chunk_size);
    return params;
  }

  static void launch(const Params& params, int max_items, int num_kv_heads, cudaStream_t stream) {
    cuda::launch(kKernel,
                 {.grid = dim3(max_items * num_kv_heads),
                  .block = dim3(kWarpSize, Tiled::kWarpsQ, Tiled::kWarpsKv),
                  .shared_bytes = kSharedBytes},
                 stream, params);
  }
};

}  // namespace medley::cuda
