#pragma once

#include <string>
#include <string_view>

#include "base/error.h"

namespace medley::api {

int http_status(ErrorCode code);

// {"error": {"message", "type", "param", "code"}}, the shape of OpenAI's API reference with vLLM's
// type names and the HTTP status as the code.
std::string render_error(const Error& error);
// The same for a status that no ErrorCode has (405, 431).
std::string render_error(int status, std::string_view message);

}  // namespace medley::api
