#include "bench/step_table.h"

#include <gtest/gtest.h>

namespace medley::bench {
namespace {

// Two steps of two kernels and a copy:
//
//   a  |====|              |====|
//   b     |=====|             |=====|      starts before a has ended, and waits for it
//   c              |==|                |==|
//      0  3 4   7  10 12   20 23 24 27 30 32
TEST(StepTable, OverlapCountsOnceAndForTheFirst) {
  std::vector<DeviceWork> work;
  for (const int64_t base : {0, 20000}) {
    work.push_back({.name = "a", .is_kernel = true, .start_ns = base, .end_ns = base + 4000});
    work.push_back(
        {.name = "b", .is_kernel = true, .start_ns = base + 3000, .end_ns = base + 7000});
    work.push_back({.name = "copy to host", .start_ns = base + 10000, .end_ns = base + 12000});
  }
  const StepTable table = make_step_table(work, 2);
  EXPECT_DOUBLE_EQ(table.num_kernels, 2.0);
  EXPECT_DOUBLE_EQ(table.busy_us, 9.0);
  EXPECT_DOUBLE_EQ(table.traced_step_us, 16.0);  // 32 us in two steps
  ASSERT_EQ(table.rows.size(), 3u);
  EXPECT_EQ(table.rows[0].name, "a");
  EXPECT_DOUBLE_EQ(table.rows[0].alone_us, 4.0);
  EXPECT_EQ(table.rows[1].name, "b");
  EXPECT_DOUBLE_EQ(table.rows[1].alone_us, 3.0);
  EXPECT_DOUBLE_EQ(table.rows[1].mean_us, 4.0);
  EXPECT_DOUBLE_EQ(table.rows[0].idle_us, 4.0);  // before the second step's, 12 to 20
  EXPECT_DOUBLE_EQ(table.rows[2].launches, 1.0);
  EXPECT_DOUBLE_EQ(table.rows[2].idle_us, 3.0);
}

TEST(ShortKernelName, LeavesTheNameAndItsTemplateArguments) {
  EXPECT_EQ(short_kernel_name("void medley::cuda::(anonymous namespace)::f<int, 4>(int*)"),
            "f<int, 4>");
  EXPECT_EQ(short_kernel_name("medley::cuda::sample_kernel(medley::cuda::SampleParams)"),
            "sample_kernel");
  EXPECT_EQ(short_kernel_name("void f<(medley::cuda::Form)2, g<int> >(void (*)(int))"),
            "f<(Form)2, g<int> >");
}

}  // namespace
}  // namespace medley::bench
