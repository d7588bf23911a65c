#pragma once

#include <cupti.h>

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <thread>

namespace medley::bench {

// Counts what a process asks of CUDA, by CUPTI's callbacks
// (https://docs.nvidia.com/cupti/main/main.html#cupti-callback-api): calls of the runtime, and
// calls of the driver that are not part of one of those. One at a time. Thread-safe.
class ApiCalls {
 public:
  struct Counts {
    std::map<std::string, int64_t> by_name;  // "cudaGraphLaunch"

    int64_t num_allocations() const;  // of device or page-locked memory, and their freeing
    // The caller waited for the device, or may have: a copy that is not asynchronous.
    int64_t num_synchronisations() const;
    int64_t count(const std::string& part_of_name) const;
  };

  ApiCalls();
  ~ApiCalls();
  ApiCalls(const ApiCalls&) = delete;
  ApiCalls& operator=(const ApiCalls&) = delete;

  void reset();
  std::map<std::thread::id, Counts> by_thread() const;
  Counts all() const;
  int64_t num_module_loads() const;

 private:
  static void CUPTIAPI on_event(void* self, CUpti_CallbackDomain domain, CUpti_CallbackId id,
                                const void* data);
  void add(const char* name);

  CUpti_SubscriberHandle subscriber_ = nullptr;
  mutable std::mutex mutex_;
  std::map<std::thread::id, Counts> by_thread_;
  int64_t num_module_loads_ = 0;
};

}  // namespace medley::bench
