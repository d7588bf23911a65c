#pragma once

#include <cmath>
#include <cstdint>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "cpu/cpu_backend.h"

// What the tests of this folder share. References are naive loops in double, straight from the
// definitions.
namespace medley::cpu {

using Floats = std::vector<float>;

inline Floats random_floats(int64_t count, uint32_t seed, float scale = 1.0f) {
  std::mt19937 engine(seed);
  Floats out(count);
  for (float& value : out) {
    value = (static_cast<float>(engine() >> 8) * 0x1p-23f - 1.0f) * scale;
  }
  return out;
}

inline Floats rounded(Floats values, DType dtype) {
  if (dtype == DType::kBF16) {
    for (float& value : values) value = bf16_to_float(float_to_bf16(value));
  }
  return values;
}

inline HostTensor tensor(DType dtype, Shape shape, const Floats& values = {}) {
  HostTensor out(dtype, shape);
  for (size_t i = 0; i < values.size(); ++i) {
    if (dtype == DType::kF32) {
      out.as<float>()[i] = values[i];
    } else {
      out.as<uint16_t>()[i] = float_to_bf16(values[i]);
    }
  }
  return out;
}

inline Floats values_of(const HostTensor& tensor) { return to_float(tensor.view()); }

inline MatrixView matrix(const Floats& values, int64_t rows, int64_t cols) {
  return {
      .dtype = DType::kF32, .data = values.data(), .rows = rows, .cols = cols, .row_stride = cols};
}

inline VectorView vector_view(const Floats& values) {
  return {.dtype = DType::kF32, .data = values.data(), .size = static_cast<int64_t>(values.size())};
}

// y[i] += sum over k of w(i, k) x[k].
inline void add_product(const Floats& w, const double* x, int64_t rows, int64_t cols, double* y) {
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t k = 0; k < cols; ++k) y[i] += static_cast<double>(w[i * cols + k]) * x[k];
  }
}

// Tolerances: float32 sums of a few hundred terms near 1, or one bfloat16 rounding more.
inline double tolerance(DType dtype, double value) {
  return dtype == DType::kF32 ? 2e-5 * (1 + std::abs(value)) : 0.01 * (1 + std::abs(value));
}

template <class Wanted>
void expect_close(const Floats& got, const std::vector<Wanted>& want, DType dtype) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_NEAR(got[i], want[i], tolerance(dtype, want[i])) << "element " << i;
  }
}

// One low-rank pair of a module, with its own storage: one A and B, or one per expert.
struct TestPair {
  TestPair(int64_t begin, int64_t end, int rank, int64_t in, uint32_t seed, int num_a = 1,
           int num_b = 1)
      : row_begin(begin), row_end(end), rank(rank), in(in), scale(random_floats(rank, seed, 2.0f)) {
    for (int i = 0; i < num_a; ++i) a.push_back(random_floats(rank * in, seed + 1 + i, 0.3f));
    for (int i = 0; i < num_b; ++i) {
      b.push_back(random_floats((end - begin) * rank, seed + 101 + i, 0.3f));
    }
  }

  LoraPair view() const {
    LoraPair out{.row_begin = row_begin, .row_end = row_end, .rank = rank, .scale = scale};
    for (const Floats& m : a) out.a.push_back(matrix(m, rank, in));
    for (const Floats& m : b) out.b.push_back(matrix(m, row_end - row_begin, rank));
    return out;
  }

  // y += B diag(scale) A x.
  void add_to(const double* x, int expert, double* y) const {
    std::vector<double> s(rank);
    add_product(a[a.size() == 1 ? 0 : expert], x, rank, in, s.data());
    for (int j = 0; j < rank; ++j) s[j] *= scale[j];
    add_product(b[b.size() == 1 ? 0 : expert], s.data(), row_end - row_begin, rank, y + row_begin);
  }

  int64_t row_begin, row_end;
  int rank;
  int64_t in;
  Floats scale;
  std::vector<Floats> a, b;
};

struct TestModule {
  LoraSite site;
  std::vector<TestPair> pairs;

  LoraModuleWeights view() const {
    LoraModuleWeights out{.site = site, .pairs = {}};
    for (const TestPair& pair : pairs) out.pairs.push_back(pair.view());
    return out;
  }
  void add_to(const double* x, int expert, double* y) const {
    for (const TestPair& pair : pairs) pair.add_to(x, expert, y);
  }
};

