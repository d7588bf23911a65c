// Times how an adapter gets from its folder to the GPU: reading and checking (the hash of its bytes
// runs beside the checks), packing into page-locked memory, uploading.
//
// Usage: bench_adapter_load CONFIG FOLDER [runs] [kind]   (5; all of per-expert-bf16,
// per-expert-f32, fused-bf16, fused-f32) CONFIG is a GPT-OSS config.json. Writes adapters of rank
// 32 on q, k, v, o and all experts to FOLDER, with random weights, in two layouts (per expert;
// fused, as PEFT's target_parameters writes it) and two dtypes, and loads each: the first time
// page-locks the host memory, the others find it.

#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "adapter/peft_reader.h"
#include "base/clock.h"
#include "base/loading_threads.h"
#include "cuda/lora_adapter.h"
#include "ffi/ffi.h"
#include "spec/read_spec.h"
#include "weights/dummy_adapter_files.h"

namespace medley::bench {
namespace {

constexpr int kRank = 32;
constexpr int kRuns = 5;

// What the planned ops of the model would announce.
void announce_sites(cuda::LoraTable& table, const ModelSpec& spec) {
  const AttentionSpec& attention = spec.attention;
  const int64_t q = int64_t{attention.num_heads} * attention.head_dim;
  const int64_t kv = int64_t{attention.num_kv_heads} * attention.head_dim;
  const int64_t inner = spec.moe->intermediate_size;
  const int experts = spec.moe->num_experts;
  for (int i = 0; i < spec.num_layers(); ++i) {
    table.announce({LoraModule::kQkv, i}, {.in_size = spec.hidden_size, .part_rows = {q, kv, kv}});
    table.announce({LoraModule::kO, i}, {.in_size = q, .part_rows = {spec.hidden_size}});
    table.announce({LoraModule::kExpertGateUp, i}, {.in_size = spec.hidden_size,
                                                    .part_rows = {inner, inner},
                                                    .parts_share_units = true,
                                                    .num_experts = experts});
    table.announce({LoraModule::kExpertDown, i},
                   {.in_size = inner, .part_rows = {spec.hidden_size}, .num_experts = experts});
  }
}

void time_loads(cuda::LoraTable& table, const ModelSpec& spec, const std::string& folder,
                int runs) {
  for (int i = 0; i < runs; ++i) {
    int64_t start = now_ns();
    const Result<Checkpoint> file = Checkpoint::read_file(folder + "/adapter_model.safetensors");
    MEDLEY_CHECK(file.ok(), "the file can't be read");
    const double copy_ms = ms_since(start);
    start = now_ns();
    ffi::blake3(file->file_bytes());
    const double hash_ms = ms_since(start);

    start = now_ns();
    Result<AdapterWeights> weights = read_peft_adapter(folder, spec);
    MEDLEY_CHECK(weights.ok(), weights.ok() ? "" : weights.error().message);
    const double read_ms = ms_since(start);
    start = now_ns();
    const auto packed = table.pack(weights->modules).value();
    const double pack_ms = ms_since(start);
    start = now_ns();
    const auto on_device =
        table.start_upload(static_cast<const cuda::CudaPackedAdapter&>(*packed)).value();
    MEDLEY_CHECK(on_device->wait().ok(), "the device failed");
    const double upload_ms = ms_since(start);
    fmt::print(
        "{:32} read {:6.1f} ms (of it the file {:6.1f}; its hash alone {:6.1f}), pack {:6.1f}, "
        "upload {:5.1f} ({:.1f} GB/s): {:6.1f} ms; {} bytes\n",
        std::filesystem::path(folder).filename().string(), read_ms, copy_ms, hash_ms, pack_ms,
        upload_ms, static_cast<double>(packed->num_bytes()) / upload_ms * 1e-6,
        read_ms + pack_ms + upload_ms, packed->num_bytes());
    std::fflush(stdout);
  }
}

int run(int argc, char** argv) {
  limit_shared_threads();
  if (argc < 3) {
    fmt::print(stderr, "usage: bench_adapter_load CONFIG FOLDER [runs] [kind]\n");
    return 2;
  }
  std::ifstream config(argv[1], std::ios::binary);
  const ModelSpec spec =
      read_model_spec(std::string(std::istreambuf_iterator<char>(config), {})).value();
  const int runs = argc > 3 ? std::atoi(argv[3]) : kRuns;
  cuda::LoraTable table;
  announce_sites(table, spec);
  MEDLEY_CHECK(
      table.make({.max_slots = 8, .num_layers = spec.num_layers(), .pool_bytes = size_t{2} << 30})
          .ok());
  for (const bool fused : {false, true}) {
    for (const DType dtype : {DType::kBF16, DType::kF32}) {
      const std::string kind = fmt::format("{}-{}", fused ? "fused" : "per-expert",
                                           dtype == DType::kF32 ? "f32" : "bf16");
      if (argc > 4 && kind != argv[4]) continue;
      const std::string folder = fmt::format("{}/{}", argv[2], kind);
      const Result<void> written = write_dummy_adapter(
          spec, {.rank = kRank, .dtype = dtype, .fused_experts = fused}, folder);
      MEDLEY_CHECK(written.ok(), written.error().message);
      time_loads(table, spec, folder, runs);
      std::filesystem::remove_all(folder);
    }
  }
  return 0;
}

}  // namespace
}  // namespace medley::bench

int main(int argc, char** argv) { return medley::bench::run(argc, argv); }
