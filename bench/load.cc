// Times how a model's weights come to the GPU: what `medley serve` does between its start and its
// first plan.
//
// Usage: bench_load CONFIG            dummy weights of the model that a config.json describes
//        bench_load FOLDER            a checkpoint
//        bench_load write CONFIG FOLDER   writes the dummy weights as a checkpoint, to be loaded
// Prints seconds until the device is ready, until the weights can be read, and until all are
// packed.

#include <fmt/format.h>

#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>

#include "base/clock.h"
#include "base/log.h"
#include "cuda/cuda_backend.h"
#include "model/packed_model.h"
#include "spec/read_spec.h"
#include "weights/checkpoint.h"
#include "weights/dummy_weights.h"
#include "weights/model_weights.h"

namespace medley::bench {
namespace {

double seconds_since(int64_t start_ns) { return static_cast<double>(now_ns() - start_ns) * 1e-9; }

Result<ModelSpec> read_config(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return not_found(fmt::format("can't read {}", path));
  return read_model_spec(std::string(std::istreambuf_iterator<char>(file), {}));
}

const char* safetensors_name(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "F32";
    case DType::kU8:
      return "U8";
    default:
      return "BF16";
  }
}

// As the safetensors repository's README describes it.
Result<void> write_checkpoint(const std::string& config, const std::string& folder) {
  MEDLEY_TRY_ASSIGN(const ModelSpec spec, read_config(config));
  MEDLEY_TRY_ASSIGN(const DummyWeights weights, DummyWeights::make(spec, /*seed=*/0));
  std::filesystem::create_directories(folder);
  std::filesystem::copy_file(config, folder + "/config.json",
                             std::filesystem::copy_options::overwrite_existing);
  std::string header = "{";
  size_t position = 0;
  for (const auto& [name, tensor] : weights.tensors()) {
    std::string shape;
    for (int i = 0; i < tensor.shape.rank(); ++i) {
      shape += fmt::format("{}{}", i > 0 ? "," : "", tensor.shape[i]);
    }
    header += fmt::format(R"({}"{}":{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})",
                          position > 0 ? "," : "", name, safetensors_name(tensor.dtype), shape,
                          position, position + tensor.num_bytes());
    position += tensor.num_bytes();
  }
  header += "}";
  header.resize((header.size() + 8 + 63) / 64 * 64 - 8, ' ');
  std::FILE* file = std::fopen((folder + "/model.safetensors").c_str(), "wb");
  if (file == nullptr) return invalid_argument(fmt::format("can't write into {}", folder));
  const uint64_t size = header.size();
  bool ok = std::fwrite(&size, sizeof(size), 1, file) == 1 &&
            std::fwrite(header.data(), header.size(), 1, file) == 1;
  for (const auto& [name, tensor] : weights.tensors()) {
    ok = ok && std::fwrite(tensor.data, tensor.num_bytes(), 1, file) == 1;
  }
  ok = std::fclose(file) == 0 && ok;
  if (!ok) return internal_error(fmt::format("{}: the disk is full", folder));
  return {};
}

Result<void> load(const std::string& path) {
  const int64_t start_ns = now_ns();
  MEDLEY_TRY_ASSIGN(const std::unique_ptr<Backend> backend, make_cuda_backend());
  const double ready_s = seconds_since(start_ns);
  const bool folder = std::filesystem::is_directory(path);
  MEDLEY_TRY_ASSIGN(const ModelSpec spec, read_config(folder ? path + "/config.json" : path));
  std::unique_ptr<Checkpoint> checkpoint;
  std::unique_ptr<DummyWeights> dummy;
  if (folder) {
    MEDLEY_TRY_ASSIGN(Checkpoint opened, Checkpoint::open_folder(path));
    checkpoint = std::make_unique<Checkpoint>(std::move(opened));
  } else {
    MEDLEY_TRY_ASSIGN(DummyWeights made, DummyWeights::make(spec, /*seed=*/0));
    dummy = std::make_unique<DummyWeights>(std::move(made));
  }
  MEDLEY_TRY_ASSIGN(const ModelWeights weights,
                    read_model_weights(spec, folder ? checkpoint->tensors() : dummy->tensors()));
  const double readable_s = seconds_since(start_ns);
  MEDLEY_TRY_ASSIGN(const PackedModel model, pack_model(spec, weights, *backend, {}));
  const double packed_s = seconds_since(start_ns);
  fmt::print(
      "{} {} on {}: device ready after {:.2f} s, weights readable after {:.2f} s, packed "
      "after {:.2f} s; {:.2f} GB on the device\n",
      spec.family, folder ? "checkpoint" : "dummy weights", backend->name(), ready_s, readable_s,
      packed_s, static_cast<double>(model.num_bytes) * 1e-9);
  return {};
}

Result<void> run(int argc, char** argv) {
  if (argc == 4 && std::strcmp(argv[1], "write") == 0) return write_checkpoint(argv[2], argv[3]);
  if (argc == 2) return load(argv[1]);
  return invalid_argument("usage: bench_load CONFIG | FOLDER | write CONFIG FOLDER");
}

}  // namespace
}  // namespace medley::bench

int main(int argc, char** argv) {
  medley::init_logging();
  const medley::Result<void> result = medley::bench::run(argc, argv);
  if (result.ok()) return 0;
  fmt::print(stderr, "bench_load: {}\n", result.error().message);
  return 1;
}
