#include "cuda/weight_packer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <mutex>
#include <optional>
#include <thread>

#include "base/clock.h"
#include "cuda/check.h"
#include "cuda/stream.h"

namespace medley::cuda {
namespace {

constexpr unsigned kMaxLanes = 16;
constexpr int64_t kMaxChunkBytes = int64_t{4} << 20;
constexpr int64_t kMinChunkBytes = int64_t{256} << 10;

double seconds_since(int64_t start_ns) { return static_cast<double>(now_ns() - start_ns) * 1e-9; }

int num_lanes() {
  return static_cast<int>(std::clamp(std::thread::hardware_concurrency(), 1u, kMaxLanes));
}

std::vector<uint32_t> make_code_words() {
  std::vector<uint32_t> words(kCodeWordTable);
  for (size_t i = 0; i < words.size(); ++i) {
    std::array<uint8_t, 8> codes = {};
    codes[i / 256 * 2] = i & 0xf;
    codes[i / 256 * 2 + 1] = i >> 4 & 0xf;
    words[i] = encode_e2m1(codes);
  }
  return words;
}

// Pieces of about equal size of `count` items, small enough for all lanes to have some.
int64_t items_per_chunk(int64_t count, int64_t item_bytes, int64_t total_bytes) {
  const int64_t bytes =
      std::clamp(total_bytes / (int64_t{2} * num_lanes()), kMinChunkBytes, kMaxChunkBytes);
  const int64_t most = std::max<int64_t>(1, bytes / item_bytes);
  const int64_t chunks = (count + most - 1) / most;
  return (count + chunks - 1) / chunks;
}

}  // namespace

// A thread's buffers: while the device works on one, the thread fills the other.
class WeightPacker::Lane {
 public:
  // The next buffer, once the device has done with it; `num_bytes` long.
  Result<std::byte*> next(size_t num_bytes) {
    Slot& slot = slots_[++turn_ % slots_.size()];
    finish(slot);
    if (slot.num_bytes < num_bytes) {
      slot.host.reset();
      slot.num_bytes = std::max<size_t>(num_bytes, kMaxChunkBytes);
      slot.host = std::make_unique<PinnedBuffer>(slot.num_bytes);
      MEDLEY_TRY_ASSIGN(slot.device, DeviceBuffer::allocate(slot.num_bytes));
    }
    return slot.host->data();
  }

  // Sends that buffer to the device; `pack` enqueues its kernel.
  template <class Pack>
  void send(size_t num_bytes, const Pack& pack) {
    Slot& slot = slots_[turn_ % slots_.size()];
    MEDLEY_CUDA_CHECK(cudaMemcpyAsync(slot.device.data(), slot.host->data(), num_bytes,
                                      cudaMemcpyHostToDevice, stream_.get()));
    slot.copied.record(stream_);
    pack(slot.device.as<const uint8_t>(), stream_.get());
    slot.packed.record(stream_);
    slot.busy = true;
  }

  void finish() {
    for (Slot& slot : slots_) finish(slot);
  }

  PackingTimes take_times() { return std::exchange(times_, {}); }
  void add_read(double seconds) { times_.read_s += seconds; }

 private:
  struct Slot {
    std::unique_ptr<PinnedBuffer> host;
    DeviceBuffer device;
    size_t num_bytes = 0;
    CudaEvent copied, packed;
    bool busy = false;
  };

  void finish(Slot& slot) {
    if (!slot.busy) return;
    const int64_t start_ns = now_ns();
    MEDLEY_CUDA_CHECK(cudaEventSynchronize(slot.packed.get()));
    times_.upload_s += seconds_since(start_ns);
    float ms = 0.0f;
    MEDLEY_CUDA_CHECK(cudaEventElapsedTime(&ms, slot.copied.get(), slot.packed.get()));
    times_.pack_s += static_cast<double>(ms) * 1e-3;
    slot.busy = false;
  }

