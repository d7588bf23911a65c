#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "tensor/tensor.h"

namespace medley {

// Tensors by name.
using TensorMap = std::map<std::string, ConstTensorView, std::less<>>;

// The safetensors files of a model or adapter folder, mapped into memory (format: the safetensors
// repository's README). Immutable after open; thread-safe.
class Checkpoint {
 public:
  // A model folder: model.safetensors, or the shards of model.safetensors.index.json. Hostile or
  // damaged headers (length beyond the file, overlapping or out-of-range offsets, shape and byte
  // count that disagree, duplicate names) are refused with the file and tensor named.
  static Result<Checkpoint> open_folder(const std::string& folder);
  static Result<Checkpoint> open_file(const std::string& path);
  // Copies the file into memory first, so that nobody who writes to it later can disturb the
  // reading: for adapters, which others may replace while the server runs. `on_bytes` is handed the
  // file's bytes in order, piece by piece, on a thread of its own while the rest is being read; it
  // has had all of them when this returns without an error.
  using OnBytes = std::function<void(std::span<const std::byte>)>;
  static Result<Checkpoint> read_file(const std::string& path, const OnBytes& on_bytes = {});

  Checkpoint(Checkpoint&&) noexcept;
  Checkpoint& operator=(Checkpoint&&) noexcept;
  ~Checkpoint();

  const ConstTensorView* find(std::string_view name) const;  // null when absent
  std::vector<std::string> names() const;                    // sorted
  const TensorMap& tensors() const;
  size_t num_bytes() const;  // of all tensors
  // The first file as a whole, header included.
  std::span<const std::byte> file_bytes() const;

 private:
  struct State;
  explicit Checkpoint(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace medley
