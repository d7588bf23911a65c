#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "server/adapter_directory.h"
#include "server/route_group.h"
#include "server/side_workers.h"
#include "text/chat.h"
#include "text/tokenizer.h"

namespace medley::server {

struct TokenRoutesOptions {
  std::vector<std::string> base_names;
  int64_t max_model_len = 0;
};

// What the routes need of the rest; everything outlives them.
struct TokenRoutesParts {
  const text::TextTokenizer& tokenizer;
  const text::ChatRenderer& chat;
  AdapterDirectory& adapters;
};

// vLLM's POST /tokenize and /detokenize. Adapters share the base model's tokenizer and template; an
// unknown model is refused all the same.
class TokenRoutes : public RouteGroup {
 public:
  TokenRoutes(TokenRoutesOptions options, const TokenRoutesParts& parts);

  std::string_view method_of(std::string_view path) const override;
  void handle(HttpRequest request, std::shared_ptr<Exchange> exchange) override;

 private:
  Result<std::string> tokenize(const std::string& body) const;
  Result<std::string> detokenize(const std::string& body) const;
  Result<void> check_model(const std::string& model) const;

  const TokenRoutesOptions options_;
  const TokenRoutesParts parts_;
  SideWorkers workers_;
};

}  // namespace medley::server
