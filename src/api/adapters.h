#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace medley::api {

// Body of POST /v1/load_lora_adapter: vLLM's lora_name, lora_path and load_inplace, and ours.
struct LoadAdapterRequest {
  std::string name;
  std::string path;
  bool in_place = false;
  bool dry_run = false;  // check only; the name may be absent
  bool pin = false;
  bool preload = true;  // read now; else on first use
};

// kInvalidArgument for a malformed body, a wrong type, a missing name or path. Names that nobody
// knows, and those of vLLM's that have no meaning here, are ignored.
Result<LoadAdapterRequest> parse_load_adapter(std::string_view body);
// The name in the body of POST /v1/unload_lora_adapter.
Result<std::string> parse_unload_adapter(std::string_view body);

// One entry of GET /v1/adapters.
struct AdapterStatus {
  std::string name;
  std::string path;
  std::string state;
  std::vector<std::string> residency;  // of "disk", "host", "device"
  int rank = 0;                        // 0: not read yet, as with the next two
  uint64_t num_bytes = 0;
  std::string hash;
  int num_requests = 0;  // that hold it now
  bool pinned = false;
  double last_used = 0.0;  // seconds since the epoch; 0 = never
  std::string error;       // of the last load, if it failed
  std::vector<std::string> warnings;
};

std::string render_adapters(const std::vector<AdapterStatus>& adapters, int max_on_device);
// The answer to a dry run: what loading would find.
std::string render_dry_run(const AdapterStatus& adapter);

}  // namespace medley::api
