#include "adapter/adapter_path.h"

#include <algorithm>
#include <filesystem>

#include <fmt/format.h>

namespace medley {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxNameLength = 256;

bool is_name_character(char c) {
  return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') ||
         std::string_view("._:/@-").find(c) != std::string_view::npos;
}

bool is_inside(const fs::path& root, const fs::path& path) {
  const auto [root_end, unused] = std::mismatch(root.begin(), root.end(), path.begin(), path.end());
  return root_end == root.end();
}

}  // namespace

Result<void> check_adapter_name(std::string_view name) {
  if (!name.empty() && name.size() <= kMaxNameLength &&
      std::all_of(name.begin(), name.end(), is_name_character)) {
    return {};
  }
  return invalid_argument(fmt::format("adapter name '{}': expected 1 to {} of the characters "
                                      "A-Z a-z 0-9 . _ : / @ -",
                                      name.substr(0, kMaxNameLength), kMaxNameLength),
                          "lora_name");
}

Result<std::string> find_under_root(const std::string& root, const std::string& name) {
  const Error missing = not_found(fmt::format("no model or adapter named '{}'", name), "model");
  std::error_code error;
  const fs::path relative(name);
  // An absolute name would replace the root when the two are joined.
  if (relative.is_absolute()) return missing;
  for (const fs::path& part : relative) {
    if (part == ".." || part == ".") return missing;
  }
  const fs::path real_root = fs::canonical(root, error);
  if (error) return missing;
  const fs::path folder = fs::canonical(real_root / relative, error);
  if (error || folder == real_root) return missing;
  if (!is_inside(real_root, folder)) return missing;
  if (!fs::is_regular_file(folder / "adapter_config.json", error)) return missing;
  return folder.string();
}

Result<std::string> find_inside_root(const std::string& root, const std::string& path) {
  std::error_code error;
  const fs::path real_root = fs::canonical(root, error);
  if (!error) {
    const fs::path folder = fs::weakly_canonical(real_root / path, error);
    if (!error && is_inside(real_root, folder)) return folder.string();
  }
  return Error{
      ErrorCode::kForbidden,
      fmt::format("adapters are taken from {} alone (--adapter-root); {} is outside", root, path),
      "lora_path"};
}

}  // namespace medley
