#include "base/check.h"

#include <cstdio>
#include <cstdlib>

namespace medley {

void check_failed(const char* condition, const char* file, int line, std::string_view detail) {
  std::fprintf(stderr, "%s:%d: check failed: %s (%.*s)\n", file, line, condition,
               static_cast<int>(detail.size()), detail.data());
  std::fflush(stderr);
  std::abort();
}

}  // namespace medley
