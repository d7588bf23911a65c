#include "adapter/store.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "adapter/adapter_path.h"
#include "adapter/adapter_state.h"
#include "adapter/device_tier.h"
#include "adapter/peft_reader.h"
#include "base/clock.h"
#include "base/log.h"

namespace medley {
namespace {

constexpr int64_t kRetryAfterNs = 1'000'000'000;  // a failed load may be tried again after this

struct Adapter {
  Adapter(const std::string& name, const std::string& path) : info{.name = name, .path = path} {}

  AdapterInfo info;  // its state is kInHost from the load on, whatever its content's is
  std::unique_ptr<AdapterContentUse> content;  // kInHost
  Error failure;                               // kFailed
  int64_t failed_at_ns = 0;
  bool forgotten = false;  // unloaded, perhaps while it is being read

  void apply(AdapterEvent event) { info.state = next_state(info.state, event); }
};

class AdapterStoreImpl : public AdapterStore {
 public:
  AdapterStoreImpl(const ModelSpec& spec, Backend& backend, AdapterStoreOptions options)
      : spec_(spec),
        backend_(backend),
        options_(std::move(options)),
        device_(backend, options_.max_loras) {
    for (int i = 0; i < std::max(1, options_.num_loader_threads); ++i) {
      loaders_.emplace_back([this] { run_loader(); });
    }
    loaders_.emplace_back([this] { run_uploader(); });
  }

  ~AdapterStoreImpl() override {
    {
      std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    work_.notify_all();
    uploads_.notify_all();
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
    bool pinned = options.pin;
    if (found != adapters_.end()) {
      if (options.in_place) pinned |= found->second->info.pinned;
      forget(found);
    }
    adapters_.emplace(name, adapter);
    pin(*adapter, pinned);
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
    pin(*found->second, pinned);
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
    device_.settle(stream);
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
      default:
        break;
    }
    AdapterContent& content = *adapter->content->content();
    if (content.state != AdapterState::kOnDevice) content.asked_ns = now_ns();
    if (content.state == AdapterState::kInHost) MEDLEY_TRY(start_upload(*adapter, stream));
    if (content.state != AdapterState::kOnDevice) return std::optional<AdapterPin>();
    ++content.num_pins;
    content.asked_ns = 0;
    adapter->info.last_used_ns = now_ns();
    return std::optional<AdapterPin>(make_pin(this, content.slot, content.hash));
  }

  void fill_slots(Stream& stream) override {
    std::lock_guard lock(mutex_);
    device_.settle(stream);
    std::erase_if(to_device_, [&](const std::shared_ptr<Adapter>& adapter) {
      if (adapter->content == nullptr) return true;
      if ((*adapter->content)->state != AdapterState::kInHost) return true;
      const Result<bool> started = start_upload(*adapter, stream);
      if (!started.ok()) {
        log::warn("adapter '{}': {}", adapter->info.name, started.error().message);
      }
      return !started.ok() || *started;
    });
  }

 private:
  using Adapters = std::map<std::string, std::shared_ptr<Adapter>>;

  void release(int32_t slot) override {
    std::lock_guard lock(mutex_);
    AdapterContent& content = device_.in_slot(slot);
    MEDLEY_CHECK_GT(content.num_pins, 0);
    --content.num_pins;
    content.last_used_ns = now_ns();
  }

  static AdapterInfo info_of(const Adapter& adapter) {
    AdapterInfo info = adapter.info;
    if (adapter.content != nullptr) {
      info.state = (*adapter.content)->state;
      info.num_users = (*adapter.content)->num_pins;
    }
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

  static void pin(Adapter& adapter, bool pinned) {
    if (adapter.content != nullptr) {
      (*adapter.content)->num_pinned_names += int{pinned} - int{adapter.info.pinned};
    }
    adapter.info.pinned = pinned;
  }
  // From or to none.
  static void attach(Adapter& adapter, std::unique_ptr<AdapterContentUse> content) {
    const bool pinned = adapter.info.pinned;
    pin(adapter, false);
    adapter.content = std::move(content);
    pin(adapter, pinned);
  }

  // A content without names leaves the device, on the engine thread, once nobody uses it. A load's
  // result is dropped.
  void forget(Adapters::iterator found) {
    found->second->forgotten = true;
    attach(*found->second, nullptr);
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
        drop_host_images(adapter->content.get());
      } else {
        finish_load(*adapter, not_found("unloaded before it was read"));
      }
      loaded_.notify_all();
      wake();
    }
  }

