#include "adapter/store.h"

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <sstream>
#include <thread>

#include <gtest/gtest.h>

#include "adapter/adapter_path.h"
#include "adapter/adapter_state.h"
#include "adapter/check.h"
#include "adapter/testing/fake_backend.h"
#include "spec/read_spec.h"

namespace medley {
namespace {

namespace fs = std::filesystem;

fs::path model_folder() {
  const char* root = std::getenv("MEDLEY_SOURCE_DIR");
  return fs::path(root == nullptr ? "." : root) / "tests/golden/gptoss-mxfp4";
}

ModelSpec model_spec() {
  std::ifstream in(model_folder() / "config.json");
  std::stringstream text;
  text << in.rdbuf();
  return read_model_spec(text.str()).value();
}

class AdapterStoreTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ =
        fs::canonical(fs::path(::testing::TempDir())) /
        (std::string("store_") + ::testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  void TearDown() override {
    store_.reset();
    fs::remove_all(folder_);
  }

  void make_store(AdapterStoreOptions options) {
    store_ = AdapterStore::create(model_spec(), backend_, options).value();
  }
  std::string good_path() const {
    return (model_folder() / "adapters/peft0.18-attention").string();
  }
  void copy_adapter(const std::string& name) {
    fs::create_directories((folder_ / name).parent_path());
    fs::copy(good_path(), folder_ / name, fs::copy_options::recursive);
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

  fs::path folder_;
  testing::FakeBackend backend_;
  testing::FakeStream stream_;
  std::unique_ptr<AdapterStore> store_;
};

TEST_F(AdapterStoreTest, LoadReadsAtOnceAndAcquireUploads) {
  make_store({.max_loras = 2});
  const Result<AdapterInfo> loaded = store_->load("a", good_path());
  ASSERT_TRUE(loaded.ok()) << loaded.error().message;
  EXPECT_EQ(loaded->state, AdapterState::kInHost);
  EXPECT_EQ(loaded->max_rank, 4);
  EXPECT_EQ(loaded->num_bytes, 1000u);
  EXPECT_EQ(loaded->hash.size(), 64u);
  {
    const AdapterPin pin = wait_for("a").value();
    EXPECT_EQ(pin.slot(), 0);
    EXPECT_NE(backend_.slots[0], nullptr);
    EXPECT_EQ(info("a").num_users, 1);
  }
  EXPECT_EQ(info("a").num_users, 0);
  EXPECT_EQ(info("a").state, AdapterState::kOnDevice);
}

TEST_F(AdapterStoreTest, LoadedToTheDeviceTakesASlotBeforeItIsAskedFor) {
  make_store({.max_loras = 2});
  int num_woken = 0;
  store_->set_wake([&] { ++num_woken; });
  const auto load = [&](const char* name) {
    ASSERT_TRUE(store_->load(name, good_path(), {.to_device = true}).ok());
  };
  load("a");
  EXPECT_GT(num_woken, 0);
  EXPECT_EQ(info("a").state, AdapterState::kInHost);
  store_->fill_slots(stream_);
  EXPECT_EQ(info("a").state, AdapterState::kOnDevice);
  EXPECT_EQ(info("a").last_used_ns, 0);
  load("b");
  store_->fill_slots(stream_);
  load("c");  // in the place of the one idle for longest
  store_->fill_slots(stream_);
  EXPECT_EQ(info("a").state, AdapterState::kInHost);
  EXPECT_EQ(info("b").state, AdapterState::kOnDevice);
  EXPECT_EQ(info("c").state, AdapterState::kOnDevice);
  {
    const AdapterPin b = wait_for("b").value(), c = wait_for("c").value();
    load("d");
    store_->fill_slots(stream_);
    EXPECT_EQ(info("d").state, AdapterState::kInHost) << "every slot is in use";
  }
  store_->fill_slots(stream_);
  EXPECT_EQ(info("d").state, AdapterState::kOnDevice);
  ASSERT_TRUE(store_->load("e", good_path()).ok());
  store_->fill_slots(stream_);
  EXPECT_EQ(info("e").state, AdapterState::kInHost) << "nobody wanted it there";
  store_->set_wake({});
}

TEST_F(AdapterStoreTest, LoadsAreObserved) {
  make_store({.max_loras = 2});
  ASSERT_TRUE(store_->load("before", good_path()).ok());
  std::mutex mutex;
  std::vector<std::string> seen;
  store_->set_load_observer([&](const AdapterLoad& load) {
    EXPECT_GE(load.duration_ns, 0);
    std::lock_guard lock(mutex);
    seen.push_back(load.name + " " + to_string(load.source) + (load.ok ? "" : " failed"));
  });
  EXPECT_FALSE(store_->load("bad", (folder_ / "none").string()).ok());
  EXPECT_TRUE(wait_for("before").ok());
  EXPECT_TRUE(wait_for("before").ok());  // it is there already
  store_->set_load_observer({});
  ASSERT_TRUE(store_->load("after", good_path()).ok());
  EXPECT_EQ(seen, (std::vector<std::string>{"before disk", "bad disk failed", "before host"}));
}

TEST_F(AdapterStoreTest, NamesAndPathsAreKept) {
  make_store({});
  EXPECT_EQ(store_->load("a,b", good_path()).error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(store_->load("", good_path()).error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(store_->load(std::string(257, 'a'), good_path()).error().code,
            ErrorCode::kInvalidArgument);
  ASSERT_TRUE(store_->load("org/a:1@x", good_path()).ok());
  EXPECT_EQ(store_->load("org/a:1@x", good_path()).error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(store_->unload("b").error().code, ErrorCode::kNotFound);
  EXPECT_EQ(store_->resolve("b").error().code, ErrorCode::kNotFound);
  EXPECT_EQ(store_->acquire("b", stream_).error().code, ErrorCode::kNotFound);
}

TEST_F(AdapterStoreTest, FailedLoadIsForgottenAndSaysWhy) {
  make_store({});
  const Result<AdapterInfo> loaded = store_->load("a", (folder_ / "none").string());
  ASSERT_FALSE(loaded.ok());
  EXPECT_EQ(loaded.error().code, ErrorCode::kNotFound);
  EXPECT_NE(loaded.error().message.find("'a'"), std::string::npos);
  EXPECT_TRUE(store_->list().empty());
  EXPECT_TRUE(store_->load("a", good_path()).ok());
}

TEST_F(AdapterStoreTest, RankLimit) {
  make_store({.max_lora_rank = 3});
  const Result<AdapterInfo> loaded = store_->load("a", good_path());
  ASSERT_FALSE(loaded.ok());
  EXPECT_NE(loaded.error().message.find("rank is 4; at most 3"), std::string::npos);
}

TEST_F(AdapterStoreTest, LeastRecentlyUsedSlotIsTakenAndUsedOnesAreNot) {
  make_store({.max_loras = 2});
  for (const char* name : {"a", "b", "c"}) ASSERT_TRUE(store_->load(name, good_path()).ok());
  {
    const AdapterPin a = wait_for("a").value();
  }
  AdapterPin b = wait_for("b").value();
  {
    const AdapterPin a = wait_for("a").value();
  }  // used after b, but b is still in use
  AdapterPin c = wait_for("c").value();
  EXPECT_EQ(c.slot(), 0);
  EXPECT_EQ(info("a").state, AdapterState::kInHost);
  EXPECT_EQ(info("b").state, AdapterState::kOnDevice);
  const auto full = store_->acquire("a", stream_);
  ASSERT_TRUE(full.ok());
  EXPECT_FALSE(full->has_value());
  b = AdapterPin();
  c = AdapterPin();
  EXPECT_EQ(wait_for("a").value().slot(), 1);  // b was used before c
}

TEST_F(AdapterStoreTest, DeviceMemoryShort) {
  make_store({.max_loras = 4});
  backend_.memory_for = 1;
  ASSERT_TRUE(store_->load("a", good_path()).ok());
  ASSERT_TRUE(store_->load("b", good_path()).ok());
  {
    const AdapterPin a = wait_for("a").value();
    const auto b = store_->acquire("b", stream_);
    ASSERT_TRUE(b.ok());
    EXPECT_FALSE(b->has_value());  // a is in use
  }
  EXPECT_TRUE(wait_for("b").ok());
  EXPECT_EQ(info("a").state, AdapterState::kInHost);
  {
    const AdapterPin b = wait_for("b").value();
  }
  backend_.memory_for = 0;
  EXPECT_EQ(wait_for("a").error().code, ErrorCode::kOverloaded);
}

TEST_F(AdapterStoreTest, NamesOfOneContentShareOneImage) {
  make_store({.max_loras = 4});
  copy_adapter("copy");
  const auto first = store_->load("a", good_path());
  const auto second = store_->load("b", (folder_ / "copy").string());
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_EQ(first->hash, second->hash);
  EXPECT_EQ(backend_.num_live, 1);
  ASSERT_TRUE(store_->unload("a").ok());
  EXPECT_EQ(backend_.num_live, 1) << "the other name still needs it";
  ASSERT_TRUE(store_->unload("b").ok());
  EXPECT_EQ(backend_.num_live, 0);
}

TEST_F(AdapterStoreTest, UnloadFreesHostMemoryOnceTheDeviceIsDone) {
  make_store({.max_loras = 2});
  ASSERT_TRUE(store_->load("a", good_path()).ok());
  ASSERT_TRUE(store_->load("b", good_path()).ok());
  {
    const AdapterPin a = wait_for("a").value();
  }
  ASSERT_TRUE(store_->unload("a").ok());
  EXPECT_EQ(store_->acquire("a", stream_).error().code, ErrorCode::kNotFound);
  EXPECT_EQ(backend_.slots[0], nullptr);
  EXPECT_EQ(backend_.num_live, 1);
  EXPECT_EQ(stream_.num_synchronized, 1);
  ASSERT_TRUE(store_->unload("b").ok());  // never was on the device
  EXPECT_EQ(backend_.num_live, 0);
}

TEST_F(AdapterStoreTest, UnloadWaitsForWhoeverUsesIt) {
  make_store({.max_loras = 2});
  ASSERT_TRUE(store_->load("a", good_path()).ok());
  {
    const AdapterPin pin = wait_for("a").value();
    ASSERT_TRUE(store_->unload("a").ok());
    EXPECT_EQ(store_->acquire("a", stream_).error().code, ErrorCode::kNotFound);
    EXPECT_NE(backend_.slots[pin.slot()], nullptr);
    EXPECT_EQ(backend_.num_live, 1);
  }
  EXPECT_EQ(store_->acquire("a", stream_).error().code, ErrorCode::kNotFound);
  EXPECT_EQ(backend_.slots[0], nullptr);
  EXPECT_EQ(backend_.num_live, 0);
}

TEST_F(AdapterStoreTest, ReloadInPlaceLeavesWhatRunsAlone) {
  make_store({.max_loras = 2});
  const std::string other = (model_folder() / "adapters/peft0.18-everything").string();
  const std::string old_hash = store_->load("a", good_path()).value().hash;
  const AdapterPin old_pin = wait_for("a").value();
  EXPECT_EQ(store_->load("a", other).error().code, ErrorCode::kInvalidArgument);
  EXPECT_FALSE(store_->load("a", (folder_ / "none").string(), {.in_place = true}).ok());
  EXPECT_EQ(info("a").hash, old_hash);

  const Result<AdapterInfo> loaded = store_->load("a", other, {.in_place = true});
  ASSERT_TRUE(loaded.ok()) << loaded.error().message;
  EXPECT_NE(loaded->hash, old_hash);
  const AdapterPin new_pin = wait_for("a").value();
  EXPECT_EQ(new_pin.hash(), loaded->hash);
  EXPECT_EQ(old_pin.hash(), old_hash);
  EXPECT_NE(new_pin.slot(), old_pin.slot());
  EXPECT_NE(backend_.slots[old_pin.slot()], nullptr);
}

TEST_F(AdapterStoreTest, PinnedStaysOnTheDevice) {
  make_store({.max_loras = 2});
  for (const char* name : {"a", "b", "c"}) ASSERT_TRUE(store_->load(name, good_path()).ok());
  ASSERT_TRUE(store_->set_pinned("a", true).ok());
  EXPECT_EQ(store_->set_pinned("b", true).error().code, ErrorCode::kConflict);
  EXPECT_EQ(store_->set_pinned("d", true).error().code, ErrorCode::kNotFound);
  for (const char* name : {"a", "b", "c"}) EXPECT_TRUE(wait_for(name).ok());
  EXPECT_EQ(info("a").state, AdapterState::kOnDevice);
  EXPECT_EQ(info("b").state, AdapterState::kInHost);
  ASSERT_TRUE(store_->set_pinned("a", false).ok());
  EXPECT_TRUE(wait_for("b").ok());
  EXPECT_EQ(info("a").state, AdapterState::kInHost);
}

TEST_F(AdapterStoreTest, RegistersWithoutReadingAndChecksWithoutKeeping) {
  make_store({});
  const Result<AdapterInfo> checked = store_->check(good_path());
  ASSERT_TRUE(checked.ok());
  EXPECT_EQ(checked->max_rank, 4);
  EXPECT_TRUE(store_->list().empty());
  EXPECT_FALSE(store_->check((folder_ / "none").string()).ok());
  ASSERT_TRUE(store_->load("a", good_path(), {.read = false}).ok());
  EXPECT_EQ(info("a").state, AdapterState::kOnDisk);
  EXPECT_TRUE(wait_for("a").ok());
}

TEST_F(AdapterStoreTest, UnknownNameIsFoundUnderTheRoot) {
  copy_adapter("root/team/mood");
  make_store({.adapter_root = (folder_ / "root").string()});
  EXPECT_EQ(store_->resolve("team/none").error().code, ErrorCode::kNotFound);
  ASSERT_TRUE(store_->resolve("team/mood").ok());
  EXPECT_EQ(info("team/mood").state, AdapterState::kOnDisk);  // not read yet
  const auto first = store_->acquire("team/mood", stream_);
  ASSERT_TRUE(first.ok());
  EXPECT_FALSE(first->has_value());  // acquire never waits for disk
  EXPECT_TRUE(wait_for("team/mood").ok());
}

TEST_F(AdapterStoreTest, FailureOnUseIsToldAndMayBeMended) {
  copy_adapter("root/bad");
  fs::rename(folder_ / "root/bad/adapter_model.safetensors", folder_ / "hidden");
  make_store({.adapter_root = (folder_ / "root").string()});
  ASSERT_TRUE(store_->resolve("bad").ok());
  const auto failed = wait_for("bad");
  ASSERT_FALSE(failed.ok());
  EXPECT_EQ(failed.error().code, ErrorCode::kNotFound);
  EXPECT_EQ(info("bad").state, AdapterState::kFailed);
  EXPECT_FALSE(info("bad").error.empty());
  fs::rename(folder_ / "hidden", folder_ / "root/bad/adapter_model.safetensors");
  ASSERT_TRUE(store_->resolve("bad").ok());  // the next request
  EXPECT_TRUE(wait_for("bad").ok());
}

TEST_F(AdapterStoreTest, ManyThreads) {
  copy_adapter("root/x");
  make_store(
      {.max_loras = 2, .num_loader_threads = 2, .adapter_root = (folder_ / "root").string()});
  std::atomic<bool> stop = false;
  std::vector<std::thread> callers;
  for (int t = 0; t < 3; ++t) {
    callers.emplace_back([&, t] {
      const std::string name = "n" + std::to_string(t);
      while (!stop) {
        EXPECT_TRUE(store_->load(name, good_path()).ok());
        EXPECT_TRUE(store_->resolve("x").ok());
        for (const AdapterInfo& info : store_->list()) EXPECT_FALSE(info.name.empty());
        EXPECT_TRUE(store_->load(name, good_path(), {.in_place = true}).ok());
        EXPECT_TRUE(store_->unload(name).ok());
      }
    });
  }
  int num_pins = 0;
  for (int i = 0; i < 3000 || (num_pins < 100 && i < 1'000'000); ++i) {
    const auto pin = store_->acquire(i % 4 == 3 ? "x" : "n" + std::to_string(i % 4), stream_);
    if (!pin.ok()) {
      EXPECT_EQ(pin.error().code, ErrorCode::kNotFound);
    } else if (pin->has_value()) {
      EXPECT_NE(backend_.slots[(*pin)->slot()], nullptr);
      ++num_pins;
    }
  }
  stop = true;
  for (std::thread& caller : callers) caller.join();
  EXPECT_GE(num_pins, 100);
}

TEST(AdapterPathTest, StaysInsideTheRoot) {
  const fs::path folder = fs::path(::testing::TempDir()) / "adapter_path_test";
  fs::remove_all(folder);
  fs::create_directories(folder / "root/in");
  fs::create_directories(folder / "out");
  fs::create_directories(folder / "root2");
  for (const char* place : {"root/in", "out", "root2"}) {
    std::ofstream(folder / place / "adapter_config.json") << "{}";
  }
  fs::create_directory_symlink(folder / "out", folder / "root/link");
  fs::create_directory_symlink(folder / "root/in", folder / "root/alias");
  const std::string root = (folder / "root").string();
  const Result<std::string> in = find_under_root(root, "in");
  ASSERT_TRUE(in.ok());
  EXPECT_EQ(*in, fs::canonical(folder / "root/in"));
  EXPECT_TRUE(find_under_root(root, "alias").ok());
  for (const std::string& name :
       {std::string("../out"), std::string("in/../../out"), std::string("link"), std::string("."),
        std::string(".."), std::string("../root2"), (folder / "out").string(), std::string("//etc"),
        std::string("")}) {
    EXPECT_EQ(find_under_root(root, name).error().code, ErrorCode::kNotFound) << name;
  }
  EXPECT_EQ(find_inside_root(root, "in").value(), fs::canonical(folder / "root/in"));
  EXPECT_EQ(find_inside_root(root, *in).value(), *in);
  EXPECT_TRUE(find_inside_root(root, "in/absent").ok());
  for (const std::string& path :
       {std::string("../out"), std::string("../absent"), std::string("link"), std::string("/etc"),
        std::string("in/../../out"), (folder / "root2").string()}) {
    EXPECT_EQ(find_inside_root(root, path).error().code, ErrorCode::kForbidden) << path;
  }
  fs::remove_all(folder);
}

TEST(AdapterStateTest, OnlyTheDrawnChanges) {
  using enum AdapterState;
  EXPECT_EQ(next_state(kOnDisk, AdapterEvent::kLoadStarted), kLoading);
  EXPECT_EQ(next_state(kFailed, AdapterEvent::kLoadStarted), kLoading);
  EXPECT_EQ(next_state(kOnDevice, AdapterEvent::kEvicted), kInHost);
  EXPECT_DEATH(next_state(kOnDisk, AdapterEvent::kUploaded), "on_disk");
  EXPECT_DEATH(next_state(kLoading, AdapterEvent::kEvicted), "loading");
}

TEST(CheckAdapterTest, Reports) {
  const fs::path adapters = model_folder() / "adapters";
  const auto good = check_adapter((adapters / "peft0.18-fused-both").string(), model_spec());
  ASSERT_TRUE(good.ok());
  EXPECT_NE(good->find("can be served"), std::string::npos);
  EXPECT_NE(good->find("expert_gate_up  4 of 4 layers, rank 4"), std::string::npos) << *good;
  const auto zero = check_adapter((adapters / "own-all-b-zero").string(), model_spec());
  ASSERT_TRUE(zero.ok());
  EXPECT_NE(zero->find("warning:"), std::string::npos);
  const auto shared =
      check_adapter((adapters / "own-shared-outer-w1-w3-w2").string(), model_spec());
  ASSERT_TRUE(shared.ok());
  EXPECT_NE(shared->find("expert_gate_up  4 of 4 layers, rank 4; the experts share A\n"),
            std::string::npos)
      << *shared;
  EXPECT_EQ(check_adapter("/none", model_spec()).error().code, ErrorCode::kNotFound);
}

}  // namespace
}  // namespace medley
