#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace medley::apps {

// What this process may have of the machine's memory: all of it, or what its container gets.
int64_t host_memory_bytes();

// Of a control group's memory.max ("max" is no limit; Linux, Documentation/admin-guide/cgroup-v2).
std::optional<int64_t> parse_memory_limit(const std::string& text);

}  // namespace medley::apps
