#pragma once

#include <string>
#include <vector>

#include "api/models.h"
#include "base/error.h"

namespace medley::server {

// The adapters that requests may name, as the server needs to know them. Thread-safe.
class AdapterDirectory {
 public:
  virtual ~AdapterDirectory() = default;
  // kNotFound when no adapter has this name. May look for it on disk.
  virtual Result<void> resolve(const std::string& name) = 0;
  // `state` is "on_device" for those that take part in steps without further loading.
  virtual std::vector<api::ModelCard> list() const = 0;
  virtual int max_on_device() const = 0;
};

}  // namespace medley::server
