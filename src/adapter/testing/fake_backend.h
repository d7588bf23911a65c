#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "backend/testing/unused_backend.h"

namespace medley::testing {

struct FakePackedAdapter final : PackedAdapter {
  explicit FakePackedAdapter(std::atomic<int>* live) : live(live) { ++*live; }
  ~FakePackedAdapter() override { --*live; }
  size_t num_bytes() const override { return 1000; }
  size_t device_bytes() const override { return 1024; }
  std::atomic<int>* live;
};

struct FakeDeviceAdapter final : DeviceAdapter {
  FakeDeviceAdapter(const PackedAdapter& packed, std::atomic<int>* live,
                    const std::atomic<bool>* copies_held)
      : packed(packed), live(live), copies_held(copies_held) {
    ++*live;
  }
  ~FakeDeviceAdapter() override { --*live; }
  bool is_complete() const override { return !*copies_held; }
  Result<void> wait() override {
    while (*copies_held) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return {};
  }
  const PackedAdapter& packed;
  std::atomic<int>* live;
  const std::atomic<bool>* copies_held;
};

struct FakeStream final : Stream {
  void synchronize() override { ++num_synchronized; }
  int num_synchronized = 0;
};

// A backend that only knows LoRA slots.
class FakeBackend final : public UnusedBackend {
 public:
  // What the device holds, by slot; null = empty.
  std::vector<const PackedAdapter*> slots;
  std::atomic<int> num_live = 0;          // packed adapters in host memory
  std::atomic<int> num_on_device = 0;     // copies, in slots or not
  std::atomic<int> num_uploads = 0;       // begun
  int memory_for = 1 << 20;               // copies that fit on the device
  std::string upload_fault;               // not empty: every upload fails so
  std::atomic<bool> copies_held = false;  // those that are under way do not come to their end

  // Uploads wait until they are let go.
  void hold_uploads(bool held) {
    std::lock_guard lock(mutex_);
    uploads_held_ = held;
    changed_.notify_all();
  }

  Result<void> make_lora_table(const LoraTableDesc& desc) override {
    slots.assign(desc.max_slots, nullptr);
    pool_bytes_ = desc.pool_bytes;
    return {};
  }
  AdapterMemory adapter_memory() const override { return {.pool_bytes = pool_bytes_}; }
  Result<std::unique_ptr<PackedAdapter>> pack_adapter(
      std::span<const LoraModuleWeights> modules) override {
    if (modules.empty()) return internal_error("nothing to pack");
    return std::unique_ptr<PackedAdapter>(std::make_unique<FakePackedAdapter>(&num_live));
  }
  Result<std::unique_ptr<DeviceAdapter>> upload_adapter(const PackedAdapter& adapter) override {
    EXPECT_NE(std::this_thread::get_id(), engine_thread_) << "steps would wait for the copy";
    std::unique_lock lock(mutex_);
    ++num_uploads;
    changed_.wait(lock, [&] { return !uploads_held_; });
    if (!upload_fault.empty()) return internal_error(upload_fault);
    if (num_on_device >= memory_for) return Error{ErrorCode::kOverloaded, "out of device memory"};
    if (pool_bytes_ > 0) {
      EXPECT_LE((num_on_device + 1) * adapter.device_bytes(), pool_bytes_);
    }
    return std::unique_ptr<DeviceAdapter>(
        std::make_unique<FakeDeviceAdapter>(adapter, &num_on_device, &copies_held));
  }
  void set_adapter(int slot, const DeviceAdapter& adapter, Stream&) override {
    EXPECT_EQ(std::this_thread::get_id(), engine_thread_);
    EXPECT_EQ(slots.at(slot), nullptr) << "the slot is taken";
    slots.at(slot) = &static_cast<const FakeDeviceAdapter&>(adapter).packed;
  }
  void clear_adapter(int slot, Stream&) override {
    EXPECT_EQ(std::this_thread::get_id(), engine_thread_);
    slots.at(slot) = nullptr;
  }

  std::unique_ptr<Stream> make_stream() override { return std::make_unique<FakeStream>(); }

 private:
  const std::thread::id engine_thread_ = std::this_thread::get_id();
  size_t pool_bytes_ = 0;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool uploads_held_ = false;
};

}  // namespace medley::testing
