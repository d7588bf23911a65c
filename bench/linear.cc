// Times dense projections for few rows beside cuBLASLt's fastest algorithm, on the same values.
// Copies of the weight that together exceed the L2 take turns, as nodes of one graph: alone, and
// each behind an add_norm that writes its input, as in a layer. Some also with adapters, which
// cuBLASLt does not know.
//
// Usage: bench_linear [NAME ...]     (default: all)
// Ends with 1 where the two differ by more than their rounding.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "cublas_lt.h"
#include "cuda/check.h"
#include "cuda/cuda_backend.h"
#include "cuda/memory.h"
#include "cuda/stream.h"
#include "graph_timer.h"

namespace medley::bench {
namespace {

constexpr int kMaxRows = 64;
constexpr int kReplays = 21;
constexpr int kRuns = 3;
constexpr double kRoofline = 4.2e12;
constexpr double kBytesInTurn = 400e6;
constexpr double kTolerance = 0.02;  // of the largest output

constexpr int kAdapters = 8;
constexpr int kRank = 32;

struct Projection {
  std::string name;
  int out_size;
  int in_size;
  bool logits = false;
  bool behind_norm = true;           // as in the model
  std::vector<int> lora_parts = {};  // the rows of each B; none: not timed with adapters
};
const Projection kProjections[] = {
    {"gpt-oss-20b qkv", 5120, 2880, false, true, /*lora_parts=*/{4096, 512, 512}},
    {"gpt-oss-20b o", 2880, 4096, false, true, /*lora_parts=*/{2880}},
    {"qwen3-32b qkv", 10240, 5120},
    {"qwen3-32b o", 5120, 8192},
    {"qwen3-32b gate_up", 51200, 5120},
    {"qwen3-32b down", 5120, 25600, /*logits=*/false, /*behind_norm=*/false},
    {"gpt-oss-20b lm_head", 201088, 2880, /*logits=*/true},
};

// Medians of several runs.
struct Times {
  double median = 0.0;
  double low = 0.0;
  double high = 0.0;
};

// A projection's weights on the device in both layouts, and what both libraries need to run it.
class Bench {
 public:
  Bench(Backend& backend, std::optional<CublasLt>& cublas, const Projection& projection)
      : backend_(backend), cublas_(cublas), p_(projection) {
    std::mt19937 engine(3);
    std::normal_distribution<float> normal(0.0f, 0.02f);
    std::vector<uint16_t> pool((1 << 20) - 3);
    for (uint16_t& value : pool) value = float_to_bf16(normal(engine));
    std::vector<uint16_t> values(static_cast<size_t>(p_.out_size) * p_.in_size);
    for (size_t at = 0; at < values.size(); at += pool.size()) {
      const size_t count = std::min(pool.size(), values.size() - at);
      std::memcpy(values.data() + at, pool.data(), count * sizeof(uint16_t));
    }
    const MatrixView view = {
        .data = values.data(), .rows = p_.out_size, .cols = p_.in_size, .row_stride = p_.in_size};
    const int copies = std::max(2, static_cast<int>(kBytesInTurn / weight_bytes()));
    for (int i = 0; i < copies; ++i) {
      packed_.push_back(backend.pack_linear({.parts = {view}}).value());
      plain_.push_back(cuda::DeviceBuffer::allocate(values.size() * 2).value());
      plain_.back().copy_from_host(values.data(), values.size() * 2);
    }
    residual_ = random_rows(5);
    x_ = random_rows(6);
    const std::vector<float> ones(p_.in_size, 1.0f);
    norm_ = backend
                .pack_vector({.dtype = DType::kF32,
                              .data = ones.data(),
                              .size = static_cast<int64_t>(ones.size())})
                .value();
    const size_t out_bytes = size_t{4} * kMaxRows * p_.out_size;
    out_ = cuda::DeviceBuffer::allocate(out_bytes).value();
    cublas_out_ = cuda::DeviceBuffer::allocate(out_bytes).value();
    if (p_.logits) {
      head_ =
          backend.plan(LmHeadDesc{.hidden_size = p_.in_size, .vocab_size = p_.out_size}).value();
    } else {
      linear_ = backend.plan(LinearDesc{.in_size = p_.in_size, .out_sizes = {p_.out_size}}).value();
    }
    if (!p_.lora_parts.empty()) make_adapters(pool);
    if (p_.behind_norm) {
      add_norm_ = backend.plan(AddNormDesc{.hidden_size = p_.in_size}).value();
    }
  }

