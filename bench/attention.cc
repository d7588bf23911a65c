// Times attention, and the rotary embedding with the append before it, over paged keys and values
// that exceed the L2: the layers of a model take turns, as nodes of one graph for decode steps.
//
// Usage: bench_attention [decode|prefill|plan ...]     (all)
// Decode lines count the bytes of visible keys and values; prefill lines the operations of visible
// (query, key) pairs; "plan" is the host's time for CudaStep::update with and without planners.

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <functional>
#include <numeric>
#include <random>

#include "cuda/check.h"
#include "cuda/cuda_backend.h"
#include "cuda/memory.h"
#include "cuda/stream.h"
#include "graph_timer.h"

namespace medley::bench {
namespace {

constexpr int kReplays = 30;
constexpr int kPageSize = 16;
constexpr double kRoofline = 4.2e12;

struct ModelShape {
  const char* name;
  AttentionSpec spec;
  RopeSpec rope;
  int num_layers = 0;

  int64_t columns() const {
    return static_cast<int64_t>(spec.num_heads + 2 * spec.num_kv_heads) * spec.head_dim;
  }
};

ModelShape gpt_oss_20b() {
  return {
      .name = "gpt-oss-20b",
      .spec = {.num_heads = 64, .num_kv_heads = 8, .head_dim = 64, .scale = 0.125f, .sinks = true},
      .rope = {.theta = 150000.0, .rotary_dim = 64},
      .num_layers = 24};
}
ModelShape qwen3_30b_a3b() {
  return {.name = "qwen3-30b-a3b",
          .spec = {.num_heads = 32,
                   .num_kv_heads = 4,
                   .head_dim = 128,
                   .scale = 0.0883883f,
                   .qk_norm = true},
          .rope = {.theta = 1e6, .rotary_dim = 128},
          .num_layers = 24};
}

std::vector<float> random_floats(int64_t count, uint32_t seed) {
  std::mt19937 engine(seed);
  std::normal_distribution<float> normal;
  std::vector<float> out(count);
  for (float& value : out) value = normal(engine);
  return out;
}

// `batch` sequences of `context` tokens, of which the last `rows` are the step's.
class Sequences {
 public:
  Sequences(int batch, int rows, int context, int first_seq = 0) {
    const int pages = (context + kPageSize - 1) / kPageSize;
    for (int s = 0; s < batch; ++s) {
      for (int i = 0; i < rows; ++i) {
        positions_.push_back(context - rows + i);
        seq_of_row_.push_back(s);
      }
      kv_lens_.push_back(context);
      q_indptr_.push_back((s + 1) * rows);
      page_indptr_.push_back((s + 1) * pages);
      slots_.push_back(s);
      for (int p = 0; p < pages; ++p) page_ids_.push_back((first_seq + s) + p * max_batch());
    }
    zeros_.assign(positions_.size(), 0);
    base_.assign(positions_.size(), kNoAdapter);
  }
  // Pages of the sequences alternate, as they do when sequences grow together.
  static int max_batch() { return 64; }
  StepInputs inputs() const {
    return {.token_ids = zeros_,
            .positions = positions_,
            .seq_of_row = seq_of_row_,
            .adapter_of_row = base_,
            .q_indptr = q_indptr_,
            .kv_lens = kv_lens_,
            .page_indptr = page_indptr_,
            .page_ids = page_ids_,
            .sampler_slots = slots_};
  }

