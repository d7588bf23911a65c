// Times the dense projections of GPT-OSS 20B for few rows. Copies of the weight that together
// exceed the L2 take turns, as nodes of one graph.
//
// Usage: bench_linear

#include <fmt/format.h>

#include <algorithm>
#include <random>

#include "cuda/check.h"
#include "cuda/cuda_backend.h"
#include "cuda/packed_weights.h"
#include "cuda/stream.h"

namespace medley::bench {
namespace {

constexpr int kReplays = 30;
constexpr double kRoofline = 4.2e12;
constexpr double kBytesInTurn = 400e6;

struct Projection {
  const char* name;
  int out_size;
  int in_size;
};

std::unique_ptr<PackedWeight> random_weight(const Projection& projection) {
  auto packed = std::make_unique<cuda::CudaMatrices>();
  packed->layout =
      cuda::make_matrix_layout(cuda::StreamFormat::kBF16, projection.out_size, projection.in_size);
  packed->num_experts = 1;
  packed->in_size = projection.in_size;
  packed->out_size = projection.out_size;
  std::mt19937 engine(3);
  std::normal_distribution<float> normal(0.0f, 0.02f);
  std::vector<uint16_t> pool(1 << 20);
  for (uint16_t& value : pool) value = float_to_bf16(normal(engine));
  const size_t bytes = packed->layout.matrix_bytes();
  packed->weights = cuda::DeviceBuffer::allocate(bytes).value();
  for (size_t at = 0; at < bytes; at += pool.size() * 2) {
    packed->weights.copy_from_host(pool.data(), std::min(bytes - at, pool.size() * 2), at);
  }
  return packed;
}

std::unique_ptr<Step> make_step(Backend& backend, int rows, Stream& stream) {
  auto step = backend.make_step({.max_rows = rows, .max_seqs = rows, .max_pages = 1}).value();
  const std::vector<int32_t> zeros(rows, 0);
  const std::vector<int32_t> base(rows, kNoAdapter);
  const std::vector<int32_t> indptr = {0, rows};
  const std::vector<int32_t> lens = {rows};
  const std::vector<int32_t> page_indptr = {0, 1};
  const std::vector<int32_t> zero = {0};
  step->update({.token_ids = zeros,
                .positions = zeros,
                .seq_of_row = zeros,
                .adapter_of_row = base,
                .q_indptr = indptr,
                .kv_lens = lens,
                .page_indptr = page_indptr,
                .page_ids = zero,
                .sampler_slots = zero},
               stream);
  return step;
}

void time_projection(Backend& backend, const Projection& projection) {
  cuda::CudaStream stream;
  const double bytes = 2.0 * projection.out_size * projection.in_size;
  const int copies = std::max(2, static_cast<int>(kBytesInTurn / bytes));
  std::vector<std::unique_ptr<PackedWeight>> weights;
  for (int i = 0; i < copies; ++i) weights.push_back(random_weight(projection));
  const auto op =
      backend.plan(LinearDesc{.in_size = projection.in_size, .out_sizes = {projection.out_size}})
          .value();
  for (const int rows : {1, 2, 4, 8, 16, 32, 64}) {
    const auto step = make_step(backend, rows, stream);
    const auto x = backend.allocate(size_t{2} * rows * projection.in_size).value();
    const auto out = backend.allocate(size_t{2} * rows * projection.out_size).value();
    MEDLEY_CUDA_CHECK(cudaMemset(x->data(), 0x3c, x->num_bytes()));
    const auto run_all = [&] {
      for (const auto& weight : weights) {
        op->run({.x = {x->data(), DType::kBF16, {rows, projection.in_size}},
                 .weight = weight.get(),
                 .out = {out->data(), DType::kBF16, {rows, projection.out_size}}},
                *step, stream);
      }
    };
    run_all();
    cuda::CudaGraph graph(stream, run_all);
    std::vector<float> times;
    cuda::CudaEvent begin, end;
    for (int i = 0; i < kReplays; ++i) {
      begin.record(stream);
      graph.launch(stream);
      end.record(stream);
      MEDLEY_CHECK(end.wait().ok(), "the device has failed");
      float ms = 0.0f;
      MEDLEY_CUDA_CHECK(cudaEventElapsedTime(&ms, begin.get(), end.get()));
      times.push_back(ms * 1000.0f / static_cast<float>(copies));
    }
    std::sort(times.begin(), times.end());
    const double us = times[times.size() / 2];
    fmt::print(
        "{:8} {:6} x {:4}, {:2} rows: {:7.2f} us, {:6.1f} MB, {:5.0f} GB/s, {:3.0f} % of "
        "roofline\n",
        projection.name, projection.out_size, projection.in_size, rows, us, bytes * 1e-6,
        bytes / us * 1e-3, 100.0 * bytes / us * 1e6 / kRoofline);
  }
}

}  // namespace
}  // namespace medley::bench

int main() {
  const auto backend = medley::make_cuda_backend().value();
  for (const auto& projection :
       {medley::bench::Projection{"qkv", 5120, 2880}, medley::bench::Projection{"o", 2880, 4096},
        medley::bench::Projection{"lm_head", 201088, 2880}}) {
    medley::bench::time_projection(*backend, projection);
  }
}
