#include "api/error_body.h"

#include "api/json.h"

namespace medley::api {
namespace {

const char* error_type(int status) {
  switch (status) {
    case 400:
    case 413:
    case 431:
      return "BadRequestError";
    case 401:
      return "AuthenticationError";
    case 403:
      return "PermissionDeniedError";
    case 404:
      return "NotFoundError";
    case 405:
      return "MethodNotAllowedError";
    case 408:
      return "RequestTimeoutError";
    case 409:
      return "ConflictError";
    case 429:
      return "RateLimitError";
    case 503:
      return "ServiceUnavailableError";
    default:
      return "InternalServerError";
  }
}

std::string render(int status, std::string_view message, const std::string& param) {
  Json error;
  error["message"] = message;
  error["type"] = error_type(status);
  error["param"] = param.empty() ? Json(nullptr) : Json(param);
  error["code"] = status;
  return dump_json(Json{{"error", std::move(error)}});
}

}  // namespace

int http_status(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument:
    case ErrorCode::kUnsupported:
      return 400;
    case ErrorCode::kUnauthorized:
      return 401;
    case ErrorCode::kForbidden:
      return 403;
    case ErrorCode::kNotFound:
      return 404;
    case ErrorCode::kConflict:
      return 409;
    case ErrorCode::kTooLarge:
      return 413;
    case ErrorCode::kOverloaded:
      return 429;
    case ErrorCode::kInternal:
      return 500;
    case ErrorCode::kUnavailable:
      return 503;
  }
  MEDLEY_CHECK(false, "unknown ErrorCode");
}

std::string render_error(const Error& error) {
  return render(http_status(error.code), error.message, error.param);
}

std::string render_error(int status, std::string_view message) {
  return render(status, message, {});
}

}  // namespace medley::api
