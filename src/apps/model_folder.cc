#include "apps/model_folder.h"

#include <filesystem>
#include <fstream>
#include <iterator>

namespace medley::apps {
namespace {

Result<std::string> read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return not_found(fmt::format("can't read {}", path));
  return std::string(std::istreambuf_iterator<char>(file), {});
}

}  // namespace

Result<ModelFolder> read_model_folder(const std::string& path) {
  std::error_code ec;
  if (!std::filesystem::is_directory(path, ec)) {
    return not_found(
        fmt::format("no folder {}: MODEL must be a local folder with config.json; names "
                    "of the Hugging Face Hub are not fetched",
                    path));
  }
  MEDLEY_TRY_ASSIGN(const std::string config, read_file(path + "/config.json"));
  std::string generation_config;
  if (std::filesystem::exists(path + "/generation_config.json", ec)) {
    MEDLEY_TRY_ASSIGN(generation_config, read_file(path + "/generation_config.json"));
  }
  const auto in_file = [&](const char* name, Error error) {
    error.message = fmt::format("{}/{}: {}", path, name, error.message);
    return error;
  };
  Result<ModelSpec> spec = read_model_spec(config);
  if (!spec.ok()) return in_file("config.json", spec.error());
  Result<GenerationConfig> generation = read_generation_config(generation_config, config);
  if (!generation.ok()) return in_file("generation_config.json", generation.error());
  return ModelFolder{.path = path, .spec = std::move(*spec), .generation = std::move(*generation)};
}

}  // namespace medley::apps
