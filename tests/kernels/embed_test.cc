#include "dense_tester.h"

// embed: the CPU's answers on the same inputs.

namespace medley::testing {
namespace {

constexpr int kVocab = 70;

struct EmbedCase {
  std::string name;
  int hidden = 64;
  StepRows rows;
  int rank = 0;
};
void PrintTo(const EmbedCase& c, std::ostream* out) { *out << c.name; }

std::vector<int32_t> some_tokens(int count) {
  std::vector<int32_t> tokens(count);
  for (int i = 0; i < count; ++i) tokens[i] = i * 37 % kVocab;
  return tokens;
}

class EmbedOf : public ::testing::TestWithParam<EmbedCase> {};
INSTANTIATE_TEST_SUITE_P(
    Cases, EmbedOf,
    ::testing::Values(
        EmbedCase{.name = "Base",
                  .rows = {.adapter_of_row = {-1, -1, -1}, .token_ids = {0, kVocab - 1, 33}}},
        EmbedCase{.name = "NoAdapterOnTheSite",
                  .hidden = 2880,
                  .rows = {.adapter_of_row = mixed_adapters(65), .token_ids = some_tokens(65)}},
        EmbedCase{.name = "Rank1",
                  .rows = {.adapter_of_row = mixed_adapters(5), .token_ids = some_tokens(5)},
                  .rank = 1},
        EmbedCase{.name = "Rank7HalfAUnit",
                  .hidden = 72,
                  .rows = {.adapter_of_row = mixed_adapters(17), .token_ids = some_tokens(17)},
                  .rank = 7},
        EmbedCase{.name = "Rank64",
                  .hidden = 2880,
                  .rows = {.adapter_of_row = mixed_adapters(200), .token_ids = some_tokens(200)},
                  .rank = 64},
        EmbedCase{.name = "Rank200",
                  .rows = {.adapter_of_row = mixed_adapters(16), .token_ids = some_tokens(16)},
                  .rank = 200}),
    [](const auto& info) { return info.param.name; });

TEST_P(EmbedOf, MatchesTheCpu) {
  const EmbedCase& c = GetParam();
  const int rows = static_cast<int>(c.rows.adapter_of_row.size());
  const std::vector<float> table = bf16_values(int64_t{kVocab} * c.hidden, 1, 1.0f);
  TestPairs pairs({LoraModule::kEmbed, 0});
  if (c.rank > 0) pairs.add(0, c.hidden, c.rank, kVocab, 2);
  const auto run = [&](Side side) {
    EXPECT_TRUE(side.backend().make_lora_table({.max_slots = 2, .num_layers = 1}).ok());
    const auto packed = side.backend().pack_embedding(matrix_view(table, kVocab, c.hidden)).value();
    const auto op =
        side.backend()
            .plan(EmbedDesc{.vocab_size = kVocab, .hidden_size = c.hidden, .lora = true})
            .value();
    for (const int slot : {0, 1}) {
      if (pairs.empty()) break;
      side.set_adapter(slot, side.backend().pack_adapter({&pairs.module(), 1}).value());
    }
    const auto step = make_step(side, c.rows);
    const TensorView residual = side.empty(DType::kBF16, {rows, c.hidden});
    op->run({.table = packed.get(), .residual = residual}, *step, side.stream());
    return side.download(residual);
  };
  const std::vector<float> found = run(Side::cuda());
  expect_close(run(Side::cpu()), found, c.name);
  for (int row = 0; row < rows; ++row) {
    if (c.rank > 0 && c.rows.adapter_of_row[row] != kNoAdapter) continue;
    for (int i = 0; i < c.hidden; ++i) {
      ASSERT_EQ(found[row * c.hidden + i], table[c.rows.token_ids[row] * c.hidden + i])
          << "row " << row << " is the table's";
    }
  }
}

TEST(EmbedTest, TakesTheTokenThatTheSequencesSlotSampledLast) {
  constexpr int kHidden = 64;
  const std::vector<int32_t> sampled = {5, 69, 0};
  const std::vector<float> table = bf16_values(int64_t{kVocab} * kHidden, 1, 1.0f);
  std::vector<float> logits(3 * kVocab, 0.0f);
  for (int row = 0; row < 3; ++row) logits[row * kVocab + sampled[row]] = 9.0f;

  Side side = Side::cuda();
  const auto sampler =
      side.backend().plan(SamplerDesc{.max_seqs = 3, .vocab_size = kVocab}).value();
  for (int slot = 0; slot < 3; ++slot) {
    sampler->set_slot(slot, {.temperature = 0.0f}, side.stream());
  }
  const auto packed = side.backend().pack_embedding(matrix_view(table, kVocab, kHidden)).value();
  const auto op =
      side.backend().plan(EmbedDesc{.vocab_size = kVocab, .hidden_size = kHidden}).value();
  const std::vector<int32_t> base(3, kNoAdapter);
  const auto first = make_step(side, {.adapter_of_row = base, .logit_rows = {0, 1, 2}});
  sampler->run(side.upload(logits, DType::kF32, {3, kVocab}), *first, side.stream());
  const auto second = make_step(
      side, {.adapter_of_row = base, .token_ids = {kTokenFromSampler, 33, kTokenFromSampler}});
  const TensorView residual = side.empty(DType::kBF16, {3, kHidden});
  op->run({.table = packed.get(), .residual = residual}, *second, side.stream());
  const std::vector<float> found = side.download(residual);
  const std::vector<int32_t> expected = {5, 33, 0};
  for (int row = 0; row < 3; ++row) {
    for (int i = 0; i < kHidden; ++i) {
      ASSERT_EQ(found[row * kHidden + i], table[expected[row] * kHidden + i]) << "row " << row;
    }
  }
}

}  // namespace
}  // namespace medley::testing
