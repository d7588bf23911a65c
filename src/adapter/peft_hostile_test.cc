#include <algorithm>
#include <filesystem>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "adapter/peft_reader.h"
#include "adapter/testing/golden_adapters.h"
#include "weights/testing/safetensors_writer.h"

namespace medley {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::adapter_folder;
using testing::golden;
using testing::spec_of;
using testing::text_of;

constexpr char kExperts1[] = "base_model.model.model.layers.1.mlp.experts";

// Every reference adapter that must be refused, with the words that the message must carry.
TEST(HostileGoldenTest, AreRefusedByName) {
  int num_refused = 0;
  for (const auto& model : fs::directory_iterator(golden())) {
    if (!fs::is_directory(model.path() / "hostile")) continue;
    const ModelSpec spec = spec_of(model.path().filename());
    for (const auto& adapter : fs::directory_iterator(model.path() / "hostile")) {
      SCOPED_TRACE(adapter.path());
      const json expected = json::parse(text_of(adapter.path() / "expect.json"));
      const Result<AdapterWeights> weights = read_peft_adapter(adapter.path(), spec);
      if (weights.ok()) {
        ADD_FAILURE() << "accepted: " << expected["why"];
        continue;
      }
      for (const json& word : expected["names"]) {
        EXPECT_NE(weights.error().message.find(word.get<std::string>()), std::string::npos)
            << "no " << word << " in: " << weights.error().message << "; " << expected["why"];
      }
      ++num_refused;
    }
  }
  EXPECT_GE(num_refused, 30);
}

// Copies of golden adapters with something wrong.
class HostileAdapterTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = ::testing::TempDir() + "hostile_" +
              ::testing::UnitTest::GetInstance()->current_test_info()->name();
    start("gptoss-mxfp4", "peft0.18-attention");
  }
  void TearDown() override { fs::remove_all(folder_); }

  void start(const std::string& model, const std::string& adapter) {
    spec_ = spec_of(model);
    fs::remove_all(folder_);
    fs::create_directories(folder_);
    const std::string source = adapter_folder(model, adapter);
    config_ = json::parse(text_of(source + "/adapter_config.json"));
    tensors_.clear();
    const Checkpoint file = Checkpoint::open_file(source + "/adapter_model.safetensors").value();
    for (const auto& [name, view] : file.tensors()) {
      testing::RawTensor tensor{name, view.dtype == DType::kF32 ? "F32" : "BF16", {}, {}};
      for (int i = 0; i < view.shape.rank(); ++i) tensor.shape.push_back(view.shape[i]);
      tensor.data.assign(static_cast<const char*>(view.data), view.num_bytes());
      tensors_.push_back(std::move(tensor));
    }
  }
  testing::RawTensor& tensor(const std::string& name) {
    return *std::find_if(tensors_.begin(), tensors_.end(),
                         [&](const auto& t) { return t.name == name; });
  }
  void erase(const std::string& part) {
    std::erase_if(tensors_, [&](const auto& t) { return t.name.find(part) != std::string::npos; });
  }
  Result<AdapterWeights> load() {
    testing::write_file(folder_ + "/adapter_config.json", config_.dump());
    testing::write_file(folder_ + "/adapter_model.safetensors",
                        testing::safetensors_bytes(tensors_));
    return read_peft_adapter(folder_, spec_);
  }
  void expect_refused(const std::vector<std::string>& parts) {
    const Result<AdapterWeights> weights = load();
    ASSERT_FALSE(weights.ok());
    for (const std::string& part : parts) {
      EXPECT_NE(weights.error().message.find(part), std::string::npos)
          << "no '" << part << "' in: " << weights.error().message;
    }
  }

  std::string folder_;
  ModelSpec spec_;
  json config_;
  std::vector<testing::RawTensor> tensors_;
};

constexpr char kQ1[] = "base_model.model.model.layers.1.self_attn.q_proj.lora_";

TEST_F(HostileAdapterTest, Files) {
  EXPECT_EQ(read_peft_adapter(folder_ + "/none", spec_).error().code, ErrorCode::kNotFound);
  const auto no_config = read_peft_adapter(folder_, spec_);
  ASSERT_FALSE(no_config.ok());
  EXPECT_NE(no_config.error().message.find("no adapter_config.json"), std::string::npos);
  testing::write_file(folder_ + "/adapter_config.json", config_.dump());
  const auto no_weights = read_peft_adapter(folder_, spec_);
  ASSERT_FALSE(no_weights.ok());
  EXPECT_EQ(no_weights.error().code, ErrorCode::kNotFound);
  EXPECT_NE(no_weights.error().message.find("no adapter_model.safetensors"), std::string::npos);
  testing::write_file(folder_ + "/adapter_model.bin", "pickle");
  const auto pickle = read_peft_adapter(folder_, spec_);
  ASSERT_FALSE(pickle.ok());
  EXPECT_EQ(pickle.error().code, ErrorCode::kUnsupported);
  EXPECT_NE(pickle.error().message.find("pickle"), std::string::npos);
  testing::write_file(folder_ + "/adapter_model.safetensors", "short");
  EXPECT_FALSE(read_peft_adapter(folder_, spec_).ok());
}

