#include "cpu/testing.h"

namespace medley::cpu {
namespace {

constexpr int kPageSize = 16;

struct AttentionCase {
  AttentionSpec spec;
  int window = 0;
  bool rope = true;
  DType dtype = DType::kF32;
  std::vector<TestSequence> sequences;  // run as one step, from position 0
};

// Rotary embedding with theta 100 over the whole head, in double.
void rotate(double* head, int n, int position) {
  for (int i = 0; i < n / 2; ++i) {
    const double angle = position * std::pow(100.0, -2.0 * i / n);
    const double a = head[i], b = head[i + n / 2];
    head[i] = a * std::cos(angle) - b * std::sin(angle);
    head[i + n / 2] = b * std::cos(angle) + a * std::sin(angle);
  }
}

void normalise(double* head, const Floats& weight, int n) {
  double sum = 0;
  for (int i = 0; i < n; ++i) sum += head[i] * head[i];
  for (int i = 0; i < n; ++i) head[i] *= weight[i] / std::sqrt(sum / n + 1e-6);
}

class AttentionTest {
 public:
  explicit AttentionTest(const AttentionCase& c)
      : c_(c),
        q_norm_(random_floats(c.spec.head_dim, 11)),
        k_norm_(random_floats(c.spec.head_dim, 12)),
        sinks_(random_floats(c.spec.num_heads, 13, 3.0f)) {
    for (const TestSequence& seq : c.sequences) num_rows_ += seq.num_rows;
    qkv_ = rounded(random_floats(num_rows_ * cols(), 14, 2.0f), c.dtype);
  }

  void check() {
    const Floats got = run();
    std::vector<double> want;
    int first = 0;
    for (const TestSequence& seq : c_.sequences) {
      append_reference(first, seq.num_rows, want);
      first += seq.num_rows;
    }
    expect_close(got, want, c_.dtype);
  }

 private:
  int n() const { return c_.spec.head_dim; }
  int64_t cols() const { return (c_.spec.num_heads + 2 * c_.spec.num_kv_heads) * n(); }

  Floats run() {
    TestBackend test;
    const auto kv = test.backend
                        ->make_kv_cache({.num_layers = 2,
                                         .num_pages = 32,
                                         .page_size = kPageSize,
                                         .num_kv_heads = c_.spec.num_kv_heads,
                                         .head_dim = n(),
                                         .dtype = c_.dtype})
                        .value();
    const auto append = test.plan(QkNormRopeAppendDesc{.attention = c_.spec,
                                                       .rope = {.theta = 100.0, .rotary_dim = n()},
                                                       .max_position = 256,
                                                       .rope_enabled = c_.rope,
                                                       .dtype = c_.dtype,
                                                       .layer = 1});
    const auto attention = test.plan(
        AttentionDesc{.attention = c_.spec, .window = c_.window, .dtype = c_.dtype, .layer = 1});
    const auto q_norm = test.vector(q_norm_), k_norm = test.vector(k_norm_),
               sinks = test.vector(sinks_);
    test.set_step(TestInputs(c_.sequences, kPageSize));
    HostTensor qkv = tensor(c_.dtype, {num_rows_, cols()}, qkv_);
    HostTensor out = tensor(c_.dtype, {num_rows_, c_.spec.num_heads * n()});
    append->run({.qkv = qkv.view(), .q_norm = q_norm.get(), .k_norm = k_norm.get(), .kv = kv.get()},
                *test.step, *test.stream);
    attention->run({.qkv = qkv.view(), .kv = kv.get(), .sinks = sinks.get(), .out = out.view()},
                   *test.step, *test.stream);
    return values_of(out);
  }

  std::vector<double> head(int row, int index, int position) const {
    const float* from = qkv_.data() + row * cols() + index * n();
    std::vector<double> out(from, from + n());
    const bool is_q = index < c_.spec.num_heads;
    if (index >= c_.spec.num_heads + c_.spec.num_kv_heads) return out;
    if (c_.spec.qk_norm) normalise(out.data(), is_q ? q_norm_ : k_norm_, n());
    if (c_.rope) rotate(out.data(), n(), position);
    return out;
  }

  void append_reference(int first, int count, std::vector<double>& out) const {
    const AttentionSpec& s = c_.spec;
    for (int p = 0; p < count; ++p) {
      for (int h = 0; h < s.num_heads; ++h) {
        const int kv_head = h / (s.num_heads / s.num_kv_heads);
        const std::vector<double> q = head(first + p, h, p);
        const int from = c_.window == 0 ? 0 : std::max(0, p - c_.window + 1);
        double sum = s.sinks ? std::exp(sinks_[h]) : 0.0;
        std::vector<double> mixed(n());
        for (int t = from; t <= p; ++t) {
          const std::vector<double> k = head(first + t, s.num_heads + kv_head, t);
          const std::vector<double> v = head(first + t, s.num_heads + s.num_kv_heads + kv_head, t);
          double score = 0;
          for (int i = 0; i < n(); ++i) score += q[i] * k[i];
          const double weight = std::exp(score * s.scale);
          sum += weight;
          for (int i = 0; i < n(); ++i) mixed[i] += weight * v[i];
        }
        for (const double value : mixed) out.push_back(value / sum);
      }
    }
  }

