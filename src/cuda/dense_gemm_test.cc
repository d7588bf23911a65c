#include "cuda/dense_gemm.h"

#include <gtest/gtest.h>

namespace medley::cuda {
namespace {

constexpr int kSms = 132;

DenseGemmProblem problem(int64_t rows_of_matrix, int64_t cols, int max_rows) {
  return {.layout = make_matrix_layout(StreamFormat::kBF16, rows_of_matrix, cols),
          .max_rows = max_rows,
          .num_sms = kSms};
}

TEST(SelectDenseGemm, FewUnitsAreSplitAmongTheBlocksOfACluster) {
  // 320 units for 132 SMs: pairs of blocks take 4 or 5, in 66 shares.
  const DenseGemmConfig qkv = select_dense_gemm(problem(5120, 2880, 1));
  EXPECT_EQ(qkv.cluster, 2) << qkv.to_string();
  EXPECT_EQ(qkv.num_shares, 66);
  EXPECT_EQ(qkv.num_warps, 5);
  // 180 units: 5 or 6 for each of 33 clusters of four.
  const DenseGemmConfig o = select_dense_gemm(problem(2880, 4096, 1));
  EXPECT_EQ(o.cluster, 4) << o.to_string();
  EXPECT_EQ(o.num_warps, 6);
}

TEST(SelectDenseGemm, ManyUnitsAreNotSplit) {
  const DenseGemmConfig head = select_dense_gemm(problem(201088, 2880, 16));
  EXPECT_EQ(head.cluster, 1) << head.to_string();
  EXPECT_EQ(head.num_shares, kSms);
}

TEST(SelectDenseGemm, TheSplitOfColumnsDoesNotDependOnTheRows) {
  for (const auto& [rows, cols] : {std::pair(5120, 2880), {2880, 4096}, {5120, 25600}, {64, 64}}) {
    const int cluster = select_dense_gemm(problem(rows, cols, 1)).cluster;
    for (const int max_rows : {8, 9, 16, 17, 32, 33, 64, 65, 2048}) {
      EXPECT_EQ(select_dense_gemm(problem(rows, cols, max_rows)).cluster, cluster) << max_rows;
    }
  }
}

TEST(SelectDenseGemm, TilesOfRowsCoverTheBatch) {
  for (const int max_rows : {1, 8, 9, 16, 17, 32, 33, 64, 65, 200, 2048}) {
    const DenseGemmConfig config = select_dense_gemm(problem(5120, 2880, max_rows));
    EXPECT_GE(config.num_tiles * 8 * config.halves, max_rows) << config.to_string();
    EXPECT_LT((config.num_tiles - 1) * 8 * config.halves, max_rows) << config.to_string();
  }
}

TEST(SelectDenseGemm, AdaptersDoNotChangeTheSplitOfColumns) {
  for (const auto& [rows, cols] : {std::pair(5120, 2880), {2880, 4096}, {5120, 25600}, {64, 64}}) {
    for (const int max_rows : {1, 8, 16, 32, 64, 200}) {
      DenseGemmProblem with = problem(rows, cols, max_rows);
      const int cluster = select_dense_gemm(with).cluster;
      with.lora = true;
      EXPECT_EQ(select_dense_gemm(with).cluster, cluster) << max_rows;
    }
  }
}

TEST(SelectDenseGemm, ClustersOfFourLeaveRoomForThemselves) {
  // A group of multiprocessors has 16 or 18, so that 132 hold 32 clusters of four and not 33.
  DenseGemmProblem o = problem(2880, 4096, 64);
  EXPECT_EQ(select_dense_gemm(o).num_shares, 30);  // of 6 of the 180 units
  o.max_rows = 1;
  EXPECT_EQ(select_dense_gemm(o).num_shares, 33);  // half an SM each
}

TEST(SelectDenseGemm, ShrinksUpToSixtyFourRows) {
  const auto select = [](int64_t cols, int max_rows) {
    DenseGemmProblem with = problem(5120, cols, max_rows);
    with.lora = true;
    return select_dense_gemm(with);
  };
  EXPECT_EQ(select(2880, 1).shrink_splits, 15);  // of 90 blocks of 32 columns, 6 each
  EXPECT_EQ(select(2880, 8).shrink_splits, 9);
  EXPECT_EQ(select(2880, 64).shrink_splits, 4);  // kMaxShrinkPartials / 64
  EXPECT_EQ(select(64, 1).shrink_splits, 1);
  EXPECT_EQ(select(2880, 65).shrink_splits, 0);
  EXPECT_EQ(select_dense_gemm(problem(5120, 2880, 1)).shrink_splits, 0);
}

TEST(SelectDenseGemm, EveryShapeFits) {
  for (const int64_t rows : {16, 17, 512, 2880, 5120, 8192, 51200, 57344, 201088}) {
    for (const int64_t cols : {8, 64, 2880, 4096, 5120, 8192, 25600, 28672}) {
      for (const int max_rows : {1, 8, 16, 32, 64, 4096}) {
        DenseGemmProblem with = problem(rows, cols, max_rows);
        with.lora = true;
        const DenseGemmConfig inside = select_dense_gemm(with);
        EXPECT_LE(inside.shared_bytes, 220u * 1024) << inside.to_string();
        if (max_rows <= kMaxInsideRows) {
          EXPECT_GE(inside.shrink_warps, 1) << inside.to_string();
          EXPECT_LE(inside.num_warps + 1 + inside.shrink_warps, max_inside_warps(inside.halves))
              << inside.to_string();
          EXPECT_LE(max_rows * inside.shrink_splits, kMaxShrinkPartials) << inside.to_string();
        }
        const DenseGemmConfig config = select_dense_gemm(problem(rows, cols, max_rows));
        EXPECT_GE(config.num_slots, 1) << config.to_string();
        EXPECT_LE(config.num_slots, kMaxDenseSlots) << config.to_string();
        EXPECT_LE(config.num_warps, max_dense_warps(config.halves)) << config.to_string();
        EXPECT_LE(config.shared_bytes, 220u * 1024) << config.to_string();
        const int shares = config.num_shares;
        const int units = static_cast<int>((rows + 15) / 16);
        EXPECT_LE(shares, units) << config.to_string();
        if (config.cluster > 1) {
          EXPECT_LE((units + shares - 1) / shares, config.num_warps) << config.to_string();
        }
      }
    }
  }
}

TEST(SelectDenseGemm, UpToSixteenRowsLeaveHalfAnSm) {
  for (const int max_rows : {1, 8, 16}) {
    for (const int64_t rows : {2880, 5120, 201088}) {
      EXPECT_LE(select_dense_gemm(problem(rows, 2880, max_rows)).shared_bytes, 108u * 1024);
    }
  }
}

}  // namespace
}  // namespace medley::cuda
