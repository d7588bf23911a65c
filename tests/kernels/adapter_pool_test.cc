#include <cstring>
#include <thread>

#include "cuda/lora_adapter.h"
#include "side.h"
#include "slow_copy.h"

// Adapters that come and go on the device: memory, slots, graphs and running steps.

namespace medley::testing {
namespace {

constexpr int kSize = 256;
constexpr int kRank = 16;
const LoraSite kSite = {LoraModule::kO, 0};

MatrixView matrix_view(const std::vector<float>& values, int64_t rows, int64_t cols) {
  return {
      .dtype = DType::kF32, .data = values.data(), .rows = rows, .cols = cols, .row_stride = cols};
}

// One pair on a square projection.
class TestAdapter {
 public:
  explicit TestAdapter(uint32_t seed, int size = kSize, int rank = kRank, LoraSite site = kSite)
      : a_(random_values(int64_t{rank} * size, seed, 0.1f)),
        b_(random_values(int64_t{size} * rank, seed + 1, 0.1f)) {
    module_ = {.site = site,
               .pairs = {{.row_end = size,
                          .rank = rank,
                          .a = {matrix_view(a_, rank, size)},
                          .b = {matrix_view(b_, size, rank)},
                          .scale = std::vector<float>(rank, 1.0f)}}};
  }
  std::span<const LoraModuleWeights> modules() const { return {&module_, 1}; }

 private:
  std::vector<float> a_, b_;
  LoraModuleWeights module_;
};

// A projection of one row that uses slot 0, recorded as a graph.
class AdapterSlotTest : public ::testing::Test {
 protected:
  void make(size_t pool_bytes) {
    ASSERT_TRUE(backend()
                    .make_lora_table({.max_slots = 2, .num_layers = 1, .pool_bytes = pool_bytes})
                    .ok());
    const std::vector<float> matrix = random_values(kSize * kSize, 1, 0.05f);
    weight_ = backend().pack_linear({.parts = {matrix_view(matrix, kSize, kSize)}}).value();
    op_ = backend().plan(LinearDesc{.in_size = kSize, .out_sizes = {kSize}, .lora = kSite}).value();
    step_ = backend().make_step({.max_rows = 1, .max_seqs = 1, .max_pages = 1}).value();
    update_step();
    x_ = side_.upload(random_values(kSize, 2), DType::kBF16, {1, kSize});
    out_ = side_.empty(DType::kBF16, {1, kSize});
    run();
    side_.stream().synchronize();
    graph_ = backend().record(side_.stream(), [&] { run(); });
    base_ = replay();
  }
  void update_step() {
    const std::vector<int32_t> zero = {0}, one = {1}, indptr = {0, 1};
    step_->update({.token_ids = zero,
                   .positions = zero,
                   .seq_of_row = zero,
                   .adapter_of_row = zero,
                   .q_indptr = indptr,
                   .kv_lens = one,
                   .page_indptr = indptr,
                   .page_ids = zero,
                   .sampler_slots = zero,
                   .logit_rows = zero,
                   .logit_seqs = zero},
                  side_.stream());
    ASSERT_TRUE(step_->graph_key().has_value());
  }
  void run() { op_->run({.x = x_, .weight = weight_.get(), .out = out_}, *step_, side_.stream()); }
  std::vector<float> replay() {
    graph_->launch(side_.stream());
    return side_.download(out_);
  }
  Backend& backend() { return side_.backend(); }

