// What a decoding step notices of an adapter that comes and goes: replays of a captured step of
// GPT-OSS's MoE layers (8 rows, 8 adapters of rank 32) while another thread makes room for one more
// adapter, copies it and drops it, over and over, in each of several ways.
//
// Usage: bench_adapter_memory [replays] [base]   (of each way; 600)
// base: rows without adapters.
// Prints per way: median, p99 and maximum of the time from one replay's end to the next as the host
// sees it (one replay is always queued behind the one that runs), how often the other thread's work
// was done meanwhile, and its median time.

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <thread>

#include "base/clock.h"
#include "chain_model.h"
#include "cuda/check.h"
#include "cuda/pinned_arena.h"

namespace medley::bench {
namespace {

constexpr size_t kGranule = size_t{2} << 20;
constexpr int kBatch = 8;

// The driver's functions, without linking against it.
template <class Function>
Function driver(const char* name) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found = {};
  MEDLEY_CUDA_CHECK(
      cudaGetDriverEntryPointByVersion(name, &function, 12000, cudaEnableDefault, &found));
  MEDLEY_CHECK(found == cudaDriverEntryPointSuccess, name);
  return reinterpret_cast<Function>(function);
}
void check_driver(CUresult result) { MEDLEY_CHECK_EQ(static_cast<int>(result), 0); }

// Maps and unmaps granules of device memory at one address.
class Mapping {
 public:
  explicit Mapping(size_t num_bytes)
      : num_bytes_((num_bytes + kGranule - 1) / kGranule * kGranule) {
    check_driver(driver<decltype(&cuMemAddressReserve)>("cuMemAddressReserve")(&at_, num_bytes_,
                                                                               kGranule, 0, 0));
  }
  void map() {
    CUmemAllocationProp property = {};
    property.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    property.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0};
    for (size_t done = 0; done < num_bytes_; done += kGranule) {
      CUmemGenericAllocationHandle handle = 0;
      check_driver(create_(&handle, kGranule, &property, 0));
      check_driver(map_(at_ + done, kGranule, 0, handle, 0));
      check_driver(release_(handle));  // lives as long as the mapping
    }
    const CUmemAccessDesc access = {.location = property.location,
                                    .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    check_driver(set_access_(at_, num_bytes_, &access, 1));
  }
  void unmap() { check_driver(unmap_(at_, num_bytes_)); }
  void* data() const { return reinterpret_cast<void*>(at_); }

 private:
  size_t num_bytes_;
  CUdeviceptr at_ = 0;
  decltype(&cuMemCreate) create_ = driver<decltype(&cuMemCreate)>("cuMemCreate");
  decltype(&cuMemMap) map_ = driver<decltype(&cuMemMap)>("cuMemMap");
  decltype(&cuMemRelease) release_ = driver<decltype(&cuMemRelease)>("cuMemRelease");
  decltype(&cuMemSetAccess) set_access_ = driver<decltype(&cuMemSetAccess)>("cuMemSetAccess");
  decltype(&cuMemUnmap) unmap_ = driver<decltype(&cuMemUnmap)>("cuMemUnmap");
};

// Page-locked bytes and a stream to copy them with.
class Source {
 public:
  explicit Source(size_t num_bytes) : memory_(arena_.allocate(num_bytes).value()) {}
  void copy_to(void* target) {
    for (size_t done = 0; done < memory_.num_bytes(); done += cuda::PinnedArena::kSlabBytes) {
      const size_t count = std::min(cuda::PinnedArena::kSlabBytes, memory_.num_bytes() - done);
      MEDLEY_CUDA_CHECK(cudaMemcpyAsync(static_cast<uint8_t*>(target) + done, memory_.data() + done,
                                        count, cudaMemcpyHostToDevice, stream_.get()));
    }
    stream_.synchronize();
  }

