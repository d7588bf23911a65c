#pragma once

#include <string>
#include <vector>

#include "adapter/store.h"
#include "server/adapter_admin.h"
#include "server/adapter_directory.h"

namespace medley::apps {

// Shows the adapter store to the server. Thread-safe.
class StoreDirectory : public server::AdapterDirectory, public server::AdapterAdmin {
 public:
  // `store` may be null: no adapters are served. With an `adapter_root` only what lies inside is
  // loaded or checked; relative paths start there.
  StoreDirectory(AdapterStore* store, int max_loras, std::string adapter_root)
      : store_(store), max_loras_(max_loras), adapter_root_(std::move(adapter_root)) {}

  Result<void> resolve(const std::string& name) override;
  std::vector<api::ModelCard> list() const override;
  int max_on_device() const override { return max_loras_; }

  Result<void> load(const api::LoadAdapterRequest& request) override;
  Result<api::AdapterStatus> check(const std::string& path) override;
  Result<void> unload(const std::string& name) override;
  Result<void> set_pinned(const std::string& name, bool pinned) override;
  std::vector<api::AdapterStatus> statuses() const override;

 private:
  Result<void> need_store() const;
  Result<std::string> allowed_folder(const std::string& path) const;

  AdapterStore* const store_;
  const int max_loras_;
  const std::string adapter_root_;
};

}  // namespace medley::apps
