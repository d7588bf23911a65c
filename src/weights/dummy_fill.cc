#include "weights/dummy_fill.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "base/thread_pool.h"

namespace medley {
namespace {

constexpr size_t kAlignment = 64;

// SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014).
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t next() {
    uint64_t z = state_ += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  // Sum of four uniform variables of variance 1/12, so the deviation is sqrt(1/3).
  float normal() {
    const uint64_t bits = next();
    const uint64_t sum =
        (bits & 0xffff) + (bits >> 16 & 0xffff) + (bits >> 32 & 0xffff) + (bits >> 48);
    constexpr float kUnit = 1.7320508f / 65536.0f;
    return (static_cast<float>(sum) - 2.0f * 65535.0f) * kUnit;
  }

 private:
  uint64_t state_;
};

uint64_t hash(uint64_t seed, std::string_view name) {
  for (const char c : name) seed = (seed ^ static_cast<uint8_t>(c)) * 0x100000001b3u;
  return Random(seed).next();
}

float float_value(const DummyFill& fill, Random& random) {
  switch (fill.kind) {
    case DummyFill::Kind::kOnes:
      return 1.0f;
    case DummyFill::Kind::kSigns:
      return (random.next() & 1) != 0 ? 1.0f : -1.0f;
    default:
      return fill.sigma * random.normal();
  }
}

// Exponents are base - 1, base or base + 1 with equal chance.
int base_exponent(float sigma) {
  const double codes = 8.5625;                     // mean square of the 16 values of E2M1
  const double scales = (0.25 + 1.0 + 4.0) / 3.0;  // of the scales, over that of the base
  return static_cast<int>(std::lround(std::log2(sigma / std::sqrt(codes * scales))));
}

void write_piece(const DummyFill& fill, uint64_t seed, std::span<std::byte> out) {
  Random random(seed);
  if (fill.dtype == DType::kU8) {
    const int base = 127 + base_exponent(std::max(fill.sigma, 1e-30f));
    for (std::byte& byte : out) {
      const auto bits = static_cast<uint8_t>(random.next() >> 32);
      byte =
          static_cast<std::byte>(fill.kind == DummyFill::Kind::kCodes ? bits : base - 1 + bits % 3);
    }
    return;
  }
  const size_t count = out.size() / size_of(fill.dtype);
  for (size_t i = 0; i < count; ++i) {
    const float value = float_value(fill, random);
    if (fill.dtype == DType::kF32) {
      std::memcpy(out.data() + i * sizeof(float), &value, sizeof(float));
    } else {
      const uint16_t bits = float_to_bf16(value);
      std::memcpy(out.data() + i * sizeof(uint16_t), &bits, sizeof(bits));
    }
  }
}

}  // namespace

Result<void> DummyPool::make(const std::map<DummyFill, size_t>& max_bytes) {
  MEDLEY_CHECK(memory_.empty());
  const std::vector<std::pair<DummyFill, size_t>> fills(max_bytes.begin(), max_bytes.end());
  std::vector<std::optional<Result<RepeatedMemory>>> made(fills.size());
  ThreadPool threads(static_cast<int>(std::clamp<size_t>(std::thread::hardware_concurrency(), 1,
                                                         std::max<size_t>(fills.size(), 1))));
  threads.parallel_for(static_cast<int64_t>(fills.size()), [&](int64_t i) {
    const auto& [fill, num_bytes] = fills[i];
    made[i] = RepeatedMemory::make(
        num_bytes + RepeatedMemory::kPeriod,
        [&](std::span<std::byte> piece) { write_piece(fill, hash(seed_ + i, "pool"), piece); });
  });
  for (size_t i = 0; i < fills.size(); ++i) {
    MEDLEY_TRY_ASSIGN(RepeatedMemory memory, std::move(*made[i]));
    memory_.emplace(fills[i].first, std::move(memory));
  }
  return {};
}

ConstTensorView DummyPool::view(const DummyFill& fill, std::string_view name,
                                const Shape& shape) const {
  const auto found = memory_.find(fill);
  MEDLEY_CHECK(found != memory_.end());
  const size_t places = RepeatedMemory::kPeriod / kAlignment;
  return {found->second.data() + hash(seed_, name) % places * kAlignment, fill.dtype, shape};
}

}  // namespace medley
