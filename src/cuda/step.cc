#include "cuda/step.h"

#include <algorithm>
#include <numeric>
#include <span>
#include <utility>

#include "cuda/carver.h"
#include "cuda/check.h"

namespace medley::cuda {
namespace {

constexpr int kFewRows = 8;    // padded to powers of two
constexpr int kSomeRows = 64;  // to multiples of 8
constexpr int kSomeStep = 8;
constexpr int kManyStep = 32;

int round_up(int value, int multiple) { return (value + multiple - 1) / multiple * multiple; }

// pair_of_choice has a place for every pair; expert weights and choices are not used.
RoutingView carve_rows(Carver& carver, int count) {
  return {.num_tiles = carver.take<int32_t>(1),
          .num_segments = carver.take<int32_t>(1),
          .tiles = carver.take<RouteTile>(count),
          .segments = carver.take<RouteSegment>(count),
          .row_of_pair = carver.take<int32_t>(count),
          .pair_of_choice = carver.take<int32_t>(count)};
}

StepArrays carve(Carver& carver, int rows, int seqs) {
  return {.num_rows = carver.take<int32_t>(1),
          .num_seqs = carver.take<int32_t>(1),
          .num_logit_rows = carver.take<int32_t>(1),
          .token_ids = carver.take<int32_t>(rows),
          .positions = carver.take<int32_t>(rows),
          .seq_of_row = carver.take<int32_t>(rows),
          .adapter_of_row = carver.take<int32_t>(rows),
          .q_indptr = carver.take<int32_t>(seqs + 1),
          .kv_lens = carver.take<int32_t>(seqs),
          .page_indptr = carver.take<int32_t>(seqs + 1),
          .sampler_slots = carver.take<int32_t>(seqs),
          .logit_rows = carver.take<int32_t>(seqs),
          .logit_seqs = carver.take<int32_t>(seqs),
          .logit_targets = carver.take<int32_t>(seqs),
          .rows = carve_rows(carver, rows),
          .selected = carve_rows(carver, seqs)};
}

using Planners = std::vector<std::unique_ptr<StepPlanner>>;

struct StepLayout {
  StepArrays any;
  StepArrays decode;
  std::vector<PlanMemory> plans;
  size_t decode_offset = 0;  // of what decode steps need, with the pages behind it
  size_t pages_offset = 0;
  size_t num_bytes = 0;
};

// One copy brings what a step needs:
//
//   any | plans' others | plans' for decode | decode | pages
//   |                   |------------------------------->      of a decode step
//   |--------------------------------------------------->      of any other
StepLayout lay_out(std::byte* base, const StepDesc& desc, const Planners& planners) {
  StepLayout layout;
  Carver carver(base);
  layout.any = carve(carver, desc.max_rows, desc.max_seqs);
  for (const auto& planner : planners) {
    layout.plans.push_back({.other = carver.take<std::byte>(planner->num_bytes().other)});
  }
  layout.decode_offset = carver.num_bytes();
  for (size_t i = 0; i < planners.size(); ++i) {
    layout.plans[i].decode = carver.take<std::byte>(planners[i]->num_bytes().decode);
  }
  layout.decode = carve(carver, std::min(desc.max_rows, desc.max_seqs), desc.max_seqs);
  layout.pages_offset = carver.num_bytes();
  layout.decode.page_ids = layout.any.page_ids = carver.take<int32_t>(desc.max_pages);
  layout.num_bytes = carver.num_bytes();
  return layout;
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

// `all_rows` counts up from 0.
void fill(const StepInputs& inputs, std::span<const int32_t> all_rows, StepArrays& arrays) {
  *arrays.num_rows = inputs.num_rows();
  *arrays.num_seqs = inputs.num_seqs();
  *arrays.num_logit_rows = inputs.num_logit_rows();
  std::ranges::copy(inputs.token_ids, arrays.token_ids);
  std::ranges::copy(inputs.positions, arrays.positions);
  std::ranges::copy(inputs.seq_of_row, arrays.seq_of_row);
  std::ranges::copy(inputs.adapter_of_row, arrays.adapter_of_row);
  std::ranges::copy(inputs.q_indptr, arrays.q_indptr);
  std::ranges::copy(inputs.kv_lens, arrays.kv_lens);
  std::ranges::copy(inputs.page_indptr, arrays.page_indptr);
  std::ranges::copy(inputs.page_ids, arrays.page_ids);
  std::ranges::copy(inputs.sampler_slots, arrays.sampler_slots);
  std::ranges::copy(inputs.logit_rows, arrays.logit_rows);
  std::ranges::copy(inputs.logit_seqs, arrays.logit_seqs);
  if (inputs.logit_targets.empty()) {
    std::fill_n(arrays.logit_targets, inputs.num_logit_rows(), kSampleToken);
  } else {
    std::ranges::copy(inputs.logit_targets, arrays.logit_targets);
  }
  group_rows(all_rows.first(inputs.num_rows()), inputs.adapter_of_row, arrays.rows);
  group_rows(inputs.logit_rows, inputs.adapter_of_row, arrays.selected);
}

}  // namespace

int padded_rows(int rows) {
  if (rows <= kFewRows) {
    int padded = 1;
    while (padded < rows) padded *= 2;
    return rows == 0 ? 0 : padded;
  }
  return round_up(rows, rows <= kSomeRows ? kSomeStep : kManyStep);
}

CudaStep::CudaStep(const StepDesc& desc, const std::vector<std::unique_ptr<StepPlanner>>& planners,
                   LoraTable& adapters)
    : desc_(desc), all_rows_(desc.max_rows), planners_(planners), adapters_(adapters) {
  std::iota(all_rows_.begin(), all_rows_.end(), 0);
  const size_t num_bytes = lay_out(nullptr, desc, planners).num_bytes;
  memory_ = DeviceBuffer::allocate(num_bytes).value();
  const StepLayout layout = lay_out(memory_.as<std::byte>(), desc, planners);
  decode_ = layout.decode;
  any_ = layout.any;
  plans_ = layout.plans;
  decode_offset_ = layout.decode_offset;
  pages_offset_ = layout.pages_offset;
  for (Staging& staging : stagings_) {
    staging.memory = std::make_unique<PinnedBuffer>(num_bytes);
    const StepLayout host = lay_out(staging.memory->data(), desc, planners);
    staging.decode = host.decode;
    staging.any = host.any;
    staging.plans = host.plans;
  }
}

std::optional<int> CudaStep::graph_key() const {
  if (!is_decode_ || num_rows_ == 0 || launch_logit_rows() != launch_rows()) return std::nullopt;
  return launch_rows() * 2 + (has_lora_ ? 1 : 0);
}

std::vector<int> CudaStep::graph_batches() const {
  const int most = std::min(desc_.max_rows, desc_.max_seqs);
  std::vector<int> batches;
  for (int rows = 1; rows <= most; ++rows) {
    if (padded_rows(rows) == rows || rows == most) batches.push_back(rows);
  }
  return batches;
}

void CudaStep::update(const StepInputs& inputs, Stream& stream) {
  MEDLEY_CHECK_LE(inputs.num_rows(), desc_.max_rows);
  MEDLEY_CHECK_LE(inputs.num_seqs(), desc_.max_seqs);
  MEDLEY_CHECK_LE(inputs.num_logit_rows(), desc_.max_seqs);
  MEDLEY_CHECK_LE(static_cast<int>(inputs.page_ids.size()), desc_.max_pages);
  num_rows_ = inputs.num_rows();
  num_seqs_ = inputs.num_seqs();
  num_logit_rows_ = inputs.num_logit_rows();
  has_lora_ = std::ranges::any_of(inputs.adapter_of_row, [](int32_t slot) { return slot >= 0; });
  is_decode_ = num_rows_ == num_seqs_;

  Staging& staging = stagings_[next_staging_];
  next_staging_ = (next_staging_ + 1) % kStagings;
  static_cast<void>(staging.copied.wait());  // a fault shows when the step is waited for
  fill(inputs, all_rows_, is_decode_ ? staging.decode : staging.any);
  MEDLEY_CHECK_EQ(planners_.size(), plans_.size());
  for (size_t i = 0; i < plans_.size(); ++i) {
    planners_[i]->plan(inputs, staging.plans[i], plans_[i]);
  }
  const size_t begin = is_decode_ ? decode_offset_ : 0;
  MEDLEY_CUDA_CHECK(cudaMemcpyAsync(memory_.as<std::byte>(begin), staging.memory->data() + begin,
                                    pages_offset_ + inputs.page_ids.size_bytes() - begin,
                                    cudaMemcpyHostToDevice, cuda_stream(stream)));
  staging.copied.record(stream);
  if (graph_key()) adapters_.wait_for_all();
}

}  // namespace medley::cuda