  AttentionCase c_;
  Floats q_norm_, k_norm_, sinks_, qkv_;
  int num_rows_ = 0;
};

AttentionSpec heads(int num_heads, int num_kv_heads, int head_dim) {
  return {
      .num_heads = num_heads, .num_kv_heads = num_kv_heads, .head_dim = head_dim, .scale = 0.3f};
}

TEST(Attention, OneTokenReadsOnlyItself) {
  AttentionTest({.spec = heads(2, 1, 8), .sequences = {{}}}).check();
}

TEST(Attention, SeveralSequencesOfSeveralPages) {
  AttentionTest({.spec = heads(4, 2, 16),
                 .sequences = {{.num_rows = 40, .first_page = 5},
                               {.num_rows = 1, .first_page = 2},
                               {.num_rows = 17, .first_page = 10}}})
      .check();
}

TEST(Attention, QkNorm) {
  AttentionCase c{.spec = heads(4, 2, 16), .sequences = {{.num_rows = 20}}};
  c.spec.qk_norm = true;
  AttentionTest(c).check();
}

TEST(Attention, Sinks) {
  AttentionCase c{.spec = heads(4, 2, 16), .sequences = {{.num_rows = 20}}};
  c.spec.sinks = true;
  AttentionTest(c).check();
}

TEST(Attention, WindowCountsTheTokenItself) {
  for (const int window : {1, 3, 16, 17}) {
    AttentionCase c{.spec = heads(2, 2, 8), .window = window, .sequences = {{.num_rows = 50}}};
    c.spec.sinks = true;
    AttentionTest(c).check();
  }
}

TEST(Attention, WithoutRope) {
  AttentionTest({.spec = heads(2, 1, 8), .rope = false, .sequences = {{.num_rows = 9}}}).check();
}

TEST(Attention, MoreQueryHeadsPerKvHeadThanOnePassTakes) {
  AttentionTest({.spec = heads(22, 2, 12), .sequences = {{.num_rows = 19}}}).check();
}

TEST(Attention, BFloat16) {
  AttentionCase c{.spec = heads(4, 2, 16),
                  .window = 8,
                  .dtype = DType::kBF16,
                  .sequences = {{.num_rows = 20}, {.num_rows = 3, .first_page = 9}}};
  c.spec.scale = 0.05f;
  AttentionTest(c).check();
}

// Rows of one chunk after another see what a single chunk sees.
TEST(Attention, ChunksAppendToTheCache) {
  const AttentionSpec spec = heads(2, 1, 8);
  TestBackend test;
  const auto kv = test.backend
                      ->make_kv_cache({.num_layers = 1,
                                       .num_pages = 8,
                                       .page_size = kPageSize,
                                       .num_kv_heads = 1,
                                       .head_dim = 8,
                                       .dtype = DType::kF32})
                      .value();
  const auto append = test.plan(QkNormRopeAppendDesc{.attention = spec,
                                                     .rope = {.theta = 100.0, .rotary_dim = 8},
                                                     .max_position = 64,
                                                     .dtype = DType::kF32});
  const auto attention = test.plan(AttentionDesc{.attention = spec, .dtype = DType::kF32});
  const Floats qkv = random_floats(30 * 32, 1);
  const auto run = [&](std::vector<int> chunks, int first_page) {
    Floats all;
    int done = 0;
    for (const int count : chunks) {
      const TestSequence seq{.num_rows = count, .first_position = done, .first_page = first_page};
      test.set_step(TestInputs({&seq, 1}));
      HostTensor x = tensor(DType::kF32, {count, 32},
                            Floats(qkv.begin() + done * 32, qkv.begin() + (done + count) * 32));
      HostTensor out = tensor(DType::kF32, {count, 16});
      append->run({.qkv = x.view(), .kv = kv.get()}, *test.step, *test.stream);
      attention->run({.qkv = x.view(), .kv = kv.get(), .out = out.view()}, *test.step,
                     *test.stream);
      const Floats values = values_of(out);
      all.insert(all.end(), values.begin(), values.end());
      done += count;
    }
    return all;
  };
  const Floats whole = run({30}, 0);
  EXPECT_EQ(run({7, 16, 1, 6}, 4), whole);
}

}  // namespace
}  // namespace medley::cpu
