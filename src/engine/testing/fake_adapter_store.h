#pragma once

#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "adapter/store.h"

namespace medley::testing {

// Adapters without weights. A load takes as many ticks as the test says, and may fail. Slots are
// given to another adapter as soon as nobody holds them. Loads may end on any thread. An adapter's
// content is its name until the test replaces it; names of one content share a slot, and what is in
// use stays as it is.
class FakeAdapterStore final : public AdapterStore {
 public:
  explicit FakeAdapterStore(int num_slots) : slots_(num_slots) {}

  void add(const std::string& name, int num_load_ticks = 0, bool fails = false) {
    std::lock_guard lock(mutex_);
    adapters_[name] = {.content = name, .num_load_ticks = num_load_ticks, .fails = fails};
  }
  void replace(const std::string& name, const std::string& content) {
    std::lock_guard lock(mutex_);
    adapters_.at(name).content = content;
  }
  void tick() {
    {
      std::lock_guard lock(mutex_);
      for (auto& [name, adapter] : adapters_) {
        if (adapter.is_loading && adapter.num_load_ticks > 0) --adapter.num_load_ticks;
      }
    }
    wake();
  }

  const std::string& content_of_slot(int32_t slot) const { return slots_.at(slot).content; }
  int num_pins() const {
    int num = 0;
    for (const Slot& slot : slots_) num += slot.num_pins;
    return num;
  }

  Result<std::optional<AdapterPin>> acquire(const std::string& name, Stream&) override {
    std::lock_guard lock(mutex_);
    const auto it = adapters_.find(name);
    if (it == adapters_.end()) return not_found("no adapter " + name, "model");
    Adapter& adapter = it->second;
    adapter.is_loading = true;
    if (adapter.num_load_ticks > 0) return std::optional<AdapterPin>();
    if (adapter.fails) return invalid_argument("adapter " + name + " is broken", "model");
    int32_t free_slot = kNoAdapter;
    for (int32_t i = 0; i < static_cast<int32_t>(slots_.size()); ++i) {
      if (slots_[i].content == adapter.content) return pin(i);
      if (slots_[i].num_pins == 0) free_slot = i;
    }
    if (free_slot == kNoAdapter) return std::optional<AdapterPin>();
    slots_[free_slot].content = adapter.content;
    return pin(free_slot);
  }

  void fill_slots(Stream&) override {}

  Result<AdapterInfo> load(const std::string&, const std::string&,
                           const AdapterLoadOptions&) override {
    return unused();
  }
  Result<AdapterInfo> check(const std::string&) const override { return unused(); }
  Result<void> set_pinned(const std::string&, bool) override { return unused(); }
  Result<void> unload(const std::string&) override { return unused(); }
  Result<void> resolve(const std::string&) override { return unused(); }
  std::vector<AdapterInfo> list() const override { return {}; }

 private:
  struct Adapter {
    std::string content;
    int num_load_ticks = 0;
    bool fails = false;
    bool is_loading = false;
  };
  struct Slot {
    std::string content;
    int num_pins = 0;
  };

  static Error unused() { return internal_error("the engine does not call this"); }
  std::optional<AdapterPin> pin(int32_t slot) {
    ++slots_[slot].num_pins;
    return make_pin(this, slot, "hash of " + slots_[slot].content);
  }
  void release(int32_t slot) override {
    MEDLEY_CHECK_GT(slots_[slot].num_pins, 0);
    --slots_[slot].num_pins;
  }

  std::mutex mutex_;
  std::map<std::string, Adapter> adapters_;
  std::vector<Slot> slots_;  // engine thread only
};

}  // namespace medley::testing