TEST_F(HostileAdapterTest, ConfigFieldsThatChangeTheResult) {
  const std::pair<const char*, json> cases[] = {{"bias", "all"},
                                                {"lora_bias", true},
                                                {"modules_to_save", {"lm_head"}},
                                                {"trainable_token_indices", {1, 2}},
                                                {"layer_replication", {{0, 1}}},
                                                {"fan_in_fan_out", true},
                                                {"alora_invocation_tokens", {5}},
                                                {"use_dora", true},
                                                {"use_qalora", true},
                                                {"init_lora_weights", "pissa"},
                                                {"peft_type", "IA3"},
                                                {"task_type", "SEQ_CLS"},
                                                {"unheard_of", 1},
                                                {"r", 0},
                                                {"r", "four"},
                                                {"rank_pattern", {{"q_proj", 1.5}}},
                                                {"target_modules", "(unclosed"},
                                                {"target_modules", json::array()}};
  const json whole = config_;
  for (const auto& [field, value] : cases) {
    SCOPED_TRACE(field);
    config_ = whole;
    config_[field] = value;
    expect_refused({field, value.dump()});
  }
}

TEST_F(HostileAdapterTest, RunawayExpressionIsAnError) {
  config_["target_modules"] = "(.*.*.*.*.*.*.*.*)*(.+)+x_never";
  expect_refused({"can't be matched"});
}

TEST_F(HostileAdapterTest, Tensors) {
  const std::string a = std::string(kQ1) + "A.weight";
  const std::string b = std::string(kQ1) + "B.weight";
  erase(b);
  expect_refused({b, "missing"});

  start("gptoss-mxfp4", "peft0.18-attention");
  erase(kQ1);
  expect_refused({"layers.1.self_attn.q_proj", "no tensors"});

  start("gptoss-mxfp4", "peft0.18-attention");
  tensor(a).name = "base_model.model.model.layers.9.self_attn.q_proj.lora_A.weight";
  tensor(b).name = "base_model.model.model.layers.9.self_attn.q_proj.lora_B.weight";
  expect_refused({"layers.9.self_attn.q_proj.lora_A", "not part of the model"});

  start("gptoss-mxfp4", "peft0.18-attention");
  tensors_.push_back(testing::f32_tensor("surprise", {1}, {1}));
  expect_refused({"'surprise'", "neither"});

  start("gptoss-mxfp4", "peft0.18-attention");
  tensors_.push_back(testing::f32_tensor(
      "base_model.model.model.layers.1.self_attn.q_proj.lora_magnitude_vector", {1}, {1}));
  expect_refused({"lora_magnitude_vector", "DoRA"});

  start("gptoss-mxfp4", "peft0.18-attention");
  tensor(a).name = std::string(kQ1) + "X.weight";
  expect_refused({a, "missing"});

  start("gptoss-mxfp4", "peft0.18-attention");
  tensor(a).shape = {8, 32};
  expect_refused({a, "expected shape (4, 64)", "found (8, 32)"});

  start("gptoss-mxfp4", "peft0.18-attention");
  tensor(a).shape = {256};
  expect_refused({a, "expected two dimensions", "(256)"});

  start("gptoss-mxfp4", "peft0.18-attention");
  config_["r"] = 8;
  expect_refused({"(rank 8)", "found (4, "});

  start("gptoss-mxfp4", "peft0.18-attention");
  tensor(b).data.replace(10, 2, std::string("\xc0\x7f", 2));  // NaN
  expect_refused({b, "NaN"});

  start("gptoss-mxfp4", "peft0.18-attention");
  tensor(b).data.replace(10, 2, std::string("\x80\xff", 2));  // -infinity
  expect_refused({b, "infinity"});

  start("gptoss-mxfp4", "peft0.18-attention");
  tensor(a).dtype = "U8";
  tensor(a).shape = {8, 64};
  expect_refused({a, "found uint8"});

  start("gptoss-mxfp4", "peft0.18-attention");
  config_["target_modules"] = {"q_proj", "k_proj", "v_proj"};
  expect_refused({"o_proj", "does not target"});

  start("gptoss-mxfp4", "peft0.18-attention");
  config_["target_modules"] = {"q_proj", "k_proj", "v_proj", "o_proj", "lm_head"};
  expect_refused({"'lm_head'", "no tensors"});

  start("gptoss-mxfp4", "peft0.18-attention");
  tensors_.clear();
  expect_refused({"no tensors"});
}

