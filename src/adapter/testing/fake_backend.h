#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "backend/testing/unused_backend.h"

namespace medley::testing {

struct FakePackedAdapter final : PackedAdapter {
  explicit FakePackedAdapter(std::atomic<int>* live) : live(live) { ++*live; }
  ~FakePackedAdapter() override { --*live; }
  size_t num_bytes() const override { return 1000; }
  std::atomic<int>* live;
};

struct FakeDeviceAdapter final : DeviceAdapter {
  explicit FakeDeviceAdapter(const PackedAdapter& packed) : packed(packed) {}
  const PackedAdapter& packed;
};

struct FakeStream final : Stream {
  void synchronize() override { ++num_synchronized; }
  int num_synchronized = 0;
};

// A backend that only knows LoRA slots. Checks that what is in a slot is alive.
class FakeBackend final : public UnusedBackend {
 public:
  // What the device holds, by slot; null = empty.
  std::vector<const PackedAdapter*> slots;
  std::atomic<int> num_live = 0;  // packed adapters in host memory
  int memory_for = 1 << 20;       // adapters that fit on the device

  Result<void> make_lora_table(const LoraTableDesc& desc) override {
    slots.assign(desc.max_slots, nullptr);
    return {};
  }
  Result<std::unique_ptr<PackedAdapter>> pack_adapter(
      std::span<const LoraModuleWeights> modules) override {
    std::lock_guard lock(mutex_);
    if (modules.empty()) return internal_error("nothing to pack");
    return std::unique_ptr<PackedAdapter>(std::make_unique<FakePackedAdapter>(&num_live));
  }
  Result<std::unique_ptr<DeviceAdapter>> upload_adapter(const PackedAdapter& adapter) override {
    int num_held = 0;
    for (const PackedAdapter* held : slots) num_held += held != nullptr;
    if (num_held >= memory_for) return Error{ErrorCode::kOverloaded, "out of device memory"};
    return std::unique_ptr<DeviceAdapter>(std::make_unique<FakeDeviceAdapter>(adapter));
  }
  void set_adapter(int slot, const DeviceAdapter& adapter, Stream&) override {
    slots.at(slot) = &static_cast<const FakeDeviceAdapter&>(adapter).packed;
  }
  void clear_adapter(int slot, Stream&) override { slots.at(slot) = nullptr; }

  std::unique_ptr<Stream> make_stream() override { return std::make_unique<FakeStream>(); }

 private:
  std::mutex mutex_;
};

}  // namespace medley::testing
