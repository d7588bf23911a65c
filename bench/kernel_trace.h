#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace medley::bench {

// One kernel, copy or fill as the device ran it; times of one clock, in nanoseconds.
struct DeviceWork {
  std::string name;  // of a kernel without namespaces and parameters; "copy to device", "fill", ...
  bool is_kernel = false;
  int64_t start_ns = 0;
  int64_t end_ns = 0;
};

// What all streams ran from here to the end of stop(), each kernel of a graph by itself, by CUPTI's
// activity records (https://docs.nvidia.com/cupti/main/main.html#cupti-activity-api). Kernels
// overlap as they do without it. One at a time.
class KernelTrace {
 public:
  KernelTrace();
  ~KernelTrace();
  KernelTrace(const KernelTrace&) = delete;
  KernelTrace& operator=(const KernelTrace&) = delete;

  // Waits for the device. By start.
  std::vector<DeviceWork> stop();
};

// "void medley::cuda::(anonymous namespace)::f<int, 4>(int*)" is "f<int, 4>".
std::string short_kernel_name(const std::string& demangled);

}  // namespace medley::bench
