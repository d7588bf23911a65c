#include "weights/model_weights.h"

#include <cmath>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include <gtest/gtest.h>

#include "spec/read_spec.h"

namespace medley {
namespace {

std::string golden(const std::string& name) {
  const char* root = std::getenv("MEDLEY_SOURCE_DIR");
  return std::string(root == nullptr ? "." : root) + "/tests/golden/" + name;
}

struct Model {
  ModelSpec spec;
  Checkpoint checkpoint;
};

Model open_golden(const std::string& name) {
  std::ifstream in(golden(name) + "/config.json");
  std::stringstream config;
  config << in.rdbuf();
  return {read_model_spec(config.str()).value(), Checkpoint::open_folder(golden(name)).value()};
}

class GoldenWeightsTest : public ::testing::TestWithParam<const char*> {};

TEST_P(GoldenWeightsTest, EveryTensorIsUsed) {
  const Model model = open_golden(GetParam());
  const Result<ModelWeights> weights = read_model_weights(model.spec, model.checkpoint);
  ASSERT_TRUE(weights.ok()) << weights.error().message;
  EXPECT_EQ(weights->layers.size(), model.spec.layers.size());
  EXPECT_EQ(weights->embedding.rows, model.spec.vocab_size);
}

TEST_P(GoldenWeightsTest, EveryTensorIsNeededAndNoneMayBeAdded) {
  const Model model = open_golden(GetParam());
  for (const std::string& name : model.checkpoint.names()) {
    TensorMap tensors = model.checkpoint.tensors();
    tensors.erase(name);
    const Result<ModelWeights> without = read_model_weights(model.spec, tensors);
    ASSERT_FALSE(without.ok()) << name;
    EXPECT_EQ(without.error().param, name);

    ConstTensorView misshapen = *model.checkpoint.find(name);
    misshapen.shape = Shape({3});
    tensors[name] = misshapen;
    const Result<ModelWeights> changed = read_model_weights(model.spec, tensors);
    ASSERT_FALSE(changed.ok()) << name;
    EXPECT_EQ(changed.error().param, name);
    EXPECT_NE(changed.error().message.find("found (3)"), std::string::npos);

    misshapen.shape = model.checkpoint.find(name)->shape;
    misshapen.dtype = DType::kI32;
    tensors[name] = misshapen;
    EXPECT_EQ(read_model_weights(model.spec, tensors).error().param, name);
  }
  TensorMap more = model.checkpoint.tensors();
  more.emplace("model.layers.0.extra.weight", ConstTensorView(nullptr, DType::kF32, Shape({1})));
  EXPECT_EQ(read_model_weights(model.spec, more).error().param, "model.layers.0.extra.weight");
}

INSTANTIATE_TEST_SUITE_P(All, GoldenWeightsTest,
                         ::testing::Values("gptoss-bf16", "gptoss-mxfp4", "qwen3moe-norm",
                                           "qwen3moe-nonorm", "qwen3-tied", "qwen3-untied",
                                           "llama3-untied", "llama3-tied"),
                         [](const auto& info) {
                           std::string name = info.param;
                           for (char& c : name) c = c == '-' ? '_' : c;
                           return name;
                         });

TEST(ModelWeightsTest, GptOssBf16GateAndUpAreInterleaved) {
  const Model model = open_golden("gptoss-bf16");
  const ModelWeights weights = read_model_weights(model.spec, model.checkpoint).value();
  const int64_t hidden = 64, inner = 32;
  // gate_up_proj is (E, H, 2I) with gate in the even columns; down_proj is (E, I, H).
  const std::string prefix = "model.layers.1.mlp.experts.";
  const auto gate_up = to_float(*model.checkpoint.find(prefix + "gate_up_proj"));
  const auto gate_up_bias = to_float(*model.checkpoint.find(prefix + "gate_up_proj_bias"));
  const auto down = to_float(*model.checkpoint.find(prefix + "down_proj"));
  const LayerWeights& layer = weights.layers[1];
  const int e = 5, i = 7, h = 41;
  EXPECT_EQ(element(layer.expert_gate_up.gate[e], i, h),
            gate_up[(e * hidden + h) * 2 * inner + 2 * i]);
  EXPECT_EQ(element(layer.expert_gate_up.up[e], i, h),
            gate_up[(e * hidden + h) * 2 * inner + 2 * i + 1]);
  EXPECT_EQ(element(layer.expert_gate_up.gate_bias[e], i), gate_up_bias[e * 2 * inner + 2 * i]);
  EXPECT_EQ(element(layer.expert_gate_up.up_bias[e], i), gate_up_bias[e * 2 * inner + 2 * i + 1]);
  EXPECT_EQ(element(layer.expert_down.down[e], h, i), down[(e * inner + i) * hidden + h]);
}

TEST(ModelWeightsTest, GptOssMxfp4Rows) {
  const Model model = open_golden("gptoss-mxfp4");
  const ModelWeights weights = read_model_weights(model.spec, model.checkpoint).value();
  const int64_t hidden = 64, inner = 64;
  const std::string prefix = "model.layers.3.mlp.experts.";
  const auto* blocks = model.checkpoint.find(prefix + "gate_up_proj_blocks")->as<uint8_t>();
  const auto* scales = model.checkpoint.find(prefix + "gate_up_proj_scales")->as<uint8_t>();
  const float kValues[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
  const int e = 2;
  for (const int row : {0, 1, 6, 7, 126, 127}) {  // even rows gate, odd rows up
    const MatrixView& view = row % 2 == 0 ? weights.layers[3].expert_gate_up.gate[e]
                                          : weights.layers[3].expert_gate_up.up[e];
    std::vector<float> found(hidden);
    row_to_float(view, row / 2, found.data());
    for (int64_t c = 0; c < hidden; ++c) {
      const int64_t at = (e * 2 * inner + row) * hidden + c;
      const int nibble = c % 2 == 0 ? blocks[at / 2] & 15 : blocks[at / 2] >> 4;
      const float value = kValues[nibble & 7] * (nibble & 8 ? -1.0f : 1.0f);
      EXPECT_EQ(found[c], value * std::ldexp(1.0f, scales[at / 32] - 127)) << row << " " << c;
    }
  }
}

TEST(ModelWeightsTest, TiedHeadIsTheEmbedding) {
  const Model model = open_golden("qwen3-tied");
  const ModelWeights weights = read_model_weights(model.spec, model.checkpoint).value();
  EXPECT_EQ(weights.lm_head.parts[0].data, weights.embedding.data);
  // A copy of the embedding under the head's name is harmless, anything else is not.
  TensorMap tensors = model.checkpoint.tensors();
  tensors["lm_head.weight"] = tensors.find("model.embed_tokens.weight")->second;
  EXPECT_TRUE(read_model_weights(model.spec, tensors).ok());
  const HostTensor other(DType::kBF16, tensors["lm_head.weight"].shape);
  tensors["lm_head.weight"] = other.view();
  EXPECT_EQ(read_model_weights(model.spec, tensors).error().param, "lm_head.weight");
}

TEST(ModelWeightsTest, Qwen3MoeFusedExperts) {
  const Model model = open_golden("qwen3moe-nonorm");
  const int64_t experts = 8, hidden = 64, inner = 64;
  TensorMap tensors = model.checkpoint.tensors();
  std::vector<HostTensor> owned;
  for (const int layer : {1, 3}) {
    const std::string prefix = "model.layers." + std::to_string(layer) + ".mlp.experts.";
    for (int e = 0; e < experts; ++e) {
      for (const char* name : {"gate_proj", "up_proj", "down_proj"}) {
        tensors.erase(prefix + std::to_string(e) + "." + name + ".weight");
      }
    }
    owned.emplace_back(DType::kF32, Shape({experts, 2 * inner, hidden}));
    for (int64_t i = 0; i < experts * 2 * inner * hidden; ++i) {
      owned.back().as<float>()[i] = static_cast<float>(i);
    }
    tensors[prefix + "gate_up_proj"] = std::as_const(owned.back()).view();
    owned.emplace_back(DType::kF32, Shape({experts, hidden, inner}));
    tensors[prefix + "down_proj"] = std::as_const(owned.back()).view();
  }
  const Result<ModelWeights> weights = read_model_weights(model.spec, tensors);
  ASSERT_TRUE(weights.ok()) << weights.error().message;
  // gate_up_proj (E, 2I, H): gate rows, then up rows.
  const ExpertGateUpWeights& gate_up = weights->layers[1].expert_gate_up;
  EXPECT_EQ(element(gate_up.gate[3], 2, 5), (3.0f * 2 * inner + 2) * hidden + 5);
  EXPECT_EQ(element(gate_up.up[3], 2, 5), (3.0f * 2 * inner + inner + 2) * hidden + 5);
}

}  // namespace
}  // namespace medley
