#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

namespace medley {

struct SchedulerLimits {
  int max_num_seqs = 0;            // sequences in a step
  int max_num_batched_tokens = 0;  // rows in a step; at least max_num_seqs
  int page_size = 0;
  int max_pages = 0;       // page-table entries of all sequences in a step; 0 = no limit
  int max_adapters = 0;    // adapters that can be resident together; 0 = no limit known
  int max_logit_rows = 0;  // rows in a step whose logits are wanted; at least max_num_seqs
};

inline constexpr int64_t kBaseModel = 0;  // SeqState::adapter of a request without one

// What the policy knows of a sequence. Tokens of launched steps whose ids the host does not know
// yet count as tokens.
struct SeqState {
  int64_t num_tokens = 0;
  int64_t num_computed = 0;  // in the KV cache once every launched step has run; < num_tokens
  int num_pages = 0;         // held
  int num_shared_pages = 0;  // of these: held by a running sequence before it too
  // Rows at these positions have their logits wanted, besides the last token's: [from, to), with
  // to < num_tokens.
  int64_t logits_from = 0;
  int64_t logits_to = 0;
  int64_t adapter = kBaseModel;
  // Waiting only, on one clock of the caller's: its submission, and that or, if later, when its
  // adapter last gave its slot up.
  int64_t arrival = 0;
  int64_t waiting_since = 0;
  bool preempted = false;  // waiting only: it ran before and starts anew
};

// An adapter that some sequence holds in its slot.
struct ResidentAdapter {
  int64_t adapter = 0;
  int64_t since = 0;  // num_admissions when it got the slot
};

struct SchedulerState {
  std::span<const SeqState> running;  // in order of admission
  std::span<const SeqState> waiting;  // in any order
  std::span<const ResidentAdapter> resident;
  int num_free_pages = 0;        // with those that can be made free at once
  int64_t num_admissions = 0;    // so far
  bool steps_in_flight = false;  // launched steps that are not known to be done
};

enum class Admission : uint8_t {
  kEnter,   // its adapter is held from now on
  kNotYet,  // its adapter is not on the device yet
  kRefused  // it has ended with an error
};

struct GateAnswer {
  GateAnswer(Admission a) : admission(a) {}  // NOLINT(google-explicit-constructor)

  Admission admission;
  // On kEnter: what was computed before, and the pages that hold it, which are held from now on.
  int64_t num_computed = 0;  // < num_tokens
  int num_pages = 0;
  int num_pages_unfree = 0;  // of these: counted in num_free_pages until now
};

// Asked for a waiting sequence that is next to enter. On kEnter it does, unless it lacks pages.
using AdmissionGate = std::function<GateAnswer(int waiting_idx)>;

struct Chunk {
  int seq_idx = 0;  // into running or waiting
  int64_t num_tokens = 0;
};

struct StepPlan {
  std::vector<Chunk> running;   // decodes first
  std::vector<Chunk> admitted;  // from waiting, in order of admission; all tokens get their pages
  std::vector<int> preempted;   // into running: their pages go back, they wait and start anew
  std::optional<int> lacks_pages;  // into waiting: let in by the gate, but not admitted
  bool must_drain = false;         // pages are short: retire every launched step, then plan again
};

// Plans one step: every decode, then prefill chunks in order of admission, then admissions while
// rows, seats and pages last.
//
//   rows     | d d d d | p p p p p p p p | q q q      max_num_batched_tokens
//             decodes    chunk of a       first chunk
//                        running prefill  of an admission
//
// - Pages: an admission takes the pages of all its tokens at once, those that the gate found for it
//   among them, and leaves one free page per running sequence, so that preemption is rare. A decode
//   that finds no page preempts the youngest running sequence; only with no step in flight, so that
//   all its tokens are known and its pages free at once. The oldest is never preempted: with pages
//   for one longest sequence somebody always gets on. Entries of page tables, of which a shared
//   page takes several, are shared out in the same way.
// - Who enters next: preempted sequences, then the adapter (or base) with the fewest running
//   sequences, then who waits longest. One adapter's flood thus holds back its own requests only,
//   and a sequence waits at most until its adapter's running ones have ended and older heads have
//   entered. A sequence that lacks pages is not overtaken; one that lacks its adapter is.
// - Logit rows: one is kept for each sequence that runs or may be admitted, so that each can have
//   its last token sampled; a chunk whose rows' logits are wanted is cut to one of its own and what
//   is left over.
// - Adapter slots: while all are taken and a request waits for an adapter without one, the adapter
//   that has held its slot longest runs dry: who waits less long than that one does not enter for
//   it, and nobody once max_num_seqs admissions have gone by since it got the slot.
StepPlan plan_step(const SchedulerLimits& limits, const SchedulerState& state,
                   const AdmissionGate& gate);

}  // namespace medley
