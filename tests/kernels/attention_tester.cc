#include "attention_tester.h"

#include <algorithm>
#include <numeric>

#include "cuda/memory.h"
#include "slow_copy.h"

namespace medley::testing {
namespace {

constexpr uint32_t kSinkSeed = 5;
constexpr float kSinkScale = 2.0f;

int num_pages_of(int tokens) { return (tokens + kTestPageSize - 1) / kTestPageSize; }

}  // namespace

TestStepInputs::TestStepInputs(const std::vector<TestSequence>& sequences, int max_seqs,
                               int max_len) {
  const int pages_each = num_pages_of(max_len);
  std::vector<int32_t> shuffled(static_cast<size_t>(max_seqs) * pages_each);
  std::iota(shuffled.begin(), shuffled.end(), 0);
  std::shuffle(shuffled.begin(), shuffled.end(), std::mt19937(9));
  q_indptr_ = page_indptr_ = {0};
  for (size_t s = 0; s < sequences.size(); ++s) {
    const auto [rows, len, chosen_id] = sequences[s];
    const auto id = chosen_id < 0 ? static_cast<int64_t>(s) : chosen_id;
    for (int position = len - rows; position < len; ++position) {
      positions_.push_back(position);
      seq_of_row_.push_back(static_cast<int32_t>(s));
    }
    const auto first = shuffled.begin() + id * pages_each;
    page_ids_.insert(page_ids_.end(), first, first + num_pages_of(len));
    page_indptr_.push_back(static_cast<int32_t>(page_ids_.size()));
    q_indptr_.push_back(num_rows());
    kv_lens_.push_back(len);
    slots_.push_back(static_cast<int32_t>(s));
  }
  token_ids_.assign(num_rows(), 0);
  adapter_of_row_.assign(num_rows(), kNoAdapter);
}

StepInputs TestStepInputs::inputs() const {
  return {.token_ids = token_ids_,
          .positions = positions_,
          .seq_of_row = seq_of_row_,
          .adapter_of_row = adapter_of_row_,
          .q_indptr = q_indptr_,
          .kv_lens = kv_lens_,
          .page_indptr = page_indptr_,
          .page_ids = page_ids_,
          .sampler_slots = slots_};
}

AttentionTester::AttentionTester(Side& side, const AttentionShapeCase& shape, int max_seqs,
                                 int max_rows, int max_len)
    : side_(side), shape_(shape), max_seqs_(max_seqs), max_rows_(max_rows), max_len_(max_len) {
  const AttentionSpec& spec = shape.spec;
  Backend& backend = side.backend();
  // The second of two layers, so that an op that reads the first fails.
  kv_ = backend
            .make_kv_cache({.num_layers = 2,
                            .num_pages = max_seqs * num_pages_of(max_len),
                            .page_size = kTestPageSize,
                            .num_kv_heads = spec.num_kv_heads,
                            .head_dim = spec.head_dim})
            .value();
  append_ = backend
                .plan(QkNormRopeAppendDesc{
                    .attention = spec, .max_position = max_len, .rope_enabled = false, .layer = 1})
                .value();
  attention_ =
      backend.plan(AttentionDesc{.attention = spec, .window = shape.window, .layer = 1}).value();
  step_ = backend
              .make_step({.max_rows = max_rows,
                          .max_seqs = max_seqs,
                          .max_pages = max_seqs * num_pages_of(max_len)})
              .value();
  if (spec.sinks) {
    const std::vector<float> sinks = random_values(spec.num_heads, kSinkSeed, kSinkScale);
    sinks_ = backend
                 .pack_vector({.dtype = DType::kF32,
                               .data = sinks.data(),
                               .size = static_cast<int64_t>(sinks.size())})
                 .value();
  }
  source_ = side.empty(DType::kBF16, {max_rows, columns()});
  qkv_ = side.empty(DType::kBF16, {max_rows, columns()});
  out_ = side.empty(DType::kBF16, {max_rows, spec.num_heads * spec.head_dim});
}

int64_t AttentionTester::columns() const {
  return static_cast<int64_t>(shape_.spec.num_heads + 2 * shape_.spec.num_kv_heads) *
         shape_.spec.head_dim;
}

std::vector<float> AttentionTester::rows_of(const std::vector<TestSequence>& sequences) const {
  std::vector<float> out;
  for (size_t s = 0; s < sequences.size(); ++s) {
    for (int p = sequences[s].kv_len - sequences[s].num_rows; p < sequences[s].kv_len; ++p) {
      const auto id = sequences[s].id < 0 ? s : static_cast<size_t>(sequences[s].id);
      const auto seed = static_cast<uint32_t>(1000003 * (id + 1) + p);
      const std::vector<float> row = random_values(columns(), seed, 1.5f);
      out.insert(out.end(), row.begin(), row.end());
    }
  }
  return out;
}

void AttentionTester::write(const TensorView& view, const std::vector<float>& values) {
  side_.stream().synchronize();
  std::vector<uint16_t> rounded(values.size());
  std::ranges::transform(values, rounded.begin(), float_to_bf16);
  const size_t bytes = rounded.size() * sizeof(uint16_t);
  if (side_.is_cuda()) {
    cuda::copy_to_device(view.data, rounded.data(), bytes);
  } else {
    std::memcpy(view.data, rounded.data(), bytes);
  }
}

void AttentionTester::fill(const std::vector<TestSequence>& sequences) {
  for (size_t s = 0; s < sequences.size(); ++s) {
    const int end = sequences[s].kv_len - sequences[s].num_rows;
    for (int done = 0; done < end;) {
      const int rows = std::min(max_rows_, end - done);
      done += rows;
      set_step({{.num_rows = rows, .kv_len = done, .id = static_cast<int>(s)}});
      append_->run({.qkv = qkv_, .kv = kv_.get()}, *step_, side_.stream());
    }
  }
}

void AttentionTester::set_step(const std::vector<TestSequence>& sequences) {
  const TestStepInputs step(sequences, max_seqs_, max_len_);
  write(source_, rows_of(sequences));
  write(qkv_, rows_of(sequences));
  step_->update(step.inputs(), side_.stream());
}

void AttentionTester::enqueue() {
  if (slow_ && side_.is_cuda()) {
    const int64_t bytes = step_->num_rows() * columns() * size_of(DType::kBF16);
    MEDLEY_CUDA_CHECK(cudaMemsetAsync(qkv_.data, 0xff, bytes, cuda::cuda_stream(side_.stream())));
    launch_slow_copy(qkv_.data, source_.data, bytes, cuda::cuda_stream(side_.stream()));
  }
  append_->run({.qkv = qkv_, .kv = kv_.get()}, *step_, side_.stream());
  attention_->run({.qkv = qkv_, .kv = kv_.get(), .sinks = sinks_.get(), .out = out_}, *step_,
                  side_.stream());
}

std::vector<float> AttentionTester::results(bool all) {
  std::vector<float> out = side_.download(out_);
  if (!all) {
    out.resize(static_cast<size_t>(step_->num_rows()) * shape_.spec.num_heads *
               shape_.spec.head_dim);
  }
  return out;
}

void AttentionTester::poison_results() {
  const std::vector<float> nan(out_.shape.num_elements(), std::nanf(""));
  write(out_, nan);
}

std::vector<float> AttentionTester::run(const std::vector<TestSequence>& sequences) {
  set_step(sequences);
  enqueue();
  return results();
}

}  // namespace medley::testing
