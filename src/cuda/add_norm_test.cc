#include "cuda/add_norm.h"

#include <gtest/gtest.h>

namespace medley::cuda {
namespace {

TEST(SelectAddNorm, OneThreadPerVectorInWholeWarps) {
  const auto config = select_add_norm({.hidden_size = 2880});
  ASSERT_TRUE(config.ok());
  EXPECT_EQ(config->num_threads, 384) << "360 vectors of 8 need 12 warps";
  EXPECT_EQ(config->shared_bytes, 2880u * (4 + 2)) << "the row in float32, and as it is stored";
}

TEST(SelectAddNorm, WideRowsLoop) {
  const auto config = select_add_norm({.hidden_size = 8192});
  ASSERT_TRUE(config.ok());
  EXPECT_EQ(config->num_threads, 512);
}

TEST(SelectAddNorm, RefusesWhatTheKernelCannotDo) {
  EXPECT_EQ(select_add_norm({.hidden_size = 100}).error().code, ErrorCode::kUnsupported);
  const auto floats = select_add_norm({.hidden_size = 64, .dtype = DType::kF32});
  ASSERT_FALSE(floats.ok());
  EXPECT_NE(floats.error().message.find("float32"), std::string::npos) << floats.error().message;
}

}  // namespace
}  // namespace medley::cuda
