#include "server/token_routes.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "api/tokens.h"
#include "server/replies.h"

namespace medley::server {
namespace {

constexpr std::string_view kTokenize = "/tokenize";
constexpr std::string_view kDetokenize = "/detokenize";
constexpr int kNumWorkers = 1;
constexpr size_t kMaxWaiting = 256;

}  // namespace

TokenRoutes::TokenRoutes(TokenRoutesOptions options, const TokenRoutesParts& parts)
    : options_(std::move(options)), parts_(parts), workers_(kNumWorkers, kMaxWaiting) {}

std::string_view TokenRoutes::method_of(std::string_view path) const {
  return path == kTokenize || path == kDetokenize ? "POST" : "";
}

void TokenRoutes::handle(HttpRequest request, std::shared_ptr<Exchange> exchange) {
  auto answer = [this, request = std::move(request)]() -> HttpResponse {
    Result<std::string> body =
        request.path == kTokenize ? tokenize(request.body) : detokenize(request.body);
    if (!body.ok()) return error_reply(body.error());
    return {.body = std::move(*body)};
  };
  workers_.submit(std::move(answer), std::move(exchange));
}

Result<std::string> TokenRoutes::tokenize(const std::string& body) const {
  MEDLEY_TRY_ASSIGN(api::TokenizeRequest request, api::parse_tokenize(body));
  MEDLEY_TRY(check_model(request.model));
  if (request.shape == api::Shape::kChat) {
    MEDLEY_TRY_ASSIGN(request.prompt, parts_.chat.render(request.chat));
  }
  api::TokenizeAnswer answer{.max_model_len = options_.max_model_len,
                             .has_strings = request.return_token_strs};
  MEDLEY_TRY_ASSIGN(answer.tokens,
                    parts_.tokenizer.encode(request.prompt, request.add_special_tokens));
  if (request.return_token_strs) {
    for (const int32_t id : answer.tokens) {
      answer.strings.emplace_back(parts_.tokenizer.pieces().bytes(id));
    }
  }
  return api::render_tokenize(answer);
}

Result<std::string> TokenRoutes::detokenize(const std::string& body) const {
  MEDLEY_TRY_ASSIGN(const api::DetokenizeRequest request, api::parse_detokenize(body));
  MEDLEY_TRY(check_model(request.model));
  const auto num_ids = static_cast<int32_t>(parts_.tokenizer.vocab_size());
  for (const int32_t id : request.tokens) {
    if (id < num_ids) continue;
    return invalid_argument(
        fmt::format("`tokens` has token id {}; the vocabulary ends at {}", id, num_ids - 1),
        "tokens");
  }
  MEDLEY_TRY_ASSIGN(const std::string prompt,
                    parts_.tokenizer.decode(request.tokens, /*skip_special_tokens=*/false));
  return api::render_detokenize(prompt);
}

Result<void> TokenRoutes::check_model(const std::string& model) const {
  if (model.empty() || std::ranges::find(options_.base_names, model) != options_.base_names.end()) {
    return {};
  }
  if (parts_.adapters.resolve(model).ok()) return {};
  return not_found(fmt::format("the model `{}` does not exist", model), "model");
}

}  // namespace medley::server