 private:
  std::vector<int32_t> zeros_, positions_, seq_of_row_, base_, kv_lens_, page_ids_, slots_;
  std::vector<int32_t> q_indptr_ = {0}, page_indptr_ = {0};
};

class AttentionBench {
 public:
  AttentionBench(const ModelShape& shape, int window, int max_rows, int max_context)
      : shape_(shape), window_(window), backend_(make_cuda_backend().value()) {
    const int pages = Sequences::max_batch() * ((max_context + kPageSize - 1) / kPageSize);
    kv_ = backend_
              ->make_kv_cache({.num_layers = shape.num_layers,
                               .num_pages = pages,
                               .page_size = kPageSize,
                               .num_kv_heads = shape.spec.num_kv_heads,
                               .head_dim = shape.spec.head_dim})
              .value();
    for (int l = 0; l < shape.num_layers; ++l) {
      attention_.push_back(
          backend_->plan(AttentionDesc{.attention = shape.spec, .window = window, .layer = l})
              .value());
      append_.push_back(backend_
                            ->plan(QkNormRopeAppendDesc{.attention = shape.spec,
                                                        .rope = shape.rope,
                                                        .max_position = max_context,
                                                        .layer = l})
                            .value());
    }
    step_ = backend_
                ->make_step(
                    {.max_rows = max_rows, .max_seqs = Sequences::max_batch(), .max_pages = pages})
                .value();
    sinks_ = pack(random_floats(shape.spec.num_heads, 1));
    norm_ = pack(std::vector<float>(shape.spec.head_dim, 1.0f));
    const std::vector<float> values = random_floats(max_rows * shape.columns(), 2);
    std::vector<uint16_t> rounded(values.size());
    std::ranges::transform(values, rounded.begin(), float_to_bf16);
    const size_t bytes = rounded.size() * 2;
    qkv_ = backend_->allocate(bytes).value();
    cuda::copy_to_device(qkv_->data(), rounded.data(), bytes);
    const auto out_size = static_cast<int64_t>(shape.spec.num_heads) * shape.spec.head_dim;
    out_ = backend_->allocate(max_rows * out_size * 2).value();
    qkv_view_ = {qkv_->data(), DType::kBF16, {max_rows, shape.columns()}};
    out_view_ = {out_->data(), DType::kBF16, {max_rows, out_size}};
    for (int s = 0; s < Sequences::max_batch(); ++s) {
      for (int done = 0; done < max_context;) {
        const int rows = std::min(max_rows, max_context - done);
        done += rows;
        set_step(Sequences(1, rows, done, s));
        for (int l = 0; l < shape_.num_layers; ++l) append(l);
      }
    }
    stream_.synchronize();
  }

  void set_step(const Sequences& sequences) { step_->update(sequences.inputs(), stream_); }
  void append(int layer) {
    append_[layer]->run(
        {.qkv = qkv_view_, .q_norm = norm_.get(), .k_norm = norm_.get(), .kv = kv_.get()}, *step_,
        stream_);
  }
  void attend(int layer) {
    attention_[layer]->run(
        {.qkv = qkv_view_, .kv = kv_.get(), .sinks = sinks_.get(), .out = out_view_}, *step_,
        stream_);
  }

  // Median microseconds a layer. Replays of work that leaves the queries as they are must agree to
  // the bit.
  double time(bool repeats, const std::function<void(int)>& work) {
    const auto all = [&] {
      for (int l = 0; l < shape_.num_layers; ++l) work(l);
    };
    all();
    cuda::CudaGraph graph(stream_, all);
    std::vector<float> times;
    std::vector<uint16_t> first;
    GraphTimer timer;
    for (int i = 0; i < kReplays; ++i) {
      times.push_back(timer.time_us(graph, stream_) / static_cast<float>(shape_.num_layers));
      if (!repeats || i >= 3) continue;
      std::vector<uint16_t> out(step_->num_rows() * out_view_.shape[1]);
      MEDLEY_CUDA_CHECK(
          cudaMemcpy(out.data(), out_->data(), out.size() * 2, cudaMemcpyDeviceToHost));
      for (const uint16_t value : out) MEDLEY_CHECK(std::isfinite(bf16_to_float(value)));
      if (i == 0) first = out;
      MEDLEY_CHECK(first == out, "replays differ");
    }
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
  }

  double update_us(const Sequences& sequences) {
    std::vector<double> times;
    for (int i = 0; i < 200; ++i) {
      stream_.synchronize();
      const auto begin = std::chrono::steady_clock::now();
      set_step(sequences);
      const std::chrono::duration<double, std::micro> spent =
          std::chrono::steady_clock::now() - begin;
      times.push_back(spent.count());
    }
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
  }

  std::string device() const { return backend_->name(); }

 private:
  std::unique_ptr<PackedWeight> pack(const std::vector<float>& values) {
    return backend_
        ->pack_vector({.dtype = DType::kF32,
                       .data = values.data(),
                       .size = static_cast<int64_t>(values.size())})
        .value();
  }

