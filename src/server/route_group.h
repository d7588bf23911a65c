#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "server/http.h"

namespace medley::server {

// Routes that belong together; Router asks its groups after its own table. Thread-safe.
class RouteGroup {
 public:
  virtual ~RouteGroup() = default;
  // The method that a path takes; empty when it is not of this group.
  virtual std::string_view method_of(std::string_view path) const = 0;
  // For a path and method of this group. Must not block.
  virtual void handle(HttpRequest request, std::shared_ptr<Exchange> exchange) = 0;
};

}  // namespace medley::server
