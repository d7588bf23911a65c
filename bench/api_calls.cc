#include "bench/api_calls.h"

#include "bench/cupti_check.h"

namespace medley::bench {
namespace {

bool has(const std::string& name, const char* part) { return name.find(part) != std::string::npos; }

bool is_allocation(const std::string& name) {
  const bool is_of_memory = has(name, "Mem") || has(name, "Malloc") || has(name, "Host") ||
                            has(name, "cudaFree") || has(name, "Array");
  return is_of_memory &&
         (has(name, "lloc") || has(name, "Create") || has(name, "Free") || has(name, "Register"));
}

bool is_synchronisation(const std::string& name) {
  const bool moves = has(name, "Memcpy") || has(name, "Memset");
  return has(name, "Synchronize") || (moves && !has(name, "Async"));
}

template <class Matches>
int64_t sum(const std::map<std::string, int64_t>& by_name, const Matches& matches) {
  int64_t total = 0;
  for (const auto& [name, count] : by_name) {
    if (matches(name)) total += count;
  }
  return total;
}

}  // namespace

int64_t ApiCalls::Counts::num_allocations() const { return sum(by_name, is_allocation); }
int64_t ApiCalls::Counts::num_synchronisations() const { return sum(by_name, is_synchronisation); }
int64_t ApiCalls::Counts::count(const std::string& part_of_name) const {
  return sum(by_name, [&](const std::string& name) { return has(name, part_of_name.c_str()); });
}

ApiCalls::ApiCalls() {
  MEDLEY_CUPTI_CHECK(cuptiSubscribe(&subscriber_, on_event, this));
  for (const CUpti_CallbackDomain domain :
       {CUPTI_CB_DOMAIN_RUNTIME_API, CUPTI_CB_DOMAIN_DRIVER_API, CUPTI_CB_DOMAIN_RESOURCE}) {
    MEDLEY_CUPTI_CHECK(cuptiEnableDomain(/*enable=*/1, subscriber_, domain));
  }
}

ApiCalls::~ApiCalls() { cuptiUnsubscribe(subscriber_); }

void ApiCalls::on_event(void* self, CUpti_CallbackDomain domain, CUpti_CallbackId id,
                        const void* data) {
  auto& calls = *static_cast<ApiCalls*>(self);
  if (domain == CUPTI_CB_DOMAIN_RESOURCE) {
    if (id != CUPTI_CBID_RESOURCE_MODULE_LOADED) return;
    const std::lock_guard lock(calls.mutex_);
    ++calls.num_module_loads_;
    return;
  }
  thread_local int depth = 0;
  const auto& call = *static_cast<const CUpti_CallbackData*>(data);
  if (call.callbackSite == CUPTI_API_EXIT) {
    if (depth > 0) --depth;  // a call may have begun before the subscription
  } else if (depth++ == 0) {
    calls.add(call.functionName);
  }
}

void ApiCalls::add(const char* name) {
  const std::lock_guard lock(mutex_);
  ++by_thread_[std::this_thread::get_id()].by_name[name];
}

void ApiCalls::reset() {
  const std::lock_guard lock(mutex_);
  by_thread_.clear();
  num_module_loads_ = 0;
}

std::map<std::thread::id, ApiCalls::Counts> ApiCalls::by_thread() const {
  const std::lock_guard lock(mutex_);
  return by_thread_;
}

ApiCalls::Counts ApiCalls::all() const {
  const std::lock_guard lock(mutex_);
  Counts sums;
  for (const auto& [thread, counts] : by_thread_) {
    for (const auto& [name, count] : counts.by_name) sums.by_name[name] += count;
  }
  return sums;
}

int64_t ApiCalls::num_module_loads() const {
  const std::lock_guard lock(mutex_);
  return num_module_loads_;
}

}  // namespace medley::bench
