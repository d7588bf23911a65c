#include "cuda/lora_pack.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <random>

// Reads packed modules by the description in lora_entry.h and expects what element() says.

namespace medley::cuda {
namespace {

enum class Layout : uint8_t { kRows, kTransposed, kExpertInner };

// Matrices (one per expert, or one) in a file's layout.
class Matrices {
 public:
  struct Desc {
    int count = 1;
    int64_t rows = 0;
    int64_t cols = 0;
    DType dtype = DType::kBF16;
    Layout layout = Layout::kRows;
  };
  Matrices(const Desc& desc, uint32_t seed) : desc_(desc) {
    std::mt19937 engine(seed);
    const size_t size = static_cast<size_t>(desc.count * desc.rows * desc.cols);
    std::normal_distribution<float> normal;
    bytes_.resize(size * size_of(desc.dtype));
    for (size_t i = 0; i < size; ++i) {
      const float value = normal(engine);
      // Any finite half: its exponent is never all ones.
      const auto half = static_cast<uint16_t>(engine() & 0xbbff);
      const uint16_t bits = desc.dtype == DType::kF16 ? half : float_to_bf16(value);
      if (desc.dtype == DType::kF32) {
        std::memcpy(bytes_.data() + i * 4, &value, 4);
      } else {
        std::memcpy(bytes_.data() + i * 2, &bits, 2);
      }
    }
  }
  std::vector<MatrixView> views() const {
    std::vector<MatrixView> views;
    for (int64_t i = 0; i < desc_.count; ++i) {
      MatrixView view = {.dtype = desc_.dtype, .rows = desc_.rows, .cols = desc_.cols};
      int64_t offset = i * desc_.rows * desc_.cols;
      switch (desc_.layout) {
        case Layout::kRows:
          view.row_stride = desc_.cols;
          break;
        case Layout::kTransposed:
          view.row_stride = 1;
          view.col_stride = desc_.rows;
          break;
        case Layout::kExpertInner:
          view.row_stride = desc_.cols * desc_.count;
          view.col_stride = desc_.count;
          offset = i;
          break;
      }
      view.data = bytes_.data() + offset * static_cast<int64_t>(size_of(desc_.dtype));
      views.push_back(view);
    }
    return views;
  }

