#include "cuda/step.h"

#include <algorithm>
#include <numeric>
#include <span>
#include <utility>

#include "cuda/carver.h"
#include "cuda/check.h"

namespace medley::cuda {
namespace {

struct StepArrays {
  int32_t* num_rows = nullptr;
  int32_t* adapter_of_row = nullptr;
  RoutingView rows;
  RoutingView logit_rows;
};

RoutingView carve_rows(Carver& carver, int count) {
  return {.num_tiles = carver.take<int32_t>(1),
          .num_segments = carver.take<int32_t>(1),
          .tiles = carver.take<RouteTile>(count),
          .segments = carver.take<RouteSegment>(count),
          .row_of_pair = carver.take<int32_t>(count),
          .pair_of_choice = carver.take<int32_t>(count)};
}

StepArrays carve(Carver& carver, const StepDesc& desc) {
  return {.num_rows = carver.take<int32_t>(1),
          .adapter_of_row = carver.take<int32_t>(desc.max_rows),
          .rows = carve_rows(carver, desc.max_rows),
          .logit_rows = carve_rows(carver, desc.max_seqs)};
}

// Sorts `rows` by the adapter of each and lists the tiles and segments; pair_of_choice[i] is where
// the i-th of the sorted rows stood.
void group_rows(std::span<const int32_t> rows, std::span<const int32_t> adapter_of_row,
                RoutingView& view) {
  const int count = static_cast<int>(rows.size());
  int32_t* order = view.pair_of_choice;
  std::iota(order, order + count, 0);
  std::sort(order, order + count, [&](int32_t a, int32_t b) {
    return std::pair(adapter_of_row[rows[a]], a) < std::pair(adapter_of_row[rows[b]], b);
  });
  *view.num_tiles = 0;
  *view.num_segments = 0;
  for (int i = 0; i < count; ++i) {
    view.row_of_pair[i] = rows[order[i]];
    const int slot = adapter_of_row[view.row_of_pair[i]];
    const bool new_tile = i % kTileRows == 0;
    if (new_tile) {
      view.tiles[(*view.num_tiles)++] = {.begin = i, .segment_begin = *view.num_segments};
    }
    RouteTile& tile = view.tiles[*view.num_tiles - 1];
    ++tile.count;
    if (slot < 0) continue;
    if (new_tile || adapter_of_row[view.row_of_pair[i - 1]] != slot) {
      view.segments[(*view.num_segments)++] = {.slot = slot, .begin = i};
      ++tile.segment_count;
    }
    ++view.segments[*view.num_segments - 1].count;
  }
}

}  // namespace

PinnedBuffer::PinnedBuffer(size_t num_bytes) {
  void* data = nullptr;
  MEDLEY_CUDA_CHECK(cudaMallocHost(&data, num_bytes));
  data_ = static_cast<std::byte*>(data);
}
PinnedBuffer::~PinnedBuffer() { cudaFreeHost(data_); }

CudaStep::CudaStep(const StepDesc& desc) : desc_(desc) {
  Carver counter(nullptr);
  carve(counter, desc);
  device_ = DeviceBuffer::allocate(counter.num_bytes()).value();
  Carver placer(device_.as<std::byte>());
  const StepArrays arrays = carve(placer, desc);
  num_rows_on_device_ = arrays.num_rows;
  adapter_of_row_ = arrays.adapter_of_row;
  rows_ = arrays.rows;
  logit_rows_view_ = arrays.logit_rows;
  for (int i = 0; i < kStagings; ++i) {
    stagings_.push_back(std::make_unique<PinnedBuffer>(counter.num_bytes()));
    copied_.push_back(std::make_unique<CudaEvent>());
  }
}

void CudaStep::update(const StepInputs& inputs, Stream& stream) {
  MEDLEY_CHECK_LE(inputs.num_rows(), desc_.max_rows);
  MEDLEY_CHECK_LE(inputs.num_logit_rows(), desc_.max_seqs);
  num_rows_ = inputs.num_rows();
  num_logit_rows_ = inputs.num_logit_rows();
  has_lora_ = std::ranges::any_of(inputs.adapter_of_row, [](int32_t slot) { return slot >= 0; });

  const int staging = next_staging_;
  next_staging_ = (next_staging_ + 1) % kStagings;
  copied_[staging]->wait();
  Carver carver(stagings_[staging]->data());
  StepArrays arrays = carve(carver, desc_);
  *arrays.num_rows = num_rows_;
  std::ranges::copy(inputs.adapter_of_row, arrays.adapter_of_row);
  std::vector<int32_t> all_rows(num_rows_);
  std::iota(all_rows.begin(), all_rows.end(), 0);
  group_rows(all_rows, inputs.adapter_of_row, arrays.rows);
  group_rows(inputs.logit_rows, inputs.adapter_of_row, arrays.logit_rows);
  MEDLEY_CUDA_CHECK(cudaMemcpyAsync(device_.data(), stagings_[staging]->data(), device_.num_bytes(),
                                    cudaMemcpyHostToDevice, cuda_stream(stream)));
  copied_[staging]->record(stream);
}

}  // namespace medley::cuda