  void run_uploader() {
    std::unique_lock lock(mutex_);
    while (true) {
      const std::shared_ptr<AdapterContent> content = wait_for_upload(lock);
      if (content == nullptr) return;
      const std::string name = content->uploaded_for;
      lock.unlock();
      const int64_t start_ns = now_ns();
      Result<std::unique_ptr<DeviceAdapter>> copy = backend_.start_upload(*content->packed);
      const bool no_room = !copy.ok() && copy.error().code == ErrorCode::kOverloaded;
      bool ok = copy.ok();
      log::debug("adapter '{}': copy under way after {:.2f} ms", name, ms_since(start_ns));
      lock.lock();
      device_.upload_started(content, std::move(copy));
      const std::shared_ptr<DeviceAdapter> on_device = content->on_device;
      wake_unlocked(lock);
      if (no_room) continue;
      lock.unlock();
      if (ok) ok = on_device->wait().ok();  // a fault of the device, which steps will notice
      observe({.name = name,
               .source = AdapterLoad::Source::kHost,
               .duration_ns = now_ns() - start_ns,
               .ok = ok});
      lock.lock();
      wake_unlocked(lock);
    }
  }

  // Null when the store ends. Wakes the engine when it is to ask again.
  std::shared_ptr<AdapterContent> wait_for_upload(std::unique_lock<std::mutex>& lock) {
    int64_t wake_ns = 0;  // 0: never
    while (!stopping_) {
      if (auto content = device_.take_upload()) return content;
      if (const auto retry_ns = device_.take_retry_ns()) wake_ns = *retry_ns;
      if (wake_ns == 0) {
        uploads_.wait(lock);
        continue;
      }
      const int64_t left_ns = wake_ns - now_ns();
      if (left_ns > 0) {
        uploads_.wait_for(lock, std::chrono::nanoseconds(left_ns));
      } else {
        wake_ns = 0;
        wake_unlocked(lock);
      }
    }
    return nullptr;
  }

  void wake_unlocked(std::unique_lock<std::mutex>& lock) {
    lock.unlock();
    wake();
    lock.lock();
  }

  Result<bool> start_upload(Adapter& adapter, Stream& stream) {
    const std::shared_ptr<AdapterContent>& content = adapter.content->content();
    content->uploaded_for = adapter.info.name;
    const Result<bool> started = device_.start_upload(content, stream);
    uploads_.notify_one();
    return started;
  }

  struct Loaded {
    std::unique_ptr<AdapterContentUse> content;
    int max_rank = 0;
    std::vector<std::string> warnings;
  };

  Result<Loaded> read_and_pack(const std::string& path) {
    MEDLEY_TRY_ASSIGN(AdapterWeights weights, read(path));
    std::unique_ptr<AdapterContentUse> use = find_content(weights.hash);
    if (use == nullptr) {
      MEDLEY_TRY_ASSIGN(auto packed, backend_.pack_adapter(weights.modules));
      MEDLEY_TRY(device_.check_fits(*packed));
      MEDLEY_TRY(check_fits_host(*packed));
      use = keep_content(weights.hash, std::move(packed));
    }
    return Loaded{std::move(use), weights.max_rank, std::move(weights.warnings)};
  }

  Result<void> check_fits_host(const PackedAdapter& packed) const {
    if (options_.max_host_bytes == 0 || packed.num_bytes() <= options_.max_host_bytes) return {};
    return unsupported(
        fmt::format("the adapter takes {} bytes of host memory; all adapters together may take {}",
                    packed.num_bytes(), options_.max_host_bytes));
  }

  std::unique_ptr<AdapterContentUse> find_content(const std::string& hash) {
    std::lock_guard lock(mutex_);
    const auto found = contents_.find(hash);
    if (found == contents_.end()) return nullptr;
    std::shared_ptr<AdapterContent> content = found->second.lock();
    if (content == nullptr) return nullptr;
    return std::make_unique<AdapterContentUse>(std::move(content));
  }