 private:
  Desc desc_;
  std::vector<uint8_t> bytes_;
};

float bf16_at(const uint8_t* bytes) {
  uint16_t bits = 0;
  std::memcpy(&bits, bytes, 2);
  return bf16_to_float(bits);
}

float rounded(const MatrixView& view, int64_t row, int64_t col) {
  return bf16_to_float(float_to_bf16(element(view, row, col)));
}

struct alignas(64) Line {
  std::array<uint8_t, 64> bytes;
};

std::vector<Line> pack(const LoraModulePlan& plan) {
  std::vector<Line> lines((plan.num_bytes() + sizeof(Line) - 1) / sizeof(Line));
  std::memset(lines.data(), 0xee, lines.size() * sizeof(Line));
  std::vector<LoraPackTask> tasks;
  add_pack_tasks(plan, lines[0].bytes.data(), tasks);
  for (const LoraPackTask& task : tasks) run_pack_task(task);
  return lines;
}

// The pair that changes output row `row`, or null.
const LoraPair* pair_of(const LoraModuleWeights& module, int64_t row) {
  for (const LoraPair& pair : module.pairs) {
    if (pair.row_begin <= row && row < pair.row_end) return &pair;
  }
  return nullptr;
}

void expect_packed(const LoraModuleWeights& module, const LoraSiteShape& shape, int num_a,
                   int rank) {
  const LoraModulePlan plan = plan_lora_module(module, shape).value();
  const std::vector<Line> lines = pack(plan);
  const LoraEntry entry = plan.entry(lines[0].bytes.data());
  ASSERT_EQ(entry.num_a, num_a);
  ASSERT_EQ(entry.rank, rank);
  int64_t out_size = 0;
  for (const int64_t rows : shape.part_rows) out_size += rows;
  const int64_t blocks = (shape.in_size + 31) / 32;
  for (int expert = 0; expert < shape.num_experts; ++expert) {
    const auto of = [&](const std::vector<MatrixView>& list) {
      return list[list.size() == 1 ? 0 : expert];
    };
    int64_t part_begin = 0;
    for (int i = 0; i < num_a; ++i) {
      const LoraPair* pair = pair_of(module, part_begin);
      part_begin += shape.part_rows[i];
      const MatrixView a = pair == nullptr ? MatrixView{} : of(pair->a);
      for (int64_t k = 0; k < rank; ++k) {
        const float scale = entry.scale[int64_t{i} * rank + k];
        const bool real = pair != nullptr && k < pair->rank;
        ASSERT_EQ(scale, real ? pair->scale[k] : 0.0f);
        for (int64_t col = 0; col < blocks * 32; ++col) {
          const int64_t unit = (int64_t{i} * rank + k) / 16;
          const int64_t row = k % 16;
          const uint8_t* at = entry.a + expert * entry.a_expert_bytes + unit * blocks * 1024 +
                              col / 32 * 1024 + row / 8 * 512 + (row % 8 * 4 + col % 32 / 8) * 16 +
                              col % 8 * 2;
          const bool there = k < a.rows && col < a.cols;
          ASSERT_EQ(bf16_at(at), there ? rounded(a, k, col) : 0.0f)
              << "A of expert " << expert << ", rank " << k << ", column " << col;
        }
      }
    }
    const int64_t units = shape.parts_share_units ? (out_size / 2 + 7) / 8 : (out_size + 15) / 16;
    for (int64_t unit = 0; unit < units; ++unit) {
      for (int64_t row = 0; row < 16; ++row) {
        int64_t at_row = unit * 16 + row;
        if (shape.parts_share_units) {
          at_row = unit * 8 + row % 8 < out_size / 2 ? row / 8 * (out_size / 2) + unit * 8 + row % 8
                                                     : out_size;
        }
        const LoraPair* pair = pair_of(module, at_row);
        const MatrixView b = pair == nullptr ? MatrixView{} : of(pair->b);
        for (int64_t k = 0; k < rank; ++k) {
          const int64_t in = k % 16;
          const uint8_t* at = entry.b + expert * entry.b_expert_bytes +
                              (unit * (rank / 16) + k / 16) * 512 + (row % 8 * 4 + in / 4) * 16 +
                              (in % 4 / 2 * 2 + row / 8) * 4 + in % 2 * 2;
          const bool there = b.rows > 0 && k < b.cols;
          ASSERT_EQ(bf16_at(at),
                    there ? rounded(b, pair->b_row(at_row - pair->row_begin), k) : 0.0f)
              << "B of expert " << expert << ", row " << at_row << ", rank " << k;
        }
      }
    }
  }
}

class PackLora : public ::testing::TestWithParam<std::tuple<DType, Layout>> {
 protected:
  LoraPair make_pair(int64_t begin, int64_t end, int rank, int num_a, int num_b) {
    const auto [dtype, layout] = GetParam();
    const auto matrices = [&](int count, int64_t rows, int64_t cols) {
      kept_.push_back(std::make_unique<Matrices>(
          Matrices::Desc{
              .count = count, .rows = rows, .cols = cols, .dtype = dtype, .layout = layout},
          seed_++));
      return kept_.back()->views();
    };
    LoraPair pair = {.row_begin = begin, .row_end = end, .rank = rank};
    pair.a = matrices(num_a, rank, in_size_);
    pair.b = matrices(num_b, end - begin, rank);
    for (int k = 0; k < rank; ++k) pair.scale.push_back(0.5f + static_cast<float>(k));
    return pair;
  }

