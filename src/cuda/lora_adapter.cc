#include "cuda/lora_adapter.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/loading_threads.h"
#include "base/thread_pool.h"
#include "cuda/check.h"
#include "cuda/fault.h"

namespace medley::cuda {

AdapterCopy::AdapterCopy(int num_layers) {
  for (int i = 0; i < num_layers; ++i) layers_.push_back(std::make_unique<CudaEvent>());
}

void AdapterCopy::record_entries(cudaStream_t stream) {
  MEDLEY_CUDA_CHECK(cudaEventRecord(entries_.get(), stream));
}

void AdapterCopy::record_layer(int layer, cudaStream_t stream) {
  MEDLEY_CUDA_CHECK(cudaEventRecord(layers_.at(layer)->get(), stream));
  if (layer + 1 < static_cast<int>(layers_.size())) return;
  MEDLEY_CUDA_CHECK(cudaEventRecord(all_.get(), stream));
}

void AdapterCopy::wait_for_entries(cudaStream_t stream) const {
  MEDLEY_CUDA_CHECK(cudaStreamWaitEvent(stream, entries_.get()));
}

void AdapterCopy::wait_for_layer(int layer, cudaStream_t stream) const {
  MEDLEY_CUDA_CHECK(cudaStreamWaitEvent(stream, layers_.at(layer)->get()));
}

bool AdapterCopy::is_complete() const {
  const cudaError_t error = cudaEventQuery(all_.get());
  if (error == cudaErrorNotReady) return false;
  MEDLEY_CUDA_CHECK(error);
  return true;
}

Result<void> AdapterCopy::wait() { return all_.wait(); }

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

void LoraTable::copy(const PinnedRange& source, uint8_t* target) {
  const size_t first = source.data() - host_.begin();
  for (size_t done = 0; done < source.num_bytes();) {
    const size_t to_border = PinnedArena::kSlabBytes - (first + done) % PinnedArena::kSlabBytes;
    const size_t count = std::min(to_border, source.num_bytes() - done);
    MEDLEY_CUDA_CHECK(cudaMemcpyAsync(target + done, source.data() + done, count,
                                      cudaMemcpyHostToDevice, copy_stream_.get()));
    done += count;
  }
}

Result<std::unique_ptr<DeviceAdapter>> LoraTable::upload(const CudaPackedAdapter& adapter) {
  auto out = std::make_unique<CudaDeviceAdapter>();
  std::vector<size_t> sizes = {adapter.entries_bytes};
  for (const PackedLoraModule& module : adapter.modules) {
    sizes.push_back(module.memory.num_bytes());
  }
  MEDLEY_TRY_ASSIGN(out->memory, pool_.allocate(sizes));

  MEDLEY_TRY_ASSIGN(out->staging, host_.allocate(adapter.entries_bytes));
  out->copy = std::make_shared<AdapterCopy>(desc_.num_layers);
  const PinnedRange& staging = out->staging;
  auto* entries = reinterpret_cast<LoraEntry*>(staging.data());
  std::fill_n(entries, num_sites(), LoraEntry());
  for (size_t i = 0; i < adapter.modules.size(); ++i) {
    const PackedLoraModule& module = adapter.modules[i];
    const uint8_t* base = out->memory.data(i + 1);
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
  copy(staging, out->memory.data(0));
  out->copy->record_entries(copy_stream_.get());
  for (int layer = 0; layer < desc_.num_layers; ++layer) {
    for (size_t i = 0; i < adapter.modules.size(); ++i) {
      if (adapter.modules[i].site.layer != layer) continue;
      copy(adapter.modules[i].memory, out->memory.data(i + 1));
    }
    out->copy->record_layer(layer, copy_stream_.get());
  }
  return std::unique_ptr<DeviceAdapter>(std::move(out));
}

void LoraTable::set(int slot, const CudaDeviceAdapter& adapter, cudaStream_t stream) {
  MEDLEY_CHECK_LT(slot, desc_.max_slots);
  if (!adapter.copy->is_complete()) {
    adapter.copy->wait_for_entries(stream);
    arriving_.push_back(adapter.copy);
  }
  MEDLEY_CUDA_CHECK(cudaMemcpy2DAsync(
      entries_.as<LoraEntry>() + slot, sizeof(LoraEntry) * desc_.max_slots, adapter.memory.data(0),
      sizeof(LoraEntry), sizeof(LoraEntry), num_sites(), cudaMemcpyDeviceToDevice, stream));
  const std::lock_guard lock(released_mutex_);
  MEDLEY_CUDA_CHECK(cudaEventRecord(released_.get(), stream));
}

void LoraTable::wait_for_layer(int layer, cudaStream_t stream) {
  std::erase_if(arriving_, [](const auto& copy) { return copy->is_complete(); });
  for (const auto& copy : arriving_) copy->wait_for_layer(layer, stream);
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
