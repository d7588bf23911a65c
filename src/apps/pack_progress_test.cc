#include "apps/pack_progress.h"

#include <gtest/gtest.h>

namespace medley::apps {
namespace {

TEST(PackProgressText, SaysBytesShareAndRate) {
  EXPECT_EQ(pack_progress_text({.done_bytes = 6'900'000'000, .total_bytes = 13'800'000'000}, 0.5),
            "weights: 6.9 of 13.8 GB, 50 %, 13.8 GB/s");
  EXPECT_EQ(pack_progress_text({}, 0.0), "weights: 0.0 of 0.0 GB, 100 %, 0.0 GB/s");
}

class PackProgressReportTest : public ::testing::Test {
 protected:
  void update_at(int64_t ns, size_t done) {
    now_ = ns;
    report_.update({.done_bytes = done, .total_bytes = 100});
  }

  int64_t now_ = 1000;
  int said_ = 0;
  int said_done_ = 0;
  PackProgressReport report_{
      10, [this](const std::string&, bool done) { ++(done ? said_done_ : said_); },
      [this] { return now_; }};
};

TEST_F(PackProgressReportTest, SpeaksAtMostOnceAnInterval) {
  update_at(1009, 10);
  EXPECT_EQ(said_, 0);
  update_at(1010, 20);
  update_at(1011, 30);
  update_at(1019, 40);
  EXPECT_EQ(said_, 1);
  update_at(1020, 50);
  EXPECT_EQ(said_, 2);
  update_at(1021, 100);
  EXPECT_EQ(said_, 2);
  EXPECT_EQ(said_done_, 1);
}

TEST_F(PackProgressReportTest, IsSilentWhereThereWasNothingToWaitFor) {
  update_at(1001, 50);
  update_at(1002, 100);
  EXPECT_EQ(said_ + said_done_, 0);
}

}  // namespace
}  // namespace medley::apps
