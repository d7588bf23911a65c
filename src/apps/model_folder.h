#pragma once

#include <string>

#include "base/error.h"
#include "spec/model_spec.h"
#include "spec/read_spec.h"

namespace medley::apps {

// The JSON files of a model folder, read.
struct ModelFolder {
  std::string path;
  ModelSpec spec;
  GenerationConfig generation;
};

// kNotFound for a folder that is not there, saying so where the name looks like one of the Hub.
Result<ModelFolder> read_model_folder(const std::string& path);

}  // namespace medley::apps
