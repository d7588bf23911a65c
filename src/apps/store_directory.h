#pragma once

#include "adapter/store.h"
#include "server/adapter_directory.h"

namespace medley::apps {

// Shows the adapter store to the server. Thread-safe.
class StoreDirectory : public server::AdapterDirectory {
 public:
  // `store` may be null: no adapters are served.
  StoreDirectory(AdapterStore* store, int max_loras) : store_(store), max_loras_(max_loras) {}

  Result<void> resolve(const std::string& name) override;
  std::vector<api::ModelCard> list() const override;
  int max_on_device() const override { return max_loras_; }

 private:
  AdapterStore* const store_;
  const int max_loras_;
};

}  // namespace medley::apps
