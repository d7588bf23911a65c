#include "cuda/dense_gemm.cuh"

namespace medley::cuda {

template void launch_dense_gemm<DenseRole::kGateUp>(DenseLora, const DenseGemmConfig&,
                                                    const DenseGemmParams&, cudaStream_t);

}  // namespace medley::cuda
