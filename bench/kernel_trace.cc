#include "bench/kernel_trace.h"

#include <cuda_runtime_api.h>
#include <cxxabi.h>

#include <algorithm>
#include <cstdlib>
#include <mutex>

#include "bench/cupti_check.h"
#include "cuda/check.h"

namespace medley::bench {
namespace {

constexpr size_t kBufferBytes = size_t{4} << 20;
constexpr size_t kBufferAlignment = 8;  // of activity records
constexpr CUpti_ActivityKind kKinds[] = {CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL,
                                         CUPTI_ACTIVITY_KIND_MEMCPY, CUPTI_ACTIVITY_KIND_MEMSET};

// CUPTI's callbacks have no argument of their user's.
std::mutex g_mutex;
std::vector<DeviceWork> g_work;

std::string demangle(const char* name) {
  int status = 0;
  char* text = abi::__cxa_demangle(name, nullptr, nullptr, &status);
  std::string out = status == 0 ? text : name;
  std::free(text);
  return out;
}

const char* copy_name(uint8_t kind) {
  switch (kind) {
    case CUPTI_ACTIVITY_MEMCPY_KIND_HTOD:
      return "copy to device";
    case CUPTI_ACTIVITY_MEMCPY_KIND_DTOH:
      return "copy to host";
    default:
      return "copy";
  }
}

template <class Record>
void add(const Record& record, std::string name, bool is_kernel) {
  g_work.push_back({.name = std::move(name),
                    .is_kernel = is_kernel,
                    .start_ns = static_cast<int64_t>(record.start),
                    .end_ns = static_cast<int64_t>(record.end)});
}

void read_record(const CUpti_Activity* record) {
  switch (record->kind) {
    case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL: {
      const auto* kernel = reinterpret_cast<const CUpti_ActivityKernel10*>(record);
      return add(*kernel, short_kernel_name(demangle(kernel->name)), /*is_kernel=*/true);
    }
    case CUPTI_ACTIVITY_KIND_MEMCPY: {
      const auto* copy = reinterpret_cast<const CUpti_ActivityMemcpy6*>(record);
      return add(*copy, copy_name(copy->copyKind), /*is_kernel=*/false);
    }
    case CUPTI_ACTIVITY_KIND_MEMSET:
      return add(*reinterpret_cast<const CUpti_ActivityMemset4*>(record), "fill",
                 /*is_kernel=*/false);
    default:
      return;
  }
}

void CUPTIAPI give_buffer(uint8_t** buffer, size_t* num_bytes, size_t* max_records) {
  *buffer = static_cast<uint8_t*>(std::aligned_alloc(kBufferAlignment, kBufferBytes));
  *num_bytes = kBufferBytes;
  *max_records = 0;
}

void CUPTIAPI take_buffer(CUcontext, uint32_t, uint8_t* buffer, size_t, size_t num_valid_bytes) {
  const std::lock_guard lock(g_mutex);
  CUpti_Activity* record = nullptr;
  while (cuptiActivityGetNextRecord(buffer, num_valid_bytes, &record) == CUPTI_SUCCESS) {
    read_record(record);
  }
  std::free(buffer);
}

}  // namespace

std::string short_kernel_name(const std::string& demangled) {
  // Parameters are the last parenthesis outside angle brackets; what stands before the name ends in
  // "::" or a blank, outside brackets of either kind.
  std::string name = demangled;
  for (const std::string scope : {"(anonymous namespace)::", "medley::cuda::"}) {
    for (size_t at; (at = name.find(scope)) != std::string::npos;) name.erase(at, scope.size());
  }
  int depth = 0;
  size_t begin = 0;
  for (size_t i = 0; i < name.size(); ++i) {
    const char c = name[i];
    if (depth == 0 && c == '(') return name.substr(begin, i - begin);
    if (c == '<') ++depth;
    if (c == '>') --depth;
    if (depth == 0 && (c == ':' || c == ' ')) begin = i + 1;
  }
  return name.substr(begin);
}

KernelTrace::KernelTrace() {
  MEDLEY_CUDA_CHECK(cudaDeviceSynchronize());
  {
    const std::lock_guard lock(g_mutex);
    g_work.clear();
  }
  MEDLEY_CUPTI_CHECK(cuptiActivityRegisterCallbacks(give_buffer, take_buffer));
  for (const CUpti_ActivityKind kind : kKinds) MEDLEY_CUPTI_CHECK(cuptiActivityEnable(kind));
}

KernelTrace::~KernelTrace() {
  for (const CUpti_ActivityKind kind : kKinds) cuptiActivityDisable(kind);
}

std::vector<DeviceWork> KernelTrace::stop() {
  MEDLEY_CUDA_CHECK(cudaDeviceSynchronize());
  MEDLEY_CUPTI_CHECK(cuptiActivityFlushAll(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED));
  const std::lock_guard lock(g_mutex);
  std::vector<DeviceWork> work = std::move(g_work);
  g_work.clear();
  for (const DeviceWork& each : work) MEDLEY_CHECK_LT(each.start_ns, each.end_ns);
  std::ranges::sort(work, {}, &DeviceWork::start_ns);
  return work;
}

}  // namespace medley::bench
