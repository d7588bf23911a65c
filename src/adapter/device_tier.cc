#include "adapter/device_tier.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "base/clock.h"

namespace medley {
namespace {

// A content that a request waited for is not evicted for another before the request has got it, or
// this long: else two that want one slot could evict each other for ever.
constexpr int64_t kKeepForAskerNs = 1'000'000'000;

}  // namespace

Result<void> DeviceTier::check_fits(const PackedAdapter& packed) const {
  const size_t wanted = packed.device_bytes();
  if (pool_bytes_ == 0 || wanted <= pool_bytes_) return {};
  return unsupported(
      fmt::format("the adapter takes {} bytes of device memory; the pool for adapters has {}",
                  wanted, pool_bytes_));
}

Result<bool> DeviceTier::start_upload(const std::shared_ptr<AdapterContent>& content,
                                      Stream& stream) {
  MEDLEY_TRY(check_fits(*content->packed));
  if (content->upload_error) {
    const Error error = *content->upload_error;
    // Enough bytes were free, but not in one piece: one more has to go.
    if (error.code == ErrorCode::kOverloaded && !evict_one(stream)) {
      const bool any =
          std::ranges::any_of(slots_, [](const auto& slot) { return slot != nullptr; });
      if (any) return false;
      content->upload_error.reset();
      return error;
    }
    content->upload_error.reset();
    if (error.code != ErrorCode::kOverloaded) return error;
  }
  const size_t wanted = content->packed->device_bytes();
  auto slot = std::ranges::find(slots_, nullptr);
  while (slot == slots_.end() || (pool_bytes_ > 0 && taken_bytes_ + wanted > pool_bytes_)) {
    if (!evict_one(stream)) return false;
    slot = std::ranges::find(slots_, nullptr);
  }
  *slot = content;
  content->slot = static_cast<int>(slot - slots_.begin());
  content->apply(AdapterEvent::kUploadStarted);
  taken_bytes_ += wanted;
  to_upload_.push_back(content);
  return true;
}

std::shared_ptr<AdapterContent> DeviceTier::take_upload() {
  if (to_upload_.empty()) return nullptr;
  std::shared_ptr<AdapterContent> content = std::move(to_upload_.front());
  to_upload_.pop_front();
  return content;
}

void DeviceTier::upload_started(const std::shared_ptr<AdapterContent>& content,
                                Result<std::unique_ptr<DeviceAdapter>> copy) {
  if (copy.ok()) {
    content->on_device = *std::move(copy);
    content->last_used_ns = now_ns();
    return;
  }
  content->upload_error = copy.error();
  free_slot(slots_[content->slot], AdapterEvent::kUploadFailed);
}

void DeviceTier::settle(Stream& stream) {
  for (auto& slot : slots_) {
    if (slot == nullptr || slot->on_device == nullptr) continue;
    const bool wanted = slot->num_names > 0 || slot->num_pins > 0;
    if (slot->state == AdapterState::kUploading) {
      if (wanted && slot->asked_ns == 0 && !slot->on_device->is_complete()) continue;
      if (wanted) backend_.set_adapter(slot->slot, *slot->on_device, stream);
      slot->apply(AdapterEvent::kUploaded);
    }
    if (!wanted) leave(slot, stream);
  }
}

// The one that was idle for longest; false when all are in use, pinned or on their way.
bool DeviceTier::evict_one(Stream& stream) {
  std::shared_ptr<AdapterContent>* oldest = nullptr;
  const int64_t now = now_ns();
  for (auto& slot : slots_) {
    if (slot == nullptr || slot->state != AdapterState::kOnDevice) continue;
    if (slot->num_pins > 0 || slot->num_pinned_names > 0) continue;
    const int64_t kept_until = slot->last_used_ns + kKeepForAskerNs;
    if (slot->asked_ns != 0 && now < kept_until) {
      retry_ns_ = std::min(retry_ns_.value_or(kept_until), kept_until);
      continue;
    }
    if (oldest == nullptr || slot->last_used_ns < (*oldest)->last_used_ns) oldest = &slot;
  }
  if (oldest == nullptr) return false;
  leave(*oldest, stream);
  return true;
}

void DeviceTier::leave(std::shared_ptr<AdapterContent>& slot, Stream& stream) {
  backend_.clear_adapter(slot->slot, stream);
  free_slot(slot, AdapterEvent::kEvicted);
}

void DeviceTier::free_slot(std::shared_ptr<AdapterContent>& slot, AdapterEvent event) {
  const std::shared_ptr<AdapterContent> content = std::exchange(slot, nullptr);
  content->apply(event);
  content->on_device.reset();
  content->slot = kNoAdapter;
  content->asked_ns = 0;
  taken_bytes_ -= content->packed->device_bytes();
}

}  // namespace medley
