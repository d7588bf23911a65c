#include "apps/host_memory.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <iterator>

namespace medley::apps {

std::optional<int64_t> parse_memory_limit(const std::string& text) {
  int64_t bytes = 0;
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, bytes);
  const bool is_number = error == std::errc() && (rest == end || *rest == '\n');
  return is_number && bytes > 0 ? std::optional(bytes) : std::nullopt;
}

int64_t host_memory_bytes() {
  int64_t bytes = int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE);
  // A container sees its own limit at the root; those of version 1 have another name.
  for (const char* path :
       {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"}) {
    std::ifstream file(path);
    const auto limit = parse_memory_limit(std::string(std::istreambuf_iterator<char>(file), {}));
    if (limit) bytes = std::min(bytes, *limit);
  }
  return bytes;
}

}  // namespace medley::apps
