#include "server/stream_buffer.h"

#include <gtest/gtest.h>

namespace medley::server {
namespace {

TEST(StreamBuffer, JoinsWritesAndWakesOnce) {
  int num_wakes = 0;
  StreamBuffer buffer(100, [&] { ++num_wakes; });
  buffer.write("a");
  buffer.write("b");
  EXPECT_EQ(num_wakes, 1);
  StreamBuffer::Taken taken = buffer.take();
  EXPECT_EQ(taken.bytes, "ab");
  EXPECT_FALSE(taken.ended);
  buffer.write("c");
  buffer.end();
  EXPECT_EQ(num_wakes, 2);
  taken = buffer.take();
  EXPECT_EQ(taken.bytes, "c");
  EXPECT_TRUE(taken.ended);
  buffer.write("d");
  EXPECT_EQ(buffer.take().bytes, "");
}

TEST(StreamBuffer, SlowClientIsCancelledNotBuffered) {
  StreamBuffer buffer(4, [] {});
  int num_cancels = 0;
  buffer.on_cancel([&] { ++num_cancels; });
  buffer.write("1234");
  EXPECT_EQ(num_cancels, 0);
  buffer.write("5");
  EXPECT_EQ(num_cancels, 1);
  buffer.write("6");
  buffer.cancel();
  EXPECT_EQ(num_cancels, 1);
  EXPECT_TRUE(buffer.take().cancelled);
}

TEST(StreamBuffer, CancelAfterTheEndIsNoCancel) {
  StreamBuffer buffer(4, [] {});
  int num_cancels = 0;
  buffer.on_cancel([&] { ++num_cancels; });
  buffer.respond({.body = "x"});
  buffer.cancel();
  EXPECT_EQ(num_cancels, 0);
  EXPECT_EQ(buffer.take().response->body, "x");
}

TEST(StreamBuffer, CallbackThatComesLateIsCalledAtOnce) {
  StreamBuffer buffer(4, [] {});
  buffer.cancel();
  int num_cancels = 0;
  buffer.on_cancel([&] { ++num_cancels; });
  EXPECT_EQ(num_cancels, 1);
}

}  // namespace
}  // namespace medley::server