  int64_t in_size_ = 72;  // two blocks and a quarter
  uint32_t seed_ = 1;
  std::vector<std::unique_ptr<Matrices>> kept_;
};

TEST_P(PackLora, OneProjection) {
  const LoraModuleWeights module = {{LoraModule::kO, 0}, {make_pair(0, 43, 16, 1, 1)}};
  expect_packed(module, {.in_size = in_size_, .part_rows = {43}}, 1, 16);
}

TEST_P(PackLora, PartsOfTheirOwnRankOneMissing) {
  const LoraModuleWeights module = {{LoraModule::kQkv, 0},
                                    {make_pair(0, 40, 5, 1, 1), make_pair(52, 64, 33, 1, 1)}};
  expect_packed(module, {.in_size = in_size_, .part_rows = {40, 12, 12}}, 3, 48);
}

TEST_P(PackLora, OneAForAllParts) {
  const LoraModuleWeights module = {{LoraModule::kQkv, 0}, {make_pair(0, 64, 20, 1, 1)}};
  expect_packed(module, {.in_size = in_size_, .part_rows = {40, 12, 12}}, 1, 32);
}

TEST_P(PackLora, ExpertsGateAndUpApart) {
  const LoraModuleWeights module = {{LoraModule::kExpertGateUp, 0},
                                    {make_pair(0, 20, 8, 11, 11), make_pair(20, 40, 8, 11, 11)}};
  expect_packed(
      module,
      {.in_size = in_size_, .part_rows = {20, 20}, .parts_share_units = true, .num_experts = 11}, 2,
      16);
}

TEST_P(PackLora, ExpertsGateAndUpTogetherManyBlocks) {
  in_size_ = 640;
  const LoraModuleWeights module = {{LoraModule::kExpertGateUp, 0}, {make_pair(0, 600, 32, 3, 3)}};
  expect_packed(
      module,
      {.in_size = in_size_, .part_rows = {300, 300}, .parts_share_units = true, .num_experts = 3},
      1, 32);
}

TEST_P(PackLora, GateAndUpInterleavedInB) {
  LoraModuleWeights module = {{LoraModule::kExpertGateUp, 0}, {make_pair(0, 44, 8, 3, 3)}};
  module.pairs[0].b_interleaved = true;
  EXPECT_EQ(module.pairs[0].b_row(0), 0);
  EXPECT_EQ(module.pairs[0].b_row(21), 42);
  EXPECT_EQ(module.pairs[0].b_row(22), 1);
  EXPECT_EQ(module.pairs[0].b_row(43), 43);
  expect_packed(
      module,
      {.in_size = in_size_, .part_rows = {22, 22}, .parts_share_units = true, .num_experts = 3}, 1,
      16);
}

TEST_P(PackLora, SharedAndLeftOutExperts) {
  LoraModuleWeights shared_a = {{LoraModule::kExpertDown, 0}, {make_pair(0, 33, 7, 1, 4)}};
  shared_a.pairs[0].b[2] = {};
  const LoraSiteShape shape = {.in_size = in_size_, .part_rows = {33}, .num_experts = 4};
  expect_packed(shared_a, shape, 1, 16);
  LoraModuleWeights shared_b = {{LoraModule::kExpertDown, 0}, {make_pair(0, 33, 7, 4, 1)}};
  shared_b.pairs[0].a[0] = {};
  expect_packed(shared_b, shape, 1, 16);
}

INSTANTIATE_TEST_SUITE_P(, PackLora,
                         ::testing::Combine(::testing::Values(DType::kBF16, DType::kF16,
                                                              DType::kF32),
                                            ::testing::Values(Layout::kRows, Layout::kTransposed,
                                                              Layout::kExpertInner)));

TEST(PackLoraErrors, NameTheSiteAndBothNumbers) {
  const std::vector<uint16_t> zeros(size_t{64} * 64);
  const auto view = [&](int64_t rows, int64_t cols) {
    return MatrixView{.data = zeros.data(), .rows = rows, .cols = cols, .row_stride = cols};
  };
  const LoraSiteShape shape = {.in_size = 64, .part_rows = {16, 8}};
  const auto error_of = [&](const LoraPair& pair) {
    return plan_lora_module({{LoraModule::kQkv, 3}, {pair}}, shape).error();
  };
  LoraPair pair = {
      .row_end = 24, .rank = 2, .a = {view(2, 64)}, .b = {view(24, 2)}, .scale = {1, 1}};
  EXPECT_TRUE(plan_lora_module({{LoraModule::kQkv, 3}, {pair}}, shape).ok());
  pair.a = {view(2, 63)};
  EXPECT_EQ(error_of(pair).message, "LoRA of layer 3 qkv: expected columns of A 64, found 63");
  pair.a = {view(2, 64)};
  pair.row_end = 20;
  pair.b = {view(20, 2)};
  EXPECT_EQ(error_of(pair).code, ErrorCode::kUnsupported);
  EXPECT_EQ(error_of(pair).message, "LoRA of layer 3 qkv: rows [0, 20) are no whole projections");
}

}  // namespace
}  // namespace medley::cuda
