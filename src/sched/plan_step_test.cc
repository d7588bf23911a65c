#include "sched/plan_step.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace medley {
namespace {

// Pictures: a plan is printed as "0:1 1:1 2:8 | +0:5 +1:2 | -3", that is running sequences with
// their rows, admissions from waiting, preemptions.
std::string picture(const StepPlan& plan) {
  if (plan.must_drain) return "drain";
  std::string out;
  for (const Chunk& c : plan.running) out += fmt::format("{}:{} ", c.seq_idx, c.num_tokens);
  out += "|";
  for (const Chunk& c : plan.admitted) out += fmt::format(" +{}:{}", c.seq_idx, c.num_tokens);
  out += " |";
  for (const int i : plan.preempted) out += fmt::format(" -{}", i);
  return out;
}

constexpr SchedulerLimits kLimits = {
    .max_num_seqs = 8, .max_num_batched_tokens = 16, .page_size = 4};

SeqState decoding(int64_t num_tokens, int num_pages) {
  return {.num_tokens = num_tokens, .num_computed = num_tokens - 1, .num_pages = num_pages};
}

SeqState prefilling(int64_t num_tokens, int64_t num_computed) {
  return {.num_tokens = num_tokens,
          .num_computed = num_computed,
          .num_pages = static_cast<int>((num_tokens + 3) / 4)};
}

SeqState waiting(int64_t num_tokens, int64_t arrival, int64_t adapter = kBaseModel) {
  return {
      .num_tokens = num_tokens, .adapter = adapter, .arrival = arrival, .waiting_since = arrival};
}

Admission enter(int) { return Admission::kEnter; }

StepPlan plan(const std::vector<SeqState>& running, const std::vector<SeqState>& waiting,
              int num_free_pages, bool in_flight = false, const SchedulerLimits& limits = kLimits,
              const AdmissionGate& gate = enter, const std::vector<ResidentAdapter>& resident = {},
              int64_t num_admissions = 0) {
  return plan_step(limits,
                   {.running = running,
                    .waiting = waiting,
                    .resident = resident,
                    .num_free_pages = num_free_pages,
                    .num_admissions = num_admissions,
                    .steps_in_flight = in_flight},
                   gate);
}

TEST(PlanStep, NothingToDo) { EXPECT_EQ(picture(plan({}, {}, 10)), "| |"); }

//   | d d | p p p p p p p p p p | a a a a |     16 rows
TEST(PlanStep, DecodesThenPrefillChunksThenAdmissions) {
  const auto p = plan({prefilling(30, 20), decoding(5, 2), decoding(9, 3)}, {waiting(7, 0)}, 20);
  EXPECT_EQ(picture(p), "1:1 2:1 0:10 | +0:4 |");
}

TEST(PlanStep, ChunksStopAtTheRowBudget) {
  const auto p = plan({decoding(5, 2), prefilling(40, 0), prefilling(9, 0)}, {waiting(7, 0)}, 20);
  EXPECT_EQ(picture(p), "0:1 1:15 | |");
}

TEST(PlanStep, SeatsLimitAdmissions) {
  SchedulerLimits limits = kLimits;
  limits.max_num_seqs = 2;
  const auto p = plan({decoding(5, 2)}, {waiting(2, 0), waiting(2, 1)}, 20, false, limits);
  EXPECT_EQ(picture(p), "0:1 | +0:2 |");
}

TEST(PlanStep, AdmissionTakesAllItsPagesAndLeavesOnePerRunningSequence) {
  // 2 running, 9 tokens need 3 pages: 5 free are enough, 4 are not.
  const std::vector<SeqState> running = {decoding(5, 2), decoding(6, 2)};
  EXPECT_EQ(picture(plan(running, {waiting(9, 0)}, 5)), "0:1 1:1 | +0:9 |");
  EXPECT_EQ(picture(plan(running, {waiting(9, 0)}, 4)), "0:1 1:1 | |");
}

TEST(PlanStep, WhoLacksPagesIsNotOvertaken) {
  const auto p = plan({decoding(5, 2)}, {waiting(30, 0), waiting(1, 1)}, 4);
  EXPECT_EQ(picture(p), "0:1 | |");
  EXPECT_EQ(p.lacks_pages, 0);
}

// 20 tokens need 5 pages. 3 hold 12 of them already, one of which others use, too: two of the free
// ones are taken for those, two for the rest.
TEST(PlanStep, WhatWasComputedBeforeNeedsNoRowsAndFewerPages) {
  const AdmissionGate gate = [](int) {
    GateAnswer answer = Admission::kEnter;
    answer.num_computed = 12;
    answer.num_pages = 3;
    answer.num_pages_unfree = 2;
    return answer;
  };
  EXPECT_EQ(picture(plan({}, {waiting(20, 0)}, 4, false, kLimits, gate)), "| +0:8 |");
  EXPECT_EQ(picture(plan({}, {waiting(20, 0), waiting(14, 1)}, 9, false, kLimits, gate)),
            "| +0:8 +1:2 |");
  const auto p = plan({}, {waiting(20, 0)}, 3, false, kLimits, gate);
  EXPECT_EQ(picture(p), "| |");
  EXPECT_EQ(p.lacks_pages, 0);
}

// 0 needs a page. 2's preemption gives one back, or none when it shares both of its own.
TEST(PlanStep, SharedPagesDoNotComeBackByPreemption) {
  std::vector<SeqState> running = {decoding(9, 2), decoding(6, 2), decoding(6, 2)};
  running[2].num_shared_pages = 1;
  EXPECT_EQ(picture(plan(running, {}, 0)), "0:1 1:1 | | -2");
  running[2].num_shared_pages = 2;
  EXPECT_EQ(picture(plan(running, {}, 0)), "0:1 | | -2 -1");
}

// 0 and 1 have 3 entries each. 2 needs one and leaves one for each of them.
TEST(PlanStep, EntriesOfPageTablesCanBeShortToo) {
  SchedulerLimits limits = kLimits;
  limits.max_pages = 8;
  const std::vector<SeqState> running = {decoding(12, 3), decoding(12, 3)};
  EXPECT_EQ(picture(plan(running, {waiting(3, 0)}, 20, false, limits)), "0:1 1:1 | |");
  limits.max_pages = 9;
  EXPECT_EQ(picture(plan(running, {waiting(3, 0)}, 20, false, limits)), "0:1 1:1 | +0:3 |");
  limits.max_pages = 6;
  EXPECT_EQ(picture(plan({decoding(13, 3), decoding(13, 3)}, {}, 20, false, limits)), "0:1 | | -1");
  EXPECT_EQ(picture(plan({decoding(13, 3), decoding(13, 3)}, {}, 20, true, limits)), "drain");
}

TEST(PlanStep, FirstComeFirstServedWithinAnAdapter) {
  const auto p = plan({}, {waiting(3, 9), waiting(3, 4), waiting(3, 7)}, 20);
  EXPECT_EQ(picture(p), "| +1:3 +2:3 +0:3 |");
}

// A flood of adapter 1 came first; adapter 2 and the base model enter between its requests.
TEST(PlanStep, AFloodOnOneAdapterDoesNotHoldBackOthers) {
  SchedulerLimits limits = kLimits;
  limits.max_num_seqs = 5;
  const auto p = plan({},
                      {waiting(1, 0, 1), waiting(1, 1, 1), waiting(1, 2, 1), waiting(1, 3, 1),
                       waiting(1, 4, 2), waiting(1, 5), waiting(1, 6, 2)},
                      50, false, limits);
  EXPECT_EQ(picture(p), "| +0:1 +4:1 +5:1 +1:1 +6:1 |");
}

TEST(PlanStep, RunningSequencesCountInFairness) {
  std::vector<SeqState> running = {decoding(5, 2), decoding(5, 2)};
  running[0].adapter = running[1].adapter = 1;
  const auto p = plan(running, {waiting(1, 0, 1), waiting(1, 1, 2), waiting(1, 2, 2)}, 50);
  EXPECT_EQ(picture(p), "0:1 1:1 | +1:1 +2:1 +0:1 |");
}

TEST(PlanStep, WhoLacksItsAdapterIsOvertakenAndAskedOnce) {
  int num_asked = 0;
  const auto gate = [&](int idx) {
    if (idx > 1) return Admission::kEnter;
    ++num_asked;
    return Admission::kNotYet;
  };
  const auto p = plan({}, {waiting(1, 0, 1), waiting(1, 1, 1), waiting(1, 2, 2), waiting(1, 3)}, 50,
                      false, kLimits, gate);
  EXPECT_EQ(picture(p), "| +2:1 +3:1 |");
  EXPECT_EQ(num_asked, 1);
}

TEST(PlanStep, WhoLacksItsAdapterIsOvertakenThoughItLacksPagesToo) {
  const auto gate = [](int idx) { return idx == 0 ? Admission::kNotYet : Admission::kEnter; };
  const auto p =
      plan({decoding(5, 2)}, {waiting(30, 0, 1), waiting(1, 1)}, 4, false, kLimits, gate);
  EXPECT_EQ(picture(p), "0:1 | +1:1 |");
  EXPECT_FALSE(p.lacks_pages.has_value());
}

TEST(PlanStep, ARefusedRequestDoesNotEnter) {
  const auto gate = [](int idx) { return idx == 0 ? Admission::kRefused : Admission::kEnter; };
  const auto p = plan({}, {waiting(1, 0, 1), waiting(1, 1, 1)}, 50, false, kLimits, gate);
  EXPECT_EQ(picture(p), "| +1:1 |");
}

TEST(PlanStep, PreemptedSequencesReturnFirst) {
  std::vector<SeqState> w = {waiting(1, 0, 2), waiting(1, 9, 1), waiting(1, 5, 1)};
  w[1].preempted = w[2].preempted = true;
  EXPECT_EQ(picture(plan({decoding(2, 1)}, w, 50)), "0:1 | +2:1 +1:1 +0:1 |");
}

// Token 5 of sequences 0 and 1 opens their second page; no page is free.
//
//   0 [xxxx] [? ...]   1 [xxxx] [? ...]   2 [xx..]
TEST(PlanStep, ShortPagesDrainFirst) {
  const std::vector<SeqState> running = {decoding(5, 1), decoding(5, 1), decoding(2, 1)};
  EXPECT_EQ(picture(plan(running, {}, 0, /*in_flight=*/true)), "drain");
}

TEST(PlanStep, ShortPagesPreemptTheYoungest) {
  // The page of 2 goes to 0; then 1 is the youngest and finds none but its own.
  const std::vector<SeqState> running = {decoding(5, 1), decoding(5, 1), decoding(2, 1)};
  EXPECT_EQ(picture(plan(running, {}, 0)), "0:1 | | -2 -1");
  EXPECT_EQ(picture(plan(running, {}, 1)), "0:1 1:1 | | -2");
}

TEST(PlanStep, NobodyEntersInAStepThatPreempts) {
  const std::vector<SeqState> running = {decoding(5, 1), decoding(9, 3)};
  EXPECT_EQ(picture(plan(running, {waiting(1, 0)}, 0)), "0:1 | | -1");
}

TEST(PlanStep, PreemptsAPrefillToo) {
  const std::vector<SeqState> running = {decoding(5, 1), prefilling(12, 4)};
  EXPECT_EQ(picture(plan(running, {}, 0)), "0:1 | | -1");
}

// Two slots, held by adapters 1 (since 10) and 2 (since 20). A request for 3 came at 5.
//
//   arrival   4:1   5:3   6:1   7:2   8:base
//                   ^ no slot    adapter 1 has held its slot longest: 6 waits, the others enter
SeqState scored(SeqState seq, int64_t from, int64_t to) {
  seq.logits_from = from;
  seq.logits_to = to;
  return seq;
}

SchedulerLimits with_logit_rows(int max_logit_rows) {
  SchedulerLimits limits = kLimits;
  limits.max_logit_rows = max_logit_rows;
  return limits;
}

// 8 logit rows: one each for 0 and 1, so that 1 can have 7.
TEST(PlanStep, LogitRowsCutAChunk) {
  const std::vector<SeqState> running = {decoding(5, 2), scored(prefilling(30, 10), 10, 28)};
  EXPECT_EQ(picture(plan(running, {}, 20, false, with_logit_rows(8))), "0:1 1:7 | |");
  // What waits may enter: a row is kept for it.
  EXPECT_EQ(picture(plan(running, {waiting(3, 0)}, 20, false, with_logit_rows(8))),
            "0:1 1:6 | +0:3 |");
}

// Rows before `from` need no logits; from there on 8 do.
TEST(PlanStep, OnlyWantedLogitRowsCount) {
  EXPECT_EQ(picture(plan({scored(prefilling(30, 10), 14, 28)}, {}, 20, false, with_logit_rows(8))),
            "0:12 | |");
  // Positions 20 to 27 and the last: nine.
  EXPECT_EQ(picture(plan({scored(prefilling(30, 20), 14, 28)}, {}, 20, false, with_logit_rows(9))),
            "0:10 | |");
  EXPECT_EQ(picture(plan({scored(prefilling(30, 20), 14, 28)}, {}, 20, false, with_logit_rows(8))),
            "0:8 | |");
  // Positions 24 to 27 and the last: five.
  EXPECT_EQ(picture(plan({scored(prefilling(30, 24), 14, 28)}, {}, 20, false, with_logit_rows(5))),
            "0:6 | |");
  EXPECT_EQ(picture(plan({scored(prefilling(30, 24), 14, 28)}, {}, 20, false, with_logit_rows(4))),
            "0:4 | |");
}

// With every seat taken each still gets on by a token.
TEST(PlanStep, ALogitRowPerSequenceIsKept) {
  std::vector<SeqState> running(8, scored(prefilling(12, 2), 2, 11));
  EXPECT_EQ(picture(plan(running, {}, 40, false, with_logit_rows(8))),
            "0:1 1:1 2:1 3:1 4:1 5:1 6:1 7:1 | |");
  EXPECT_EQ(picture(plan({}, {scored(waiting(12, 0), 0, 11), scored(waiting(12, 1), 0, 11)}, 40,
                         false, with_logit_rows(10))),
            "| +0:9 +1:1 |");
}

class PlanStepSlots : public ::testing::Test {
 protected:
  PlanStepSlots() {
    limits_.max_adapters = 2;
    running_[0].adapter = 1;
    running_[1].adapter = 2;
  }
  std::string plan_picture(int64_t num_admissions) {
    const auto gate = [](int idx) { return idx == 1 ? Admission::kNotYet : Admission::kEnter; };
    return picture(plan(running_, waiting_, 50, false, limits_, gate, resident_, num_admissions));
  }

