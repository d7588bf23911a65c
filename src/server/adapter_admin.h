#pragma once

#include <string>
#include <vector>

#include "api/adapters.h"
#include "base/error.h"

namespace medley::server {

// What an operator may do with adapters while the server runs. Thread-safe; load() and check() read
// files and may take long. Without --enable-lora everything is kUnsupported and the list empty.
class AdapterAdmin {
 public:
  virtual ~AdapterAdmin() = default;
  // The error names the tensor or key concerned.
  virtual Result<void> load(const api::LoadAdapterRequest& request) = 0;
  virtual Result<api::AdapterStatus> check(const std::string& path) = 0;
  // Running requests finish on what they have. kNotFound if unknown, as in set_pinned().
  virtual Result<void> unload(const std::string& name) = 0;
  virtual Result<void> set_pinned(const std::string& name, bool pinned) = 0;
  virtual std::vector<api::AdapterStatus> statuses() const = 0;
};

}  // namespace medley::server
