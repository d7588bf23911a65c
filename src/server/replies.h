#pragma once

#include "base/error.h"
#include "server/http.h"

namespace medley::server {

// The answer to a request that failed; with Retry-After where trying again may help.
HttpResponse error_reply(const Error& error);
// The same for a status without ErrorCode (405).
HttpResponse error_reply(int status, std::string_view message);

}  // namespace medley::server
