#include "weights/dummy_adapter_files.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <vector>

#include <fmt/format.h>

#include "tensor/dtype.h"

namespace medley {
namespace {

constexpr size_t kPieceBytes = size_t{8} << 20;  // of random values, written over and over
constexpr float kSigma = 0.01f;

struct FileTensor {
  std::string name;
  int64_t rows = 0;
  int64_t cols = 0;
};

std::vector<FileTensor> tensors_of(const ModelSpec& spec, const DummyAdapterFileDesc& desc) {
  std::vector<FileTensor> tensors;
  const auto add = [&](const std::string& module, int64_t in, int64_t out, int64_t rank) {
    tensors.push_back({module + ".lora_A.weight", rank, in});
    tensors.push_back({module + ".lora_B.weight", out, rank});
  };
  const auto add_mlp = [&](const std::string& module, int64_t inner) {
    add(module + "gate_proj", spec.hidden_size, inner, desc.rank);
    add(module + "up_proj", spec.hidden_size, inner, desc.rank);
    add(module + "down_proj", inner, spec.hidden_size, desc.rank);
  };
  const AttentionSpec& attention = spec.attention;
  const int64_t q = int64_t{attention.num_heads} * attention.head_dim;
  const int64_t kv = int64_t{attention.num_kv_heads} * attention.head_dim;
  for (int l = 0; l < spec.num_layers(); ++l) {
    const std::string base = fmt::format("base_model.model.model.layers.{}.", l);
    add(base + "self_attn.q_proj", spec.hidden_size, q, desc.rank);
    add(base + "self_attn.k_proj", spec.hidden_size, kv, desc.rank);
    add(base + "self_attn.v_proj", spec.hidden_size, kv, desc.rank);
    add(base + "self_attn.o_proj", q, spec.hidden_size, desc.rank);
    if (!spec.layers[l].moe) {
      add_mlp(base + "mlp.", spec.mlp->intermediate_size);
      continue;
    }
    const int64_t experts = spec.moe->num_experts;
    const int64_t inner = spec.moe->intermediate_size;
    if (desc.fused_experts) {
      add(base + "mlp.experts.base_layer", spec.hidden_size, 2 * inner, desc.rank * experts);
      add(base + "mlp.experts", inner, spec.hidden_size, desc.rank * experts);
      continue;
    }
    for (int64_t e = 0; e < experts; ++e) add_mlp(fmt::format("{}mlp.experts.{}.", base, e), inner);
  }
  return tensors;
}

// Padded to a multiple of 8 bytes.
std::string header_of(const std::vector<FileTensor>& tensors, DType dtype) {
  std::string header = "{";
  size_t begin = 0;
  for (const FileTensor& tensor : tensors) {
    const size_t end = begin + static_cast<size_t>(tensor.rows * tensor.cols) * size_of(dtype);
    header +=
        fmt::format(R"({}"{}": {{"dtype": "{}", "shape": [{}, {}], "data_offsets": [{}, {}]}})",
                    header.size() > 1 ? ", " : "", tensor.name,
                    dtype == DType::kF32 ? "F32" : "BF16", tensor.rows, tensor.cols, begin, end);
    begin = end;
  }
  header += "}";
  header.append((8 - header.size() % 8) % 8, ' ');
  return header;
}

std::vector<char> random_piece(const DummyAdapterFileDesc& desc) {
  const size_t size = size_of(desc.dtype);
  std::vector<char> bytes(kPieceBytes);
  std::mt19937_64 engine(desc.seed);
  std::normal_distribution<float> normal(0.0f, kSigma);
  for (size_t i = 0; i < kPieceBytes / size; ++i) {
    const float value = normal(engine);
    const uint16_t bits = float_to_bf16(value);
    std::memcpy(bytes.data() + i * size,
                desc.dtype == DType::kF32 ? static_cast<const void*>(&value) : &bits, size);
  }
  return bytes;
}

Error cannot_write(const std::string& path) {
  return invalid_argument(fmt::format("{}: can't be written", path));
}

}  // namespace

Result<void> write_dummy_adapter_config(const ModelSpec& spec, const DummyAdapterFileDesc& desc,
                                        const std::string& revision, const std::string& folder) {
  const bool fused = desc.fused_experts && spec.moe.has_value();
  const std::string path = folder + "/adapter_config.json";
  std::ofstream file(path, std::ios::binary);
  file << fmt::format(
      R"({{"peft_type": "LORA", "peft_version": "0.18.1", "revision": "{}", "r": {}, "lora_alpha": {},
  "target_modules": ["q_proj", "k_proj", "v_proj", "o_proj"{}], "target_parameters": {}}}
)",
      revision, desc.rank, 2 * desc.rank, fused ? "" : R"(, "gate_proj", "up_proj", "down_proj")",
      fused ? R"(["mlp.experts.gate_up_proj", "mlp.experts.down_proj"])" : "null");
  file.close();
  return file ? Result<void>() : cannot_write(path);
}

Result<void> write_dummy_adapter(const ModelSpec& spec, const DummyAdapterFileDesc& desc,
                                 const std::string& folder) {
  MEDLEY_CHECK(desc.dtype == DType::kBF16 || desc.dtype == DType::kF32);
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  MEDLEY_TRY(write_dummy_adapter_config(spec, desc, "main", folder));
  const std::vector<FileTensor> tensors = tensors_of(spec, desc);
  size_t num_bytes = 0;
  for (const FileTensor& tensor : tensors) {
    num_bytes += static_cast<size_t>(tensor.rows * tensor.cols) * size_of(desc.dtype);
  }
  const std::string path = folder + "/adapter_model.safetensors";
  std::ofstream file(path, std::ios::binary);
  const std::string header = header_of(tensors, desc.dtype);
  const uint64_t header_bytes = header.size();
  file.write(reinterpret_cast<const char*>(&header_bytes), sizeof(header_bytes));
  file << header;
  const std::vector<char> piece = random_piece(desc);
  for (size_t done = 0; done < num_bytes; done += piece.size()) {
    file.write(piece.data(),
               static_cast<std::streamsize>(std::min(piece.size(), num_bytes - done)));
  }
  file.close();
  return file ? Result<void>() : cannot_write(path);
}

}  // namespace medley
