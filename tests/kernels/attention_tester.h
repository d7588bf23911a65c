#pragma once

#include <memory>
#include <string>
#include <vector>

#include "side.h"

// Steps over sequences whose keys and values lie in scattered pages, on either backend.

namespace medley::testing {

struct TestSequence {
  int num_rows = 1;  // of the step: the last tokens of the sequence
  int kv_len = 1;    // with them
  int id = -1;       // decides its pages and values; -1 = its place in the step
};

inline constexpr int kTestPageSize = 16;

// A step's arrays for `sequences`; page ids are those of a fixed shuffle, so a sequence has the
// same pages in every step.
class TestStepInputs {
 public:
  // `max_seqs` sequences have pages for `max_len` tokens each.
  TestStepInputs(const std::vector<TestSequence>& sequences, int max_seqs, int max_len);
  StepInputs inputs() const;
  int num_rows() const { return static_cast<int>(positions_.size()); }

 private:
  std::vector<int32_t> token_ids_, positions_, seq_of_row_, adapter_of_row_, q_indptr_, kv_lens_,
      page_indptr_, page_ids_, slots_;
};

struct AttentionShapeCase {
  AttentionSpec spec;
  int window = 0;
};

// A cache filled with the keys and values of every sequence up to its step, and the step's op.
class AttentionTester {
 public:
  // `max_rows` and `max_len` bound all steps.
  AttentionTester(Side& side, const AttentionShapeCase& shape, int max_seqs, int max_rows,
                  int max_len);

  // Appends the tokens before `sequences`' rows, each sequence's in steps of its own.
  void fill(const std::vector<TestSequence>& sequences);
  // Points the step at `sequences`; the ops of enqueue() then work on them.
  void set_step(const std::vector<TestSequence>& sequences);
  // Appends the rows' keys and values and attends.
  void enqueue();
  // The rows' results; `all`: also of padding rows.
  std::vector<float> results(bool all = false);
  void poison_results();
  // set_step, enqueue, results
  std::vector<float> run(const std::vector<TestSequence>& sequences);

  // The rows reach the ops through a kernel that triggers its dependents, sleeps, then writes.
  AttentionTester& slow_predecessors() { return slow_ = true, *this; }

 private:
  int64_t columns() const;
  // Queries, keys and values of each row, a function of its sequence and position.
  std::vector<float> rows_of(const std::vector<TestSequence>& sequences) const;
  void write(const TensorView& view, const std::vector<float>& values);

  Side& side_;
  AttentionShapeCase shape_;
  int max_seqs_ = 0;
  int max_rows_ = 0;
  int max_len_ = 0;
  bool slow_ = false;
  std::unique_ptr<KvCache> kv_;
  std::unique_ptr<Step> step_;
  std::unique_ptr<QkNormRopeAppend> append_;
  std::unique_ptr<Attention> attention_;
  std::unique_ptr<PackedWeight> sinks_;
  TensorView source_, qkv_, out_;
};

}  // namespace medley::testing
