#include "apps/store_directory.h"

#include <chrono>

#include "adapter/adapter_path.h"
#include "base/clock.h"

namespace medley::apps {
namespace {

double seconds_since_epoch(int64_t steady_ns) {
  const std::chrono::duration<double> now = std::chrono::system_clock::now().time_since_epoch();
  return now.count() - static_cast<double>(now_ns() - steady_ns) * 1e-9;
}

std::vector<std::string> residency(AdapterState state) {
  switch (state) {
    case AdapterState::kInHost:
      return {"disk", "host"};
    case AdapterState::kOnDevice:
      return {"disk", "host", "device"};
    default:
      return {"disk"};
  }
}

api::AdapterStatus to_status(const AdapterInfo& info) {
  return {.name = info.name,
          .path = info.path,
          .state = to_string(info.state),
          .residency = residency(info.state),
          .rank = info.max_rank,
          .num_bytes = info.num_bytes,
          .hash = info.hash,
          .num_requests = info.num_users,
          .pinned = info.pinned,
          .last_used = info.last_used_ns == 0 ? 0.0 : seconds_since_epoch(info.last_used_ns),
          .error = info.error,
          .warnings = info.warnings};
}

}  // namespace

Result<void> StoreDirectory::resolve(const std::string& name) {
  if (store_ == nullptr) return not_found("adapters are not served here (--enable-lora)");
  return store_->resolve(name);
}

std::vector<api::ModelCard> StoreDirectory::list() const {
  std::vector<api::ModelCard> cards;
  if (store_ == nullptr) return cards;
  for (const AdapterInfo& info : store_->list()) {
    cards.push_back(
        {.id = info.name,
         .root = info.path,
         .rank = info.max_rank,
         .num_bytes = info.num_bytes,
         .state = info.state == AdapterState::kOnDevice ? "on_device" : to_string(info.state),
         .hash = info.hash,
         .error = info.error});
  }
  return cards;
}

Result<void> StoreDirectory::need_store() const {
  if (store_ != nullptr) return {};
  return unsupported("adapters are not served here; start the server with --enable-lora");
}

Result<std::string> StoreDirectory::allowed_folder(const std::string& path) const {
  if (adapter_root_.empty()) return path;
  return find_inside_root(adapter_root_, path);
}

Result<void> StoreDirectory::load(const api::LoadAdapterRequest& request) {
  MEDLEY_TRY(need_store());
  MEDLEY_TRY_ASSIGN(const std::string folder, allowed_folder(request.path));
  MEDLEY_TRY(store_->load(request.name, folder,
                          {.in_place = request.in_place,
                           .pin = request.pin,
                           .read = request.preload,
                           .to_device = request.preload}));
  return {};
}

Result<api::AdapterStatus> StoreDirectory::check(const std::string& path) {
  MEDLEY_TRY(need_store());
  MEDLEY_TRY_ASSIGN(const std::string folder, allowed_folder(path));
  MEDLEY_TRY_ASSIGN(const AdapterInfo info, store_->check(folder));
  return to_status(info);
}

Result<void> StoreDirectory::unload(const std::string& name) {
  MEDLEY_TRY(need_store());
  return store_->unload(name);
}

Result<void> StoreDirectory::set_pinned(const std::string& name, bool pinned) {
  MEDLEY_TRY(need_store());
  return store_->set_pinned(name, pinned);
}

std::vector<api::AdapterStatus> StoreDirectory::statuses() const {
  std::vector<api::AdapterStatus> statuses;
  if (store_ == nullptr) return statuses;
  for (const AdapterInfo& info : store_->list()) statuses.push_back(to_status(info));
  return statuses;
}

}  // namespace medley::apps
