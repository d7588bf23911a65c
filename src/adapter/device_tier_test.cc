#include "adapter/device_tier.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>

#include <gtest/gtest.h>

#include "adapter/testing/store_fixture.h"

// Slots, device memory and uploads, through the store.

namespace medley {
namespace {

class DeviceTierTest : public testing::AdapterStoreTest {};

TEST_F(DeviceTierTest, NamesOfOneContentShareImageCopyAndSlot) {
  make_store({.max_loras = 4});
  copy_adapter("copy");
  const auto first = store_->load("a", good_path());
  const auto second = store_->load("b", (folder_ / "copy").string());
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_EQ(first->hash, second->hash);
  EXPECT_EQ(backend_.num_live, 1);
  {
    const AdapterPin a = wait_for("a").value(), b = wait_for("b").value();
    EXPECT_EQ(a.slot(), b.slot());
    EXPECT_EQ(backend_.num_uploads, 1);
    EXPECT_EQ(info("a").num_users, 2);
  }
  ASSERT_TRUE(store_->unload("a").ok());
  store_->fill_slots(stream_);
  EXPECT_EQ(info("b").state, AdapterState::kOnDevice) << "the other name still needs it";
  ASSERT_TRUE(store_->unload("b").ok());
  store_->fill_slots(stream_);
  EXPECT_EQ(backend_.num_on_device, 0);
  EXPECT_EQ(backend_.num_live, 0);
}

TEST_F(DeviceTierTest, UnloadFreesBothMemories) {
  make_store({.max_loras = 2});
  load("a", 0), load("b", 1);
  {
    const AdapterPin a = wait_for("a").value();
  }
  ASSERT_TRUE(store_->unload("a").ok());
  EXPECT_EQ(store_->acquire("a", stream_).error().code, ErrorCode::kNotFound);
  EXPECT_EQ(backend_.slots[0], nullptr);
  EXPECT_EQ(backend_.num_on_device, 0);
  EXPECT_EQ(backend_.num_live, 1);
  EXPECT_EQ(stream_.num_synchronized, 0) << "steps would wait";
  ASSERT_TRUE(store_->unload("b").ok());  // never was on the device
  EXPECT_EQ(backend_.num_live, 0);
}

TEST_F(DeviceTierTest, OthersGoOnDuringAnUpload) {
  make_store({.max_loras = 2});
  load("a", 0), load("b", 1);
  ASSERT_TRUE(wait_for("a").ok());
  std::atomic<int> num_woken = 0;
  store_->set_wake([&] { ++num_woken; });
  backend_.hold_uploads(true);
  EXPECT_FALSE(store_->acquire("b", stream_)->has_value());
  EXPECT_EQ(info("b").state, AdapterState::kUploading);
  EXPECT_TRUE(store_->acquire("a", stream_)->has_value());
  EXPECT_FALSE(store_->acquire("b", stream_)->has_value()) << "one upload is enough";
  EXPECT_EQ(num_woken, 0);
  backend_.hold_uploads(false);
  EXPECT_EQ(wait_for("b").value().slot(), 1);
  EXPECT_GE(num_woken, 1);
  EXPECT_EQ(backend_.num_uploads, 2);
  store_->set_wake({});
}

TEST_F(DeviceTierTest, WhoAsksGetsItWhileTheCopyIsUnderWay) {
  make_store({.max_loras = 3});
  load("a", 0), load("b", 1, {.to_device = true});
  std::atomic<int> num_loads = 0;
  store_->set_load_observer([&](const AdapterLoad& load) {
    if (load.source == AdapterLoad::Source::kHost) ++num_loads;
  });
  backend_.copies_held = true;
  {
    const AdapterPin a = wait_for("a").value();
    EXPECT_EQ(info("a").state, AdapterState::kOnDevice);
    EXPECT_NE(backend_.slots[a.slot()], nullptr);
  }
  // Steps of others might have to wait for what nobody asked for.
  store_->fill_slots(stream_);
  EXPECT_EQ(info("b").state, AdapterState::kUploading);
  EXPECT_EQ(num_loads, 0) << "told when the copy is complete";
  // Dropped before it has come: its memory stays until then.
  ASSERT_TRUE(store_->unload("a").ok());
  store_->fill_slots(stream_);
  EXPECT_EQ(backend_.num_on_device, 1);
  EXPECT_EQ(backend_.num_live, 2);
  backend_.copies_held = false;
  EXPECT_TRUE(becomes("b", AdapterState::kOnDevice));
  EXPECT_EQ(backend_.num_on_device, 1);
  EXPECT_EQ(backend_.num_live, 1);
  store_->set_load_observer({});
}

TEST_F(DeviceTierTest, UnloadDuringAnUpload) {
  make_store({.max_loras = 1});
  load("a", 0), load("b", 1);
  backend_.hold_uploads(true);
  EXPECT_FALSE(store_->acquire("a", stream_)->has_value());
  ASSERT_TRUE(store_->unload("a").ok());
  EXPECT_FALSE(store_->acquire("b", stream_)->has_value());
  backend_.hold_uploads(false);
  EXPECT_TRUE(wait_for("b").ok());
  EXPECT_EQ(backend_.num_on_device, 1);
  EXPECT_EQ(backend_.num_live, 1);
}

TEST_F(DeviceTierTest, ReloadInPlaceDuringAnUploadAndWhileUsed) {
  make_store({.max_loras = 3});
  load("a", 0);
  AdapterPin first = wait_for("a").value();
  load("a", 1, {.in_place = true});
  backend_.hold_uploads(true);
  EXPECT_FALSE(store_->acquire("a", stream_)->has_value());
  load("a", 2, {.in_place = true});  // nobody ever got what is on its way
  EXPECT_FALSE(store_->acquire("a", stream_)->has_value());
  backend_.hold_uploads(false);
  const AdapterPin last = wait_for("a").value();
  EXPECT_EQ(last.hash(), info("a").hash);
  EXPECT_NE(first.hash(), last.hash());
  EXPECT_NE(backend_.slots[first.slot()], nullptr);
  EXPECT_EQ(backend_.num_on_device, 2);
  // Back to the first content, which is still there.
  load("a", 0, {.in_place = true});
  EXPECT_EQ(store_->acquire("a", stream_)->value().slot(), first.slot());
  EXPECT_EQ(backend_.num_uploads, 3);
}

TEST_F(DeviceTierTest, PoolOfBytes) {
  make_store({.max_loras = 4, .pool_bytes = 2047});  // one of 1024, not two
  load("a", 0), load("b", 1);
  {
    const AdapterPin a = wait_for("a").value();
    EXPECT_FALSE(store_->acquire("b", stream_)->has_value());
    EXPECT_EQ(info("b").state, AdapterState::kInHost);
  }
  EXPECT_TRUE(wait_for("b").ok());
  EXPECT_EQ(info("a").state, AdapterState::kInHost);
  EXPECT_EQ(info("a").device_bytes, 1024u);
}

TEST_F(DeviceTierTest, LargerThanThePoolIsRefusedWithBothNumbers) {
  make_store({.pool_bytes = 1000});
  const auto loaded = store_->load("a", good_path());
  ASSERT_FALSE(loaded.ok());
  EXPECT_EQ(loaded.error().code, ErrorCode::kUnsupported);
  EXPECT_NE(loaded.error().message.find("1024 bytes"), std::string::npos);
  EXPECT_NE(loaded.error().message.find("has 1000"), std::string::npos);
}

TEST_F(DeviceTierTest, AFailedUploadIsToldOnce) {
  make_store({.max_loras = 1});
  load("a", 0);
  backend_.upload_fault = "broken";
  EXPECT_EQ(wait_for("a").error().message, "broken");
  backend_.upload_fault.clear();
  EXPECT_TRUE(wait_for("a").ok());
}

TEST_F(DeviceTierTest, WhoWaitedGetsItBeforeAnotherTakesThePlace) {
  make_store({.max_loras = 1});
  load("a", 0), load("b", 1);
  EXPECT_FALSE(store_->acquire("a", stream_)->has_value());
  EXPECT_TRUE(becomes("a", AdapterState::kOnDevice));
  EXPECT_FALSE(store_->acquire("b", stream_)->has_value());
  EXPECT_TRUE(store_->acquire("a", stream_)->has_value());
  EXPECT_TRUE(wait_for("b").ok());
}

TEST_F(DeviceTierTest, WhoWaitedAndWentAwayDoesNotKeepThePlace) {
  make_store({.max_loras = 1});
  load("a", 0), load("b", 1);
  EXPECT_FALSE(store_->acquire("a", stream_)->has_value());
  EXPECT_TRUE(becomes("a", AdapterState::kOnDevice));
  std::mutex mutex;
  std::condition_variable woken;
  bool is_woken = false;
  store_->set_wake([&] {
    std::lock_guard lock(mutex);
    is_woken = true;
    woken.notify_all();
  });
  EXPECT_FALSE(store_->acquire("b", stream_)->has_value());
  {
    // An idle engine asks again only when it is woken.
    std::unique_lock lock(mutex);
    ASSERT_TRUE(woken.wait_for(lock, std::chrono::seconds(10), [&] { return is_woken; }));
  }
  EXPECT_FALSE(store_->acquire("b", stream_)->has_value());
  EXPECT_EQ(info("b").state, AdapterState::kUploading);
  EXPECT_TRUE(wait_for("b").ok());
  store_->set_wake({});
}

TEST_F(DeviceTierTest, HostImagesHaveALimit) {
  make_store({.max_loras = 1, .max_host_bytes = 2500});
  load("a", 0);
  EXPECT_TRUE(wait_for("a").ok());
  load("b", 1), load("c", 2);  // a is on the device, b is the longest unused
  EXPECT_EQ(info("a").state, AdapterState::kOnDevice);
  EXPECT_EQ(info("b").state, AdapterState::kOnDisk);
  EXPECT_EQ(info("c").state, AdapterState::kInHost);
  EXPECT_EQ(backend_.num_live, 2);
  EXPECT_TRUE(wait_for("b").ok()) << "read again";
  EXPECT_LE(backend_.num_live, 2);
}

TEST_F(DeviceTierTest, OneThatHostMemoryCantHoldIsRefusedWithBothNumbers) {
  make_store({.max_loras = 1, .max_host_bytes = 999});
  const auto loaded = store_->load("a", content(0));
  ASSERT_FALSE(loaded.ok());
  EXPECT_EQ(loaded.error().code, ErrorCode::kUnsupported);
  EXPECT_NE(loaded.error().message.find("takes 1000 bytes of host memory; all adapters together "
                                        "may take 999"),
            std::string::npos)
      << loaded.error().message;
  EXPECT_EQ(backend_.num_live, 0);
}

TEST_F(DeviceTierTest, LeastRecentlyUsedSlotIsTakenAndUsedOnesAreNot) {
  make_store({.max_loras = 2});
  load("a", 0), load("b", 1), load("c", 2);
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

TEST_F(DeviceTierTest, DeviceMemoryShort) {
  make_store({.max_loras = 4});
  backend_.memory_for = 1;
  load("a", 0), load("b", 1);
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

TEST_F(DeviceTierTest, PinnedStaysOnTheDevice) {
  make_store({.max_loras = 2});
  load("a", 0), load("b", 1), load("c", 2);
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

TEST(AdapterStateTest, OnlyTheDrawnChanges) {
  using enum AdapterState;
  EXPECT_EQ(next_state(kOnDisk, AdapterEvent::kLoadStarted), kLoading);
  EXPECT_EQ(next_state(kFailed, AdapterEvent::kLoadStarted), kLoading);
  EXPECT_EQ(next_state(kInHost, AdapterEvent::kUploadStarted), kUploading);
  EXPECT_EQ(next_state(kUploading, AdapterEvent::kUploaded), kOnDevice);
  EXPECT_EQ(next_state(kUploading, AdapterEvent::kUploadFailed), kInHost);
  EXPECT_EQ(next_state(kOnDevice, AdapterEvent::kEvicted), kInHost);
  EXPECT_EQ(next_state(kInHost, AdapterEvent::kDropped), kOnDisk);
  EXPECT_DEATH(next_state(kOnDevice, AdapterEvent::kDropped), "on_device");
  EXPECT_DEATH(next_state(kOnDisk, AdapterEvent::kUploaded), "on_disk");
  EXPECT_DEATH(next_state(kLoading, AdapterEvent::kEvicted), "loading");
}

}  // namespace
}  // namespace medley
