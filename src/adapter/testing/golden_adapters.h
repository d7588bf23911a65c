#pragma once

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "spec/read_spec.h"

namespace medley::testing {

namespace fs = std::filesystem;

// The reference checkpoints and adapters.
inline fs::path golden() {
  const char* root = std::getenv("MEDLEY_SOURCE_DIR");
  return fs::path(root == nullptr ? "." : root) / "tests/golden";
}

inline std::string text_of(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

inline ModelSpec spec_of(const std::string& model) {
  return read_model_spec(text_of(golden() / model / "config.json")).value();
}

inline std::string adapter_folder(const std::string& model, const std::string& adapter) {
  return (golden() / model / "adapters" / adapter).string();
}

}  // namespace medley::testing
