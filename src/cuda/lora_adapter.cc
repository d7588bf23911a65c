#include "cuda/lora_adapter.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/loading_threads.h"
#include "base/thread_pool.h"
#include "cuda/check.h"
#include "cuda/fault.h"

namespace medley::cuda {
namespace {

// A copy engine takes up another stream's copy only when a stream has nothing left for it, and a
// step begins with a copy of its inputs: so one piece of an adapter at a time, of 0.15 ms.
constexpr size_t kPieceBytes = size_t{8} << 20;

}  // namespace

void AdapterArrival::add_layer() {
  {
    const std::lock_guard lock(mutex_);
    ++num_arrived_;
  }
  arrived_.notify_all();
}

void AdapterArrival::give_up() {
  {
    const std::lock_guard lock(mutex_);
    num_arrived_ = num_layers_;
  }
  arrived_.notify_all();
}

bool AdapterArrival::is_complete() const {
  const std::lock_guard lock(mutex_);
  return num_arrived_ == num_layers_;
}

void AdapterArrival::wait_for_layer(int layer) const {
  std::unique_lock lock(mutex_);
  arrived_.wait(lock, [&] { return num_arrived_ > layer; });
}

CudaDeviceAdapter::CudaDeviceAdapter(LoraTable& table, const CudaPackedAdapter& packed,
                                     PoolRanges memory)
    : table_(table),
      packed_(packed),
      memory_(std::move(memory)),
      arrival_(std::make_shared<AdapterArrival>(table.desc_.num_layers)) {}

Result<void> CudaDeviceAdapter::wait() {
  std::call_once(copied_, [&] {
    result_ = table_.copy_layers(*this);
    if (!result_.ok()) arrival_->give_up();
  });
  return result_;
}

size_t CudaPackedAdapter::device_bytes() const {
  size_t sum = RangeAllocator::rounded(entries_bytes);
  for (const PackedLoraModule& module : modules) {
    sum += RangeAllocator::rounded(module.memory.num_bytes());
  }
  return sum;
}

size_t CudaPackedAdapter::num_bytes() const {
  size_t sum = 0;
  for (const PackedLoraModule& module : modules) sum += module.memory.num_bytes();
  return sum;
}

Result<void> LoraTable::make(const LoraTableDesc& desc) {
  desc_ = desc;
  MEDLEY_TRY_ASSIGN(entries_,
                    DeviceBuffer::allocate(sizeof(LoraEntry) * desc.max_slots * num_sites()));
  entries_.fill_zero();
  MEDLEY_TRY(pool_.make(desc.pool_bytes));
  MEDLEY_TRY(host_.reserve(desc.pinned_bytes));
  host_.stay_ahead(desc.pinned_bytes);
  return {};
}

void LoraTable::announce(const LoraSite& site, const LoraSiteShape& shape) {
  const std::lock_guard lock(shapes_mutex_);
  shapes_[site] = shape;
}

size_t LoraTable::index(const LoraSite& site) const {
  MEDLEY_CHECK_LT(site.layer, desc_.num_layers);
  return static_cast<size_t>(site.layer) * kNumLoraModules + static_cast<size_t>(site.module);
}

const LoraEntry* LoraTable::entries(const LoraSite& site) const {
  return entries_.num_bytes() == 0 ? nullptr
                                   : entries_.as<LoraEntry>() + index(site) * desc_.max_slots;
}

Result<std::unique_ptr<PackedAdapter>> LoraTable::pack(std::span<const LoraModuleWeights> modules) {
  std::vector<LoraModulePlan> plans;
  plans.reserve(modules.size());  // tasks point into it
  for (const LoraModuleWeights& module : modules) {
    LoraSiteShape shape;
    {
      const std::lock_guard lock(shapes_mutex_);
      const auto found = shapes_.find(module.site);
      if (found == shapes_.end()) {
        return invalid_argument(fmt::format("LoRA of layer {} {}: this model has no such module",
                                            module.site.layer, to_string(module.site.module)));
      }
      shape = found->second;
    }
    MEDLEY_TRY_ASSIGN(LoraModulePlan plan, plan_lora_module(module, shape));
    plans.push_back(std::move(plan));
  }
  auto adapter = std::make_unique<CudaPackedAdapter>();
  adapter->entries_bytes = sizeof(LoraEntry) * num_sites();
  std::vector<LoraPackTask> tasks;
  for (const LoraModulePlan& plan : plans) {
    MEDLEY_TRY_ASSIGN(PinnedRange memory, host_.allocate(plan.num_bytes()));
    add_pack_tasks(plan, memory.data(), tasks);
    const LoraEntry entry = plan.entry(memory.data());
    adapter->modules.push_back({.site = plan.site, .entry = entry, .memory = std::move(memory)});
  }
  ThreadPool(std::min<int>(num_loading_threads(), static_cast<int>(tasks.size()) + 1))
      .parallel_for(static_cast<int64_t>(tasks.size()),
                    [&](int64_t i) { run_pack_task(tasks[i]); });
  return std::unique_ptr<PackedAdapter>(std::move(adapter));
}

Result<void> LoraTable::copy(const PinnedRange& source, uint8_t* target) {
  const size_t first = source.data() - host_.begin();
  for (size_t done = 0; done < source.num_bytes();) {
    const size_t to_border = PinnedArena::kSlabBytes - (first + done) % PinnedArena::kSlabBytes;
    const size_t count = std::min({to_border, source.num_bytes() - done, kPieceBytes});
    MEDLEY_CUDA_CHECK(cudaMemcpyAsync(target + done, source.data() + done, count,
                                      cudaMemcpyHostToDevice, copy_stream_.get()));
    copied_.record(copy_stream_);
    MEDLEY_TRY(copied_.wait());
    done += count;
  }
  return {};
}

Result<std::unique_ptr<DeviceAdapter>> LoraTable::start_upload(const CudaPackedAdapter& adapter) {
  std::vector<size_t> sizes = {adapter.entries_bytes};
  for (const PackedLoraModule& module : adapter.modules) {
    sizes.push_back(module.memory.num_bytes());
  }
  MEDLEY_TRY_ASSIGN(PoolRanges memory, pool_.allocate(sizes));
  auto out = std::make_unique<CudaDeviceAdapter>(*this, adapter, std::move(memory));

  MEDLEY_TRY_ASSIGN(const PinnedRange staging, host_.allocate(adapter.entries_bytes));
  auto* entries = reinterpret_cast<LoraEntry*>(staging.data());
  std::fill_n(entries, num_sites(), LoraEntry());
  for (size_t i = 0; i < adapter.modules.size(); ++i) {
    const PackedLoraModule& module = adapter.modules[i];
    const uint8_t* base = out->memory().data(i + 1);
    LoraEntry& entry = entries[index(module.site)] = module.entry;
    const uint8_t* host = module.memory.data();
    entry.a = base + (module.entry.a - host);
    entry.b = base + (module.entry.b - host);
    entry.scale = reinterpret_cast<const float*>(
        base + (reinterpret_cast<const uint8_t*>(module.entry.scale) - host));
  }
  const std::lock_guard copy_lock(copy_mutex_);
  {
    const std::lock_guard lock(released_mutex_);
    MEDLEY_CUDA_CHECK(cudaStreamWaitEvent(copy_stream_.get(), released_.get()));
  }
  MEDLEY_TRY(copy(staging, out->memory().data(0)));
  return std::unique_ptr<DeviceAdapter>(std::move(out));
}

Result<void> LoraTable::copy_layers(const CudaDeviceAdapter& adapter) {
  const std::lock_guard copy_lock(copy_mutex_);
  const std::vector<PackedLoraModule>& modules = adapter.packed().modules;
  for (int layer = 0; layer < desc_.num_layers; ++layer) {
    for (size_t i = 0; i < modules.size(); ++i) {
      if (modules[i].site.layer != layer) continue;
      MEDLEY_TRY(copy(modules[i].memory, adapter.memory().data(i + 1)));
    }
    adapter.arrival()->add_layer();
  }
  return {};
}

void LoraTable::set(int slot, const CudaDeviceAdapter& adapter, cudaStream_t stream) {
  MEDLEY_CHECK_LT(slot, desc_.max_slots);
  if (!adapter.is_complete()) arriving_.push_back(adapter.arrival());
  MEDLEY_CUDA_CHECK(cudaMemcpy2DAsync(entries_.as<LoraEntry>() + slot,
                                      sizeof(LoraEntry) * desc_.max_slots, adapter.memory().data(0),
                                      sizeof(LoraEntry), sizeof(LoraEntry), num_sites(),
                                      cudaMemcpyDeviceToDevice, stream));
  const std::lock_guard lock(released_mutex_);
  MEDLEY_CUDA_CHECK(cudaEventRecord(released_.get(), stream));
}

void LoraTable::wait_for_layer(int layer) {
  std::erase_if(arriving_, [](const auto& arrival) { return arrival->is_complete(); });
  for (const auto& arrival : arriving_) arrival->wait_for_layer(layer);
}

void LoraTable::clear(int slot, cudaStream_t stream) {
  MEDLEY_CHECK_LT(slot, desc_.max_slots);
  MEDLEY_CUDA_CHECK(cudaMemset2DAsync(entries_.as<LoraEntry>() + slot,
                                      sizeof(LoraEntry) * desc_.max_slots, 0, sizeof(LoraEntry),
                                      num_sites(), stream));
  const std::lock_guard lock(released_mutex_);
  MEDLEY_CUDA_CHECK(cudaEventRecord(released_.get(), stream));
}

}  // namespace medley::cuda
