#include "spec/read_spec.h"

#include <limits>

#include <fmt/format.h>

#include "spec/families.h"
#include "spec/json_fields.h"

namespace medley {
namespace {

struct Family {
  std::string_view model_type;
  std::string_view architecture;
  ModelSpec (*read)(JsonFields&);
};

constexpr Family kFamilies[] = {
    {"gpt_oss", "GptOssForCausalLM", read_gpt_oss},
    {"llama", "LlamaForCausalLM", read_llama},
    {"qwen3", "Qwen3ForCausalLM", read_qwen3},
    {"qwen3_moe", "Qwen3MoeForCausalLM", read_qwen3_moe},
};

std::vector<int32_t> read_token_ids(JsonFields& fields, std::string_view name) {
  std::vector<int32_t> ids;
  for (const int64_t id : fields.integers(name)) {
    if (id < 0 || id > std::numeric_limits<int32_t>::max()) {
      fields.fail(name, "expected token ids", ErrorCode::kInvalidArgument);
      return {};
    }
    ids.push_back(static_cast<int32_t>(id));
  }
  return ids;
}

std::optional<float> read_optional(JsonFields& fields, std::string_view name) {
  if (!fields.has(name)) return std::nullopt;
  return static_cast<float>(fields.number(name));
}

}  // namespace

Result<ModelSpec> read_model_spec(std::string_view config_json) {
  MEDLEY_TRY_ASSIGN(JsonFields fields, JsonFields::parse(config_json, "config.json"));
  const std::string model_type = fields.string("model_type");
  const std::vector<std::string> architectures = fields.strings("architectures");
  if (!fields.ok()) return fields.finish().error();
  for (const Family& family : kFamilies) {
    if (family.model_type != model_type) continue;
    if (!architectures.empty() && architectures[0] != family.architecture) {
      fields.fail("architectures", fmt::format("expected {}", family.architecture));
    }
    ModelSpec spec = family.read(fields);
    spec.family = model_type;
    MEDLEY_TRY(fields.finish());
    return spec;
  }
  fields.fail("model_type", "expected gpt_oss, llama, qwen3 or qwen3_moe");
  return fields.finish().error();
}

Result<GenerationConfig> read_generation_config(std::string_view generation_config_json,
                                                std::string_view config_json) {
  GenerationConfig out;
  if (!generation_config_json.empty()) {
    MEDLEY_TRY_ASSIGN(JsonFields fields,
                      JsonFields::parse(generation_config_json, "generation_config.json"));
    out.eos_token_ids = read_token_ids(fields, "eos_token_id");
    out.temperature = read_optional(fields, "temperature");
    out.top_p = read_optional(fields, "top_p");
    out.min_p = read_optional(fields, "min_p");
    out.repetition_penalty = read_optional(fields, "repetition_penalty");
    if (fields.has("top_k")) {
      out.top_k = static_cast<int>(
          fields.integer("top_k", std::nullopt, -1, std::numeric_limits<int>::max()));
    }
    if (fields.has("do_sample")) out.do_sample = fields.boolean("do_sample");
    if (!fields.ok()) return fields.finish().error();
  }
  if (out.eos_token_ids.empty()) {
    MEDLEY_TRY_ASSIGN(JsonFields fields, JsonFields::parse(config_json, "config.json"));
    out.eos_token_ids = read_token_ids(fields, "eos_token_id");
    if (!fields.ok()) return fields.finish().error();
  }
  return out;
}

}  // namespace medley
