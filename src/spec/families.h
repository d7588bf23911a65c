#pragma once

#include "spec/json_fields.h"
#include "spec/model_spec.h"

namespace medley {

// One reader per family. Each reads the fields of config.json that its architecture knows, with
// transformers' defaults; errors stick to `fields`, and read_model_spec then refuses what is left.
ModelSpec read_gpt_oss(JsonFields& fields);
ModelSpec read_qwen3_moe(JsonFields& fields);
ModelSpec read_qwen3(JsonFields& fields);
ModelSpec read_llama(JsonFields& fields);

}  // namespace medley
