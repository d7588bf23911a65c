#include "backend/sampler.h"

#include <cstdlib>
#include <utility>

namespace medley {
namespace {

constexpr size_t kWordsPerRow = 3 + 2 * kMaxTopLogprobs;

}  // namespace

size_t SampleOutput::num_bytes(int max_rows) { return kWordsPerRow * max_rows * sizeof(int32_t); }

SampleOutput::SampleOutput(int max_rows)
    : SampleOutput(Memory(std::calloc(1, num_bytes(max_rows)), std::free), max_rows) {}

SampleOutput::SampleOutput(Memory block, int max_rows) : memory(std::move(block)) {
  auto* next = static_cast<std::byte*>(memory.get());
  const auto take = [&]<class T>(std::span<T>& array, size_t count) {
    array = {reinterpret_cast<T*>(next), count};
    next += count * sizeof(T);
  };
  const auto rows = static_cast<size_t>(max_rows);
  take(token_ids, rows);
  take(logprobs, rows);
  take(ranks, rows);
  take(top_ids, rows * kMaxTopLogprobs);
  take(top_logprobs, rows * kMaxTopLogprobs);
}

}  // namespace medley
