#include <cstring>
#include <map>

#include "cpu/small_model.h"

// A row's bits must not depend on its batch mates: every op, run for sequences one by one and in
// batches.
namespace medley::cpu {
namespace {

constexpr int kPrompt = 5;

// What each op left for a sequence, in the order of its rows.
using Bits = std::vector<float>;
using Record = std::map<std::string, Bits>;

// Splits the rows that stand for `sequences` among the records.
void record(const std::string& name, const TensorView& view,
            const std::vector<TestSequence>& sequences, bool one_row_each,
            std::vector<Record>& records) {
  const Floats all = to_float(view);
  const int64_t cols = view.shape[1];
  int64_t row = 0;
  for (size_t i = 0; i < sequences.size(); ++i) {
    const int64_t count = one_row_each ? 1 : sequences[i].num_rows;
    records[i][name] = Bits(all.begin() + row * cols, all.begin() + (row + count) * cols);
    row += count;
  }
}

void record_step(SmallModel& model, const std::vector<TestSequence>& sequences,
                 const std::string& phase, std::vector<Record>& records) {
  model.test().set_step(TestInputs(sequences));
  model.forward([&](const std::string& op, const TensorView& out) {
    record(phase + "/" + op, out, sequences, /*one_row_each=*/op == "logits", records);
  });
  const SampleOutput& out = model.out();
  for (size_t i = 0; i < sequences.size(); ++i) {
    const float* top = out.top_logprobs.data() + i * kMaxTopLogprobs;
    Bits& bits = records[i][phase + "/sample"];
    bits = {static_cast<float>(out.token_ids[i]), out.logprobs[i]};
    bits.insert(bits.end(), top, top + 4);
  }
}

// A prompt of kPrompt tokens each, then a decode of one token each, taken from the sampler.
// Sequence i of `ids` (its name decides tokens, adapter, seed) stands at place i of the batch.
std::vector<Record> run(SmallModel& model, const std::vector<int>& ids) {
  std::vector<Record> records(ids.size());
  std::vector<TestSequence> sequences;
  for (size_t i = 0; i < ids.size(); ++i) {
    TestSequence seq{.num_rows = kPrompt,
                     .adapter = ids[i] % 4 - 1,
                     .first_page = static_cast<int>(ids.size() - 1 - i),
                     .sampler_slot = static_cast<int>(i)};
    for (int t = 0; t < kPrompt; ++t) seq.tokens.push_back((ids[i] * 37 + t * 11) % kVocab);
    model.sampler().set_slot(seq.sampler_slot,
                             {.temperature = 0.9f,
                              .top_p = 0.95f,
                              .seed = static_cast<uint64_t>(ids[i]),
                              .num_top_logprobs = 4},
                             *model.test().stream);
    sequences.push_back(seq);
  }
  record_step(model, sequences, "prompt", records);
  for (TestSequence& seq : sequences) {
    seq.num_rows = 1;
    seq.first_position = kPrompt;
    seq.tokens = {kTokenFromSampler};
  }
  record_step(model, sequences, "decode", records);
  return records;
}

class BatchTest : public testing::TestWithParam<DType> {};

void expect_same_bits(const Record& got, const Record& want, const std::string& where) {
  for (const auto& [name, bits] : want) {
    const Bits& other = got.at(name);
    ASSERT_EQ(bits.size(), other.size());
    ASSERT_EQ(std::memcmp(bits.data(), other.data(), bits.size() * sizeof(float)), 0)
        << name << ", " << where;
  }
}

TEST_P(BatchTest, RowsKeepTheirBitsInAnyBatchAtAnyPlace) {
  SmallModel alone(GetParam(), 1), batched(GetParam(), 3);
  std::vector<Record> want;
  for (int id = 0; id < kMaxSequences; ++id) want.push_back(run(alone, {id})[0]);
  for (int size = 2; size <= kMaxSequences; ++size) {
    std::vector<int> ids;
    for (int i = 0; i < size; ++i) ids.push_back((i + 3 * size) % kMaxSequences);
    const std::vector<Record> got = run(batched, ids);
    for (int i = 0; i < size; ++i) {
      expect_same_bits(got[i], want[ids[i]], fmt::format("place {} of {}", i, size));
      if (HasFatalFailure()) return;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(, BatchTest, testing::Values(DType::kF32, DType::kBF16),
                         [](const auto& info) { return std::string(to_string(info.param)); });

}  // namespace
}  // namespace medley::cpu
