#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "cpu/cpu_backend.h"
#include "cuda/check.h"
#include "cuda/cuda_backend.h"
#include "cuda/stream.h"

// A backend under test with its stream, and copies to and from its memory.

namespace medley::testing {

class Side {
 public:
  static Side cpu() { return Side(make_cpu_backend({.lora_bf16 = true}), false); }
  static Side cuda() { return Side(make_cuda_backend().value(), true); }

  Backend& backend() { return *backend_; }
  Stream& stream() { return *stream_; }
  bool is_cuda() const { return is_cuda_; }

  void set_adapter(int slot, std::unique_ptr<PackedAdapter> adapter) {
    packed_adapters_.push_back(std::move(adapter));
    adapters_.push_back(backend_->upload_adapter(*packed_adapters_.back()).value());
    backend_->set_adapter(slot, *adapters_.back(), *stream_);
  }

  // Device tensors; bfloat16 values are rounded to nearest even.
  TensorView upload(const std::vector<float>& values, DType dtype, Shape shape) {
    HostTensor host(dtype, shape);
    MEDLEY_CHECK_EQ(static_cast<int64_t>(values.size()), shape.num_elements());
    for (size_t i = 0; i < values.size(); ++i) {
      if (dtype == DType::kF32) {
        host.as<float>()[i] = values[i];
      } else {
        host.as<uint16_t>()[i] = float_to_bf16(values[i]);
      }
    }
    const TensorView view = empty(dtype, shape);
    copy(view.data, host.view().data, view.num_bytes(), cudaMemcpyHostToDevice);
    return view;
  }
  // Filled with NaN, so that an element that no kernel writes fails the comparison.
  TensorView empty(DType dtype, Shape shape) {
    const size_t bytes = shape.num_elements() * size_of(dtype);
    buffers_.push_back(backend_->allocate(bytes).value());
    const std::vector<uint8_t> poison(bytes, 0xff);
    copy(buffers_.back()->data(), poison.data(), bytes, cudaMemcpyHostToDevice);
    return {buffers_.back()->data(), dtype, shape};
  }
  // Replaces the first values of a float32 tensor.
  void write(const TensorView& view, const std::vector<float>& values) {
    stream_->synchronize();
    copy(view.data, values.data(), values.size() * sizeof(float), cudaMemcpyHostToDevice);
  }
  std::vector<float> download(const TensorView& view) {
    stream_->synchronize();
    HostTensor host(view.dtype, view.shape);
    copy(host.view().data, view.data, view.num_bytes(), cudaMemcpyDeviceToHost);
    return to_float(host.view());
  }

 private:
  Side(std::unique_ptr<Backend> backend, bool is_cuda)
      : backend_(std::move(backend)), stream_(backend_->make_stream()), is_cuda_(is_cuda) {}
  void copy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) const {
    if (is_cuda_) {
      MEDLEY_CUDA_CHECK(cudaMemcpy(to, from, bytes, kind));
      // A copy from pageable memory may return before its end, and our streams do not wait for it.
      MEDLEY_CUDA_CHECK(cudaStreamSynchronize(cudaStreamLegacy));
    } else {
      std::memcpy(to, from, bytes);
    }
  }

  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Stream> stream_;
  std::vector<std::unique_ptr<PackedAdapter>> packed_adapters_;
  std::vector<std::unique_ptr<DeviceAdapter>> adapters_;
  std::vector<std::unique_ptr<Buffer>> buffers_;
  bool is_cuda_;
};

inline std::vector<float> random_values(int64_t count, uint32_t seed, float scale = 1.0f) {
  std::mt19937 engine(seed);
  std::normal_distribution<float> normal(0.0f, scale);
  std::vector<float> out(count);
  for (float& value : out) value = normal(engine);
  return out;
}

struct Limits {
  double distance = 1e-5;  // 1 - 2 <x, y> / (|x|^2 + |y|^2)
  double relative = 0.02;  // largest difference over the largest reference value
};

inline void expect_close(const std::vector<float>& reference, const std::vector<float>& found,
                         const std::string& what, Limits limits = {}) {
  ASSERT_EQ(reference.size(), found.size()) << what;
  double dot = 0.0;
  double squares = 0.0;
  double largest = 0.0;
  double difference = 0.0;
  size_t worst = 0;
  for (size_t i = 0; i < reference.size(); ++i) {
    ASSERT_TRUE(std::isfinite(reference[i])) << what << ": reference " << i;
    ASSERT_TRUE(std::isfinite(found[i])) << what << ": element " << i << " is " << found[i];
    dot += static_cast<double>(reference[i]) * found[i];
    squares +=
        static_cast<double>(reference[i]) * reference[i] + static_cast<double>(found[i]) * found[i];
    largest = std::max<double>(largest, std::abs(reference[i]));
    if (std::abs(reference[i] - found[i]) > difference) {
      difference = std::abs(reference[i] - found[i]);
      worst = i;
    }
  }
  ASSERT_GT(squares, 0.0) << what;
  EXPECT_LE(1.0 - 2.0 * dot / squares, limits.distance) << what;
  EXPECT_LE(difference, limits.relative * largest)
      << what << ": element " << worst << ", reference " << reference[worst] << ", found "
      << found[worst];
}

}  // namespace medley::testing