  double weight_bytes() const { return 2.0 * p_.out_size * p_.in_size; }

  // False where the two results differ.
  bool time_rows(int rows) {
    make_step(rows);
    std::vector<CublasLt::Arrays> arrays;
    for (cuda::DeviceBuffer& w : plain_)
      arrays.push_back({w.data(), x_.data(), cublas_out_.data()});
    const auto ours = [&](bool behind_norm) {
      for (const auto& weight : packed_) {
        if (behind_norm) run_norm(rows);
        run_ours(rows, weight.get());
      }
    };
    const auto theirs = [&](bool behind_norm) {
      for (const auto& each : arrays) {
        if (behind_norm) run_norm(rows);
        cublas_->run(each, stream_.get());
      }
    };
    const auto report = [&](const auto& work) {
      const auto text = [](const Times& t) {
        return fmt::format("{:6.2f} us ({:.2f}-{:.2f})", t.median, t.low, t.high);
      };
      const Times alone = time([&] { work(false); });
      std::string out = fmt::format("{}, {:4.0f} GB/s, {:3.0f} % of roofline", text(alone),
                                    weight_bytes() / alone.median * 1e-3,
                                    100.0 * weight_bytes() / alone.median * 1e6 / kRoofline);
      if (p_.behind_norm) out += "; behind add_norm " + text(time([&] { work(true); }));
      return out;
    };
    std::string line = fmt::format("{:20} {:6} x {:5}, {:2} rows: {}", p_.name, p_.out_size,
                                   p_.in_size, rows, report(ours));
    double difference = 0.0;
    if (cublas_ && cublas_->choose({rows, p_.out_size, p_.in_size}, arrays, stream_.get())) {
      line += " | cuBLASLt " + report(theirs);
      difference = largest_difference(rows);
      line += fmt::format(" | outputs differ by {:.4f} of the largest", difference);
    }
    fmt::print("{}\n", line);
    if (!p_.lora_parts.empty()) {
      make_step(rows, kAdapters);
      fmt::print("{:20} {:6} x {:5}, {:2} rows, {} adapters of rank {}: {}\n", p_.name, p_.out_size,
                 p_.in_size, rows, kAdapters, kRank, report([&](bool behind_norm) {
                   for (size_t layer = 0; layer < packed_.size(); ++layer) {
                     if (behind_norm) run_norm(rows);
                     run_linear(*with_lora_[layer], rows, packed_[layer].get());
                   }
                 }));
    }
    std::fflush(stdout);
    return difference <= kTolerance;
  }

