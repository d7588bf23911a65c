#include <algorithm>

#include "attention_tester.h"
#include "cpu/kv_cache.h"
#include "cuda/kv_cache.h"
#include "slow_copy.h"

// qk_norm_rope_append: rotated queries, and keys and values in their pages, against the CPU
// backend.

namespace medley::testing {
namespace {

constexpr int kMaxLen = 3000;
constexpr int kSeqs = 4;
constexpr int kPages = kSeqs * ((kMaxLen + kTestPageSize - 1) / kTestPageSize);

struct RopeCase {
  std::string name;
  AttentionSpec spec;
  RopeSpec rope;
  bool rope_enabled = true;
  std::vector<TestSequence> sequences = {{1, 2999}, {5, 5}, {1, 17}, {19, 40}};
};
void PrintTo(const RopeCase& c, std::ostream* out) { *out << c.name; }

struct Appended {
  std::vector<float> q, k, v;  // by row
};

AttentionSpec spec_of(int num_heads, int num_kv_heads, int head_dim, bool qk_norm = false) {
  return {.num_heads = num_heads,
          .num_kv_heads = num_kv_heads,
          .head_dim = head_dim,
          .qk_norm = qk_norm};
}

// Element offset of a token's first kv head in the CPU's layout, and of a head in the GPU's.
int64_t cpu_token(const KvCacheDesc& desc, int64_t page, int64_t slot) {
  return ((page + desc.num_pages) * desc.page_size + slot) * desc.num_kv_heads * desc.head_dim;
}
int64_t cuda_head(const KvCacheDesc& desc, int64_t page, int64_t slot, int64_t head) {
  return ((page * desc.num_kv_heads + head) * desc.page_size + slot) * desc.head_dim;
}

class RopeTester {
 public:
  RopeTester(Side side, const RopeCase& c) : side_(std::move(side)), c_(c) {}

  Appended run() {
    Backend& backend = side_.backend();
    const AttentionSpec& spec = c_.spec;
    desc_ = {.num_layers = 2,
             .num_pages = kPages,
             .page_size = kTestPageSize,
             .num_kv_heads = spec.num_kv_heads,
             .head_dim = spec.head_dim};
    kv_ = backend.make_kv_cache(desc_).value();
    const auto op = backend
                        .plan(QkNormRopeAppendDesc{.attention = spec,
                                                   .rope = c_.rope,
                                                   .max_position = kMaxLen,
                                                   .rope_enabled = c_.rope_enabled,
                                                   .norm_eps = 1e-5f,
                                                   .layer = 1})
                        .value();
    const auto q_norm = pack_norm(1);
    const auto k_norm = pack_norm(2);
    const TestStepInputs step_inputs(c_.sequences, kSeqs, kMaxLen);
    const StepInputs inputs = step_inputs.inputs();
    const int rows = step_inputs.num_rows();
    const auto step =
        backend.make_step({.max_rows = rows, .max_seqs = kSeqs, .max_pages = kPages}).value();
    step->update(inputs, side_.stream());
    const int64_t columns = (spec.num_heads + 2 * spec.num_kv_heads) * spec.head_dim;
    const TensorView source =
        side_.upload(random_values(rows * columns, 3), DType::kBF16, {rows, columns});
    TensorView qkv = source;
    if (side_.is_cuda()) {
      qkv = side_.empty(DType::kBF16, {rows, columns});
      launch_slow_copy(qkv.data, source.data, source.num_bytes(),
                       cuda::cuda_stream(side_.stream()));
    }
    op->run({.qkv = qkv, .q_norm = q_norm.get(), .k_norm = k_norm.get(), .kv = kv_.get()}, *step,
            side_.stream());
    Appended out;
    const std::vector<float> all = side_.download(qkv);
    for (int row = 0; row < rows; ++row) {
      const auto first = all.begin() + row * columns;
      out.q.insert(out.q.end(), first, first + spec.num_heads * spec.head_dim);
    }
    read_pages(inputs, /*keys=*/true, out.k);
    read_pages(inputs, /*keys=*/false, out.v);
    return out;
  }

 private:
  std::unique_ptr<PackedWeight> pack_norm(uint32_t seed) {
    if (!c_.spec.qk_norm) return nullptr;
    const std::vector<float> weight = random_values(c_.spec.head_dim, seed);
    return side_.backend()
        .pack_vector({.dtype = DType::kF32, .data = weight.data(), .size = c_.spec.head_dim})
        .value();
  }

