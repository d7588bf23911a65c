#include <cstdlib>
#include <fstream>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "spec/read_spec.h"
#include "weights/model_weights.h"

namespace medley {
namespace {

using nlohmann::json;

struct Manifest {
  ModelSpec spec;
  GenerationConfig generation;
  TensorMap tensors;  // without data
  size_t num_bytes = 0;
  json file;
};

std::string replaced(std::string text, const std::string& mark, int value) {
  const size_t at = text.find(mark);
  return at == std::string::npos ? text : text.replace(at, mark.size(), std::to_string(value));
}

Manifest read_manifest(const std::string& model) {
  const char* root = std::getenv("MEDLEY_SOURCE_DIR");
  std::ifstream in(std::string(root == nullptr ? "." : root) + "/tests/reference/manifests/" +
                   model + ".json");
  Manifest manifest;
  manifest.file = json::parse(in);
  const json& file = manifest.file;
  const Result<ModelSpec> spec = read_model_spec(file["config"].dump());
  EXPECT_TRUE(spec.ok()) << spec.error().message;
  manifest.spec = *spec;
  manifest.generation =
      read_generation_config(file["generation_config"].dump(), file["config"].dump()).value();
  for (const json& tensor : file["tensors"]) {
    const auto name = tensor["name"].get<std::string>();
    const ConstTensorView view(nullptr,
                               dtype_from_safetensors(tensor["dtype"].get<std::string>()).value(),
                               Shape(tensor["shape"].get<std::vector<int64_t>>()));
    const int layers = name.find("{layer}") == std::string::npos ? 1 : file["layers"].get<int>();
    const int experts = name.find("{expert}") == std::string::npos ? 1 : file["experts"].get<int>();
    for (int layer = 0; layer < layers; ++layer) {
      for (int expert = 0; expert < experts; ++expert) {
        manifest.tensors.emplace(replaced(replaced(name, "{layer}", layer), "{expert}", expert),
                                 view);
        manifest.num_bytes += view.num_bytes();
      }
    }
  }
  return manifest;
}

class ManifestTest : public ::testing::TestWithParam<const char*> {};

TEST_P(ManifestTest, EveryTensorOfThePublishedCheckpointIsConsumedAndNoneIsMissing) {
  const Manifest manifest = read_manifest(GetParam());
  EXPECT_EQ(manifest.tensors.size(), manifest.file["tensor_count"].get<size_t>());
  EXPECT_EQ(manifest.num_bytes, manifest.file["total_size"].get<size_t>());
  const Result<ModelWeights> weights = read_model_weights(manifest.spec, manifest.tensors);
  ASSERT_TRUE(weights.ok()) << weights.error().message;
  EXPECT_EQ(weights->layers.size(), manifest.file["layers"].get<size_t>());
  EXPECT_FALSE(manifest.generation.eos_token_ids.empty());

  const TensorMap wanted = wanted_tensors(manifest.spec);
  EXPECT_EQ(wanted.size(), manifest.tensors.size());
  for (const auto& [name, tensor] : wanted) {
    ASSERT_TRUE(manifest.tensors.contains(name)) << name;
    EXPECT_EQ(tensor.shape, manifest.tensors.at(name).shape) << name;
    EXPECT_EQ(tensor.dtype, manifest.tensors.at(name).dtype) << name;
  }

  TensorMap fewer = manifest.tensors;
  fewer.erase(std::prev(fewer.end()));
  EXPECT_FALSE(read_model_weights(manifest.spec, fewer).ok());
}

INSTANTIATE_TEST_SUITE_P(Published, ManifestTest,
                         ::testing::Values("openai--gpt-oss-20b", "Qwen--Qwen3-30B-A3B",
                                           "Qwen--Qwen3-32B", "meta-llama--Llama-3.3-70B-Instruct"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::erase_if(name, [](unsigned char c) { return !std::isalnum(c); });
                           return name;
                         });

TEST(ManifestTest, PublishedSpecs) {
  const Manifest gpt_oss = read_manifest("openai--gpt-oss-20b");
  EXPECT_EQ(gpt_oss.generation.eos_token_ids, (std::vector<int32_t>{200002, 199999, 200012}));
  EXPECT_EQ(gpt_oss.spec.layers[0].window, 128);
  EXPECT_EQ(gpt_oss.spec.layers[1].window, 0);
  EXPECT_EQ(gpt_oss.spec.moe->num_experts, 32);
  const Manifest qwen = read_manifest("Qwen--Qwen3-30B-A3B");
  EXPECT_TRUE(qwen.spec.moe->normalize_topk);  // true in the file, false by the class default
  EXPECT_EQ(qwen.spec.moe->experts_per_token, 8);
  EXPECT_EQ(qwen.generation.top_k, 20);
  const Manifest llama = read_manifest("meta-llama--Llama-3.3-70B-Instruct");
  EXPECT_EQ(llama.spec.rope.scaling, RopeScaling::kLlama3);
  EXPECT_EQ(llama.spec.rope.factor, 8.0);
  EXPECT_EQ(llama.spec.rope.original_max_position, 8192);
}

}  // namespace
}  // namespace medley
