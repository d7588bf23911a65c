#include "apps/engine_target.h"

#include <utility>

#include "base/clock.h"

namespace medley::apps {

RequestId request_id_of(int record) { return static_cast<RequestId>(record) + 1; }

void receive(const std::vector<TokenEvent>& events, BenchRecords& records) {
  std::vector<RecordUpdate> updates;
  updates.reserve(events.size());
  for (const TokenEvent& event : events) {
    updates.push_back({.request = static_cast<int>(event.request_id - 1),
                       .token_ns = event.token_id ? event.time_ns : 0,
                       .ended = event.finish.has_value(),
                       .error = event.error ? event.error->message : std::string()});
  }
  records.update(updates);
}

Result<int> submit(BenchRequest request, int adapter, BenchRecords& records, Engine& engine) {
  const int64_t sent_ns = now_ns();
  const int record = records.add({.adapter = adapter,
                                  .num_prompt_tokens = static_cast<int>(request.prompt.size()),
                                  .sent_ns = sent_ns});
  MEDLEY_TRY(engine.submit(
      {.id = request_id_of(record),
       .prompt = std::move(request.prompt),
       .adapter = std::move(request.adapter),
       .sampling = {.temperature = 0.0f, .max_tokens = request.output_len, .ignore_eos = true},
       .arrival_ns = sent_ns}));
  return record;
}

EngineTarget::EngineTarget(Engine& engine, AdapterStore* adapters, BenchRecords& records,
                           ColdPath cold_path)
    : engine_(engine), adapters_(adapters), records_(records), cold_path_(std::move(cold_path)) {
  if (adapters_ == nullptr) return;
  adapters_->set_load_observer([this](const AdapterLoad& load) {
    if (load.name == kColdAdapterName && load.source == AdapterLoad::Source::kHost) {
      usable_ns_ = now_ns();
    }
  });
}

EngineTarget::~EngineTarget() {
  if (adapters_ != nullptr) adapters_->set_load_observer({});
}

Result<int> EngineTarget::send(BenchRequest request) {
  return submit(std::move(request), /*adapter=*/-1, records_, engine_);
}

void EngineTarget::stop(int request) { engine_.abort(request_id_of(request)); }

Result<void> EngineTarget::make_cold(ColdTier tier) {
  if (adapters_ == nullptr) return unsupported("no adapters are served", "--cold-adapter");
  MEDLEY_TRY_ASSIGN(const std::string path, cold_path_(tier));
  static_cast<void>(adapters_->unload(kColdAdapterName));  // unknown the first time
  MEDLEY_TRY(adapters_->load(kColdAdapterName, path, {.read = tier == ColdTier::kHost}));
  usable_ns_ = 0;
  return {};
}

std::optional<int64_t> EngineTarget::usable_ns() {
  const int64_t usable_ns = usable_ns_;
  return usable_ns == 0 ? std::nullopt : std::optional(usable_ns);
}

}  // namespace medley::apps
