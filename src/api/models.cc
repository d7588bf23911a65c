#include "api/models.h"

#include "api/json.h"

namespace medley::api {
namespace {

Json text_or_null(const std::string& text) { return text.empty() ? Json(nullptr) : Json(text); }

Json to_json(const ModelCard& card) {
  Json json{{"id", card.id},
            {"object", "model"},
            {"created", card.created},
            {"owned_by", "medley"},
            {"root", text_or_null(card.root)},
            {"parent", text_or_null(card.parent)},
            {"max_model_len", card.max_model_len > 0 ? Json(card.max_model_len) : Json(nullptr)}};
  if (card.parent.empty()) return json;
  Json medley{{"rank", card.rank > 0 ? Json(card.rank) : Json(nullptr)},
              {"bytes", card.num_bytes > 0 ? Json(card.num_bytes) : Json(nullptr)},
              {"state", card.state},
              {"hash", text_or_null(card.hash)}};
  if (!card.error.empty()) medley["error"] = card.error;
  json["medley"] = std::move(medley);
  return json;
}

}  // namespace

std::string render_models(const std::vector<ModelCard>& cards) {
  Json data = Json::array();
  for (const ModelCard& card : cards) data.push_back(to_json(card));
  return dump_json(Json{{"object", "list"}, {"data", std::move(data)}});
}

std::string render_model(const ModelCard& card) { return dump_json(to_json(card)); }

}  // namespace medley::api