 private:
  // A layer for each copy of the weight, so that A and B come from memory as the weight does. The
  // matrices begin at different places of `values`.
  void make_adapters(const std::vector<uint16_t>& values) {
    const int layers = static_cast<int>(packed_.size());
    MEDLEY_CHECK(backend_.make_lora_table({.max_slots = kAdapters, .num_layers = layers}).ok());
    for (int layer = 0; layer < layers; ++layer) {
      with_lora_.push_back(backend_
                               .plan(LinearDesc{.in_size = p_.in_size,
                                                .out_sizes = p_.lora_parts,
                                                .lora = LoraSite{LoraModule::kQkv, layer}})
                               .value());
    }
    for (int slot = 0; slot < kAdapters; ++slot) {
      std::vector<LoraModuleWeights> modules;
      for (int layer = 0; layer < layers; ++layer) {
        modules.push_back({.site = {LoraModule::kQkv, layer}});
        int64_t begin = 0;
        for (const int part : p_.lora_parts) {
          const uint16_t* from = values.data() + (slot * layers + layer) * 1000;
          modules.back().pairs.push_back(
              {.row_begin = begin,
               .row_end = begin + part,
               .rank = kRank,
               .a = {{.data = from, .rows = kRank, .cols = p_.in_size, .row_stride = p_.in_size}},
               .b = {{.data = from, .rows = part, .cols = kRank, .row_stride = kRank}},
               .scale = std::vector<float>(kRank, 1.0f)});
          begin += part;
        }
      }
      adapters_.push_back(backend_.pack_adapter(modules).value());
      on_device_.push_back(backend_.upload_adapter(*adapters_.back()).value());
      backend_.set_adapter(slot, *on_device_.back(), stream_);
    }
  }

  cuda::DeviceBuffer random_rows(uint32_t seed) const {
    std::mt19937 engine(seed);
    std::normal_distribution<float> normal;
    std::vector<uint16_t> values(static_cast<size_t>(kMaxRows) * p_.in_size);
    for (uint16_t& value : values) value = float_to_bf16(normal(engine));
    cuda::DeviceBuffer buffer = cuda::DeviceBuffer::allocate(values.size() * 2).value();
    buffer.copy_from_host(values.data(), values.size() * 2);
    return buffer;
  }

  // Row i has the i-th of the adapters, which take turns; of the base model without any.
  void make_step(int rows, int adapters = 0) {
    step_ = backend_.make_step({.max_rows = rows, .max_seqs = rows, .max_pages = rows}).value();
    const std::vector<int32_t> zeros(rows, 0);
    const std::vector<int32_t> ones(rows, 1);
    std::vector<int32_t> adapter_of_row(rows, kNoAdapter);
    for (int i = 0; adapters > 0 && i < rows; ++i) adapter_of_row[i] = i % adapters;
    std::vector<int32_t> each(rows + 1);
    for (int i = 0; i <= rows; ++i) each[i] = i;
    const std::span<const int32_t> first(each.data(), rows);
    step_->update({.token_ids = zeros,
                   .positions = zeros,
                   .seq_of_row = first,
                   .adapter_of_row = adapter_of_row,
                   .q_indptr = each,
                   .kv_lens = ones,
                   .page_indptr = each,
                   .page_ids = first,
                   .sampler_slots = first,
                   .logit_rows = first,
                   .logit_seqs = first},
                  stream_);
    stream_.synchronize();
  }

  TensorView rows_of(cuda::DeviceBuffer& buffer, DType dtype, int rows, int cols) const {
    return {buffer.data(), dtype, {rows, cols}};
  }
  void run_norm(int rows) {
    add_norm_->run({.residual = rows_of(residual_, DType::kBF16, rows, p_.in_size),
                    .norm = norm_.get(),
                    .out = rows_of(x_, DType::kBF16, rows, p_.in_size)},
                   *step_, stream_);
  }
  void run_ours(int rows, const PackedWeight* weight) {
    const TensorView x = rows_of(x_, DType::kBF16, rows, p_.in_size);
    if (p_.logits) {
      head_->run(
          {.x = x, .weight = weight, .logits = rows_of(out_, DType::kF32, rows, p_.out_size)},
          *step_, stream_);
    } else {
      run_linear(*linear_, rows, weight);
    }
  }
  void run_linear(Linear& linear, int rows, const PackedWeight* weight) {
    linear.run({.x = rows_of(x_, DType::kBF16, rows, p_.in_size),
                .weight = weight,
                .out = rows_of(out_, DType::kBF16, rows, p_.out_size)},
               *step_, stream_);
  }