  SchedulerLimits limits_ = kLimits;
  std::vector<SeqState> running_ = {decoding(2, 1), decoding(2, 1)};
  std::vector<SeqState> waiting_ = {waiting(1, 4, 1), waiting(1, 5, 3), waiting(1, 6, 1),
                                    waiting(1, 7, 2), waiting(1, 8)};
  std::vector<ResidentAdapter> resident_ = {{1, 10}, {2, 20}};
};

TEST_F(PlanStepSlots, TheLongestResidentAdapterRunsDryForOneWithoutASlot) {
  EXPECT_EQ(plan_picture(/*num_admissions=*/17), "0:1 1:1 | +4:1 +0:1 +3:1 |");
}

TEST_F(PlanStepSlots, AfterItsTurnNobodyEntersForIt) {
  EXPECT_EQ(plan_picture(/*num_admissions=*/18), "0:1 1:1 | +4:1 +3:1 |");
}

TEST_F(PlanStepSlots, NobodyHoldsBackWhileASlotIsFree) {
  limits_.max_adapters = 3;
  EXPECT_EQ(plan_picture(/*num_admissions=*/18), "0:1 1:1 | +4:1 +0:1 +3:1 +2:1 |");
}

// Adapter 1 has no running sequence, but its last one is not quite through: it still has the slot.
TEST_F(PlanStepSlots, AnAdapterThatRanDryDoesNotTakeItsSlotBack) {
  running_.erase(running_.begin());
  EXPECT_EQ(plan_picture(/*num_admissions=*/18), "0:1 | +4:1 +3:1 |");
}

TEST_F(PlanStepSlots, WhoWaitsLongestGetsTheFreeSlot) {
  running_.erase(running_.begin());
  resident_.erase(resident_.begin());
  waiting_[0].waiting_since = waiting_[2].waiting_since = 9;  // adapter 1 gave its slot up at 9
  const auto p = plan(running_, waiting_, 50, false, limits_, enter, resident_, 18);
  EXPECT_EQ(picture(p).substr(0, 11), "0:1 | +1:1 ");
}

}  // namespace
}  // namespace medley
