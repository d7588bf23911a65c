#include <atomic>
#include <cstdlib>
#include <new>

#include "cpu/small_model.h"

namespace {
std::atomic<int64_t> num_allocations = 0;
}

// Every allocation of the program is counted.
void* operator new(size_t num_bytes) {
  ++num_allocations;
  void* memory = std::malloc(num_bytes);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
extern "C" void* aligned_alloc(size_t alignment, size_t num_bytes) {
  ++num_allocations;
  void* memory = nullptr;
  return posix_memalign(&memory, alignment, num_bytes) == 0 ? memory : nullptr;
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace medley::cpu {
namespace {

TEST(Allocation, StepsAllocateNothing) {
  SmallModel model(DType::kBF16, 3);
  std::vector<TestSequence> sequences;
  for (int i = 0; i < 60; ++i) {
    sequences.push_back({.num_rows = 1 + i % 8,
                         .adapter = i % 4 - 1,
                         .first_page = i,
                         .sampler_slot = i,
                         .tokens = std::vector<int32_t>(8, i)});
    model.sampler().set_slot(i, {.top_p = 0.9f, .num_top_logprobs = 5}, *model.test().stream);
  }
  const TestInputs inputs(sequences);
  const int64_t before = num_allocations;
  model.test().set_step(inputs);
  model.forward([](const char*, const TensorView&) {});
  EXPECT_EQ(num_allocations, before);
}

}  // namespace
}  // namespace medley::cpu
