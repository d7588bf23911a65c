#include "spec/rope_table.h"

#include <gtest/gtest.h>

#include <initializer_list>

namespace medley {
namespace {

// Values from transformers 5.24's ROPE_INIT_FUNCTIONS[kind](config, "cpu"), float32:
//   yarn:   GptOssConfig(head_dim=64, rope_parameters={"rope_type": "yarn", "rope_theta": 150000.0,
//           "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": ...,
//           "original_max_position_embeddings": 4096})
//   llama3: LlamaConfig(hidden_size=8192, num_attention_heads=64, head_dim=128, rope_parameters={
//           "rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0,
//           "high_freq_factor": 4.0, "original_max_position_embeddings": 8192})
//   linear: LlamaConfig(..., rope_parameters={"rope_type": "linear", "rope_theta": 10000.0,
//           "factor": 4.0})
struct Expected {
  int index;
  double frequency;
};

void check(const RopeSpec& spec, std::initializer_list<Expected> expected) {
  const std::vector<double> got = rope_frequencies(spec);
  ASSERT_EQ(static_cast<int>(got.size()), spec.rotary_dim / 2);
  for (const Expected& e : expected) {
    EXPECT_NEAR(got[e.index] / e.frequency, 1.0, 2e-6) << "frequency " << e.index;
  }
}

RopeSpec gpt_oss(bool truncate) {
  return {.theta = 150000.0,
          .rotary_dim = 64,
          .scaling = RopeScaling::kYarn,
          .factor = 32.0,
          .original_max_position = 4096,
          .truncate = truncate,
          .attention_factor = 1.3465735902799727};
}

TEST(Rope, YarnOfGptOss) {
  check(gpt_oss(false), {{0, 1.0},
                         {8, 0.0508132726},
                         {9, 0.0317056961},
                         {10, 0.0193349998},
                         {16, 0.000456483918},
                         {17, 0.000129318694},
                         {18, 3.83088118e-05},
                         {31, 3.0235114e-07}});
}

TEST(Rope, YarnTruncated) {
  check(gpt_oss(true), {{9, 0.0316207521},
                        {10, 0.0194509663},
                        {16, 0.000580947497},
                        {17, 0.000227947836},
                        {18, 3.83088118e-05}});
}

TEST(Rope, Llama3) {
  check({.theta = 500000.0,
         .rotary_dim = 128,
         .scaling = RopeScaling::kLlama3,
         .factor = 8.0,
         .original_max_position = 8192,
         .low_freq_factor = 1.0,
         .high_freq_factor = 4.0},
        {{0, 1.0},
         {20, 0.0165604409},
         {28, 0.00321144611},
         {30, 0.00137189368},
         {34, 0.000178507791},
         {36, 7.78465546e-05},
         {40, 3.42810235e-05},
         {63, 3.06892588e-07}});
}

TEST(Rope, Linear) {
  check({.theta = 10000.0, .rotary_dim = 128, .scaling = RopeScaling::kLinear, .factor = 4.0},
        {{0, 0.25}, {1, 0.216491088}, {32, 0.00249999994}, {63, 2.88695483e-05}});
}

TEST(Rope, LayersShareOneTable) {
  RopeTables tables;
  EXPECT_EQ(tables.get(gpt_oss(false), 32), tables.get(gpt_oss(false), 32));
  EXPECT_NE(tables.get(gpt_oss(false), 32), tables.get(gpt_oss(true), 32));
}

}  // namespace
}  // namespace medley
