#include "weights/checkpoint.h"

#include <filesystem>

#include <gtest/gtest.h>

#include "weights/testing/safetensors_writer.h"

namespace medley {
namespace {

using testing::f32_tensor;
using testing::safetensors_bytes;
using testing::write_file;

class CheckpointTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = ::testing::TempDir() + "checkpoint_" +
              ::testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  Result<Checkpoint> open(const std::string& bytes) {
    write_file(folder_ + "/model.safetensors", bytes);
    return Checkpoint::open_folder(folder_);
  }
  // Opens a file of this header and `data_bytes` zeros, and expects an error that has every part.
  void expect_refused(const std::string& header, size_t data_bytes,
                      const std::vector<std::string>& parts) {
    const Result<Checkpoint> opened =
        open(safetensors_bytes(header, std::string(data_bytes, '\0')));
    ASSERT_FALSE(opened.ok()) << header;
    for (const std::string& part : parts) {
      EXPECT_NE(opened.error().message.find(part), std::string::npos)
          << "no '" << part << "' in: " << opened.error().message;
    }
  }

  std::string folder_;
};

TEST_F(CheckpointTest, ReadsTensorsByName) {
  const Result<Checkpoint> opened =
      open(safetensors_bytes({f32_tensor("b", {2, 3}, {1, 2, 3, 4, 5, 6}),
                              f32_tensor("a", {1}, {-7}),
                              {"scalar", "BF16", {}, std::string("\x80\x3f", 2)},
                              {"none", "U8", {0, 4}, ""}}));
  ASSERT_TRUE(opened.ok()) << opened.error().message;
  EXPECT_EQ(opened->names(), (std::vector<std::string>{"a", "b", "none", "scalar"}));
  EXPECT_EQ(opened->num_bytes(), 24u + 4u + 2u);
  const ConstTensorView* b = opened->find("b");
  ASSERT_NE(b, nullptr);
  EXPECT_EQ(b->shape, Shape({2, 3}));
  EXPECT_EQ(b->as<float>()[4], 5.0f);
  EXPECT_EQ(to_float(*opened->find("scalar")), std::vector<float>{1.0f});
  EXPECT_EQ(opened->find("c"), nullptr);
}

TEST_F(CheckpointTest, CopiesDataThatIsNotAligned) {
  // A header of 8k + 1 bytes puts the float at an odd address.
  std::string header = R"({"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
  header.resize((header.size() + 7) / 8 * 8 + 1, ' ');
  const float values[] = {1.5f, -2.0f};
  const std::string data(reinterpret_cast<const char*>(values), 8);
  const Result<Checkpoint> opened = open(safetensors_bytes(header, data));
  ASSERT_TRUE(opened.ok()) << opened.error().message;
  const ConstTensorView* x = opened->find("x");
  EXPECT_EQ(reinterpret_cast<uintptr_t>(x->data) % 4, 0u);
  EXPECT_EQ(to_float(*x), (std::vector<float>{1.5f, -2.0f}));
}

TEST_F(CheckpointTest, ACopyOutlivesTheFile) {
  const std::string path = folder_ + "/model.safetensors";
  const std::string bytes = safetensors_bytes({f32_tensor("x", {2}, {3, 4})});
  write_file(path, bytes);
  const Result<Checkpoint> copy = Checkpoint::read_file(path);
  ASSERT_TRUE(copy.ok()) << copy.error().message;
  std::filesystem::resize_file(path, 0);  // a mapping would fault from here on
  EXPECT_EQ(to_float(*copy->find("x")), (std::vector<float>{3, 4}));
  EXPECT_EQ(copy->file_bytes().size(), bytes.size());
}

TEST_F(CheckpointTest, HandsOnAllBytesInOrderWhileItReads) {
  constexpr int64_t kBytes = 20'000'001;  // two pieces and a bit
  std::string data(kBytes, '\0');
  for (int64_t i = 0; i < kBytes; ++i) data[i] = static_cast<char>(i * 2654435761 >> 13);
  const std::string path = folder_ + "/model.safetensors";
  const std::string bytes = safetensors_bytes({{"x", "U8", {kBytes}, data}});
  write_file(path, bytes);
  std::string seen;
  const Result<Checkpoint> copy =
      Checkpoint::read_file(path, [&](std::span<const std::byte> piece) {
        seen.append(reinterpret_cast<const char*>(piece.data()), piece.size());
      });
  ASSERT_TRUE(copy.ok()) << copy.error().message;
  EXPECT_TRUE(seen == bytes);
  EXPECT_EQ(std::memcmp(copy->file_bytes().data(), bytes.data(), bytes.size()), 0);
}

TEST_F(CheckpointTest, RefusesDamagedFiles) {
  EXPECT_EQ(open("").error().code, ErrorCode::kInvalidArgument);
  EXPECT_FALSE(open("1234567").ok());
  EXPECT_FALSE(open(std::string("\xff\xff\xff\xff\xff\xff\xff\xff{}", 10)).ok());
  EXPECT_FALSE(open(std::string("\x10\0\0\0\0\0\0\0{}", 10)).ok());
  const std::string whole = safetensors_bytes({f32_tensor("x", {2}, {1, 2})});
  ASSERT_TRUE(open(whole).ok());
  for (size_t size = 0; size < whole.size(); ++size) {
    EXPECT_FALSE(open(whole.substr(0, size)).ok()) << size;
  }
}

TEST_F(CheckpointTest, RefusesHostileHeaders) {
  const auto one = [](const std::string& fields) { return R"({"x":{)" + fields + "}}"; };
  expect_refused("[]", 0, {"not an object"});
  expect_refused(R"({"x":3})", 0, {"'x'", "expected an object"});
  expect_refused(one(R"("dtype":"F32","shape":[2])"), 8, {"'x'", "data_offsets"});
  expect_refused(one(R"("dtype":"F4","shape":[2],"data_offsets":[0,1])"), 1, {"'x'", "'F4'"});
  expect_refused(one(R"("dtype":"F32","shape":[-2],"data_offsets":[0,8])"), 8, {"'x'", "[-2]"});
  expect_refused(one(R"("dtype":"F32","shape":[1.5],"data_offsets":[0,8])"), 8, {"'x'", "[1.5]"});
  expect_refused(one(R"("dtype":"F32","shape":[3],"data_offsets":[0,8])"), 8,
                 {"'x'", "float32 (3) takes 12 bytes", "[0, 8)"});
  expect_refused(one(R"("dtype":"F32","shape":[2],"data_offsets":[8,0])"), 8, {"'x'", "[8, 0)"});
  expect_refused(one(R"("dtype":"F32","shape":[4],"data_offsets":[0,16])"), 8,
                 {"'x'", "beyond the 8 data bytes"});
  expect_refused(one(R"("dtype":"F32","shape":[1],"data_offsets":[0,4])"), 8,
                 {"8 data bytes", "4"});
  expect_refused(one(R"("dtype":"F32","shape":[1],"data_offsets":[4,8])"), 8, {"'x'", "hole"});
  expect_refused(one(R"("dtype":"U8","shape":[1,1,1,1,1],"data_offsets":[0,1])"), 1,
                 {"'x'", "5 dimensions"});
  expect_refused(
      one(R"("dtype":"F32","shape":[4294967296,4294967296,4294967296],"data_offsets":[0,8])"), 8,
      {"'x'", "too large"});
  expect_refused(one(R"("dtype":"F32","shape":[2],"data_offsets":[0,8],"extra":1)"), 8,
                 {"'x'", "'extra'"});
  const std::string x = R"("x":{"dtype":"F32","shape":[1],"data_offsets":[0,4]})";
  expect_refused("{" + x + "," + x + "}", 4, {"'x' appears twice"});
  expect_refused("{" + x + R"(,"y":{"dtype":"F32","shape":[1],"data_offsets":[2,6]}})", 6,
                 {"'y'", "overlap"});
  expect_refused("{" + std::string(100000, '[') + "}", 0, {"header"});
}

TEST_F(CheckpointTest, ReadsShards) {
  write_file(folder_ + "/one.safetensors", safetensors_bytes({f32_tensor("a", {1}, {1})}));
  write_file(folder_ + "/two.safetensors", safetensors_bytes({f32_tensor("b", {1}, {2})}));
  const auto open_with = [&](const std::string& weight_map) {
    write_file(folder_ + "/model.safetensors.index.json",
               R"({"metadata":{"total_size":8},"weight_map":{)" + weight_map + "}}");
    return Checkpoint::open_folder(folder_);
  };
  const auto opened = open_with(R"("a":"one.safetensors","b":"two.safetensors")");
  ASSERT_TRUE(opened.ok()) << opened.error().message;
  EXPECT_EQ(opened->names(), (std::vector<std::string>{"a", "b"}));

  const auto misplaced = open_with(R"("a":"one.safetensors","c":"two.safetensors")");
  ASSERT_FALSE(misplaced.ok());
  EXPECT_EQ(misplaced.error().param, "c");
  EXPECT_FALSE(open_with(R"("a":"../one.safetensors")").ok());
  const auto absent = open_with(R"("a":"three.safetensors")");
  ASSERT_FALSE(absent.ok());
  EXPECT_EQ(absent.error().code, ErrorCode::kNotFound);

  write_file(folder_ + "/two.safetensors", safetensors_bytes({f32_tensor("a", {1}, {2})}));
  const auto twice = open_with(R"("a":"one.safetensors","b":"two.safetensors")");
  ASSERT_FALSE(twice.ok());
  EXPECT_EQ(twice.error().param, "a");
}

TEST_F(CheckpointTest, NamesAMissingFolder) {
  const auto opened = Checkpoint::open_folder(folder_ + "/nowhere");
  ASSERT_FALSE(opened.ok());
  EXPECT_EQ(opened.error().code, ErrorCode::kNotFound);
  EXPECT_NE(opened.error().message.find("nowhere"), std::string::npos);
}

}  // namespace
}  // namespace medley
