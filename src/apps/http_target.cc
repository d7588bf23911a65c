#include "apps/http_target.h"

#include <nlohmann/json.hpp>

#include "base/clock.h"

namespace medley::apps {

std::string completion_body(const std::string& model, const std::vector<int32_t>& prompt,
                            int output_len) {
  return nlohmann::json{{"model", model},
                        {"prompt", prompt},
                        {"max_tokens", output_len},
                        {"temperature", 0},
                        {"ignore_eos", true},
                        {"stream", true},
                        {"stream_options", {{"include_usage", true}}}}
      .dump();
}

void note_chunk(std::string_view data, int64_t time_ns, RequestRecord& record) {
  const auto json = nlohmann::json::parse(data, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return;
  if (json.contains("error")) record.error = json["error"].dump();
  if (json.contains("usage") && json["usage"].is_object()) {
    record.num_tokens = json["usage"].value("completion_tokens", 0);
  }
  if (!json.contains("choices") || json["choices"].empty()) return;
  if (!json["choices"][0].value("text", std::string()).empty()) record.token_ns.push_back(time_ns);
}

Result<int> HttpTarget::send(BenchRequest request) {
  const std::string body = completion_body(request.adapter.empty() ? desc_.model : request.adapter,
                                           request.prompt, request.output_len);
  const int record = records_.add(
      {.num_prompt_tokens = static_cast<int>(request.prompt.size()), .sent_ns = now_ns()});
  clients_.emplace_back([this, body, record] {
    RequestRecord seen;
    const auto on_event = [&](std::string_view data) {
      const int64_t time_ns = now_ns();
      const size_t num_before = seen.token_ns.size();
      if (data != "[DONE]") note_chunk(data, time_ns, seen);
      if (seen.token_ns.size() == num_before) return;
      const RecordUpdate update = {.request = record, .token_ns = time_ns};
      records_.update({&update, 1});
    };
    const Result<void> sent =
        HttpClient(desc_.address).post_stream("/v1/completions", body, on_event);
    const RecordUpdate update = {
        .request = record, .ended = true, .error = sent.ok() ? seen.error : sent.error().message};
    records_.update({&update, 1});
  });
  return record;
}

Result<void> HttpTarget::make_cold(ColdTier tier) {
  if (tier != ColdTier::kDisk) {
    return unsupported("a server can't be told to keep an adapter in host memory only; use disk",
                       "--cold-adapter");
  }
  if (desc_.cold_folder.empty()) {
    return invalid_argument("--cold-adapter needs --cold-folder, an adapter's folder on the server",
                            "--cold-folder");
  }
  clients_.clear();
  static_cast<void>(unload_cold());  // unknown the first time, unless a run was cut short
  MEDLEY_TRY(HttpClient(desc_.address)
                 .post("/v1/load_lora_adapter", nlohmann::json{{"lora_name", cold_adapter()},
                                                               {"lora_path", desc_.cold_folder},
                                                               {"preload", false}}
                                                    .dump()));
  cold_is_loaded_ = true;
  return {};
}

Result<void> HttpTarget::unload_cold() {
  cold_is_loaded_ = false;
  return HttpClient(desc_.address)
      .post("/v1/unload_lora_adapter", nlohmann::json{{"lora_name", cold_adapter()}}.dump());
}

HttpTarget::~HttpTarget() {
  clients_.clear();
  if (cold_is_loaded_) static_cast<void>(unload_cold());
}

}  // namespace medley::apps
