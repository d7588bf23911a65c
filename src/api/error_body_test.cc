#include "api/error_body.h"

#include <gtest/gtest.h>

#include "api/models.h"

namespace medley::api {
namespace {

TEST(ErrorBody, HasOpenAisShape) {
  EXPECT_EQ(render_error(not_found("the model `x` does not exist", "model")),
            R"({"error":{"message":"the model `x` does not exist","type":"NotFoundError",)"
            R"("param":"model","code":404}})");
  EXPECT_EQ(render_error(405, "use POST"),
            R"({"error":{"message":"use POST","type":"MethodNotAllowedError","param":null,)"
            R"("code":405}})");
}

TEST(ErrorBody, EscapesAndReplacesBadBytes) {
  EXPECT_EQ(render_error(invalid_argument("\"\xff\"")),
            "{\"error\":{\"message\":\"\\\"\xEF\xBF\xBD\\\"\",\"type\":\"BadRequestError\","
            "\"param\":null,\"code\":400}}");
}

TEST(ErrorBody, EveryCodeHasItsStatus) {
  EXPECT_EQ(http_status(ErrorCode::kInvalidArgument), 400);
  EXPECT_EQ(http_status(ErrorCode::kUnsupported), 400);
  EXPECT_EQ(http_status(ErrorCode::kUnauthorized), 401);
  EXPECT_EQ(http_status(ErrorCode::kForbidden), 403);
  EXPECT_EQ(http_status(ErrorCode::kNotFound), 404);
  EXPECT_EQ(http_status(ErrorCode::kConflict), 409);
  EXPECT_EQ(http_status(ErrorCode::kTooLarge), 413);
  EXPECT_EQ(http_status(ErrorCode::kOverloaded), 429);
  EXPECT_EQ(http_status(ErrorCode::kInternal), 500);
  EXPECT_EQ(http_status(ErrorCode::kUnavailable), 503);
}

TEST(Models, BaseThenAdapterWithParent) {
  const std::string body =
      render_models({{.id = "base", .root = "/m", .created = 7, .max_model_len = 4096},
                     {.id = "triage",
                      .root = "/a",
                      .parent = "base",
                      .created = 7,
                      .rank = 8,
                      .num_bytes = 1024,
                      .state = "in_host",
                      .hash = "ab"}});
  EXPECT_EQ(body, R"({"object":"list","data":[{"id":"base","object":"model","created":7,)"
                  R"("owned_by":"medley","root":"/m","parent":null,"max_model_len":4096},)"
                  R"({"id":"triage","object":"model","created":7,"owned_by":"medley","root":"/a",)"
                  R"("parent":"base","max_model_len":null,"medley":{"rank":8,"bytes":1024,)"
                  R"("state":"in_host","hash":"ab"}}]})");
}

TEST(Models, UnreadAdapterHasNullRankAndHash) {
  EXPECT_EQ(render_model({.id = "a",
                          .root = "/a",
                          .parent = "b",
                          .created = 1,
                          .state = "failed",
                          .error = "no such file"}),
            R"({"id":"a","object":"model","created":1,"owned_by":"medley","root":"/a",)"
            R"("parent":"b","max_model_len":null,"medley":{"rank":null,"bytes":null,)"
            R"("state":"failed","hash":null,"error":"no such file"}})");
}

}  // namespace
}  // namespace medley::api
