// Damaged model and adapter files: whatever the bytes, the readers answer with a value or an error
// that says something; sanitizers watch the rest. What is accepted is read to its last byte.

#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>

#include "adapter/peft_config.h"
#include "adapter/peft_reader.h"
#include "adapter/testing/golden_adapters.h"
#include "mutator.h"
#include "spec/read_spec.h"
#include "weights/model_weights.h"
#include "weights/testing/safetensors_writer.h"

namespace medley {
namespace {

namespace fs = std::filesystem;
using fuzz::Mutator;
using testing::golden;
using testing::spec_of;
using testing::text_of;
using testing::write_file;

class FilesFuzzTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = ::testing::TempDir() + "fuzz_" +
              ::testing::UnitTest::GetInstance()->current_test_info()->name();
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  void TearDown() override {
    fs::remove_all(folder_);
    // Neither may be the answer to everything: then the mutations reach only one side.
    EXPECT_GT(num_accepted_ + num_refused_, 0);
    EXPECT_GT(num_refused_, 0);
    RecordProperty("accepted", num_accepted_);
    RecordProperty("refused", num_refused_);
  }

  template <class T>
  bool note(const Result<T>& result) {
    if (!result.ok()) {
      ++num_refused_;
      EXPECT_FALSE(result.error().message.empty());
      EXPECT_NE(result.error().code, ErrorCode::kInternal) << result.error().message;
      return false;
    }
    ++num_accepted_;
    return true;
  }

  static uint64_t sum_of_bytes(const TensorMap& tensors) {
    uint64_t sum = 0;
    for (const auto& [name, tensor] : tensors) {
      for (size_t i = 0; i < tensor.num_bytes(); ++i) sum += tensor.as<uint8_t>()[i];
    }
    return sum;
  }
  static double sum_of(const AdapterWeights& weights) {
    double sum = 0.0;
    for (const LoraModuleWeights& module : weights.modules) {
      for (const LoraPair& pair : module.pairs) {
        for (const auto* list : {&pair.a, &pair.b}) {
          for (const MatrixView& view : *list) {
            for (int64_t r = 0; r < view.rows; ++r) {
              for (int64_t c = 0; c < view.cols; ++c) sum += element(view, r, c);
            }
          }
        }
      }
    }
    return sum;
  }

  std::string folder_;
  int num_accepted_ = 0;
  int num_refused_ = 0;
};

std::string small_safetensors() {
  return testing::safetensors_bytes({testing::f32_tensor("a", {2, 3}, {1, 2, 3, 4, 5, 6}),
                                     testing::f32_tensor("b.lora_A.weight", {1}, {7}),
                                     {"c", "U8", {3}, "xyz"},
                                     {"d", "BF16", {}, std::string("\x80\x3f", 2)}});
}

TEST_F(FilesFuzzTest, Safetensors) {
  const std::string path = folder_ + "/model.safetensors";
  const std::string whole = small_safetensors();
  uint64_t sum = 0;
  for (int i = 0; i < fuzz::num_iterations(4000); ++i) {
    write_file(path, Mutator(i).mutate(whole));
    const Result<Checkpoint> opened = Checkpoint::open_file(path);
    if (note(opened)) sum += sum_of_bytes(opened->tensors());
  }
  EXPECT_GT(num_accepted_, 0);
  EXPECT_GT(sum, 0u);
}

TEST_F(FilesFuzzTest, ShardIndex) {
  write_file(folder_ + "/one.safetensors", small_safetensors());
  const std::string index =
      R"({"metadata":{"total_size":33},"weight_map":{"a":"one.safetensors","c":"one.safetensors"}})";
  for (int i = 0; i < fuzz::num_iterations(2000); ++i) {
    write_file(folder_ + "/model.safetensors.index.json", Mutator(i).mutate(index));
    note(Checkpoint::open_folder(folder_));
  }
}

TEST_F(FilesFuzzTest, ModelConfig) {
  for (const char* model : {"gptoss-mxfp4", "qwen3moe-norm", "qwen3-tied", "llama3-untied"}) {
    const std::string config = text_of(golden() / model / "config.json");
    const Checkpoint checkpoint = Checkpoint::open_folder((golden() / model).string()).value();
    for (int i = 0; i < fuzz::num_iterations(1000); ++i) {
      const Result<ModelSpec> spec = read_model_spec(Mutator(i).mutate(config));
      if (!note(spec)) continue;
      // What is accepted must be fit to be used.
      ASSERT_EQ(spec->attention.num_heads % spec->attention.num_kv_heads, 0);
      ASSERT_GT(spec->num_layers(), 0);
      for (const LayerSpec& layer : spec->layers) {
        ASSERT_TRUE(layer.moe ? spec->moe.has_value() : spec->mlp.has_value());
      }
      const MoeSpec moe = spec->moe.value_or(MoeSpec{});
      ASSERT_LE(moe.experts_per_token, moe.num_experts);
      note(read_model_weights(*spec, checkpoint));
    }
  }
}

TEST_F(FilesFuzzTest, GenerationConfig) {
  const std::string config = text_of(golden() / "llama3-untied/generation_config.json");
  for (int i = 0; i < fuzz::num_iterations(2000); ++i) {
    note(read_generation_config(Mutator(i).mutate(config), R"({"eos_token_id": 3})"));
  }
}

TEST_F(FilesFuzzTest, AdapterConfig) {
  const std::string config =
      text_of(golden() / "gptoss-bf16/adapters/peft0.18-attention-patterns/adapter_config.json");
  for (int i = 0; i < fuzz::num_iterations(3000); ++i) {
    const Result<PeftConfig> parsed = PeftConfig::parse(Mutator(i).mutate(config), "config");
    if (!note(parsed)) continue;
    const std::string module = "model.layers.1.self_attn.k_proj";
    note(parsed->targets_module(module, LoraModule::kQkv));
    const Result<RankAndScale> found = parsed->rank_and_scale(module);
    if (!note(found)) continue;
    ASSERT_GE(found->rank, 1);
  }
}

TEST_F(FilesFuzzTest, AdapterFolder) {
  const std::pair<const char*, const char*> cases[] = {
      {"gptoss-bf16", "peft0.18-fused-both"},
      {"qwen3moe-norm", "peft0.18-per-expert-down"},
      {"llama3-untied", "peft0.18-lm-head-and-embed"}};
  double sum = 0.0;
  for (const auto& [model, adapter] : cases) {
    const fs::path source = golden() / model / "adapters" / adapter;
    const ModelSpec spec = spec_of(model);
    const std::string config = text_of(source / "adapter_config.json");
    const std::string weights = text_of(source / "adapter_model.safetensors");
    const size_t header_bytes = 8 + static_cast<uint8_t>(weights[0]) +
                                256 * static_cast<uint8_t>(weights[1]) +
                                65536 * static_cast<uint8_t>(weights[2]);
    for (int i = 0; i < fuzz::num_iterations(400); ++i) {
      Mutator mutator(i);
      const bool change_config = mutator.below(3) == 0;
      write_file(folder_ + "/adapter_config.json", change_config ? mutator.mutate(config) : config);
      // Mostly the header: a flipped bit of a weight is just another weight.
      const std::string header = weights.substr(0, header_bytes);
      write_file(folder_ + "/adapter_model.safetensors",
                 (change_config ? header : mutator.mutate(header)) + weights.substr(header_bytes));
      const Result<AdapterWeights> read = read_peft_adapter(folder_, spec);
      if (note(read)) sum += sum_of(*read);
    }
  }
  EXPECT_GT(num_accepted_, 0);
  EXPECT_NE(sum, 0.0);
}

}  // namespace
}  // namespace medley
