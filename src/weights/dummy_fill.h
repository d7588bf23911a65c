#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string_view>

#include "tensor/tensor.h"
#include "weights/repeated_memory.h"

namespace medley {

// What random weights look like.
struct DummyFill {
  enum class Kind : uint8_t {
    kNormal,  // about normal, mean 0, standard deviation `sigma`
    kOnes,
    kSigns,   // 1 or -1
    kCodes,   // kU8: pairs of E2M1
    kScales,  // kU8: E8M0 around the exponent that gives random codes a deviation of `sigma`
  };
  Kind kind = Kind::kNormal;
  DType dtype = DType::kBF16;  // kF32 or kBF16; kU8 where the kind says so
  float sigma = 0.0f;

  friend auto operator<=>(const DummyFill&, const DummyFill&) = default;
};

// Random data for any number of tensors, however large, in little memory: all tensors of one fill
// read the same repeated piece, each from a place of its own. The same seed gives the same data.
class DummyPool {
 public:
  explicit DummyPool(uint64_t seed) : seed_(seed) {}

  // All fills that there will be, each with the bytes of its largest tensor. Called once.
  Result<void> make(const std::map<DummyFill, size_t>& max_bytes);
  // Where the tensor begins depends on its name. The pool must outlive it.
  ConstTensorView view(const DummyFill& fill, std::string_view name, const Shape& shape) const;

 private:
  uint64_t seed_;
  std::map<DummyFill, RepeatedMemory> memory_;
};

}  // namespace medley
