#include "cuda/add_norm.h"

#include <fmt/format.h>

#include <algorithm>

namespace medley::cuda {
namespace {

constexpr int kVector = 8;  // bfloat16 values of one 16-byte access
constexpr int kMaxThreads = 512;

}  // namespace

std::string AddNormConfig::to_string() const {
  return fmt::format("add_norm(threads={}, shared={})", num_threads, shared_bytes);
}

Result<AddNormConfig> select_add_norm(const AddNormDesc& desc) {
  if (desc.dtype != DType::kBF16) {
    return unsupported(fmt::format("add_norm on CUDA: activations are bfloat16, found {}",
                                   medley::to_string(desc.dtype)));
  }
  if (desc.hidden_size <= 0 || desc.hidden_size % kVector != 0) {
    return unsupported(
        fmt::format("add_norm on CUDA: hidden size must be a multiple of {}, found {}", kVector,
                    desc.hidden_size));
  }
  const int vectors = desc.hidden_size / kVector;
  const int threads = std::min(kMaxThreads, (vectors + 31) / 32 * 32);
  return AddNormConfig{.num_threads = threads,
                       .shared_bytes = desc.hidden_size * (sizeof(float) + 2)};
}

}  // namespace medley::cuda
