#pragma once

#include <vector>

#include "moe_tester.h"

// Edges of LoRA in an expert layer, which every way to run it must get right. Each takes a tester
// that says how to run it, and compares.

namespace medley::testing {

inline std::vector<int32_t> cycle(int count, std::vector<int32_t> slots) {
  std::vector<int32_t> out(count);
  for (int i = 0; i < count; ++i) out[i] = slots[i % slots.size()];
  return out;
}

inline void base_rows_between_adapter_rows(MoeTester tester) {
  tester.uniform_rows(12)
      .adapter(0, {})
      .adapter(5, {.gate_up_rank = 16, .down_rank = 4})
      .adapter_of_row(cycle(12, {0, -1, 5}))
      .compare();
}
inline void ranks_one_to_two_hundred_in_one_step(MoeTester tester) {
  tester.hidden(256)
      .inner(128)
      .uniform_rows(20)
      .adapter(0, {.gate_up_rank = 1, .down_rank = 200})
      .adapter(1, {.gate_up_rank = 7, .down_rank = 64})
      .adapter(2, {.gate_up_rank = 64, .down_rank = 7})
      .adapter(3, {.gate_up_rank = 200, .down_rank = 1})
      .adapter_of_row(cycle(20, {0, 1, 2, 3, -1}))
      .compare();
}
inline void rank_five_hundred_twelve(MoeTester tester) {
  tester.hidden(512)
      .inner(512)
      .uniform_rows(3)
      .adapter(1, {.gate_up_rank = 512, .down_rank = 512, .split_gate_up = true})
      .adapter_of_row({1, 1, -1})
      .compare();
}
inline void gate_and_up_with_an_a_each(MoeTester tester) {
  tester.uniform_rows(10)
      .adapter(0, {.gate_up_rank = 24, .split_gate_up = true})
      .adapter(1, {.gate_up_rank = 24})
      .adapter_of_row(cycle(10, {0, 1}))
      .compare();
}
inline void one_a_for_all_experts(MoeTester tester) {
  tester.uniform_rows(10)
      .adapter(0, {.per_expert_a = false})
      .adapter_of_row(cycle(10, {0, -1}))
      .compare();
}
inline void missing_projections(MoeTester tester) {
  tester.uniform_rows(12)
      .adapter(0, {.down = false})
      .adapter(1, {.gate_up = false})
      .adapter_of_row(cycle(12, {0, 1, -1}))
      .compare();
}
inline void sixteen_adapters_in_one_tile(MoeTester tester) {
  MoeTester tester_16 =
      std::move(tester.experts(2, 1).rows(std::vector<std::vector<int>>(16, {0})));
  std::vector<int32_t> slots;
  for (int slot = 0; slot < 16; ++slot) {
    tester_16.adapter(slot, {});
    slots.push_back(15 - slot);
  }
  tester_16.adapter_of_row(std::move(slots)).compare();
}

}  // namespace medley::testing
