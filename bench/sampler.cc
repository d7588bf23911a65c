// Times the sampler on the vocabulary of GPT-OSS, for every kind of request. Logits of several
// steps that together exceed the L2 take turns.
//
// Usage: bench_sampler

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "cuda/check.h"
#include "cuda/cuda_backend.h"
#include "cuda/memory.h"
#include "cuda/stream.h"
#include "graph_timer.h"

namespace medley::bench {
namespace {

constexpr int kVocab = 201088;
constexpr int kReplays = 30;
constexpr double kRoofline = 4.2e12;
constexpr double kBytesInTurn = 300e6;

struct Kind {
  const char* name;
  SamplerParams params;
};

std::unique_ptr<Step> make_step(Backend& backend, int rows, Stream& stream) {
  auto step = backend.make_step({.max_rows = rows, .max_seqs = rows, .max_pages = rows}).value();
  const std::vector<int32_t> zeros(rows, 0);
  const std::vector<int32_t> ones(rows, 1);
  const std::vector<int32_t> base(rows, kNoAdapter);
  std::vector<int32_t> counting(rows + 1);
  std::iota(counting.begin(), counting.end(), 0);
  const std::span<const int32_t> each(counting.data(), rows);
  step->update({.token_ids = zeros,
                .positions = each,
                .seq_of_row = each,
                .adapter_of_row = base,
                .q_indptr = counting,
                .kv_lens = ones,
                .page_indptr = counting,
                .page_ids = zeros,
                .sampler_slots = each,
                .logit_rows = each,
                .logit_seqs = each},
               stream);
  return step;
}

// Standard deviation 2.5, and a few tokens far ahead, as a model that has an opinion leaves them.
std::vector<float> make_logits(int rows) {
  std::mt19937 engine(5);
  std::normal_distribution<float> normal(0.0f, 2.5f);
  std::vector<float> logits(static_cast<size_t>(rows) * kVocab);
  for (float& logit : logits) logit = normal(engine);
  for (int row = 0; row < rows; ++row) {
    for (int i = 0; i < 20; ++i) {
      logits[static_cast<size_t>(row) * kVocab + engine() % kVocab] =
          18.0f - static_cast<float>(i) * 0.4f;
    }
  }
  return logits;
}

void time_kind(Backend& backend, const Kind& kind, int rows) {
  cuda::CudaStream stream;
  const double bytes = 4.0 * rows * kVocab;
  const int copies = std::clamp(static_cast<int>(kBytesInTurn / bytes), 2, 100);
  const std::vector<float> host = make_logits(rows);
  std::vector<std::unique_ptr<Buffer>> logits;
  for (int i = 0; i < copies; ++i) {
    logits.push_back(backend.allocate(host.size() * sizeof(float)).value());
    cuda::copy_to_device(logits.back()->data(), host.data(), host.size() * sizeof(float));
  }
  const auto step = make_step(backend, rows, stream);
  const auto sampler = backend.plan(SamplerDesc{.max_seqs = rows, .vocab_size = kVocab}).value();
  const auto set_slots = [&] {
    for (int row = 0; row < rows; ++row) {
      SamplerParams params = kind.params;
      params.seed = row;
      sampler->set_slot(row, params, stream);
    }
  };
  const auto run_all = [&] {
    for (const auto& buffer : logits) {
      sampler->run({buffer->data(), DType::kF32, {rows, kVocab}}, *step, stream);
    }
  };
  set_slots();
  run_all();
  const auto graph = backend.record(stream, run_all);
  SampleOutput first = sampler->make_output();
  SampleOutput last = sampler->make_output();
  std::vector<float> times;
  GraphTimer timer;
  for (int i = 0; i < kReplays; ++i) {
    set_slots();
    times.push_back(timer.time_us(*graph, stream) / static_cast<float>(copies));
    sampler->copy_output(*step, stream, i == 0 ? first : last);
    stream.synchronize();
  }
  MEDLEY_CHECK(std::ranges::equal(first.token_ids, last.token_ids), "replays differ");
  std::sort(times.begin(), times.end());
  const double us = times[times.size() / 2];
  fmt::print(
      "{:28} {:2} rows: {:7.2f} us ({:.2f} to {:.2f}), logits {:4.0f} GB/s, {:3.0f} % of "
      "roofline\n",
      kind.name, rows, us, times.front(), times.back(), bytes / us * 1e-3,
      100.0 * bytes / us * 1e6 / kRoofline);
}

}  // namespace
}  // namespace medley::bench

int main() {
  using medley::bench::Kind;
  const auto backend = medley::make_cuda_backend().value();
  const std::vector<Kind> kinds = {
      {"greedy", {.temperature = 0}},
      {"temperature 1", {}},
      {"top_k 50", {.top_k = 50}},
      {"top_p 0.95", {.top_p = 0.95f}},
      {"top_k 50, top_p 0.95, min_p",
       {.temperature = 0.7f, .top_p = 0.95f, .top_k = 50, .min_p = 0.02f}},
      {"temperature 20 (flat)", {.temperature = 20}},
      {"greedy, 20 log-probabilities", {.temperature = 0, .num_top_logprobs = 20}},
      {"greedy, penalties", {.temperature = 0, .repetition_penalty = 1.1f}},
      {"all at once",
       {.temperature = 0.7f,
        .top_p = 0.95f,
        .top_k = 50,
        .num_top_logprobs = 20,
        .repetition_penalty = 1.1f}}};
  for (const Kind& kind : kinds) {
    for (const int rows : {1, 8, 64}) medley::bench::time_kind(*backend, kind, rows);
  }
}