  const ModelShape shape_;
  const int window_;
  std::unique_ptr<Backend> backend_;
  cuda::CudaStream stream_;
  std::unique_ptr<KvCache> kv_;
  std::unique_ptr<Step> step_;
  std::vector<std::unique_ptr<Attention>> attention_;
  std::vector<std::unique_ptr<QkNormRopeAppend>> append_;
  std::unique_ptr<PackedWeight> sinks_, norm_;
  std::unique_ptr<Buffer> qkv_, out_;
  TensorView qkv_view_, out_view_;
};

void decode(const ModelShape& shape, int window, int context) {
  AttentionBench bench(shape, window, /*max_rows=*/512, context);
  for (const int batch : {1, 8, 16, 32, 64}) {
    bench.set_step(Sequences(batch, 1, context));
    const double us = bench.time(/*repeats=*/true, [&](int l) { bench.attend(l); });
    const double both = bench.time(/*repeats=*/false, [&](int l) {
      bench.append(l);
      bench.attend(l);
    });
    const int keys = window > 0 ? std::min(window, context) : context;
    const double bytes = 2.0 * 2.0 * batch * keys * shape.spec.num_kv_heads * shape.spec.head_dim;
    fmt::print(
        "{:14} decode, batch {:2}, context {:5}, window {:3}: {:7.2f} us, {:6.1f} MB, {:5.0f} "
        "GB/s, {:3.0f} % of roofline; with rope and append {:7.2f} us\n",
        shape.name, batch, context, window, us, bytes * 1e-6, bytes / us * 1e-3,
        100.0 * bytes / us * 1e6 / kRoofline, both);
  }
}

void prefill(const ModelShape& shape, int window, int rows, int context) {
  ModelShape few = shape;
  few.num_layers = 2;
  AttentionBench bench(few, window, rows, context);
  bench.set_step(Sequences(1, rows, context));
  const double us = bench.time(/*repeats=*/true, [&](int l) { bench.attend(l); });
  const double append = bench.time(/*repeats=*/false, [&](int l) { bench.append(l); });
  double pairs = 0.0;
  for (int p = context - rows; p < context; ++p)
    pairs += window > 0 ? std::min(p + 1, window) : p + 1;
  const double operations = 4.0 * pairs * shape.spec.num_heads * shape.spec.head_dim;
  fmt::print(
      "{:14} prefill, {:5} rows of {:5}, window {:3}: {:8.2f} us, {:4.0f} TFLOP/s; rope and append "
      "{:6.2f} us\n",
      shape.name, rows, context, window, us, operations / us * 1e-6, append);
}

void plan(const ModelShape& shape) {
  AttentionBench bench(shape, 0, 64, 4096);
  const Sequences sequences(64, 1, 4096);
  const double with = bench.update_us(sequences);
  const auto bare = make_cuda_backend().value();
  cuda::CudaStream stream;
  const auto step =
      bare->make_step({.max_rows = 64, .max_seqs = 64, .max_pages = 64 * 256}).value();
  std::vector<double> times;
  for (int i = 0; i < 200; ++i) {
    stream.synchronize();
    const auto begin = std::chrono::steady_clock::now();
    step->update(sequences.inputs(), stream);
    const std::chrono::duration<double, std::micro> spent =
        std::chrono::steady_clock::now() - begin;
    times.push_back(spent.count());
  }
  std::sort(times.begin(), times.end());
  fmt::print("{:14} update, 64 sequences of 4096: {:6.1f} us, of which the plan {:6.1f} us\n",
             shape.name, with, with - times[times.size() / 2]);
}

int run(int argc, char** argv) {
  const auto wants = [&](const char* what) {
    return argc == 1 || std::any_of(argv + 1, argv + argc,
                                    [&](const char* arg) { return std::strcmp(arg, what) == 0; });
  };
  if (wants("decode")) {
    decode(gpt_oss_20b(), 0, 2048);
    decode(gpt_oss_20b(), 128, 2048);
    decode(qwen3_30b_a3b(), 0, 2048);
  }
  if (wants("prefill")) {
    for (const int window : {0, 128}) {
      prefill(gpt_oss_20b(), window, 1600, 1600);
      prefill(gpt_oss_20b(), window, 512, 4096);
      prefill(gpt_oss_20b(), window, 8192, 8192);
    }
    prefill(qwen3_30b_a3b(), 0, 1600, 1600);
  }
  if (wants("plan")) plan(gpt_oss_20b());
  return 0;
}

}  // namespace
}  // namespace medley::bench

int main(int argc, char** argv) { return medley::bench::run(argc, argv); }
