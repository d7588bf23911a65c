#include "bench/api_calls.h"

#include <gtest/gtest.h>

namespace medley::bench {
namespace {

// Names are those of the CUDA 13.0 reference manuals; CUPTI may add a version ("_v2", "_ptsz").
TEST(ApiCallCounts, AllocationsAreKnownByTheirNames) {
  const ApiCalls::Counts memory = {{{"cudaMalloc", 1},
                                    {"cudaMallocAsync", 1},
                                    {"cudaMallocHost_v3020", 1},
                                    {"cudaHostAlloc", 1},
                                    {"cudaHostRegister", 1},
                                    {"cudaFree", 1},
                                    {"cudaFreeHost", 1},
                                    {"cuMemAlloc_v2", 1},
                                    {"cuMemHostAlloc", 1},
                                    {"cuMemCreate", 1}}};
  EXPECT_EQ(memory.num_allocations(), 10);
  const ApiCalls::Counts others = {{{"cudaEventCreateWithFlags", 1},
                                    {"cudaStreamCreateWithFlags", 1},
                                    {"cudaHostGetDevicePointer", 1},
                                    {"cudaMemcpyAsync", 1},
                                    {"cudaMemGetInfo", 1},
                                    {"cudaGraphLaunch", 1}}};
  EXPECT_EQ(others.num_allocations(), 0);
}

TEST(ApiCallCounts, SynchronisationsAreKnownByTheirNames) {
  const ApiCalls::Counts waits = {{{"cudaDeviceSynchronize", 2},
                                   {"cudaStreamSynchronize_ptsz", 1},
                                   {"cuEventSynchronize", 1},
                                   {"cudaMemcpy", 1},
                                   {"cuMemcpyHtoD_v2", 1},
                                   {"cudaMemset", 1}}};
  EXPECT_EQ(waits.num_synchronisations(), 7);
  const ApiCalls::Counts others = {{{"cudaMemcpyAsync", 1},
                                    {"cudaMemcpyBatchAsync_v13000", 1},
                                    {"cudaMemset2DAsync", 1},
                                    {"cudaEventQuery", 1},
                                    {"cudaEventRecord", 1},
                                    {"cudaStreamWaitEvent", 1}}};
  EXPECT_EQ(others.num_synchronisations(), 0);
  EXPECT_EQ(others.count("Memcpy"), 2);
}

}  // namespace
}  // namespace medley::bench
