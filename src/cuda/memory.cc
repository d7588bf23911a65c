#include "cuda/memory.h"

#include <fmt/format.h>

#include <utility>

#include "cuda/check.h"

namespace medley::cuda {
namespace {

// cudaMemcpy may return while the last piece of pageable memory is still on its way, and cudaMemset
// returns at once; streams made here do not wait for the default stream.
void wait_for_default_stream() { MEDLEY_CUDA_CHECK(cudaStreamSynchronize(cudaStreamLegacy)); }

}  // namespace

void copy_to_device(void* to, const void* from, size_t num_bytes) {
  MEDLEY_CUDA_CHECK(cudaMemcpy(to, from, num_bytes, cudaMemcpyHostToDevice));
  wait_for_default_stream();
}

DeviceBuffer::~DeviceBuffer() {
  if (data_ != nullptr) cudaFree(data_);
}

DeviceBuffer::DeviceBuffer(DeviceBuffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), num_bytes_(std::exchange(other.num_bytes_, 0)) {}

DeviceBuffer& DeviceBuffer::operator=(DeviceBuffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(num_bytes_, other.num_bytes_);
  return *this;
}

Result<DeviceBuffer> DeviceBuffer::allocate(size_t num_bytes) {
  DeviceBuffer buffer;
  if (num_bytes == 0) return buffer;
  const cudaError_t error = cudaMalloc(&buffer.data_, num_bytes);
  if (error == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    size_t free_bytes = 0;
    size_t total_bytes = 0;
    MEDLEY_CUDA_CHECK(cudaMemGetInfo(&free_bytes, &total_bytes));
    return Error{ErrorCode::kOverloaded,
                 fmt::format("device memory: wanted {} bytes, {} of {} are free", num_bytes,
                             free_bytes, total_bytes)};
  }
  MEDLEY_CUDA_CHECK(error);
  buffer.num_bytes_ = num_bytes;
  return buffer;
}

void DeviceBuffer::copy_from_host(const void* source, size_t num_bytes, size_t byte_offset) {
  MEDLEY_CHECK_LE(byte_offset + num_bytes, num_bytes_);
  if (num_bytes == 0) return;
  copy_to_device(as<std::byte>(byte_offset), source, num_bytes);
}

void DeviceBuffer::fill(uint8_t value) {
  if (num_bytes_ == 0) return;
  MEDLEY_CUDA_CHECK(cudaMemset(data_, value, num_bytes_));
  wait_for_default_stream();
}

PinnedBuffer::PinnedBuffer(size_t num_bytes) {
  void* data = nullptr;
  MEDLEY_CUDA_CHECK(cudaMallocHost(&data, num_bytes));
  data_ = static_cast<std::byte*>(data);
}

PinnedBuffer::~PinnedBuffer() { cudaFreeHost(data_); }

}  // namespace medley::cuda
