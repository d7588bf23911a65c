#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace medley::api {

// One entry of GET /v1/models: the base model, or an adapter with its parent.
struct ModelCard {
  std::string id;
  std::string root;    // where its files are
  std::string parent;  // adapters: the base model's name
  int64_t created = 0;
  int64_t max_model_len = 0;  // base only

  // Adapters: rank and bytes are 0, and the hash empty, until the files have been read.
  int rank = 0;
  uint64_t num_bytes = 0;
  std::string state;
  std::string hash;
  std::string error;  // of the last load, if it failed
};

std::string render_models(const std::vector<ModelCard>& cards);
std::string render_model(const ModelCard& card);

}  // namespace medley::api
