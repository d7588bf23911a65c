#pragma once

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <thread>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "adapter/adapter_state.h"
#include "adapter/store.h"
#include "adapter/testing/fake_backend.h"
#include "spec/read_spec.h"

namespace medley::testing {

inline std::filesystem::path model_folder() {
  const char* root = std::getenv("MEDLEY_SOURCE_DIR");
  return std::filesystem::path(root == nullptr ? "." : root) / "tests/golden/gptoss-mxfp4";
}

inline ModelSpec model_spec() {
  std::ifstream in(model_folder() / "config.json");
  std::stringstream text;
  text << in.rdbuf();
  return read_model_spec(text.str()).value();
}

class AdapterStoreTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ =
        std::filesystem::canonical(std::filesystem::path(::testing::TempDir())) /
        (std::string("store_") + ::testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override {
    store_.reset();
    std::filesystem::remove_all(folder_);
  }

  void make_store(AdapterStoreOptions options) {
    store_ = AdapterStore::create(model_spec(), backend_, options).value();
  }
  std::string good_path() const {
    return (model_folder() / "adapters/peft0.18-attention").string();
  }
  void copy_adapter(const std::string& name) {
    std::filesystem::create_directories((folder_ / name).parent_path());
    std::filesystem::copy(good_path(), folder_ / name, std::filesystem::copy_options::recursive);
  }
  // A copy that differs from good_path() and from the others: by the blanks after its config.
  std::string content(int number) {
    const std::filesystem::path path = folder_ / fmt::format("content{}", number);
    if (!std::filesystem::exists(path)) {
      std::filesystem::copy(good_path(), path, std::filesystem::copy_options::recursive);
      std::ofstream(path / "adapter_config.json", std::ios::app) << std::string(number + 1, ' ');
    }
    return path.string();
  }
  void load(const std::string& name, int number, const AdapterLoadOptions& options = {}) {
    const auto loaded = store_->load(name, content(number), options);
    ASSERT_TRUE(loaded.ok()) << loaded.error().message;
  }
  // Until the adapter is in that state, as the engine sees it after a wake.
  ::testing::AssertionResult becomes(const std::string& name, AdapterState state) {
    for (int i = 0; i < 5000; ++i) {
      store_->fill_slots(stream_);
      if (info(name).state == state) return ::testing::AssertionSuccess();
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return ::testing::AssertionFailure() << name << " is " << to_string(info(name).state);
  }
  // As the engine does: asks again until there is a pin or an error.
  Result<AdapterPin> wait_for(const std::string& name) {
    for (int i = 0; i < 5000; ++i) {
      Result<std::optional<AdapterPin>> pin = store_->acquire(name, stream_);
      if (!pin.ok()) return pin.error();
      if (pin->has_value()) return std::move(**pin);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return internal_error("no pin after 5 s");
  }
  AdapterInfo info(const std::string& name) {
    for (const AdapterInfo& info : store_->list()) {
      if (info.name == name) return info;
    }
    return {};
  }

  std::filesystem::path folder_;
  FakeBackend backend_;
  FakeStream stream_;
  std::unique_ptr<AdapterStore> store_;
};

}  // namespace medley::testing
