#include "adapter/store.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "adapter/adapter_path.h"
#include "adapter/adapter_state.h"
#include "adapter/peft_reader.h"
#include "base/clock.h"
#include "base/log.h"

namespace medley {
namespace {

constexpr int64_t kRetryAfterNs = 1'000'000'000;  // a failed load may be tried again after this

struct Adapter {
  Adapter(const std::string& name, const std::string& path) : info{.name = name, .path = path} {}

  AdapterInfo info;
  // kInHost and kOnDevice; names of one content share it.
  std::shared_ptr<const PackedAdapter> packed;
  std::unique_ptr<DeviceAdapter> on_device;  // kOnDevice
  Error failure;  // kFailed
  int64_t failed_at_ns = 0;
  int slot = kNoAdapter;  // kOnDevice
  int64_t uploaded_ns = 0;
  int num_pins = 0;
  bool forgotten = false;  // unloaded; whoever still holds it lets it go

  void apply(AdapterEvent event) { info.state = next_state(info.state, event); }
};

class AdapterStoreImpl : public AdapterStore {
 public:
  AdapterStoreImpl(const ModelSpec& spec, Backend& backend, AdapterStoreOptions options)
      : spec_(spec), backend_(backend), options_(std::move(options)), slots_(options_.max_loras) {
    for (int i = 0; i < std::max(1, options_.num_loader_threads); ++i) {
      loaders_.emplace_back([this] { run_loader(); });
    }
  }