  Side side_ = Side::cuda();
  std::unique_ptr<PackedWeight> weight_;
  std::unique_ptr<Linear> op_;
  std::unique_ptr<Step> step_;
  TensorView x_, out_;
  std::unique_ptr<Graph> graph_;
  std::vector<float> base_;
};

TEST_F(AdapterSlotTest, GraphOutlivesLoadingAndUnloading) {
  make(1 << 20);
  const TestAdapter first(10), second(20);
  const auto packed_first = backend().pack_adapter(first.modules()).value();
  const auto packed_second = backend().pack_adapter(second.modules()).value();
  auto on_device = backend().upload_adapter(*packed_first).value();
  EXPECT_EQ(replay(), base_) << "uploaded, but in no slot";
  backend().set_adapter(0, *on_device, side_.stream());
  const std::vector<float> with_first = replay();
  EXPECT_NE(with_first, base_);
  backend().set_adapter(1, *on_device, side_.stream());
  EXPECT_EQ(replay(), with_first);
  backend().clear_adapter(0, side_.stream());
  EXPECT_EQ(replay(), base_);
  on_device.reset();
  on_device = backend().upload_adapter(*packed_second).value();
  backend().set_adapter(0, *on_device, side_.stream());
  const std::vector<float> with_second = replay();
  EXPECT_NE(with_second, with_first);
  // Set anew, without a clear.
  auto again = backend().upload_adapter(*packed_first).value();
  backend().set_adapter(0, *again, side_.stream());
  on_device.reset();
  EXPECT_EQ(replay(), with_first);
}

// Steps that are enqueued while a copy is under way wait for it: those of a graph at their update,
// others at each layer. The copy begins 20 ms late.
TEST_F(AdapterSlotTest, StepsWaitForWhatIsOnItsWay) {
  make(1 << 20);
  const TestAdapter adapter(10);
  const auto packed = backend().pack_adapter(adapter.modules()).value();
  auto on_device = backend().upload_adapter(*packed).value();
  EXPECT_TRUE(on_device->is_complete());
  backend().set_adapter(0, *on_device, side_.stream());
  const std::vector<float> want = replay();
  EXPECT_NE(want, base_);
  for (const bool in_graph : {false, true}) {
    backend().clear_adapter(0, side_.stream());
    on_device.reset();
    EXPECT_EQ(replay(), base_);
    on_device = backend().start_upload(*packed).value();
    EXPECT_FALSE(on_device->is_complete());
    backend().set_adapter(0, *on_device, side_.stream());
    std::thread loader([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      EXPECT_TRUE(on_device->wait().ok());
    });
    if (in_graph) {
      update_step();
      EXPECT_TRUE(on_device->is_complete());
      graph_->launch(side_.stream());
    } else {
      backend().wait_for_adapters(0);
      EXPECT_TRUE(on_device->is_complete());
      run();
    }
    EXPECT_EQ(side_.download(out_), want) << "in a graph: " << in_graph;
    loader.join();
  }
}

// The pool holds one adapter: the second's copy would overwrite what queued steps still read.
TEST_F(AdapterSlotTest, MemoryIsReusedAfterTheStepsThatReadIt) {
  const TestAdapter first(10), second(20);
  make(1 << 20);
  const size_t device_bytes = backend().pack_adapter(first.modules()).value()->device_bytes();
  ASSERT_TRUE(backend()
                  .make_lora_table({.max_slots = 2, .num_layers = 1, .pool_bytes = device_bytes})
                  .ok());
  run();
  side_.stream().synchronize();
  graph_ = backend().record(side_.stream(), [&] { run(); });
  const auto packed_first = backend().pack_adapter(first.modules()).value();
  const auto packed_second = backend().pack_adapter(second.modules()).value();
  auto on_device = backend().upload_adapter(*packed_first).value();
  EXPECT_EQ(backend().adapter_memory().used_bytes, device_bytes);
  backend().set_adapter(0, *on_device, side_.stream());
  const std::vector<float> with_first = replay();

  const TensorView scratch = side_.empty(DType::kBF16, {1, kSize});
  for (int i = 0; i < 200; ++i) {  // 20 ms, then the step
    launch_slow_copy(scratch.data, x_.data, x_.num_bytes(), cuda::cuda_stream(side_.stream()));
  }
  graph_->launch(side_.stream());
  launch_slow_copy(scratch.data, out_.data, out_.num_bytes(), cuda::cuda_stream(side_.stream()));
  backend().clear_adapter(0, side_.stream());
  on_device.reset();
  std::unique_ptr<DeviceAdapter> other;
  std::thread loader([&] { other = backend().upload_adapter(*packed_second).value(); });
  loader.join();
  EXPECT_EQ(side_.download(scratch), with_first);
  backend().set_adapter(0, *other, side_.stream());
  EXPECT_NE(replay(), with_first);
}

TEST_F(AdapterSlotTest, ShortPoolNamesBothNumbers) {
  make(40'000);
  const TestAdapter adapter(10);
  const auto packed = backend().pack_adapter(adapter.modules()).value();
  std::vector<std::unique_ptr<DeviceAdapter>> held;
  Result<std::unique_ptr<DeviceAdapter>> last = backend().upload_adapter(*packed);
  while (last.ok()) {
    held.push_back(*std::move(last));
    EXPECT_EQ(backend().adapter_memory().used_bytes, held.size() * packed->device_bytes());
    last = backend().upload_adapter(*packed);
  }
  EXPECT_EQ(held.size(), 40'000 / packed->device_bytes());
  EXPECT_EQ(last.error().code, ErrorCode::kOverloaded);
  const size_t pool_bytes = backend().adapter_memory().pool_bytes;
  const size_t free_bytes = pool_bytes - held.size() * packed->device_bytes();
  EXPECT_NE(last.error().message.find(std::to_string(packed->device_bytes())), std::string::npos)
      << last.error().message;
  EXPECT_NE(last.error().message.find(std::to_string(free_bytes) + " of " +
                                      std::to_string(pool_bytes) + " are free"),
            std::string::npos)
      << last.error().message;
  held.clear();
  EXPECT_EQ(backend().adapter_memory().used_bytes, 0u);
  EXPECT_EQ(backend().adapter_memory().largest_free_bytes, pool_bytes);
}

// The bytes of modules that lie across the borders of page-locked slabs.
TEST(LoraTableTest, UploadsWhatLiesAcrossSlabs) {
  constexpr int kLarge = 16384;
  cuda::LoraTable table;
  ASSERT_TRUE(table.make({.max_slots = 1, .num_layers = 3, .pool_bytes = size_t{256} << 20}).ok());
  std::vector<TestAdapter> adapters;
  std::vector<LoraModuleWeights> modules;
  for (int layer = 0; layer < 3; ++layer) {
    const LoraSite site = {LoraModule::kO, layer};
    table.announce(site, {.in_size = kLarge, .part_rows = {kLarge}});
    adapters.emplace_back(layer, kLarge, /*rank=*/512, site);
  }
  for (const TestAdapter& adapter : adapters) modules.push_back(adapter.modules()[0]);
  const auto packed = table.pack(modules).value();
  const auto& host = static_cast<const cuda::CudaPackedAdapter&>(*packed);
  const auto on_device = table.start_upload(host).value();
  ASSERT_TRUE(on_device->wait().ok());
  const auto& device = static_cast<const cuda::CudaDeviceAdapter&>(*on_device);
  ASSERT_EQ(host.modules.size(), 3u);
  for (size_t i = 0; i < host.modules.size(); ++i) {
    const cuda::PinnedRange& memory = host.modules[i].memory;
    std::vector<uint8_t> found(memory.num_bytes());
    MEDLEY_CUDA_CHECK(cudaMemcpy(found.data(), device.memory().data(i + 1), found.size(),
                                 cudaMemcpyDeviceToHost));
    EXPECT_EQ(std::memcmp(found.data(), memory.data(), found.size()), 0) << i;
  }
}

TEST(PinnedArenaTest, StaysAheadOfWhatIsUsed) {
  constexpr size_t kSlab = cuda::PinnedArena::kSlabBytes;
  cuda::PinnedArena arena;
  arena.stay_ahead(2 * kSlab);
  const auto locks = [&](size_t num_bytes) {
    for (int i = 0; i < 1000 && arena.locked_bytes() < num_bytes; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return arena.locked_bytes();
  };
  EXPECT_EQ(locks(2 * kSlab), 2 * kSlab);
  const cuda::PinnedRange range = arena.allocate(kSlab).value();
  EXPECT_EQ(locks(3 * kSlab), 3 * kSlab);
}

TEST(PinnedArenaTest, RecyclesAndGrows) {
  cuda::PinnedArena arena;
  ASSERT_TRUE(arena.reserve(1).ok());
  EXPECT_EQ(arena.locked_bytes(), cuda::PinnedArena::kSlabBytes);
  {
    const cuda::PinnedRange large = arena.allocate(cuda::PinnedArena::kSlabBytes + 1).value();
    EXPECT_EQ(arena.locked_bytes(), 2 * cuda::PinnedArena::kSlabBytes);
    std::memset(large.data(), 1, large.num_bytes());
  }
  EXPECT_EQ(arena.used_bytes(), 0u);
  const cuda::PinnedRange again = arena.allocate(2 * cuda::PinnedArena::kSlabBytes).value();
  EXPECT_EQ(arena.locked_bytes(), 2 * cuda::PinnedArena::kSlabBytes);
}

}  // namespace
}  // namespace medley::testing
