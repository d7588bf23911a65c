#include "apps/store_directory.h"

namespace medley::apps {

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

}  // namespace medley::apps