  ~AdapterStoreImpl() override {
    {
      std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    work_.notify_all();
    for (std::thread& loader : loaders_) loader.join();
  }

  using AdapterStore::load;
  Result<AdapterInfo> load(const std::string& name, const std::string& path,
                           const AdapterLoadOptions& options) override {
    MEDLEY_TRY(check_adapter_name(name));
    auto adapter = std::make_shared<Adapter>(name, path);
    std::unique_lock lock(mutex_);
    MEDLEY_TRY(check_name_is_free(name, options.in_place));
    if (options.read || options.in_place) {
      start_load(adapter);
      loaded_.wait(lock, [&] { return adapter->info.state != AdapterState::kLoading; });
      if (adapter->info.state == AdapterState::kFailed) return adapter->failure;
      MEDLEY_TRY(check_name_is_free(name, options.in_place));
    }
    const auto found = adapters_.find(name);
    if (options.pin) MEDLEY_TRY(check_pin_fits(name));
    adapter->info.pinned = options.pin;
    if (found != adapters_.end()) {
      if (options.in_place) adapter->info.pinned |= found->second->info.pinned;
      forget(found);
    }
    adapters_.emplace(name, adapter);
    AdapterInfo info = info_of(*adapter);
    if (options.to_device) {
      to_device_.push_back(adapter);
      lock.unlock();
      wake();
    }
    return info;
  }

  Result<AdapterInfo> check(const std::string& path) const override {
    MEDLEY_TRY_ASSIGN(AdapterWeights weights, read(path));
    return AdapterInfo{.path = path,
                       .max_rank = weights.max_rank,
                       .num_bytes = weights.num_bytes,
                       .hash = std::move(weights.hash),
                       .warnings = std::move(weights.warnings)};
  }

  Result<void> unload(const std::string& name) override {
    std::lock_guard lock(mutex_);
    const auto found = adapters_.find(name);
    if (found == adapters_.end()) {
      return not_found(fmt::format("The lora adapter '{}' cannot be found.", name), "lora_name");
    }
    forget(found);
    return {};
  }

  Result<void> set_pinned(const std::string& name, bool pinned) override {
    std::lock_guard lock(mutex_);
    const auto found = adapters_.find(name);
    if (found == adapters_.end()) {
      return not_found(fmt::format("no adapter named '{}'", name), "lora_name");
    }
    if (pinned) MEDLEY_TRY(check_pin_fits(name));
    found->second->info.pinned = pinned;
    return {};
  }

  Result<void> resolve(const std::string& name) override {
    std::unique_lock lock(mutex_);
    const auto found = adapters_.find(name);
    if (found != adapters_.end()) {
      Adapter& adapter = *found->second;
      if (adapter.info.state == AdapterState::kFailed) adapter.apply(AdapterEvent::kRetryAllowed);
      return {};
    }
    if (options_.adapter_root.empty() || !check_adapter_name(name).ok()) {
      return not_found(fmt::format("no model or adapter named '{}'", name), "model");
    }
    lock.unlock();
    MEDLEY_TRY_ASSIGN(const std::string path, find_under_root(options_.adapter_root, name));
    lock.lock();
    if (!adapters_.contains(name)) {
      adapters_.emplace(name, std::make_shared<Adapter>(name, path));
    }
    return {};
  }

  std::vector<AdapterInfo> list() const override {
    std::lock_guard lock(mutex_);
    std::vector<AdapterInfo> infos;
    for (const auto& [name, adapter] : adapters_) infos.push_back(info_of(*adapter));
    return infos;
  }

  Result<std::optional<AdapterPin>> acquire(const std::string& name, Stream& stream) override {
    std::lock_guard lock(mutex_);
    drop_forgotten(stream);
    const auto found = adapters_.find(name);
    if (found == adapters_.end()) {
      return not_found(fmt::format("no adapter named '{}'", name), "model");
    }
    const std::shared_ptr<Adapter>& adapter = found->second;
    switch (adapter->info.state) {
      case AdapterState::kFailed:
        if (now_ns() - adapter->failed_at_ns < kRetryAfterNs) return adapter->failure;
        [[fallthrough]];
      case AdapterState::kOnDisk:
        start_load(adapter);
        return std::optional<AdapterPin>();
      case AdapterState::kLoading:
        return std::optional<AdapterPin>();
      case AdapterState::kInHost: {
        MEDLEY_TRY_ASSIGN(const bool uploaded, upload(adapter, stream));
        if (!uploaded) return std::optional<AdapterPin>();
        break;
      }
      case AdapterState::kOnDevice:
        break;
    }
    ++adapter->num_pins;
    adapter->info.last_used_ns = now_ns();
    return std::optional<AdapterPin>(make_pin(this, adapter->slot, adapter->info.hash));
  }

  void fill_slots(Stream& stream) override {
    std::lock_guard lock(mutex_);
    drop_forgotten(stream);
    std::erase_if(to_device_, [&](const std::shared_ptr<Adapter>& adapter) {
      if (adapter->info.state != AdapterState::kInHost) return true;
      const Result<bool> uploaded = upload(adapter, stream);
      if (!uploaded.ok()) {
        log::warn("adapter '{}': {}", adapter->info.name, uploaded.error().message);
      }
      return !uploaded.ok() || *uploaded;
    });
  }

 private:
  using Adapters = std::map<std::string, std::shared_ptr<Adapter>>;

  void release(int32_t slot) override {
    std::lock_guard lock(mutex_);
    Adapter& adapter = *slots_.at(slot);
    MEDLEY_CHECK_GT(adapter.num_pins, 0);
    --adapter.num_pins;
    adapter.info.last_used_ns = now_ns();
  }

  static AdapterInfo info_of(const Adapter& adapter) {
    AdapterInfo info = adapter.info;
    info.num_users = adapter.num_pins;
    return info;
  }

  Result<void> check_name_is_free(const std::string& name, bool in_place) const {
    const auto found = adapters_.find(name);
    if (in_place || found == adapters_.end() ||
        found->second->info.state == AdapterState::kFailed) {
      return {};
    }
    return invalid_argument(
        fmt::format("The lora adapter '{}' has already been loaded. If you want to load the "
                    "adapter in place, set 'load_inplace' to True.",
                    name),
        "lora_name");
  }

  // Requests for the others would wait for ever if every slot were pinned.
  Result<void> check_pin_fits(const std::string& name) const {
    const auto num_others = std::ranges::count_if(adapters_, [&](const auto& entry) {
      return entry.second->info.pinned && entry.first != name;
    });
    if (num_others + 1 < options_.max_loras) return {};
    return Error{ErrorCode::kConflict,
                 fmt::format("{} adapters are pinned and there are {} slots; one must stay free",
                             num_others, options_.max_loras),
                 "pin"};
  }

  // A forgotten adapter's slot is emptied by the engine thread once nobody uses it, its load's
  // result dropped.
  void forget(Adapters::iterator found) {
    found->second->forgotten = true;
    std::erase(to_device_, found->second);
    adapters_.erase(found);
  }

  void start_load(const std::shared_ptr<Adapter>& adapter) {
    adapter->apply(AdapterEvent::kLoadStarted);
    adapter->info.error.clear();
    to_load_.push_back(adapter);
    work_.notify_one();
  }

  void run_loader() {
    std::unique_lock lock(mutex_);
    while (true) {
      work_.wait(lock, [&] { return stopping_ || !to_load_.empty(); });
      if (stopping_) return;
      const std::shared_ptr<Adapter> adapter = std::move(to_load_.front());
      to_load_.pop_front();
      if (!adapter->forgotten) {
        const std::string path = adapter->info.path;
        const std::string name = adapter->info.name;
        lock.unlock();
        const int64_t start_ns = now_ns();
        Result<Loaded> loaded = read_and_pack(path);
        observe({.name = name, .duration_ns = now_ns() - start_ns, .ok = loaded.ok()});
        lock.lock();
        finish_load(*adapter, std::move(loaded));
      } else {
        finish_load(*adapter, not_found("unloaded before it was read"));
      }
      loaded_.notify_all();
      wake();
    }
  }

  struct Loaded {
    std::shared_ptr<const PackedAdapter> packed;
    int max_rank = 0;
    std::string hash;
    std::vector<std::string> warnings;
  };

  Result<Loaded> read_and_pack(const std::string& path) {
    MEDLEY_TRY_ASSIGN(AdapterWeights weights, read(path));
    std::shared_ptr<const PackedAdapter> packed = find_image(weights.hash);
    if (packed == nullptr) {
      MEDLEY_TRY_ASSIGN(auto image, backend_.pack_adapter(weights.modules));
      packed = keep_image(weights.hash, std::move(image));
    }
    return Loaded{std::move(packed), weights.max_rank, std::move(weights.hash),
                  std::move(weights.warnings)};
  }

  std::shared_ptr<const PackedAdapter> find_image(const std::string& hash) {
    std::lock_guard lock(mutex_);
    const auto found = images_.find(hash);
    return found == images_.end() ? nullptr : found->second.lock();
  }

  // The image in use of that content: `image`, unless another loader was faster.
  std::shared_ptr<const PackedAdapter> keep_image(const std::string& hash,
                                                  std::shared_ptr<const PackedAdapter> image) {
    std::lock_guard lock(mutex_);
    std::erase_if(images_, [](const auto& entry) { return entry.second.expired(); });
    std::weak_ptr<const PackedAdapter>& kept = images_[hash];
    if (auto other = kept.lock()) return other;
    kept = image;
    return image;
  }

  Result<AdapterWeights> read(const std::string& path) const {
    MEDLEY_TRY_ASSIGN(AdapterWeights weights,
                      options_.reader
                          ? options_.reader(path)
                          : read_peft_adapter(path, spec_, options_.base_tensors));
    if (options_.max_lora_rank > 0 && weights.max_rank > options_.max_lora_rank) {
      return unsupported(fmt::format("the adapter's rank is {}; at most {} is allowed",
                                     weights.max_rank, options_.max_lora_rank));
    }
    return weights;
  }

  void finish_load(Adapter& adapter, Result<Loaded> loaded) {
    if (!loaded.ok()) {
      adapter.apply(AdapterEvent::kLoadFailed);
      adapter.failure = loaded.error();
      adapter.failure.message =
          fmt::format("adapter '{}': {}", adapter.info.name, loaded.error().message);
      adapter.failed_at_ns = now_ns();
      adapter.info.error = adapter.failure.message;
      log::warn("{}", adapter.failure.message);
      return;
    }
    adapter.apply(AdapterEvent::kLoaded);
    adapter.packed = std::move(loaded->packed);
    adapter.info.num_bytes = adapter.packed->num_bytes();
    adapter.info.max_rank = loaded->max_rank;
    adapter.info.hash = std::move(loaded->hash);
    adapter.info.warnings = std::move(loaded->warnings);
    for (const std::string& warning : adapter.info.warnings) {
      log::warn("adapter '{}': {}", adapter.info.name, warning);
    }
    log::info("adapter '{}': rank {}, {} bytes", adapter.info.name, adapter.info.max_rank,
              adapter.info.num_bytes);
  }

  // False when every slot is in use.
  Result<bool> upload(const std::shared_ptr<Adapter>& adapter, Stream& stream) {
    while (true) {
      auto slot = std::find(slots_.begin(), slots_.end(), nullptr);
      if (slot == slots_.end()) {
        if (!evict_one(stream)) return false;
        continue;
      }
      const int index = static_cast<int>(slot - slots_.begin());
      const int64_t start_ns = now_ns();
      Result<std::unique_ptr<DeviceAdapter>> set = backend_.upload_adapter(*adapter->packed);
      const bool no_room = !set.ok() && set.error().code == ErrorCode::kOverloaded;
      if (!no_room) {
        observe({.name = adapter->info.name,
                 .source = AdapterLoad::Source::kHost,
                 .duration_ns = now_ns() - start_ns,
                 .ok = set.ok()});
      }
      if (set.ok()) {
        adapter->uploaded_ns = now_ns();
        *slot = adapter;
        adapter->slot = index;
        adapter->on_device = std::move(*set);
        backend_.set_adapter(index, *adapter->on_device, stream);
        adapter->apply(AdapterEvent::kUploaded);
        return true;
      }
      // Device memory is short: make room, or wait for the requests that hold it.
      if (!no_room) return set.error();
      if (evict_one(stream)) continue;
      const bool any_in_use =
          std::any_of(slots_.begin(), slots_.end(), [](const auto& s) { return s != nullptr; });
      if (any_in_use) return false;
      return set.error();
    }
  }

  // Empties the slot whose adapter was unused for longest; false when all are in use or pinned.
  bool evict_one(Stream& stream) {
    std::shared_ptr<Adapter>* oldest = nullptr;
    for (auto& slot : slots_) {
      if (slot == nullptr || slot->num_pins > 0 || slot->info.pinned) continue;
      if (oldest == nullptr || idle_since(*slot) < idle_since(**oldest)) {
        oldest = &slot;
      }
    }
    if (oldest == nullptr) return false;
    empty_slot(*oldest, stream);
    return true;
  }

  static int64_t idle_since(const Adapter& adapter) {
    return std::max(adapter.info.last_used_ns, adapter.uploaded_ns);
  }

  void empty_slot(std::shared_ptr<Adapter>& slot, Stream& stream) {
    backend_.clear_adapter(slot->slot, stream);
    slot->on_device.reset();
    slot->apply(AdapterEvent::kEvicted);
    slot->slot = kNoAdapter;
    slot.reset();
  }

  // Slots of adapters that were unloaded. Their host images go with them, so the device must be
  // done with both first; that wait happens once per unload.
  void drop_forgotten(Stream& stream) {
    for (auto& slot : slots_) {
      if (slot == nullptr || !slot->forgotten || slot->num_pins > 0) continue;
      const std::shared_ptr<Adapter> keep = slot;
      empty_slot(slot, stream);
      stream.synchronize();
    }
  }

  const ModelSpec spec_;
  Backend& backend_;
  const AdapterStoreOptions options_;

  mutable std::mutex mutex_;
  std::condition_variable work_;    // to_load_ or stopping_ changed
  std::condition_variable loaded_;  // some adapter left kLoading
  Adapters adapters_;
  std::map<std::string, std::weak_ptr<const PackedAdapter>> images_;  // by content hash
  std::vector<std::shared_ptr<Adapter>> slots_;                       // null = free
  std::deque<std::shared_ptr<Adapter>> to_load_;
  std::deque<std::shared_ptr<Adapter>> to_device_;  // loaded, for fill_slots()
  bool stopping_ = false;
  std::vector<std::thread> loaders_;
};

}  // namespace

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

Result<std::unique_ptr<AdapterStore>> AdapterStore::create(const ModelSpec& spec, Backend& backend,
                                                           const AdapterStoreOptions& options) {
  if (options.max_loras < 1) {
    return invalid_argument(fmt::format("max_loras is {}; at least 1", options.max_loras),
                            "max_loras");
  }
  MEDLEY_TRY(
      backend.make_lora_table({.max_slots = options.max_loras, .num_layers = spec.num_layers()}));
  return std::unique_ptr<AdapterStore>(std::make_unique<AdapterStoreImpl>(spec, backend, options));
}

}  // namespace medley
