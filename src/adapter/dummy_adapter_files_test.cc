#include "weights/dummy_adapter_files.h"

#include <filesystem>

#include <gtest/gtest.h>

#include "adapter/peft_reader.h"
#include "adapter/testing/golden_adapters.h"

namespace medley {
namespace {

namespace fs = std::filesystem;
using testing::spec_of;

std::string folder_of(const std::string& name) {
  return (fs::path(::testing::TempDir()) / ("dummy-adapter-" + name)).string();
}

int64_t num_values(const AdapterWeights& weights) {
  int64_t sum = 0;
  for (const LoraModuleWeights& module : weights.modules) {
    for (const LoraPair& pair : module.pairs) {
      for (const MatrixView& a : pair.a) sum += a.rows * a.cols;
      for (const MatrixView& b : pair.b) sum += b.rows * b.cols;
    }
  }
  return sum;
}

TEST(DummyAdapterFiles, AreReadAsAdaptersOfAllModules) {
  struct Case {
    const char* model;
    bool fused;
    DType dtype;
  };
  for (const Case& c : {Case{"gptoss-bf16", true, DType::kBF16},
                        {"gptoss-mxfp4", false, DType::kF32},
                        {"qwen3moe-norm", false, DType::kBF16},
                        {"llama3-tied", false, DType::kBF16}}) {
    const ModelSpec spec = spec_of(c.model);
    const std::string folder = folder_of(c.model);
    ASSERT_TRUE(
        write_dummy_adapter(
            spec, {.rank = 6, .dtype = c.dtype, .fused_experts = c.fused, .seed = 3}, folder)
            .ok());
    const Result<AdapterWeights> weights = read_peft_adapter(folder, spec);
    ASSERT_TRUE(weights.ok()) << c.model << ": " << weights.error().message;
    EXPECT_EQ(weights->max_rank, 6);
    EXPECT_TRUE(weights->warnings.empty()) << weights->warnings.front();
    EXPECT_EQ(weights->modules.size(), static_cast<size_t>(4 * spec.num_layers()));
    // lora_alpha is twice the rank.
    EXPECT_EQ(weights->modules.front().pairs.front().scale.front(), 2.0f);
    EXPECT_EQ(num_values(*weights) * size_of(c.dtype), weights->num_bytes);
    fs::remove_all(folder);
  }
}

TEST(DummyAdapterFiles, AnotherRevisionIsAnotherAdapterOfTheSameWeights) {
  const ModelSpec spec = spec_of("gptoss-bf16");
  const DummyAdapterFileDesc desc = {.rank = 4, .fused_experts = true};
  const std::string folder = folder_of("revision");
  ASSERT_TRUE(write_dummy_adapter(spec, desc, folder).ok());
  const std::string first = read_peft_adapter(folder, spec).value().hash;
  EXPECT_EQ(read_peft_adapter(folder, spec).value().hash, first);
  ASSERT_TRUE(write_dummy_adapter_config(spec, desc, "2", folder).ok());
  EXPECT_NE(read_peft_adapter(folder, spec).value().hash, first);
  fs::remove_all(folder);
}

TEST(DummyAdapterFiles, AFolderThatCantBeMadeIsAnErrorThatNamesTheFile) {
  const Result<void> written =
      write_dummy_adapter(spec_of("gptoss-bf16"), {}, "/proc/no-such-folder");
  ASSERT_FALSE(written.ok());
  EXPECT_NE(written.error().message.find("/proc/no-such-folder/adapter_config.json"),
            std::string::npos);
}

}  // namespace
}  // namespace medley
