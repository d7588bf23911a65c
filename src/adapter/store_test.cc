#include "adapter/store.h"

#include <atomic>
#include <deque>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <thread>

#include <gtest/gtest.h>

#include "adapter/adapter_path.h"
#include "adapter/check.h"
#include "adapter/testing/store_fixture.h"

namespace medley {
namespace {

namespace fs = std::filesystem;
using testing::AdapterStoreTest;
using testing::model_folder;
using testing::model_spec;

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
  std::atomic<int> num_woken = 0;
  store_->set_wake([&] { ++num_woken; });
  load("a", 0, {.to_device = true});
  EXPECT_GT(num_woken, 0);
  EXPECT_EQ(info("a").state, AdapterState::kInHost);
  EXPECT_TRUE(becomes("a", AdapterState::kOnDevice));
  EXPECT_EQ(info("a").last_used_ns, 0);
  load("b", 1, {.to_device = true});
  EXPECT_TRUE(becomes("b", AdapterState::kOnDevice));
  load("c", 2, {.to_device = true});  // in the place of the one idle for longest
  EXPECT_TRUE(becomes("c", AdapterState::kOnDevice));
  EXPECT_EQ(info("a").state, AdapterState::kInHost);
  EXPECT_EQ(info("b").state, AdapterState::kOnDevice);
  {
    const AdapterPin b = wait_for("b").value(), c = wait_for("c").value();
    load("d", 3, {.to_device = true});
    store_->fill_slots(stream_);
    EXPECT_EQ(info("d").state, AdapterState::kInHost) << "every slot is in use";
  }
  EXPECT_TRUE(becomes("d", AdapterState::kOnDevice));
  load("e", 4);
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
  make_store({.max_loras = 3,
              .num_loader_threads = 2,
              .pool_bytes = 2500,
              .max_host_bytes = 3500,
              .adapter_root = (folder_ / "root").string()});
  for (int number = 0; number < 4; ++number) content(number);
  std::atomic<bool> stop = false;
  std::vector<std::thread> callers;
  for (int t = 0; t < 3; ++t) {
    callers.emplace_back([&, t] {
      const std::string name = "n" + std::to_string(t);
      for (int i = 0; !stop; ++i) {
        EXPECT_TRUE(store_->load(name, content((t + i) % 4)).ok());
        EXPECT_TRUE(store_->resolve("x").ok());
        for (const AdapterInfo& info : store_->list()) EXPECT_FALSE(info.name.empty());
        EXPECT_TRUE(store_->load(name, content(i % 4), {.in_place = true, .to_device = true}).ok());
        EXPECT_TRUE(store_->unload(name).ok());
      }
    });
  }
  int num_pins = 0;
  std::deque<AdapterPin> held;
  for (int i = 0; i < 3000 || (num_pins < 100 && i < 1'000'000); ++i) {
    auto pin = store_->acquire(i % 4 == 3 ? "x" : "n" + std::to_string(i % 4), stream_);
    if (!pin.ok()) {
      EXPECT_EQ(pin.error().code, ErrorCode::kNotFound);
    } else if (pin->has_value()) {
      held.push_back(std::move(**pin));
      ++num_pins;
    }
    if (i % 16 == 0) store_->fill_slots(stream_);
    for (const AdapterPin& each : held) EXPECT_NE(backend_.slots[each.slot()], nullptr);
    if (held.size() > 4 || (i % 7 == 0 && !held.empty())) held.pop_front();
    if (i % 64 == 0) std::this_thread::yield();
  }
  stop = true;
  for (std::thread& caller : callers) caller.join();
  EXPECT_GE(num_pins, 100);
  held.clear();
  if (store_->unload("x").ok()) store_->fill_slots(stream_);
  EXPECT_TRUE(store_->list().empty());
  for (int i = 0; i < 5000 && backend_.num_live > 0; ++i) {
    store_->fill_slots(stream_);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_EQ(backend_.num_on_device, 0);
  EXPECT_EQ(backend_.num_live, 0);
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