TEST_F(HostileAdapterTest, BaseWeightsInTheFile) {
  start("gptoss-bf16", "peft0.18-lm-head-with-base-weights");
  expect_refused({"lm_head", "base weight"});
  const Checkpoint base = Checkpoint::open_folder((golden() / "gptoss-bf16").string()).value();
  EXPECT_TRUE(read_peft_adapter(folder_, spec_, &base.tensors()).ok());
  for (auto& tensor : tensors_) {
    if (tensor.name.find("lora") == std::string::npos) tensor.data[0] ^= 1;
  }
  ASSERT_FALSE(load().ok());
  const auto changed = read_peft_adapter(folder_, spec_, &base.tensors());
  ASSERT_FALSE(changed.ok());
  EXPECT_NE(changed.error().message.find("differs"), std::string::npos);
}

TEST_F(HostileAdapterTest, FusedExperts) {
  const std::string a = std::string(kExperts1) + ".lora_A.weight";
  start("qwen3moe-nonorm", "peft0.21-fused-down");  // square: only the version tells the sides
  ASSERT_TRUE(load().ok());
  config_.erase("peft_version");
  expect_refused({"square", "peft_version"});
  config_["peft_version"] = "0.18.2.dev0";
  expect_refused({"square", "peft_version"});
  config_["peft_version"] = "0.18.1";
  EXPECT_TRUE(load().ok());

  start("qwen3moe-nonorm", "peft0.21-fused-both");  // gate_up is not square and tells the sides
  config_.erase("peft_version");
  EXPECT_TRUE(load().ok());

  start("gptoss-bf16", "peft0.18-fused-both");
  config_["target_parameters"] = {"mlp.experts.gate_up_proj"};
  expect_refused({"down_proj", "target_parameters"});

  start("gptoss-bf16", "peft0.18-fused-both");
  erase("layers.1.mlp.experts.base_layer");
  expect_refused({"layers.1.mlp.experts.", "no tensors"});

  start("gptoss-bf16", "peft0.18-fused-both");
  tensor(a).shape = {tensor(a).shape[0] * 4, tensor(a).shape[1] / 4};
  expect_refused({a, "span 8 and 64", "expected 64 and 64, or 32 and 64"});

  start("gptoss-bf16", "peft0.18-fused-both");
  config_["r"] = 2;
  expect_refused({"8 experts of rank 2", "found (32, "});
}

// What target_parameters names must be there in one of the forms, and in one form alone.
TEST_F(HostileAdapterTest, StackedExperts) {
  const std::string experts = "base_model.model.model.layers.1.mlp.experts.";
  start("qwen3moe-nonorm", "own-shared-outer-gate-up");
  ASSERT_TRUE(load().ok());
  erase("layers.1.mlp.experts.down_proj");
  expect_refused({"model.layers.1.mlp.experts.down_proj", "no tensors"});

  start("qwen3moe-nonorm", "own-shared-outer-gate-up");
  auto& b = tensor(experts + "gate_up_proj.lora_B.weight");
  b.shape = {8, 64, 8};
  expect_refused({b.name, "(8, 128, 4)", "found (8, 64, 8)"});

  start("qwen3moe-nonorm", "own-shared-outer-gate-up");
  tensor(experts + "gate_up_proj.lora_A.weight").name = experts + "gate_proj.lora_A.weight";
  expect_refused({"experts.0.gate_up_proj.lora_A", "missing", "gate_up_proj.lora_B"});

  start("qwen3moe-norm", "converted-shared-outer");
  config_["target_modules"] = {"gate_proj", "down_proj"};
  expect_refused({"experts.up_proj.lora_A", "does not target"});

  start("qwen3moe-norm", "converted-shared-outer");
  erase("layers.2.mlp.experts.up_proj");
  erase("layers.2.mlp.experts.0.up_proj");
  expect_refused({"layers.2.mlp.experts.1.up_proj.lora_A", "missing"});
}

TEST_F(HostileAdapterTest, PerExpertAndFusedTogether) {
  start("gptoss-mxfp4", "peft0.18-fused-gate-up");
  const std::vector<testing::RawTensor> fused = tensors_;
  const json parameters = config_["target_parameters"];
  start("gptoss-mxfp4", "own-per-expert-up-only");
  config_["rank_pattern"] = {{"gate_up_proj", 4}};
  config_["target_parameters"] = parameters;
  tensors_.insert(tensors_.end(), fused.begin(), fused.end());
  expect_refused({"up_proj", "changes the same parameter"});
}

TEST_F(HostileAdapterTest, Warnings) {
  config_["target_modules"] = {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "down_proj"};
  testing::write_file(folder_ + "/chat_template.jinja", "{{ messages }}");
  const auto weights = load();
  ASSERT_TRUE(weights.ok()) << weights.error().message;
  ASSERT_EQ(weights->warnings.size(), 2u);
  EXPECT_NE(weights->warnings[0].find("experts"), std::string::npos);
  EXPECT_NE(weights->warnings[1].find("chat template"), std::string::npos);
}

}  // namespace
}  // namespace medley