  // The content in use with that hash: a new one, unless another loader was faster.
  std::unique_ptr<AdapterContentUse> keep_content(const std::string& hash,
                                                  std::unique_ptr<PackedAdapter> packed) {
    if (auto other = find_content(hash)) return other;
    std::lock_guard lock(mutex_);
    std::erase_if(contents_, [](const auto& entry) { return entry.second.expired(); });
    auto content = std::make_shared<AdapterContent>();
    content->hash = hash;
    content->packed = std::move(packed);
    content->last_used_ns = now_ns();
    contents_[hash] = content;
    return std::make_unique<AdapterContentUse>(std::move(content));
  }

  // Forgets images in host memory, the longest unused first, until all fit; but not `kept`.
  void drop_host_images(const AdapterContentUse* kept) {
    while (options_.max_host_bytes > 0) {
      size_t num_bytes = 0;
      std::shared_ptr<AdapterContent> oldest;
      for (const auto& [hash, entry] : contents_) {
        const std::shared_ptr<AdapterContent> content = entry.lock();
        if (content == nullptr) continue;
        num_bytes += content->packed->num_bytes();
        if (content->state != AdapterState::kInHost) continue;
        if (now_ns() - content->asked_ns < kRetryAfterNs) continue;  // somebody waits for it
        if (kept != nullptr && content == kept->content()) continue;
        if (content->num_names == 0 || content->num_pinned_names > 0) continue;
        if (oldest == nullptr || content->last_used_ns < oldest->last_used_ns) oldest = content;
      }
      if (num_bytes <= options_.max_host_bytes || oldest == nullptr) return;
      for (auto& [name, adapter] : adapters_) {
        if (adapter->content == nullptr || adapter->content->content() != oldest) continue;
        attach(*adapter, nullptr);
        adapter->apply(AdapterEvent::kDropped);
      }
      if (oldest->num_names > 0) return;  // a name that is about to be registered
    }
  }

  Result<AdapterWeights> read(const std::string& path) const {
    MEDLEY_TRY_ASSIGN(AdapterWeights weights,
                      options_.reader ? options_.reader(path)
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
    const AdapterContent& content = *loaded->content->content();
    adapter.info.num_bytes = content.packed->num_bytes();
    adapter.info.device_bytes = content.packed->device_bytes();
    adapter.info.hash = content.hash;
    adapter.info.max_rank = loaded->max_rank;
    adapter.info.warnings = std::move(loaded->warnings);
    for (const std::string& warning : adapter.info.warnings) {
      log::warn("adapter '{}': {}", adapter.info.name, warning);
    }
    log::info("adapter '{}': rank {}, {} bytes", adapter.info.name, adapter.info.max_rank,
              adapter.info.num_bytes);
    if (!adapter.forgotten) attach(adapter, std::move(loaded->content));
  }

  const ModelSpec spec_;
  Backend& backend_;
  const AdapterStoreOptions options_;

  mutable std::mutex mutex_;
  std::condition_variable work_;     // to_load_ or stopping_ changed
  std::condition_variable uploads_;  // there is one, or a time to ask again, or stopping_ changed
  std::condition_variable loaded_;   // some adapter left kLoading
  Adapters adapters_;
  std::map<std::string, std::weak_ptr<AdapterContent>> contents_;  // by hash
  DeviceTier device_;
  std::deque<std::shared_ptr<Adapter>> to_load_;
  std::deque<std::shared_ptr<Adapter>> to_device_;  // loaded, for fill_slots()
  bool stopping_ = false;
  std::vector<std::thread> loaders_;
};

}  // namespace

Result<std::unique_ptr<AdapterStore>> AdapterStore::create(const ModelSpec& spec, Backend& backend,
                                                           const AdapterStoreOptions& options) {
  if (options.max_loras < 1) {
    return invalid_argument(fmt::format("max_loras is {}; at least 1", options.max_loras),
                            "max_loras");
  }
  MEDLEY_TRY(backend.make_lora_table({.max_slots = options.max_loras,
                                      .num_layers = spec.num_layers(),
                                      .pool_bytes = options.pool_bytes,
                                      .pinned_bytes = options.pinned_bytes}));
  return std::unique_ptr<AdapterStore>(std::make_unique<AdapterStoreImpl>(spec, backend, options));
}

}  // namespace medley
