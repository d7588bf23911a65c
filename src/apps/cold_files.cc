#include "apps/cold_files.h"

#include <fmt/format.h>
#include <unistd.h>

#include <filesystem>

namespace medley::apps {

namespace fs = std::filesystem;

DummyAdapterFileDesc dummy_adapter_of(const ModelSpec& spec, int rank, uint64_t seed) {
  return {.rank = rank, .fused_experts = spec.family == "gpt_oss", .seed = seed};
}

ColdFiles::~ColdFiles() {
  std::error_code ignored;
  if (!folder_.empty()) fs::remove_all(folder_, ignored);
}

Result<std::string> ColdFiles::next() {
  if (folder_.empty()) {
    std::error_code error;
    const fs::path temporary = fs::temp_directory_path(error);
    if (error) return invalid_argument("no folder for temporary files; set TMPDIR");
    folder_ = temporary / fmt::format("medley-cold-adapter-{}", getpid());
    MEDLEY_TRY(write_dummy_adapter(spec_, desc_, folder_));
  }
  MEDLEY_TRY(write_dummy_adapter_config(spec_, desc_, std::to_string(++revision_), folder_));
  return folder_;
}

}  // namespace medley::apps
