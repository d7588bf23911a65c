#include "cublas_lt.h"

#include <cublasLt.h>
#include <dlfcn.h>

#include <array>
#include <limits>

#include "base/error.h"
#include "cuda/check.h"
#include "cuda/memory.h"

namespace medley::bench {
namespace {

constexpr size_t kWorkspaceBytes = size_t{64} << 20;
constexpr int kProposals = 16;
constexpr int kTrials = 20;

#define MEDLEY_CUBLAS_FUNCTIONS(apply)                                                         \
  apply(cublasLtCreate) apply(cublasLtDestroy) apply(cublasLtGetVersion) apply(cublasLtMatmul) \
      apply(cublasLtMatmulAlgoGetHeuristic) apply(cublasLtMatmulDescCreate)                    \
          apply(cublasLtMatmulDescDestroy) apply(cublasLtMatmulDescSetAttribute)               \
              apply(cublasLtMatrixLayoutCreate) apply(cublasLtMatrixLayoutDestroy)             \
                  apply(cublasLtMatmulPreferenceCreate) apply(cublasLtMatmulPreferenceDestroy) \
                      apply(cublasLtMatmulPreferenceSetAttribute)

struct Functions {
#define MEDLEY_MEMBER(name) decltype(&::name) name = nullptr;
  MEDLEY_CUBLAS_FUNCTIONS(MEDLEY_MEMBER)
#undef MEDLEY_MEMBER

  bool load(void* library) {
    bool complete = true;
#define MEDLEY_LOAD(function)                                                 \
  function = reinterpret_cast<decltype(function)>(dlsym(library, #function)); \
  complete &= function != nullptr;
    MEDLEY_CUBLAS_FUNCTIONS(MEDLEY_LOAD)
#undef MEDLEY_LOAD
    return complete;
  }
};

}  // namespace

struct CublasLt::State {
  Functions f;
  cublasLtHandle_t handle = nullptr;
  cublasLtMatmulDesc_t operation = nullptr;
  cublasLtMatrixLayout_t w = nullptr;
  cublasLtMatrixLayout_t x = nullptr;
  cublasLtMatrixLayout_t out = nullptr;
  cublasLtMatmulAlgo_t algorithm = {};
  cuda::DeviceBuffer workspace;

  void forget() {
    if (operation == nullptr) return;
    f.cublasLtMatrixLayoutDestroy(out);
    f.cublasLtMatrixLayoutDestroy(x);
    f.cublasLtMatrixLayoutDestroy(w);
    f.cublasLtMatmulDescDestroy(operation);
    operation = nullptr;
  }
  bool run(const Arrays& a, cudaStream_t stream) {
    const float one = 1.0f;
    const float zero = 0.0f;
    return f.cublasLtMatmul(handle, operation, &one, a.w, w, a.x, x, &zero, a.out, out, a.out, out,
                            &algorithm, workspace.data(), kWorkspaceBytes,
                            stream) == CUBLAS_STATUS_SUCCESS;
  }
};

CublasLt::CublasLt(std::unique_ptr<State> state) : state_(std::move(state)) {}
CublasLt::CublasLt(CublasLt&&) noexcept = default;
CublasLt::~CublasLt() {
  if (!state_) return;
  state_->forget();
  state_->f.cublasLtDestroy(state_->handle);
}

std::optional<CublasLt> CublasLt::open() {
  void* library = dlopen("libcublasLt.so.13", RTLD_NOW);
  if (library == nullptr) library = dlopen("libcublasLt.so", RTLD_NOW);
  if (library == nullptr) return std::nullopt;
  auto state = std::make_unique<State>();
  if (!state->f.load(library)) return std::nullopt;
  if (state->f.cublasLtCreate(&state->handle) != CUBLAS_STATUS_SUCCESS) return std::nullopt;
  state->workspace = cuda::DeviceBuffer::allocate(kWorkspaceBytes).value();
  return CublasLt(std::move(state));
}

bool CublasLt::choose(const Shape& shape, std::span<const Arrays> arrays, cudaStream_t stream) {
  const auto [rows, out_size, in_size] = shape;
  State& s = *state_;
  s.forget();
  const cublasOperation_t transposed = CUBLAS_OP_T;
  s.f.cublasLtMatmulDescCreate(&s.operation, CUBLAS_COMPUTE_32F, CUDA_R_32F);
  s.f.cublasLtMatmulDescSetAttribute(s.operation, CUBLASLT_MATMUL_DESC_TRANSA, &transposed,
                                     sizeof(transposed));
  // Column-major: W is (in, out), x (in, rows), out (out, rows).
  s.f.cublasLtMatrixLayoutCreate(&s.w, CUDA_R_16BF, in_size, out_size, in_size);
  s.f.cublasLtMatrixLayoutCreate(&s.x, CUDA_R_16BF, in_size, rows, in_size);
  s.f.cublasLtMatrixLayoutCreate(&s.out, CUDA_R_16BF, out_size, rows, out_size);
  cublasLtMatmulPreference_t preference = nullptr;
  s.f.cublasLtMatmulPreferenceCreate(&preference);
  s.f.cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                           &kWorkspaceBytes, sizeof(kWorkspaceBytes));
  std::array<cublasLtMatmulHeuristicResult_t, kProposals> proposals;
  int found = 0;
  s.f.cublasLtMatmulAlgoGetHeuristic(s.handle, s.operation, s.w, s.x, s.out, s.out, preference,
                                     kProposals, proposals.data(), &found);
  s.f.cublasLtMatmulPreferenceDestroy(preference);

  cudaEvent_t begin = nullptr;
  cudaEvent_t end = nullptr;
  MEDLEY_CUDA_CHECK(cudaEventCreate(&begin));
  MEDLEY_CUDA_CHECK(cudaEventCreate(&end));
  float best = std::numeric_limits<float>::max();
  cublasLtMatmulAlgo_t fastest = {};
  for (int i = 0; i < found; ++i) {
    s.algorithm = proposals[i].algo;
    bool ran = s.run(arrays[0], stream);
    MEDLEY_CUDA_CHECK(cudaEventRecord(begin, stream));
    for (int trial = 0; trial < kTrials; ++trial) {
      ran &= s.run(arrays[trial % arrays.size()], stream);
    }
    MEDLEY_CUDA_CHECK(cudaEventRecord(end, stream));
    MEDLEY_CUDA_CHECK(cudaEventSynchronize(end));
    float ms = 0.0f;
    MEDLEY_CUDA_CHECK(cudaEventElapsedTime(&ms, begin, end));
    if (!ran || ms >= best) continue;
    best = ms;
    fastest = s.algorithm;
  }
  MEDLEY_CUDA_CHECK(cudaEventDestroy(begin));
  MEDLEY_CUDA_CHECK(cudaEventDestroy(end));
  s.algorithm = fastest;
  return best < std::numeric_limits<float>::max();
}

void CublasLt::run(const Arrays& arrays, cudaStream_t stream) {
  MEDLEY_CHECK(state_->run(arrays, stream), "cuBLASLt refused a product that it has run before");
}

std::string CublasLt::version() const {
  const size_t v = state_->f.cublasLtGetVersion();
  return std::to_string(v / 10000) + "." + std::to_string(v / 100 % 100) + "." +
         std::to_string(v % 100);
}

}  // namespace medley::bench