 private:
  cuda::PinnedArena arena_;
  cuda::PinnedRange memory_;
  cuda::CudaStream stream_;
};

double percentile(std::vector<double> sorted, double share) {
  if (sorted.empty()) return 0.0;
  std::sort(sorted.begin(), sorted.end());
  return sorted[std::min(sorted.size() - 1,
                         static_cast<size_t>(share * static_cast<double>(sorted.size())))];
}

struct Way {
  const char* name;
  std::function<void()> work;          // on the other thread, over and over; may be empty
  std::function<void()> between = {};  // on the replaying thread, between launches
};

double time_way(Chain& chain, cuda::CudaGraph& graph, const Way& way, int replays,
                double quiet_p99) {
  std::atomic<bool> stop = false;
  std::vector<double> work_ms;
  std::thread other([&] {
    while (!stop && way.work) {
      const int64_t start = now_ns();
      way.work();
      work_ms.push_back(ms_since(start));
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
  });
  std::array<cuda::CudaEvent, 2> done;
  std::vector<double> gaps;
  int64_t last = 0;
  for (int i = 0; i < replays; ++i) {
    if (way.between) way.between();
    graph.launch(chain.stream());
    done[i % 2].record(chain.stream());
    if (i == 0) continue;
    MEDLEY_CHECK(done[(i + 1) % 2].wait().ok(), "the device failed");
    const int64_t now = now_ns();
    if (i > 10) gaps.push_back(ms_between(last, now));
    last = now;
  }
  chain.stream().synchronize();
  stop = true;
  other.join();
  const double p99 = percentile(gaps, 0.99);
  fmt::print(
      "{:44} median {:6.3f} ms, p99 {:6.3f} ({:+5.1f} %), max {:7.3f}; {:4} times, {:7.2f} ms\n",
      way.name, percentile(gaps, 0.5), p99, quiet_p99 > 0.0 ? 100.0 * (p99 / quiet_p99 - 1.0) : 0.0,
      percentile(gaps, 1.0), work_ms.size(), percentile(work_ms, 0.5));
  std::fflush(stdout);
  return p99;
}

int run(int argc, char** argv) {
  const int replays = argc > 1 ? std::atoi(argv[1]) : 600;
  ChainShape shape = gpt_oss_20b();
  shape.num_free_slots = 1;
  const size_t adapter_bytes =
      static_cast<size_t>(shape.adapter_bytes(shape.moe.num_experts) * shape.num_layers * 1.01);
  shape.pool_bytes = (shape.num_adapters + 2) * adapter_bytes;
  Chain chain(shape, kBatch);
  const bool base = argc > 2 && std::strcmp(argv[2], "base") == 0;
  chain.set_batch(kBatch, /*adapters=*/!base);
  chain.run();
  cuda::CudaGraph graph(chain.stream(), [&] { chain.run(); });
  fmt::print("{}; an adapter is {} bytes on the device\n", chain.device(),
             chain.adapter().device_bytes());

  const size_t bytes = chain.adapter().device_bytes();
  Source source(bytes);
  Mapping mapping(bytes);
  cuda::DeviceBuffer target = cuda::DeviceBuffer::allocate(bytes).value();
  // Uploaded by one thread, set, cleared and destroyed by the other.
  std::atomic<DeviceAdapter*> ready = nullptr;
  std::unique_ptr<DeviceAdapter> in_slot;
  const auto upload = [&] {
    while (ready != nullptr) std::this_thread::yield();
    ready = chain.backend().upload_adapter(chain.adapter()).value().release();
  };
  const auto publish = [&] {
    if (ready == nullptr) return;
    if (in_slot != nullptr) chain.backend().clear_adapter(shape.num_adapters, chain.stream());
    in_slot.reset(ready.exchange(nullptr));
    chain.backend().set_adapter(shape.num_adapters, *in_slot, chain.stream());
  };
  const std::vector<Way> ways = {
      {"nothing else", {}},
      {"copy alone", [&] { source.copy_to(target.data()); }},
      {"arena: upload_adapter, set, clear", upload, publish},
      {"map 2 MiB granules, copy, unmap",
       [&] {
         mapping.map();
         source.copy_to(mapping.data());
         mapping.unmap();
       }},
      {"map and unmap 2 MiB granules, no copy",
       [&] {
         mapping.map();
         mapping.unmap();
       }},
      {"cudaMalloc, copy, cudaFree",
       [&] {
         const cuda::DeviceBuffer buffer = cuda::DeviceBuffer::allocate(bytes).value();
         source.copy_to(const_cast<void*>(buffer.data()));
       }},
      {"cudaMallocHost and cudaFreeHost, 64 MiB",
       [&] { cuda::PinnedBuffer buffer(cuda::PinnedArena::kSlabBytes); }},
      {"a slab of PinnedArena, locked and unlocked",
       [&] {
         cuda::PinnedArena arena;
         MEDLEY_CHECK(arena.reserve(cuda::PinnedArena::kSlabBytes).ok(), "no memory");
       }},
      {"nothing else, again", {}},
  };
  double quiet_p99 = 0.0;
  for (const Way& way : ways) {
    const double p99 = time_way(chain, graph, way, replays, quiet_p99);
    if (quiet_p99 == 0.0) quiet_p99 = p99;
  }
  chain.backend().clear_adapter(shape.num_adapters, chain.stream());
  delete ready.exchange(nullptr);
  return 0;
}

}  // namespace
}  // namespace medley::bench

int main(int argc, char** argv) { return medley::bench::run(argc, argv); }
