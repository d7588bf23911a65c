#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "backend/backend.h"

namespace medley::cuda {

// Returns when the device has the bytes.
void copy_to_device(void* to, const void* from, size_t num_bytes);

// Device memory. Movable; freed by the destructor.
class DeviceBuffer : public Buffer {
 public:
  DeviceBuffer() = default;
  ~DeviceBuffer() override;
  DeviceBuffer(DeviceBuffer&& other) noexcept;
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept;

  // kOverloaded with both numbers when memory is short.
  static Result<DeviceBuffer> allocate(size_t num_bytes);

  void* data() override { return data_; }
  const void* data() const { return data_; }
  size_t num_bytes() const override { return num_bytes_; }
  template <class T>
  T* as(size_t byte_offset = 0) {
    return reinterpret_cast<T*>(static_cast<std::byte*>(data_) + byte_offset);
  }
  template <class T>
  const T* as(size_t byte_offset = 0) const {
    return reinterpret_cast<const T*>(static_cast<const std::byte*>(data_) + byte_offset);
  }
  // Both return when the device has the bytes: streams do not wait for the default stream.
  void copy_from_host(const void* source, size_t num_bytes, size_t byte_offset = 0);
  void fill_zero() { fill(0); }
  void fill(uint8_t value);  // each byte

 private:
  void* data_ = nullptr;
  size_t num_bytes_ = 0;
};

// Page-locked host memory, which the device can read and write while the host goes on.
class PinnedBuffer {
 public:
  explicit PinnedBuffer(size_t num_bytes);
  ~PinnedBuffer();
  PinnedBuffer(const PinnedBuffer&) = delete;
  PinnedBuffer& operator=(const PinnedBuffer&) = delete;
  std::byte* data() { return data_; }

 private:
  std::byte* data_ = nullptr;
};

}  // namespace medley::cuda
