#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "base/error.h"

namespace medley {

// Element types. kMxfp4 is not one: MXFP4 weights are two kU8 tensors, blocks and scales (OCP MX
// v1.0).
enum class DType : uint8_t { kF32, kBF16, kF16, kF8E4M3, kI64, kI32, kU8, kBool };

size_t size_of(DType dtype);
const char* to_string(DType dtype);  // "float32", "bfloat16", ...

// Names as safetensors ("F32", "BF16", "F8_E4M3", ...) spells them; kUnsupported names any other.
Result<DType> dtype_from_safetensors(std::string_view name);

// bfloat16 <-> float32; to bf16 rounds to nearest even, NaN stays NaN.
inline float bf16_to_float(uint16_t bits) {
  const uint32_t wide = static_cast<uint32_t>(bits) << 16;
  float value;
  std::memcpy(&value, &wide, sizeof(value));
  return value;
}
inline uint16_t float_to_bf16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}
float f16_to_float(uint16_t bits);

}  // namespace medley
