#include <utility>

#include "adapter/store.h"

// What every store shares: pins, and telling of loads.

namespace medley {

const char* to_string(AdapterLoad::Source source) {
  return source == AdapterLoad::Source::kDisk ? "disk" : "host";
}

void AdapterStore::set_load_observer(LoadObserver observer) {
  std::lock_guard lock(observer_mutex_);
  observer_ = std::move(observer);
  if (!observer_) return;
  was_observed_ = true;
  for (const AdapterLoad& load : std::exchange(unobserved_, {})) observer_(load);
}

void AdapterStore::observe(AdapterLoad load) {
  std::lock_guard lock(observer_mutex_);
  if (observer_) {
    observer_(load);
  } else if (!was_observed_) {
    unobserved_.push_back(std::move(load));
  }
}

AdapterPin::AdapterPin(AdapterPin&& other) noexcept
    : store_(std::exchange(other.store_, nullptr)),
      slot_(std::exchange(other.slot_, kNoAdapter)),
      hash_(std::move(other.hash_)) {}

AdapterPin& AdapterPin::operator=(AdapterPin&& other) noexcept {
  std::swap(store_, other.store_);
  std::swap(slot_, other.slot_);
  hash_.swap(other.hash_);
  return *this;
}

AdapterPin::~AdapterPin() {
  if (store_ != nullptr) store_->release(slot_);
}

AdapterPin AdapterStore::make_pin(AdapterStore* store, int32_t slot, std::string hash) {
  AdapterPin pin;
  pin.store_ = store;
  pin.slot_ = slot;
  pin.hash_ = std::move(hash);
  return pin;
}

}  // namespace medley
