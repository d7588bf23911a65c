#pragma once

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include <fmt/format.h>

namespace medley::testing {

struct RawTensor {
  std::string name;
  std::string dtype;  // safetensors' spelling
  std::vector<int64_t> shape;
  std::string data;
};

inline RawTensor f32_tensor(std::string name, std::vector<int64_t> shape,
                            const std::vector<float>& values) {
  std::string data(values.size() * sizeof(float), '\0');
  std::memcpy(data.data(), values.data(), data.size());
  return {std::move(name), "F32", std::move(shape), std::move(data)};
}

// A file of a header text and data, whether or not they agree.
inline std::string safetensors_bytes(const std::string& header, const std::string& data) {
  std::string bytes(8, '\0');
  const uint64_t size = header.size();
  for (int i = 0; i < 8; ++i) bytes[i] = static_cast<char>(size >> (8 * i));
  return bytes + header + data;
}

inline std::string safetensors_bytes(const std::vector<RawTensor>& tensors) {
  std::string header = "{";
  std::string data;
  for (const RawTensor& tensor : tensors) {
    header +=
        fmt::format(R"({}"{}":{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})",
                    header.size() > 1 ? "," : "", tensor.name, tensor.dtype,
                    fmt::join(tensor.shape, ","), data.size(), data.size() + tensor.data.size());
    data += tensor.data;
  }
  header += "}";
  header.resize((header.size() + 7) / 8 * 8, ' ');
  return safetensors_bytes(header, data);
}

inline void write_file(const std::string& path, const std::string& bytes) {
  std::remove(path.c_str());  // truncating a file in place may wait for the disk
  std::ofstream(path, std::ios::binary) << bytes;
}

}  // namespace medley::testing
