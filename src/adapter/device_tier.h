#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "adapter/adapter_state.h"
#include "backend/backend.h"
#include "base/error.h"

namespace medley {

// What an adapter is, whatever it is called: names of one content share its host image, its device
// copy and its slot.
struct AdapterContent {
  std::string hash;
  std::unique_ptr<const PackedAdapter> packed;

  AdapterState state = AdapterState::kInHost;  // kInHost, kUploading or kOnDevice
  int slot = kNoAdapter;                       // kUploading, kOnDevice
  std::shared_ptr<DeviceAdapter> on_device;    // kOnDevice; before, once the copy is under way
  std::optional<Error> upload_error;           // kInHost: the last upload failed, nobody was told
  std::string uploaded_for;                    // the name that asked first

  int num_pins = 0;              // requests that hold it
  std::atomic<int> num_names{};  // see AdapterContentUse
  int num_pinned_names = 0;      // > 0: stays on the device
  int64_t last_used_ns = 0;      // when a request let it go, or it was uploaded
  int64_t asked_ns = 0;          // a request waits for it since then; 0: none, or it has got it

  void apply(AdapterEvent event) { state = next_state(state, event); }
};

// A name's share of a content. Destroyed on any thread.
class AdapterContentUse {
 public:
  explicit AdapterContentUse(std::shared_ptr<AdapterContent> content)
      : content_(std::move(content)) {
    ++content_->num_names;
  }
  ~AdapterContentUse() { --content_->num_names; }
  AdapterContentUse(const AdapterContentUse&) = delete;
  AdapterContentUse& operator=(const AdapterContentUse&) = delete;

  AdapterContent* operator->() const { return content_.get(); }
  const std::shared_ptr<AdapterContent>& content() const { return content_; }

 private:
  std::shared_ptr<AdapterContent> content_;
};

// The adapters on the device: who is in which slot, who is being copied, who has to go. Policy
// only: it never waits. Not thread-safe: the store's lock guards it. Functions with a stream are
// for the thread that runs steps.
class DeviceTier {
 public:
  DeviceTier(Backend& backend, int max_slots)
      : backend_(backend), pool_bytes_(backend.adapter_memory().pool_bytes), slots_(max_slots) {}

  // kUnsupported, with both numbers, for one that the whole pool can't hold.
  Result<void> check_fits(const PackedAdapter& packed) const;

  // Makes room for a content that is in host memory, and queues its copy. False: not now, what is
  // there is in use. An error concerns only this content.
  Result<bool> start_upload(const std::shared_ptr<AdapterContent>& content, Stream& stream);

  // The next copy to be made, by any thread; null when there is none. Tell upload_started() once it
  // is under way, or has failed.
  std::shared_ptr<AdapterContent> take_upload();
  void upload_started(const std::shared_ptr<AdapterContent>& content,
                      Result<std::unique_ptr<DeviceAdapter>> copy);

  // Copies enter their slots: those that a request waits for at once, since the request's first
  // step takes each layer as it comes; others when they are complete, for the steps of other
  // requests might have to wait too. What has no name and no user any more leaves its slot.
  void settle(Stream& stream);

  AdapterContent& in_slot(int slot) { return *slots_.at(slot); }
  // When start_upload() may answer otherwise than it did, though nothing happens until then.
  std::optional<int64_t> take_retry_ns() { return std::exchange(retry_ns_, std::nullopt); }

 private:
  bool evict_one(Stream& stream);
  void leave(std::shared_ptr<AdapterContent>& slot, Stream& stream);
  void free_slot(std::shared_ptr<AdapterContent>& slot, AdapterEvent event);

  Backend& backend_;
  const size_t pool_bytes_;  // 0: no limit
  size_t taken_bytes_ = 0;   // by all slots, copies that are not complete included
  std::vector<std::shared_ptr<AdapterContent>> slots_;  // null: free
  std::deque<std::shared_ptr<AdapterContent>> to_upload_;
  std::optional<int64_t> retry_ns_;
};

}  // namespace medley
