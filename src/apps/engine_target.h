#pragma once

#include <atomic>
#include <functional>
#include <string>

#include "adapter/store.h"
#include "apps/bench_target.h"
#include "engine/engine.h"

namespace medley::apps {

inline constexpr char kColdAdapterName[] = "cold";

// A path of an adapter for a tier: of another content on each call.
using ColdPath = std::function<Result<std::string>(ColdTier tier)>;

// The numbers of records are the ids of the engine's requests, less 1.
RequestId request_id_of(int record);
// The engine's sink for `records`.
void receive(const std::vector<TokenEvent>& events, BenchRecords& records);
// Adds a record and submits the request; returns the record's number.
Result<int> submit(BenchRequest request, int adapter, BenchRecords& records, Engine& engine);

// An engine of this process, whose events go to `records`.
class EngineTarget final : public BenchTarget {
 public:
  // `adapters` may be null: then there is no cold adapter.
  EngineTarget(Engine& engine, AdapterStore* adapters, BenchRecords& records, ColdPath cold_path);
  ~EngineTarget() override;

  Result<int> send(BenchRequest request) override;
  void stop(int request) override;
  BenchRecords& records() override { return records_; }
  std::string cold_adapter() const override { return kColdAdapterName; }
  Result<void> make_cold(ColdTier tier) override;
  std::optional<int64_t> usable_ns() override;

 private:
  Engine& engine_;
  AdapterStore* const adapters_;
  BenchRecords& records_;
  const ColdPath cold_path_;
  std::atomic<int64_t> usable_ns_ = 0;  // 0: not yet
};

}  // namespace medley::apps