  CudaStream stream_;
  std::array<Slot, 2> slots_;
  size_t turn_ = 0;
  PackingTimes times_;
};

WeightPacker::WeightPacker() = default;
WeightPacker::~WeightPacker() = default;

Result<void> WeightPacker::run(int64_t num_chunks,
                               const std::function<Result<void>(int64_t, Lane&)>& work) {
  const auto lanes = static_cast<int>(std::min<int64_t>(num_chunks, num_lanes()));
  if (lanes > 1 && threads_ == nullptr) threads_ = std::make_unique<ThreadPool>(num_lanes());
  while (static_cast<int>(lanes_.size()) < lanes) lanes_.push_back(std::make_unique<Lane>());
  std::atomic<int64_t> next = 0;
  std::mutex mutex;
  std::optional<Error> failure;
  const auto run_lane = [&](int64_t index) {
    Lane& lane = *lanes_[index];
    for (int64_t chunk = next++; chunk < num_chunks; chunk = next++) {
      const Result<void> result = work(chunk, lane);
      if (result.ok()) continue;
      next = num_chunks;
      const std::lock_guard lock(mutex);
      if (!failure) failure = result.error();
    }
    lane.finish();
    const PackingTimes times = lane.take_times();
    const std::lock_guard lock(mutex);
    times_.read_s += times.read_s / lanes;
    times_.upload_s += times.upload_s / lanes;
    times_.pack_s += times.pack_s;
  };
  if (lanes == 1) {
    run_lane(0);
  } else {
    threads_->parallel_for(lanes, run_lane);
  }
  if (failure) return *failure;
  return {};
}

Result<void> WeightPacker::pack(const PackJob& job) {
  if (code_words_.num_bytes() == 0) {
    const std::vector<uint32_t> words = make_code_words();
    MEDLEY_TRY_ASSIGN(code_words_, DeviceBuffer::allocate(words.size() * sizeof(uint32_t)));
    code_words_.copy_from_host(words.data(), words.size() * sizeof(uint32_t));
  }
  const StagedLayout staged = StagedLayout::of(job.type, job.cols);
  MEDLEY_CHECK_EQ(staged.type == RowType::kMxfp4, job.layout.format == StreamFormat::kMxfp4);
  const auto unit_bytes = static_cast<int64_t>(staged.num_bytes(kUnitRows));
  const int64_t units_per_chunk = items_per_chunk(
      job.layout.num_units, unit_bytes, unit_bytes * job.layout.num_units * job.num_matrices);
  const int64_t chunks_per_matrix = (job.layout.num_units + units_per_chunk - 1) / units_per_chunk;
  return run(chunks_per_matrix * job.num_matrices, [&](int64_t chunk, Lane& lane) -> Result<void> {
    const auto matrix = static_cast<int>(chunk / chunks_per_matrix);
    const auto begin = static_cast<int>(chunk % chunks_per_matrix * units_per_chunk);
    const int end = std::min(begin + static_cast<int>(units_per_chunk), job.layout.num_units);
    std::vector<SourceRow> rows;
    for (int unit = begin; unit < end; ++unit) {
      for (int row = 0; row < kUnitRows; ++row) {
        rows.push_back(job.source(matrix, unit, row));
        const MatrixView* view = rows.back().matrix;
        MEDLEY_CHECK(view == nullptr || view->cols == job.cols);
      }
    }
    const size_t num_bytes = staged.num_bytes(static_cast<int64_t>(rows.size()));
    MEDLEY_TRY_ASSIGN(std::byte * buffer, lane.next(num_bytes));
    const int64_t start_ns = now_ns();
    const Result<void> result = stage_rows(staged, rows, reinterpret_cast<uint8_t*>(buffer));
    lane.add_read(seconds_since(start_ns));
    if (!result.ok()) {
      Error error = result.error();
      if (job.num_matrices > 1) error.message = fmt::format("expert {}, {}", matrix, error.message);
      return error;
    }
    lane.send(num_bytes, [&](const uint8_t* device, cudaStream_t stream) {
      launch_pack_units(staged.rows_at(device, static_cast<int64_t>(rows.size())), job.layout,
                        end - begin, code_words_.as<const uint32_t>(),
                        job.out + matrix * job.layout.matrix_bytes() +
                            static_cast<size_t>(begin) * job.layout.unit_bytes,
                        stream);
    });
    return {};
  });
}

Result<void> WeightPacker::pack_rows(const MatrixView& table, uint16_t* out) {
  if (table.format != WeightFormat::kFloat) {
    return unsupported("tables on CUDA: floating point only, found MXFP4");
  }
  const StagedLayout staged = StagedLayout::of(common_row_type({&table, 1}), table.cols);
  const int64_t rows_per_chunk =
      items_per_chunk(table.rows, staged.pitch, staged.pitch * table.rows);
  const int64_t num_chunks = (table.rows + rows_per_chunk - 1) / rows_per_chunk;
  return run(num_chunks, [&](int64_t chunk, Lane& lane) -> Result<void> {
    const int64_t begin = chunk * rows_per_chunk;
    const int64_t end = std::min(begin + rows_per_chunk, table.rows);
    std::vector<SourceRow> rows;
    for (int64_t row = begin; row < end; ++row) rows.push_back({&table, row});
    const size_t num_bytes = staged.num_bytes(end - begin);
    MEDLEY_TRY_ASSIGN(std::byte * buffer, lane.next(num_bytes));
    const int64_t start_ns = now_ns();
    MEDLEY_TRY(stage_rows(staged, rows, reinterpret_cast<uint8_t*>(buffer)));
    lane.add_read(seconds_since(start_ns));
    lane.send(num_bytes, [&](const uint8_t* device, cudaStream_t stream) {
      launch_pack_rows(staged.rows_at(device, end - begin), static_cast<int>(end - begin),
                       out + begin * table.cols, stream);
    });
    return {};
  });
}

PackingTimes WeightPacker::finish() {
  threads_.reset();
  lanes_.clear();
  return std::exchange(times_, {});
}

}  // namespace medley::cuda
