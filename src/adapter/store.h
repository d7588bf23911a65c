#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "adapter/peft_reader.h"
#include "backend/backend.h"
#include "base/error.h"
#include "spec/model_spec.h"
#include "weights/checkpoint.h"

namespace medley {

// An adapter's life. One transition function (store.cc) checks every change.
enum class AdapterState : uint8_t {
  kOnDisk,     // registered, not read yet
  kLoading,    // being read, checked and packed on a loader thread
  kInHost,     // packed in host memory
  kUploading,  // being copied to the device, on a thread of its own, or about to enter its slot
  kOnDevice,   // in a slot of the LoRA table
  kFailed,     // the last load failed; the next request for it tries again
};

const char* to_string(AdapterState state);

struct AdapterInfo {
  std::string name;
  std::string path;
  AdapterState state = AdapterState::kOnDisk;
  int max_rank = 0;                   // 0 until read
  size_t num_bytes = 0;               // packed, in host memory
  size_t device_bytes = 0;            // what it takes of the device's pool, when it is there
  std::string hash;                   // BLAKE3 of config and weights, hex; empty until read
  std::string error;                  // kFailed: why
  int64_t last_used_ns = 0;           // when a request last took it, by now_ns(); 0 = never
  int num_users = 0;                  // requests that hold its content
  bool pinned = false;                // stays on the device once it is there
  std::vector<std::string> warnings;  // of the last reading
};

// How a path becomes weights. Called on any thread.
using AdapterReader = std::function<Result<AdapterWeights>(const std::string& path)>;

struct AdapterStoreOptions {
  int max_loras = 8;      // slots on the device
  int max_lora_rank = 0;  // larger ranks are refused; 0 = no limit
  int num_loader_threads = 2;
  size_t pool_bytes = 0;    // device memory for adapters; 0: no limit (LoraTableDesc)
  size_t pinned_bytes = 0;  // host memory that is made ready at once (LoraTableDesc)
  // Packed adapters that are not on the device are forgotten, the longest unused first, while all
  // take more than this; the next request for one reads it again. One that alone takes more is
  // refused. What is being read comes on top. 0: no limit.
  size_t max_host_bytes = 0;
  std::string adapter_root;  // an unknown name is looked up here on first use; empty = off
  // The base model's tensors, which must outlive the store: copies of its embeddings in an adapter
  // are accepted where they are equal. Null: such adapters are refused.
  const TensorMap* base_tensors = nullptr;
  AdapterReader reader;  // empty = read_peft_adapter
};

// One attempt to bring an adapter a step nearer.
struct AdapterLoad {
  enum class Source : uint8_t {
    kDisk,  // read, checked and packed in host memory
    kHost,  // copied from there to the device
  };
  std::string name;
  Source source = Source::kDisk;
  int64_t duration_ns = 0;
  bool ok = true;
};

const char* to_string(AdapterLoad::Source source);

struct AdapterLoadOptions {
  // A name that is taken gets the new content: requests that run finish on the old one, requests
  // that start later get the new. Until the new content has been read, the old one stays.
  bool in_place = false;
  bool pin = false;  // see AdapterStore::set_pinned
  bool read = true;  // else the name is registered and read when first asked for
  // Once read, it takes a slot before the next request for it comes: a free one, or that of the
  // adapter that was idle for longest. It waits in host memory while all are in use.
  bool to_device = false;
};

class AdapterStore;

// Keeps an adapter in its slot while a request uses it. Movable; releases on destruction. Engine
// thread only.
class AdapterPin {
 public:
  AdapterPin() = default;  // base model
  AdapterPin(AdapterPin&& other) noexcept;
  AdapterPin& operator=(AdapterPin&& other) noexcept;
  ~AdapterPin();
  int32_t slot() const { return slot_; }  // kNoAdapter for the base model
  // AdapterInfo::hash of what is in the slot; empty for the base model. A name's content may
  // change, a pin's does not.
  const std::string& hash() const { return hash_; }

 private:
  friend class AdapterStore;
  AdapterStore* store_ = nullptr;
  int32_t slot_ = kNoAdapter;
  std::string hash_;
};

// All adapters the server knows, and where each one lives.
class AdapterStore {
 public:
  virtual ~AdapterStore() = default;

  // --- any thread ---

  // Reads and checks `path`, keeps it in host memory and registers it under `name`; waits for all
  // that. On failure nothing has changed; the error names the tensor or key concerned.
  // kInvalidArgument if the name is taken and not to be replaced (one whose last load failed is
  // free), or does not match [A-Za-z0-9._:/@-]{1,256}.
  virtual Result<AdapterInfo> load(const std::string& name, const std::string& path,
                                   const AdapterLoadOptions& options) = 0;
  Result<AdapterInfo> load(const std::string& name, const std::string& path) {
    return load(name, path, {});
  }
  // What load() would find in `path`, without keeping it.
  virtual Result<AdapterInfo> check(const std::string& path) const = 0;
  // Forgets a name: new requests can't have it, those that run finish, and its slot is free when
  // the last has ended. kNotFound if unknown.
  virtual Result<void> unload(const std::string& name) = 0;
  // A pinned adapter is never evicted from the device. kNotFound if unknown, kConflict if no slot
  // would be left for the adapters that are not pinned.
  virtual Result<void> set_pinned(const std::string& name, bool pinned) = 0;
  // Makes sure that a request may name this adapter: registered, or found under adapter_root
  // (registered then). Does not read the weights. kNotFound otherwise.
  virtual Result<void> resolve(const std::string& name) = 0;
  virtual std::vector<AdapterInfo> list() const = 0;

  // --- engine thread only ---

  // A pin when the adapter is on the device; nothing when it is on its way (that is started, by
  // other threads) or everything that could make room for it is in use: ask again next step. An
  // error when it can't be had; it concerns only the requests that named it. Never waits.
  virtual Result<std::optional<AdapterPin>> acquire(const std::string& name, Stream& stream) = 0;

  // Lets what has arrived on the device take its slot, and starts the adapters that were loaded
  // with `to_device`, as far as there is room. To be called after each wake.
  virtual void fill_slots(Stream& stream) = 0;

  // `wake` is called, on any thread, whenever acquire() or fill_slots() may answer otherwise than
  // before: a load or an upload has ended well or badly. An idle engine asks again then.
  // Reset it (empty) before what it captures dies. Any thread.
  void set_wake(std::function<void()> wake) {
    std::lock_guard lock(wake_mutex_);
    wake_ = std::move(wake);
  }

  // `observer` is told of every load, those before too, on any thread; it must not call the store.
  // Reset it (empty) before what it captures dies. Any thread.
  using LoadObserver = std::function<void(const AdapterLoad&)>;
  void set_load_observer(LoadObserver observer);

  static Result<std::unique_ptr<AdapterStore>> create(const ModelSpec& spec, Backend& backend,
                                                      const AdapterStoreOptions& options);

 private:
  friend class AdapterPin;
  virtual void release(int32_t slot) = 0;

  std::mutex wake_mutex_;
  std::function<void()> wake_;
  std::mutex observer_mutex_;
  LoadObserver observer_;
  std::vector<AdapterLoad> unobserved_;  // until there is an observer for the first time
  bool was_observed_ = false;

 protected:
  void observe(AdapterLoad load);
  void wake() {
    std::lock_guard lock(wake_mutex_);
    if (wake_) wake_();
  }
  static AdapterPin make_pin(AdapterStore* store, int32_t slot, std::string hash);
};

}  // namespace medley
