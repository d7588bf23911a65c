#include "adapter/tensor_scan.h"

#include <algorithm>
#include <cstdint>

namespace medley {
namespace {

// A number is not finite when all bits of its exponent are set: its magnitude bits, read as an
// integer, are then at least `infinity`. The largest magnitude therefore answers both questions.
template <class Bits>
TensorScan scan(const Bits* data, int64_t count, Bits magnitude, Bits infinity) {
  Bits largest = 0;
  for (int64_t i = 0; i < count; ++i) {
    largest = std::max(largest, static_cast<Bits>(data[i] & magnitude));
  }
  return {.finite = largest < infinity, .all_zero = largest == 0};
}

}  // namespace

TensorScan scan_tensor(const ConstTensorView& tensor) {
  const int64_t count = tensor.shape.num_elements();
  switch (tensor.dtype) {
    case DType::kF32:
      return scan<uint32_t>(tensor.as<uint32_t>(), count, 0x7fffffffu, 0x7f800000u);
    case DType::kBF16:
      return scan<uint16_t>(tensor.as<uint16_t>(), count, 0x7fff, 0x7f80);
    case DType::kF16:
      return scan<uint16_t>(tensor.as<uint16_t>(), count, 0x7fff, 0x7c00);
    default:
      MEDLEY_CHECK(false, "not a floating dtype:", to_string(tensor.dtype));
  }
}

}  // namespace medley
