#include "adapter/peft_reader.h"

#include <cmath>
#include <filesystem>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "adapter/testing/golden_adapters.h"

namespace medley {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::adapter_folder;
using testing::golden;
using testing::spec_of;
using testing::text_of;

AdapterWeights read(const std::string& model, const std::string& adapter) {
  Result<AdapterWeights> weights =
      read_peft_adapter(adapter_folder(model, adapter), spec_of(model));
  EXPECT_TRUE(weights.ok()) << model << "/" << adapter << ": "
                            << (weights.ok() ? "" : weights.error().message);
  return weights.ok() ? std::move(weights).value() : AdapterWeights{};
}

const LoraModuleWeights* find(const AdapterWeights& weights, LoraModule module, int layer) {
  for (const LoraModuleWeights& m : weights.modules) {
    if (m.site == LoraSite{module, layer}) return &m;
  }
  return nullptr;
}

// The change of one weight, W[row][col] of an expert (0 for dense modules), in canonical rows.
float delta(const LoraModuleWeights& module, int expert, int64_t row, int64_t col) {
  float sum = 0.0f;
  for (const LoraPair& pair : module.pairs) {
    if (row < pair.row_begin || row >= pair.row_end) continue;
    const MatrixView& a = pair.a[pair.a.size() == 1 ? 0 : expert];
    const MatrixView& b = pair.b[pair.b.size() == 1 ? 0 : expert];
    for (int r = 0; r < pair.rank; ++r) {
      sum += pair.scale[r] * element(b, pair.b_row(row - pair.row_begin), r) * element(a, r, col);
    }
  }
  return sum;
}

struct Golden {
  std::string model;
  std::string adapter;
};

std::vector<Golden> all_goldens() {
  std::vector<Golden> found;
  for (const auto& model : fs::directory_iterator(golden())) {
    if (!fs::is_directory(model.path() / "adapters")) continue;
    for (const auto& adapter : fs::directory_iterator(model.path() / "adapters")) {
      found.push_back({model.path().filename(), adapter.path().filename()});
    }
  }
  return found;
}

TEST(PeftReaderTest, GoldenAdapters) {
  int num_read = 0;
  for (const auto& [model, adapter] : all_goldens()) {
    SCOPED_TRACE(model + "/" + adapter);
    const fs::path folder = adapter_folder(model, adapter);
    const Checkpoint base = Checkpoint::open_folder((golden() / model).string()).value();
    const Result<AdapterWeights> weights =
        read_peft_adapter(folder, spec_of(model), &base.tensors());
    if (adapter.find("dora") != std::string::npos) {
      ASSERT_FALSE(weights.ok());
      EXPECT_EQ(weights.error().code, ErrorCode::kUnsupported);
      EXPECT_NE(weights.error().message.find("DoRA"), std::string::npos);
      continue;
    }
    ASSERT_TRUE(weights.ok()) << weights.error().message;
    EXPECT_FALSE(weights->modules.empty());
    EXPECT_EQ(weights->hash.size(), 64u);
    EXPECT_GE(weights->max_rank, json::parse(text_of(folder / "adapter_config.json"))["r"]);
    // Its config names the dense layers' projections too, by the same suffixes.
    const bool no_dense = model.starts_with("qwen3moe") &&
                          (adapter.starts_with("converted") || adapter.starts_with("own-mixed"));
    const bool zero = adapter.find("all-b-zero") != std::string::npos;
    EXPECT_EQ(weights->warnings.size(), zero || no_dense ? 1u : 0u);
    ++num_read;
  }
  EXPECT_GE(num_read, 80);
}

// The tensors of a fused level as PEFT's definition reads them: A (E, r, p), B (q, r, E).
class FusedTensors {
 public:
  FusedTensors(const AdapterWeights& weights, const std::string& module, int num_experts)
      : num_experts_(num_experts) {
    const ConstTensorView* a = weights.checkpoint->find(module + ".lora_A.weight");
    const ConstTensorView* b = weights.checkpoint->find(module + ".lora_B.weight");
    p_ = a->shape[1];
    rank_ = a->shape[0] / num_experts;
    a_ = to_float(*a);
    b_ = to_float(*b);
  }
  // sum over r of B[o, r, e] A[e, r, i]
  float product(int e, int64_t o, int64_t i) const {
    float sum = 0.0f;
    for (int64_t r = 0; r < rank_; ++r) {
      sum += b_[(o * rank_ + r) * num_experts_ + e] * a_[(e * rank_ + r) * p_ + i];
    }
    return sum;
  }

