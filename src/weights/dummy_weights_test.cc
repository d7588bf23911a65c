#include "weights/dummy_weights.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <set>

#include <nlohmann/json.hpp>

#include "spec/read_spec.h"
#include "weights/dummy_adapters.h"
#include "weights/model_weights.h"

namespace medley {
namespace {

ModelSpec published(const std::string& model) {
  const char* root = std::getenv("MEDLEY_SOURCE_DIR");
  std::ifstream in(std::string(root == nullptr ? "." : root) + "/tests/reference/manifests/" +
                   model + ".json");
  return read_model_spec(nlohmann::json::parse(in)["config"].dump()).value();
}

struct Moments {
  double mean = 0.0;
  double deviation = 0.0;
};

Moments moments(const MatrixView& view, int64_t num_rows = 64) {
  std::vector<float> row(view.cols);
  double sum = 0.0;
  double squares = 0.0;
  int64_t count = 0;
  for (int64_t r = 0; r < std::min(num_rows, view.rows); ++r) {
    row_to_float(view, r, row.data());
    for (const float value : row) {
      sum += value;
      squares += static_cast<double>(value) * value;
      ++count;
    }
  }
  const double mean = sum / static_cast<double>(count);
  return {mean, std::sqrt(squares / static_cast<double>(count) - mean * mean)};
}

void expect_deviation(const MatrixView& view, double expected, double factor) {
  const Moments found = moments(view);
  EXPECT_LT(std::abs(found.mean), 0.05 * expected);
  EXPECT_GT(found.deviation, expected / factor);
  EXPECT_LT(found.deviation, expected * factor);
}

TEST(DummyWeights, OfGptOss20BHaveTheDeviationsThatKeepActivationsOfOrderOne) {
  const ModelSpec spec = published("openai--gpt-oss-20b");
  const DummyWeights dummy = DummyWeights::make(spec, 1).value();
  const ModelWeights weights = read_model_weights(spec, dummy.tensors()).value();
  const double hidden = 1.0 / std::sqrt(2880.0);
  expect_deviation(weights.embedding, 1.0, 1.05);
  expect_deviation(weights.lm_head.parts[0], hidden, 1.05);
  for (const int l : {0, 23}) {
    const LayerWeights& layer = weights.layers[l];
    expect_deviation(layer.qkv.parts[1], hidden, 1.05);
    expect_deviation(layer.o.parts[0], 0.125 / 64.0, 1.05);
    expect_deviation(layer.router.parts[0], 2.0 * hidden, 1.05);
    // Powers of two come within half an exponent.
    expect_deviation(layer.expert_gate_up.gate[31], hidden, 1.5);
    expect_deviation(layer.expert_gate_up.up[0], hidden, 1.5);
    expect_deviation(layer.expert_down.down[31], 0.125 * hidden, 1.5);
    EXPECT_EQ(element(layer.input_norm, 2879), 1.0f);
    EXPECT_NE(element(layer.expert_down.bias[31], 2879), 0.0f);
  }
  EXPECT_EQ(std::abs(element(weights.final_norm, 5)), 1.0f);
}

TEST(DummyWeights, LastBytesOfTheLargestTensorsCanBeRead) {
  const ModelSpec spec = published("openai--gpt-oss-20b");
  const DummyWeights dummy = DummyWeights::make(spec, 2).value();
  for (const auto& [name, tensor] : dummy.tensors()) {
    const auto* bytes = static_cast<const volatile uint8_t*>(tensor.data);
    static_cast<void>(bytes[0]);
    static_cast<void>(bytes[tensor.num_bytes() - 1]);
  }
}

std::vector<float> first_row(const MatrixView& view) {
  std::vector<float> row(view.cols);
  row_to_float(view, 0, row.data());
  return row;
}

TEST(DummyWeights, DifferBetweenLayersAndExpertsAndRepeatWithTheSeed) {
  const ModelSpec spec = published("Qwen--Qwen3-30B-A3B");
  const DummyWeights dummy = DummyWeights::make(spec, 7).value();
  const ModelWeights weights = read_model_weights(spec, dummy.tensors()).value();
  std::set<std::vector<float>> rows;
  for (int l = 0; l < 4; ++l) {
    for (int e = 0; e < 32; ++e) rows.insert(first_row(weights.layers[l].expert_gate_up.gate[e]));
  }
  EXPECT_EQ(rows.size(), 4u * 32u);

  const DummyWeights same = DummyWeights::make(spec, 7).value();
  const DummyWeights other = DummyWeights::make(spec, 8).value();
  const MatrixView up = weights.layers[5].expert_gate_up.up[3];
  const auto up_of = [&](const DummyWeights& from) {
    return read_model_weights(spec, from.tensors()).value().layers[5].expert_gate_up.up[3];
  };
  EXPECT_EQ(first_row(up), first_row(up_of(same)));
  EXPECT_NE(first_row(up), first_row(up_of(other)));
}

// The experts that a router chooses for rows of the embedding, as the first layer would if
// attention added nothing.
std::vector<std::vector<int>> chosen_experts(const ModelSpec& spec, const ModelWeights& weights,
                                             int num_tokens) {
  const MatrixView& router = weights.layers[0].router.parts[0];
  std::vector<float> x(spec.hidden_size);
  std::vector<std::vector<float>> rows(spec.moe->num_experts, x);
  for (int e = 0; e < spec.moe->num_experts; ++e) row_to_float(router, e, rows[e].data());
  std::vector<std::vector<int>> chosen;
  for (int t = 0; t < num_tokens; ++t) {
    row_to_float(weights.embedding, int64_t{t} * 769 % spec.vocab_size, x.data());
    std::vector<std::pair<double, int>> logits;
    for (int e = 0; e < spec.moe->num_experts; ++e) {
      double logit = 0.0;
      for (int i = 0; i < spec.hidden_size; ++i) logit += static_cast<double>(x[i]) * rows[e][i];
      logits.emplace_back(-logit, e);
    }
    std::sort(logits.begin(), logits.end());
    chosen.emplace_back();
    for (int k = 0; k < spec.moe->experts_per_token; ++k) chosen.back().push_back(logits[k].second);
  }
  return chosen;
}

TEST(DummyWeights, RoutersSpreadTokensAsUniformChoiceWould) {
  const ModelSpec spec = published("openai--gpt-oss-20b");
  const DummyWeights dummy = DummyWeights::make(spec, 3).value();
  const ModelWeights weights = read_model_weights(spec, dummy.tensors()).value();
  const auto chosen = chosen_experts(spec, weights, 256);
  for (const int batch : {8, 16, 32}) {
    double distinct = 0.0;
    for (size_t begin = 0; begin < chosen.size(); begin += batch) {
      std::set<int> experts;
      for (int i = 0; i < batch; ++i) {
        experts.insert(chosen[begin + i].begin(), chosen[begin + i].end());
      }
      distinct += static_cast<double>(experts.size()) * batch / 256.0;
    }
    const double uniform = 32.0 * (1.0 - std::pow(1.0 - 4.0 / 32.0, batch));
    EXPECT_NEAR(distinct, uniform, 0.05 * uniform) << batch;
  }
}

TEST(DummyAdapters, HaveTheShapesOfTheirSites) {
  const ModelSpec spec = published("openai--gpt-oss-20b");
  const DummyAdapters adapters =
      DummyAdapters::make(spec, {.rank = 8,
                                 .modules = {LoraModule::kQkv, LoraModule::kExpertGateUp,
                                             LoraModule::kMlpDown, LoraModule::kEmbed}})
          .value();
  const std::vector<LoraModuleWeights> modules = adapters.modules(0);
  ASSERT_EQ(modules.size(), 24u + 24u + 1u);  // no dense MLP
  const LoraModuleWeights& qkv = modules[23];
  EXPECT_EQ(qkv.site, (LoraSite{LoraModule::kQkv, 23}));
  ASSERT_EQ(qkv.pairs.size(), 3u);
  EXPECT_EQ(qkv.pairs[1].row_begin, 4096);
  EXPECT_EQ(qkv.pairs[1].row_end, 4608);
  EXPECT_EQ(qkv.pairs[2].row_end, 5120);
  EXPECT_EQ(qkv.pairs[2].b[0].rows, 512);
  const LoraPair& gate_up = modules[24].pairs[0];
  ASSERT_EQ(gate_up.a.size(), 32u);
  EXPECT_EQ(gate_up.a[31].rows, 8);
  EXPECT_EQ(gate_up.a[31].cols, 2880);
  EXPECT_EQ(gate_up.b[31].rows, 5760);
  EXPECT_EQ(gate_up.b[31].cols, 8);
  const LoraPair& embed = modules[48].pairs[0];
  EXPECT_EQ(embed.a[0].cols, 201088);
  EXPECT_EQ(embed.b[0].rows, 2880);
  expect_deviation(gate_up.a[0], 1.0 / std::sqrt(2880.0), 1.1);

  std::set<std::vector<float>> rows;
  for (uint64_t id = 0; id < 8; ++id) {
    for (const LoraModuleWeights& module : adapters.modules(id)) {
      for (const MatrixView& a : module.pairs[0].a) rows.insert(first_row(a));
    }
  }
  // 6,344 matrices at random places of 262,336.
  EXPECT_GT(rows.size(), 6200u);
}

}  // namespace
}  // namespace medley
