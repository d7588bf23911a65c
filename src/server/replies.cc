#include "server/replies.h"

#include "api/error_body.h"

namespace medley::server {

HttpResponse error_reply(const Error& error) {
  HttpResponse response{.status = api::http_status(error.code), .body = api::render_error(error)};
  if (response.status == 429 || response.status == 503) {
    response.headers.emplace_back("Retry-After", "1");
  }
  return response;
}

HttpResponse error_reply(int status, std::string_view message) {
  return {.status = status, .body = api::render_error(status, message)};
}

}  // namespace medley::server