 private:
  int num_experts_;
  int64_t p_ = 0, rank_ = 0;
  std::vector<float> a_, b_;
};

constexpr char kExperts1[] = "base_model.model.model.layers.1.mlp.experts";

TEST(PeftReaderTest, GptOssFusedOutputsBecomeGateThenUp) {
  // H = 64, I = 32: gate_up is square, (E, 64, 2 * 32); down is (E, 32, 64). Both (E, in, out).
  for (const char* adapter : {"peft0.18-fused-both", "peft0.19-fused-both", "peft0.21-fused-both",
                              "peft0.21-fused-both-other-order"}) {
    SCOPED_TRACE(adapter);
    const AdapterWeights weights = read("gptoss-bf16", adapter);
    const json config = json::parse(
        text_of(fs::path(adapter_folder("gptoss-bf16", adapter)) / "adapter_config.json"));
    const float scale = config["lora_alpha"].get<float>() / config["r"].get<float>();
    const ConstTensorView* outer =
        weights.checkpoint->find(std::string(kExperts1) + ".lora_A.weight");
    const std::string inner_name = std::string(kExperts1) + ".base_layer";
    const bool outer_is_down = outer->shape[1] == 32;
    const FusedTensors down(weights, outer_is_down ? kExperts1 : inner_name, 8);
    const FusedTensors gate_up(weights, outer_is_down ? inner_name : kExperts1, 8);
    const LoraModuleWeights* gate_up_module = find(weights, LoraModule::kExpertGateUp, 1);
    const LoraModuleWeights* down_module = find(weights, LoraModule::kExpertDown, 1);
    ASSERT_TRUE(gate_up_module != nullptr && down_module != nullptr);
    for (const int e : {0, 3, 7}) {
      for (const int i : {0, 1, 17, 31}) {
        for (const int h : {0, 5, 63}) {
          EXPECT_NEAR(delta(*gate_up_module, e, i, h), scale * gate_up.product(e, 2 * i, h), 1e-5);
          EXPECT_NEAR(delta(*gate_up_module, e, 32 + i, h),
                      scale * gate_up.product(e, 2 * i + 1, h), 1e-5);
          EXPECT_NEAR(delta(*down_module, e, h, i), scale * down.product(e, h, i), 1e-5);
        }
      }
    }
  }
}

TEST(PeftReaderTest, Qwen3MoeFusedSidesFollowThePeftVersion) {
  // transformers 5 holds (E, out, in). H = 64, I = 64 here: down is square.
  const auto check = [](const std::string& adapter, bool a_spans_output) {
    SCOPED_TRACE(adapter);
    const AdapterWeights weights = read("qwen3moe-nonorm", adapter);
    const std::string inner = std::string(kExperts1) + ".base_layer";
    const ConstTensorView* a = weights.checkpoint->find(std::string(kExperts1) + ".lora_A.weight");
    const ConstTensorView* b = weights.checkpoint->find(std::string(kExperts1) + ".lora_B.weight");
    const bool outer_is_down = a->shape[1] == 64 && b->shape[0] == 64;
    const FusedTensors down(weights, outer_is_down ? kExperts1 : inner, 8);
    const FusedTensors gate_up(weights, outer_is_down ? inner : kExperts1, 8);
    const LoraModuleWeights* gate_up_module = find(weights, LoraModule::kExpertGateUp, 1);
    const LoraModuleWeights* down_module = find(weights, LoraModule::kExpertDown, 1);
    ASSERT_TRUE(gate_up_module != nullptr && down_module != nullptr);
    const float scale = 8.0f / 4.0f;
    for (const int e : {0, 6}) {
      for (const int row : {0, 40, 63}) {
        for (const int col : {1, 62}) {
          const float down_product =
              a_spans_output ? down.product(e, col, row) : down.product(e, row, col);
          EXPECT_NEAR(delta(*down_module, e, row, col), scale * down_product, 1e-5);
          const float up_product = a_spans_output ? gate_up.product(e, col, 64 + row)
                                                  : gate_up.product(e, 64 + row, col);
          EXPECT_NEAR(delta(*gate_up_module, e, 64 + row, col), scale * up_product, 1e-5);
        }
      }
    }
  };
  check("peft0.18-transformers5-fused-both", /*a_spans_output=*/true);
  check("peft0.19-fused-both", /*a_spans_output=*/false);
  check("peft0.21-fused-both", /*a_spans_output=*/false);
}

TEST(PeftReaderTest, PerExpertTensorsEqualTheFusedOnesTheyCameFrom) {
  const std::pair<const char*, const char*> cases[] = {{"gptoss-bf16", "peft0.18-fused-both"},
                                                       {"gptoss-mxfp4", "peft0.18-fused-both"},
                                                       {"qwen3moe-norm", "peft0.21-fused-both"},
                                                       {"qwen3moe-nonorm", "peft0.21-fused-both"}};
  for (const auto& [model, origin] : cases) {
    SCOPED_TRACE(model);
    const AdapterWeights split = read(model, "converted-per-expert-from-fused");
    const AdapterWeights fused = read(model, origin);
    ASSERT_EQ(split.modules.size(), fused.modules.size());
    for (size_t m = 0; m < split.modules.size(); ++m) {
      ASSERT_EQ(split.modules[m].site, fused.modules[m].site);
      const int64_t rows = fused.modules[m].pairs.back().row_end;
      const int64_t cols = fused.modules[m].pairs[0].a[0].cols;
      for (int64_t row = 0; row < rows; row += 7) {
        for (int64_t col = 0; col < cols; col += 5) {
          EXPECT_NEAR(delta(split.modules[m], 5, row, col), delta(fused.modules[m], 5, row, col),
                      1e-6);
        }
      }
    }
  }
}

// What all experts share is one matrix, wherever the file has it; r 4, alpha 8.
TEST(PeftReaderTest, SharedMatricesAreKeptOnce) {
  for (const auto& [model, adapter] : {std::pair("gptoss-mxfp4", "own-shared-outer-w1-w3-w2"),
                                       std::pair("qwen3moe-norm", "converted-shared-outer"),
                                       std::pair("qwen3moe-nonorm", "own-shared-outer-gate-up"),
                                       std::pair("gptoss-bf16", "converted-shared-outer-flat")}) {
    SCOPED_TRACE(adapter);
    const AdapterWeights weights = read(model, adapter);
    ASSERT_FALSE(weights.modules.empty());
    for (const LoraModuleWeights& module : weights.modules) {
      const bool is_down = module.site.module == LoraModule::kExpertDown;
      for (const LoraPair& pair : module.pairs) {
        EXPECT_EQ(pair.a.size(), is_down ? 8u : 1u);
        EXPECT_EQ(pair.b.size(), is_down ? 1u : 8u);
      }
    }
  }
}

// gate, up of expert e: 2 B[e] A[0]; down: 2 B[0] A[e]. H = I = 64.
TEST(PeftReaderTest, StackedTensors) {
  const AdapterWeights weights = read("gptoss-mxfp4", "own-shared-outer-w1-w3-w2");
  const LoraModuleWeights* gate_up = find(weights, LoraModule::kExpertGateUp, 2);
  const LoraModuleWeights* down = find(weights, LoraModule::kExpertDown, 2);
  ASSERT_TRUE(gate_up != nullptr && down != nullptr);
  const std::string stem = "base_model.model.model.layers.2.mlp.experts.";
  const auto product = [&](const std::string& name, int a_idx, int b_idx, int row, int col) {
    const auto a = to_float(*weights.checkpoint->find(stem + name + ".lora_A.weight"));
    const auto b = to_float(*weights.checkpoint->find(stem + name + ".lora_B.weight"));
    float sum = 0.0f;
    for (int r = 0; r < 4; ++r)
      sum += b[(b_idx * 64 + row) * 4 + r] * a[(a_idx * 4 + r) * 64 + col];
    return 2.0f * sum;
  };
  for (const int e : {0, 3, 7}) {
    for (const int row : {0, 9, 63}) {
      for (const int col : {1, 40}) {
        EXPECT_NEAR(delta(*gate_up, e, row, col), product("w1", 0, e, row, col), 1e-5);
        EXPECT_NEAR(delta(*gate_up, e, 64 + row, col), product("w3", 0, e, row, col), 1e-5);
        EXPECT_NEAR(delta(*down, e, row, col), product("w2", e, 0, row, col), 1e-5);
      }
    }
  }
}

TEST(PeftReaderTest, RanksAndScales) {
  const AdapterWeights patterns = read("gptoss-bf16", "peft0.18-attention-patterns");
  // r 4, alpha 8; q rank 8; v of layer 0 rank 1; o alpha 3; k of layers 1 and 2 alpha 20.
  for (int layer = 0; layer < 3; ++layer) {
    const LoraModuleWeights* qkv = find(patterns, LoraModule::kQkv, layer);
    ASSERT_NE(qkv, nullptr);
    ASSERT_EQ(qkv->pairs.size(), 3u);
    EXPECT_EQ(qkv->pairs[0].rank, 8);
    EXPECT_EQ(qkv->pairs[0].scale[7], 1.0f);
    EXPECT_EQ(qkv->pairs[1].row_begin, 64);
    EXPECT_EQ(qkv->pairs[1].scale[0], layer == 0 ? 2.0f : 5.0f);
    EXPECT_EQ(qkv->pairs[2].rank, layer == 0 ? 1 : 4);
    EXPECT_EQ(qkv->pairs[2].scale[0], layer == 0 ? 8.0f : 2.0f);
    EXPECT_EQ(find(patterns, LoraModule::kO, layer)->pairs[0].scale[0], 0.75f);
  }
  EXPECT_EQ(patterns.max_rank, 8);
  const AdapterWeights rslora = read("gptoss-bf16", "peft0.18-attention-and-experts-rslora");
  EXPECT_FLOAT_EQ(find(rslora, LoraModule::kO, 0)->pairs[0].scale[2], 5.0f / std::sqrt(3.0f));
  EXPECT_FLOAT_EQ(find(rslora, LoraModule::kExpertDown, 2)->pairs[0].scale[0],
                  5.0f / std::sqrt(3.0f));
}

TEST(PeftReaderTest, ExpertsOfDifferentRanksArePadded) {
  const AdapterWeights weights = read("qwen3moe-norm", "peft0.18-per-expert-patterns");
  const LoraModuleWeights* gate_up = find(weights, LoraModule::kExpertGateUp, 0);
  ASSERT_NE(gate_up, nullptr);
  ASSERT_EQ(gate_up->pairs.size(), 2u);  // gate and up keep an A each
  EXPECT_EQ(gate_up->pairs[0].rank, 5);
  EXPECT_EQ(gate_up->pairs[1].rank, 2);
  for (const int e : {0, 1}) {
    const std::string name =
        "base_model.model.model.layers.0.mlp.experts." + std::to_string(e) + ".gate_proj.lora_";
    const ConstTensorView* a_view = weights.checkpoint->find(name + "A.weight");
    const int64_t rank = a_view->shape[0];
    ASSERT_EQ(rank, e == 1 ? 5 : 2);
    const std::vector<float> a = to_float(*a_view);
    const std::vector<float> b = to_float(*weights.checkpoint->find(name + "B.weight"));
    float sum = 0.0f;
    for (int64_t r = 0; r < rank; ++r) sum += b[9 * rank + r] * a[r * 64 + 33];
    EXPECT_NEAR(delta(*gate_up, e, 9, 33), 8.0f / rank * sum, 1e-5);
  }
}

TEST(PeftReaderTest, ExpertsWithoutTensorsStayAsTheyAre) {
  const AdapterWeights weights = read("qwen3moe-norm", "peft0.18-per-expert-up-of-some");
  const LoraModuleWeights* gate_up = find(weights, LoraModule::kExpertGateUp, 2);
  ASSERT_NE(gate_up, nullptr);
  ASSERT_EQ(gate_up->pairs.size(), 1u);
  EXPECT_EQ(gate_up->pairs[0].row_begin, 32);
  EXPECT_NE(delta(*gate_up, 3, 40, 7), 0.0f);
  EXPECT_EQ(delta(*gate_up, 4, 40, 7), 0.0f);
}

TEST(PeftReaderTest, EmbeddingsAndHead) {
  const AdapterWeights weights = read("llama3-untied", "peft0.18-lm-head-and-embed");
  const LoraModuleWeights* embed = find(weights, LoraModule::kEmbed, 0);
  const LoraModuleWeights* head = find(weights, LoraModule::kLmHead, 0);
  ASSERT_TRUE(embed != nullptr && head != nullptr);
  EXPECT_EQ(embed->pairs[0].a[0].cols, 256);  // (r, V)
  EXPECT_EQ(embed->pairs[0].b[0].rows, 64);   // (H, r)
  EXPECT_EQ(head->pairs[0].a[0].cols, 64);
  EXPECT_EQ(head->pairs[0].b[0].rows, 256);
}

TEST(PeftReaderTest, HashIsOfTheContent) {
  const std::string a = read("gptoss-mxfp4", "peft0.18-attention").hash;
  EXPECT_EQ(a, read("gptoss-mxfp4", "peft0.18-attention").hash);
  EXPECT_NE(a, read("gptoss-mxfp4", "own-default-infix").hash);
}

}  // namespace
}  // namespace medley