  const uint16_t* cache_on_host(bool keys) {
    const int64_t count =
        static_cast<int64_t>(kPages) * kTestPageSize * desc_.num_kv_heads * desc_.head_dim;
    if (!side_.is_cuda()) {
      auto& kv = static_cast<cpu::CpuKvCache&>(*kv_);
      return static_cast<const uint16_t*>(keys ? kv.keys() : kv.values());
    }
    auto& kv = static_cast<cuda::CudaKvCache&>(*kv_);
    copy_.resize(count);
    MEDLEY_CUDA_CHECK(cudaMemcpy(copy_.data(), keys ? kv.keys(1) : kv.values(1),
                                 count * sizeof(uint16_t), cudaMemcpyDeviceToHost));
    return copy_.data();
  }

  void read_pages(const StepInputs& inputs, bool keys, std::vector<float>& out) {
    const uint16_t* cache = cache_on_host(keys);
    for (int row = 0; row < inputs.num_rows(); ++row) {
      const int position = inputs.positions[row];
      const int64_t page =
          inputs.page_ids[inputs.page_indptr[inputs.seq_of_row[row]] + position / kTestPageSize];
      const int64_t slot = position % kTestPageSize;
      for (int h = 0; h < desc_.num_kv_heads; ++h) {
        const int64_t first = side_.is_cuda() ? cuda_head(desc_, page, slot, h)
                                              : cpu_token(desc_, page, slot) + h * desc_.head_dim;
        for (int i = 0; i < desc_.head_dim; ++i) out.push_back(bf16_to_float(cache[first + i]));
      }
    }
  }

  Side side_;
  const RopeCase c_;
  KvCacheDesc desc_;
  std::unique_ptr<KvCache> kv_;
  std::vector<uint16_t> copy_;
};

std::vector<RopeCase> rope_cases() {
  const RopeSpec yarn = {.theta = 150000.0,
                         .rotary_dim = 64,
                         .scaling = RopeScaling::kYarn,
                         .factor = 32.0,
                         .original_max_position = 4096,
                         .truncate = false,
                         .attention_factor = 1.3465735902799727};
  const RopeSpec llama3 = {.theta = 500000.0,
                           .rotary_dim = 128,
                           .scaling = RopeScaling::kLlama3,
                           .factor = 8.0,
                           .original_max_position = 8192,
                           .low_freq_factor = 1.0,
                           .high_freq_factor = 4.0};
  return {
      {"YarnOfGptOss", spec_of(64, 8, 64), yarn},
      {"Llama3", spec_of(8, 2, 128), llama3},
      {"QkNorm", spec_of(8, 2, 128, true), {.theta = 1e6, .rotary_dim = 128}},
      {"QkNormHeadDim32", spec_of(4, 2, 32, true), {.theta = 1e6, .rotary_dim = 32}},
      {"HeadDim16", spec_of(4, 2, 16), {.rotary_dim = 16}},
      {"HeadDim256QkNorm", spec_of(3, 1, 256, true), {.rotary_dim = 256}},
      {"HeadDim96QkNorm", spec_of(3, 3, 96, true), {.rotary_dim = 96}},
      {"PartOfTheHead", spec_of(5, 1, 64, true), {.rotary_dim = 24}},
      {"NoRope", spec_of(4, 2, 64, true), {}, /*rope_enabled=*/false},
      {"ManyRows", spec_of(8, 8, 64), {.rotary_dim = 64}, true, {{700, 900}, {1, 3}}},
  };
}

class QkNormRopeOf : public ::testing::TestWithParam<RopeCase> {};
INSTANTIATE_TEST_SUITE_P(Shapes, QkNormRopeOf, ::testing::ValuesIn(rope_cases()),
                         [](const auto& info) { return info.param.name; });

TEST_P(QkNormRopeOf, MatchesTheCpu) {
  const Appended reference = RopeTester(Side::cpu(), GetParam()).run();
  const Appended found = RopeTester(Side::cuda(), GetParam()).run();
  expect_close(reference.q, found.q, "queries", {.distance = 1e-6, .relative = 0.004});
  expect_close(reference.k, found.k, "keys", {.distance = 1e-6, .relative = 0.004});
  EXPECT_EQ(reference.v, found.v) << "values are copied";
}

TEST(QkNormRopePlans, RefuseWhatTheKernelDoesNotDo) {
  Side side = Side::cuda();
  QkNormRopeAppendDesc desc = {
      .attention = spec_of(4, 2, 62), .rope = {.rotary_dim = 32}, .max_position = 8};
  EXPECT_EQ(side.backend().plan(desc).error().code, ErrorCode::kUnsupported);
  desc.attention.head_dim = 64;
  desc.rope.rotary_dim = 68;
  EXPECT_EQ(side.backend().plan(desc).error().code, ErrorCode::kUnsupported);
  desc.rope.rotary_dim = 64;
  desc.dtype = DType::kF32;
  EXPECT_EQ(side.backend().plan(desc).error().code, ErrorCode::kUnsupported);
}

}  // namespace
}  // namespace medley::testing