struct TestSequence {
  int num_rows = 1;
  int first_position = 0;
  int adapter = kNoAdapter;
  int first_page = 0;  // its pages are first_page, first_page + 1, ...
  int sampler_slot = 0;
  std::vector<int32_t> tokens = {};  // empty: token 0
};

// The host arrays of a step, whose last row of each sequence is sampled.
struct TestInputs {
  explicit TestInputs(std::span<const TestSequence> sequences, int page_size = 16) {
    for (const TestSequence& seq : sequences) {
      const int id = static_cast<int>(kv_lens.size());
      for (int i = 0; i < seq.num_rows; ++i) {
        token_ids.push_back(seq.tokens.empty() ? 0 : seq.tokens[i]);
        positions.push_back(seq.first_position + i);
        seq_of_row.push_back(id);
        adapter_of_row.push_back(seq.adapter);
      }
      q_indptr.push_back(static_cast<int32_t>(token_ids.size()));
      kv_lens.push_back(seq.first_position + seq.num_rows);
      for (int page = 0; page * page_size < kv_lens.back(); ++page) {
        page_ids.push_back(seq.first_page + page);
      }
      page_indptr.push_back(static_cast<int32_t>(page_ids.size()));
      sampler_slots.push_back(seq.sampler_slot);
      logit_rows.push_back(static_cast<int32_t>(token_ids.size()) - 1);
      logit_seqs.push_back(id);
    }
  }

  StepInputs view() const {
    return {.token_ids = token_ids,
            .positions = positions,
            .seq_of_row = seq_of_row,
            .adapter_of_row = adapter_of_row,
            .q_indptr = q_indptr,
            .kv_lens = kv_lens,
            .page_indptr = page_indptr,
            .page_ids = page_ids,
            .sampler_slots = sampler_slots,
            .logit_rows = logit_rows,
            .logit_seqs = logit_seqs};
  }

  std::vector<int32_t> token_ids, positions, seq_of_row, adapter_of_row,
      q_indptr = {0}, kv_lens, page_indptr = {0}, page_ids, sampler_slots, logit_rows, logit_seqs;
};

// One sequence of one row per adapter: the step of a test that only cares for adapters.
inline TestInputs rows_with_adapters(std::span<const int> adapters) {
  std::vector<TestSequence> sequences;
  for (size_t i = 0; i < adapters.size(); ++i) {
    sequences.push_back({.adapter = adapters[i], .first_page = static_cast<int>(i)});
  }
  return TestInputs(sequences);
}

// A backend with a stream, a step and a LoRA table of 8 slots and 2 layers.
struct TestBackend {
  explicit TestBackend(int num_threads = 2, bool lora_bf16 = false)
      : backend(make_cpu_backend({.num_threads = num_threads, .lora_bf16 = lora_bf16})),
        stream(backend->make_stream()),
        step(backend->make_step({.max_rows = 512, .max_seqs = 128, .max_pages = 1024}).value()) {
    EXPECT_TRUE(backend->make_lora_table({.max_slots = 8, .num_layers = 2}).ok());
  }

  void set_step(const TestInputs& inputs) { step->update(inputs.view(), *stream); }

  void set_adapter(int slot, std::span<const TestModule> modules) {
    std::vector<LoraModuleWeights> views;
    for (const TestModule& module : modules) views.push_back(module.view());
    set_adapter(slot, views);
  }
  void set_adapter(int slot, std::span<const LoraModuleWeights> modules) {
    adapters.push_back(backend->pack_adapter(modules).value());
    on_device.push_back(backend->upload_adapter(*adapters.back()).value());
    backend->set_adapter(slot, *on_device.back(), *stream);
  }

  template <class Desc>
  auto plan(const Desc& desc) {
    return backend->plan(desc).value();
  }

  std::unique_ptr<PackedWeight> vector(const Floats& values) {
    return backend->pack_vector(vector_view(values)).value();
  }

  std::unique_ptr<Backend> backend;
  std::unique_ptr<Stream> stream;
  std::unique_ptr<Step> step;
  std::vector<std::unique_ptr<PackedAdapter>> adapters;
  std::vector<std::unique_ptr<DeviceAdapter>> on_device;
};

}  // namespace medley::cpu
