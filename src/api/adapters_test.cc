#include "api/adapters.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace medley::api {
namespace {

using nlohmann::json;

TEST(ParseLoadAdapterTest, VllmsBodyAndOurFields) {
  const auto plain = parse_load_adapter(
      R"({"lora_name":"a","lora_path":"/x","is_3d_lora_weight":true,"base_model_name":null})");
  ASSERT_TRUE(plain.ok());
  EXPECT_EQ(plain->name, "a");
  EXPECT_EQ(plain->path, "/x");
  EXPECT_FALSE(plain->in_place || plain->dry_run || plain->pin);
  EXPECT_TRUE(plain->preload);
  const auto all = parse_load_adapter(
      R"({"lora_name":"a","lora_path":"x","load_inplace":true,"pin":true,"preload":false})");
  ASSERT_TRUE(all.ok());
  EXPECT_TRUE(all->in_place && all->pin && !all->preload);
  EXPECT_TRUE(parse_load_adapter(R"({"lora_path":"x","dry_run":true})").ok());
}

TEST(ParseLoadAdapterTest, ErrorsNameTheField) {
  for (const auto& [body, param] : std::vector<std::pair<std::string, std::string>>{
           {"{", ""},
           {"[]", ""},
           {"{}", "lora_path"},
           {R"({"lora_name":"a"})", "lora_path"},
           {R"({"lora_path":"a"})", "lora_name"},
           {R"({"lora_name":1,"lora_path":"a"})", "lora_name"},
           {R"({"lora_name":"a","lora_path":"a\u0000b"})", "lora_path"},
           {R"({"lora_name":"a","lora_path":"a","load_inplace":"yes"})", "load_inplace"}}) {
    const auto request = parse_load_adapter(body);
    ASSERT_FALSE(request.ok()) << body;
    EXPECT_EQ(request.error().code, ErrorCode::kInvalidArgument) << body;
    EXPECT_EQ(request.error().param, param) << body;
  }
}

TEST(ParseUnloadAdapterTest, NeedsTheName) {
  EXPECT_EQ(parse_unload_adapter(R"({"lora_name":"a","lora_int_id":3})").value(), "a");
  EXPECT_EQ(parse_unload_adapter("{}").error().param, "lora_name");
}

TEST(RenderAdaptersTest, WhatIsNotKnownIsNull) {
  const json list =
      json::parse(render_adapters({{.name = "a", .path = "/x", .state = "on_disk"}}, 8));
  EXPECT_EQ(list["max_on_device"], 8);
  const json& entry = list["data"][0];
  EXPECT_EQ(entry["name"], "a");
  for (const char* field : {"rank", "bytes", "hash", "last_used", "error"}) {
    EXPECT_TRUE(entry[field].is_null()) << field;
  }
}

}  // namespace
}  // namespace medley::api
