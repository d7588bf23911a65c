#include "cuda/attention_planner.h"

#include <algorithm>

#include "base/check.h"
#include "cuda/carver.h"

namespace medley::cuda {

AttentionPlanner::AttentionPlanner(const AttentionShape& shape, int num_sms)
    : shape_(shape),
      capacity_(decode_capacity(shape, prepare_decode_attention(shape.head_dim) * num_sms)) {
  prepare_prefill_attention(shape.head_dim);
}

AttentionPlanner::Layout AttentionPlanner::lay_out(const PlanMemory& memory) const {
  Layout layout;
  AttentionPlanArrays& arrays = layout.arrays;
  Carver decode(memory.decode);
  const int items = capacity_.max_items(capacity_.max_seqs);
  arrays.num_items = decode.take<int32_t>(1);
  arrays.seq_of_item = decode.take<int32_t>(items);
  arrays.tile_of_item = decode.take<int32_t>(items);
  arrays.chunk_of_item = decode.take<int32_t>(items);
  arrays.chunk_indptr = decode.take<int32_t>(capacity_.max_seqs + 1);
  arrays.page_indptr = decode.take<int32_t>(capacity_.max_seqs + 1);
  arrays.chunk_size = decode.take<int32_t>(1);
  Carver other(memory.other);
  const int tiles = max_prefill_items(shape_, max_rows_, capacity_.max_seqs);
  arrays.num_prefill_items = other.take<int32_t>(1);
  arrays.prefill_seq = other.take<int32_t>(tiles);
  arrays.prefill_tile = other.take<int32_t>(tiles);
  arrays.prefill_chunk = other.take<int32_t>(tiles);
  layout.num_bytes = {.decode = decode.num_bytes(), .other = other.num_bytes()};
  return layout;
}

Result<void> AttentionPlanner::reserve(const StepDesc& desc) {
  const int max_seqs = padded_rows(desc.max_seqs);  // a decode step's grid has all their items
  if (desc.max_rows <= max_rows_ && max_seqs <= capacity_.max_seqs) return {};
  max_rows_ = std::max(max_rows_, desc.max_rows);
  capacity_.max_seqs = std::max(capacity_.max_seqs, max_seqs);
  if (capacity_.is_whole()) return {};
  const size_t rows =
      static_cast<size_t>(capacity_.max_chunks(capacity_.max_seqs)) * shape_.num_heads;
  MEDLEY_TRY_ASSIGN(chunk_out_, DeviceBuffer::allocate(rows * shape_.head_dim * sizeof(float)));
  MEDLEY_TRY_ASSIGN(chunk_lse_, DeviceBuffer::allocate(rows * sizeof(float)));
  return {};
}

void AttentionPlanner::plan(const StepInputs& inputs, const PlanMemory& host,
                            const PlanMemory& device) {
  MEDLEY_CHECK_LE(inputs.num_rows(), max_rows_);
  AttentionPlanArrays arrays = lay_out(host).arrays;
  plan_decode(shape_, capacity_, inputs, arrays);
  plan_prefill(shape_, inputs, arrays);
  has_decode_ = *arrays.num_items > 0;
  num_prefill_items_ = *arrays.num_prefill_items;
  device_ = lay_out(device).arrays;
}

int AttentionPlanner::max_decode_items(const CudaStep& step) const {
  return capacity_.max_items(step.is_decode() ? step.launch_rows() : step.num_seqs());
}

AttentionItems AttentionPlanner::decode_items() const {
  return {.num_items = device_.num_items,
          .seq_of_item = device_.seq_of_item,
          .tile_of_item = device_.tile_of_item,
          .chunk_of_item = device_.chunk_of_item,
          .chunk_size = device_.chunk_size};
}

AttentionItems AttentionPlanner::prefill_items() const {
  return {.num_items = device_.num_prefill_items,
          .seq_of_item = device_.prefill_seq,
          .tile_of_item = device_.prefill_tile,
          .chunk_of_item = device_.prefill_chunk,
          .chunk_size = device_.chunk_size};
}

AttentionChunks AttentionPlanner::chunks() {
  return {.chunk_indptr = device_.chunk_indptr,
          .out = chunk_out_.as<float>(),
          .lse = chunk_lse_.as<float>()};
}

}  // namespace medley::cuda
