// Times how an adapter gets from its folder to the GPU: reading and checking (the hash of its bytes
// runs beside the checks), packing into page-locked memory, uploading.
//
// Usage: bench_adapter_load CONFIG FOLDER [runs]   (5)
// CONFIG is a GPT-OSS config.json. Writes adapters of rank 32 on q, k, v, o and all experts to
// FOLDER, with random weights, in two layouts (per expert; fused, as PEFT's target_parameters
// writes it) and two dtypes, and loads each: the first time page-locks the host memory, the others
// find it.

#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>

#include "adapter/peft_reader.h"
#include "base/clock.h"
#include "cuda/lora_adapter.h"
#include "ffi/ffi.h"
#include "spec/read_spec.h"

namespace medley::bench {
namespace {

constexpr int kRank = 32;
constexpr int kRuns = 5;

struct FileDesc {
  bool fused = false;
  DType dtype = DType::kBF16;
};

// Rows and columns by name.
using Tensors = std::vector<std::pair<std::string, std::pair<int64_t, int64_t>>>;

Tensors tensors_of(const ModelSpec& spec, const FileDesc& desc) {
  Tensors tensors;
  const auto add = [&](const std::string& module, int64_t in, int64_t out, int64_t rank) {
    tensors.push_back({module + ".lora_A.weight", {rank, in}});
    tensors.push_back({module + ".lora_B.weight", {out, rank}});
  };
  for (int i = 0; i < spec.num_layers(); ++i) {
    const AttentionSpec& attention = spec.attention;
    const int64_t hidden = spec.hidden_size;
    const int64_t q = int64_t{attention.num_heads} * attention.head_dim;
    const int64_t kv = int64_t{attention.num_kv_heads} * attention.head_dim;
    const std::string base = fmt::format("base_model.model.model.layers.{}.", i);
    add(base + "self_attn.q_proj", hidden, q, kRank);
    add(base + "self_attn.k_proj", hidden, kv, kRank);
    add(base + "self_attn.v_proj", hidden, kv, kRank);
    add(base + "self_attn.o_proj", q, hidden, kRank);
    const int64_t experts = spec.moe->num_experts;
    const int64_t inner = spec.moe->intermediate_size;
    if (desc.fused) {
      add(base + "mlp.experts.base_layer", hidden, 2 * inner, kRank * experts);
      add(base + "mlp.experts", inner, hidden, kRank * experts);
      continue;
    }
    for (int64_t e = 0; e < experts; ++e) {
      const std::string expert = fmt::format("{}mlp.experts.{}.", base, e);
      add(expert + "gate_proj", hidden, inner, kRank);
      add(expert + "up_proj", hidden, inner, kRank);
      add(expert + "down_proj", inner, hidden, kRank);
    }
  }
  return tensors;
}

// As the safetensors repository's README describes it.
void write_adapter(const ModelSpec& spec, const FileDesc& desc, const std::string& folder) {
  std::filesystem::create_directories(folder);
  std::ofstream(folder + "/adapter_config.json") << fmt::format(
      R"({{"peft_type": "LORA", "peft_version": "0.18.1", "r": {}, "lora_alpha": 64,
  "target_modules": {}, "target_parameters": {}}})",
      kRank,
      desc.fused
          ? R"(["q_proj", "k_proj", "v_proj", "o_proj"])"
          : R"(["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"])",
      desc.fused ? R"(["mlp.experts.gate_up_proj", "mlp.experts.down_proj"])" : "null");
  const Tensors tensors = tensors_of(spec, desc);
  const size_t size = size_of(desc.dtype);
  std::string header = "{";
  size_t position = 0;
  for (const auto& [name, shape] : tensors) {
    const size_t bytes = static_cast<size_t>(shape.first * shape.second) * size;
    header += fmt::format(
        "{}\"{}\": {{\"dtype\": \"{}\", \"shape\": [{}, {}], "
        "\"data_offsets\": [{}, {}]}}",
        header.size() > 1 ? ", " : "", name, desc.dtype == DType::kF32 ? "F32" : "BF16",
        shape.first, shape.second, position, position + bytes);
    position += bytes;
  }
  header += "}";
  header.append((8 - header.size() % 8) % 8, ' ');
  std::ofstream file(folder + "/adapter_model.safetensors", std::ios::binary);
  const uint64_t header_bytes = header.size();
  file.write(reinterpret_cast<const char*>(&header_bytes), sizeof(header_bytes));
  file << header;
  std::mt19937 engine(1);
  std::normal_distribution<float> normal(0.0f, 0.01f);
  std::vector<char> values(size_t{8} << 20);
  for (size_t i = 0; i < values.size() / size; ++i) {
    const float value = normal(engine);
    const uint16_t bits = float_to_bf16(value);
    std::memcpy(values.data() + i * size,
                desc.dtype == DType::kF32 ? static_cast<const void*>(&value) : &bits, size);
  }
  for (size_t done = 0; done < position; done += values.size()) {
    file.write(values.data(),
               static_cast<std::streamsize>(std::min(values.size(), position - done)));
  }
  MEDLEY_CHECK(file.good(), "the adapter could not be written");
}

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

double ms_since(int64_t start_ns) { return static_cast<double>(now_ns() - start_ns) * 1e-6; }

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
        table.upload(static_cast<const cuda::CudaPackedAdapter&>(*packed)).value();
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
  if (argc < 3) {
    fmt::print(stderr, "usage: bench_adapter_load CONFIG FOLDER [runs]\n");
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
      const std::string folder = fmt::format("{}/{}-{}", argv[2], fused ? "fused" : "per-expert",
                                             dtype == DType::kF32 ? "f32" : "bf16");
      write_adapter(spec, {.fused = fused, .dtype = dtype}, folder);
      time_loads(table, spec, folder, runs);
      std::filesystem::remove_all(folder);
    }
  }
  return 0;
}

}  // namespace
}  // namespace medley::bench

int main(int argc, char** argv) { return medley::bench::run(argc, argv); }