  // Microseconds a projection.
  template <class Work>
  Times time(const Work& work) {
    work();
    cuda::CudaGraph graph(stream_, work);
    std::vector<double> medians;
    for (int run = 0; run < kRuns; ++run) {
      std::vector<float> times;
      GraphTimer timer;
      for (int i = 0; i < kReplays; ++i) {
        times.push_back(timer.time_us(graph, stream_) / static_cast<float>(packed_.size()));
      }
      std::sort(times.begin(), times.end());
      medians.push_back(times[times.size() / 2]);
    }
    std::sort(medians.begin(), medians.end());
    return {.median = medians[kRuns / 2], .low = medians.front(), .high = medians.back()};
  }

  double largest_difference(int rows) {
    run_ours(rows, packed_.back().get());
    cublas_->run({plain_.back().data(), x_.data(), cublas_out_.data()}, stream_.get());
    stream_.synchronize();
    const size_t count = static_cast<size_t>(rows) * p_.out_size;
    std::vector<uint16_t> theirs(count);
    MEDLEY_CUDA_CHECK(
        cudaMemcpy(theirs.data(), cublas_out_.data(), count * 2, cudaMemcpyDeviceToHost));
    std::vector<float> logits(p_.logits ? count : 0);
    std::vector<uint16_t> outputs(p_.logits ? 0 : count);
    MEDLEY_CUDA_CHECK(
        p_.logits ? cudaMemcpy(logits.data(), out_.data(), count * 4, cudaMemcpyDeviceToHost)
                  : cudaMemcpy(outputs.data(), out_.data(), count * 2, cudaMemcpyDeviceToHost));
    double difference = 0.0;
    double largest = 0.0;
    for (size_t i = 0; i < count; ++i) {
      const double found = p_.logits ? logits[i] : bf16_to_float(outputs[i]);
      const double reference = bf16_to_float(theirs[i]);
      if (!std::isfinite(found)) return std::numeric_limits<double>::infinity();
      difference = std::max(difference, std::abs(found - reference));
      largest = std::max(largest, std::abs(reference));
    }
    return largest > 0.0 ? difference / largest : std::numeric_limits<double>::infinity();
  }

  Backend& backend_;
  std::optional<CublasLt>& cublas_;
  const Projection p_;
  cuda::CudaStream stream_;
  std::vector<std::unique_ptr<PackedWeight>> packed_;
  std::vector<cuda::DeviceBuffer> plain_;
  cuda::DeviceBuffer residual_, x_, out_, cublas_out_;
  std::unique_ptr<PackedWeight> norm_;
  std::unique_ptr<Linear> linear_;
  std::vector<std::unique_ptr<Linear>> with_lora_;  // by layer
  std::vector<std::unique_ptr<PackedAdapter>> adapters_;
  std::vector<std::unique_ptr<DeviceAdapter>> on_device_;
  std::unique_ptr<LmHead> head_;
  std::unique_ptr<AddNorm> add_norm_;
  std::unique_ptr<Step> step_;
};

}  // namespace
}  // namespace medley::bench

int main(int argc, char** argv) {
  using namespace medley::bench;
  const std::vector<std::string> names(argv + 1, argv + argc);
  std::optional<CublasLt> cublas = CublasLt::open();
  fmt::print("{}; cuBLASLt {}\n", medley::make_cuda_backend().value()->name(),
             cublas ? cublas->version() : "not found");
  bool equal = true;
  for (const Projection& projection : kProjections) {
    const auto wanted = [&](const std::string& name) {
      return projection.name.find(name) != std::string::npos;
    };
    if (!names.empty() && std::ranges::none_of(names, wanted)) continue;
    const auto backend = medley::make_cuda_backend().value();
    Bench bench(*backend, cublas, projection);
    for (const int rows : {1, 2, 4, 8, 16, 32, 64}) equal &= bench.time_rows(rows);
  }
  return equal ? 0 : 1;
}
