#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <optional>
#include <span>
#include <string>

namespace medley::bench {

// out (rows, out_size) = x (rows, in_size) W^T, W (out_size, in_size), all row-major bfloat16 with
// float32 sums, by cuBLASLt: the library is opened at run time, so nothing else depends on it.
class CublasLt {
 public:
  // nullopt where the library is not found.
  static std::optional<CublasLt> open();
  CublasLt(CublasLt&&) noexcept;
  ~CublasLt();

  struct Arrays {
    const void* w = nullptr;
    const void* x = nullptr;
    void* out = nullptr;
  };
  struct Shape {
    int rows = 0;
    int out_size = 0;
    int in_size = 0;
  };
  // Times the algorithms that the library's heuristic proposes, on these arrays in turn, and keeps
  // the fastest for run(). False where it proposes none.
  bool choose(const Shape& shape, std::span<const Arrays> arrays, cudaStream_t stream);
  void run(const Arrays& arrays, cudaStream_t stream);
  std::string version() const;

 private:
  struct State;
  explicit CublasLt(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace medley::bench
