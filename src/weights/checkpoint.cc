#include "weights/checkpoint.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <set>
#include <sstream>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "spec/json_parse.h"
#include "weights/whole_file.h"

namespace medley {
namespace {

using nlohmann::json;

constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // as the safetensors library
constexpr uint64_t kMaxElements = uint64_t{1} << 48;
constexpr uintmax_t kMaxIndexBytes = 100'000'000;

struct Entry {
  std::string name;
  DType dtype = DType::kF32;
  Shape shape;
  uint64_t begin = 0;  // in the data part
  uint64_t end = 0;
};

Result<Entry> read_entry(const std::string& path, const std::string& name, const json& value) {
  const auto bad = [&](const std::string& problem) {
    return invalid_argument(fmt::format("{}: tensor '{}': {}", path, name, problem), name);
  };
  if (!value.is_object()) return bad(fmt::format("expected an object, found {}", brief(value)));
  for (const auto& [key, unused] : value.items()) {
    if (key != "dtype" && key != "shape" && key != "data_offsets") {
      return bad(fmt::format("unknown key '{}'", key));
    }
  }
  const auto dtype = value.find("dtype");
  if (dtype == value.end() || !dtype->is_string()) return bad("no dtype");
  Result<DType> known = dtype_from_safetensors(dtype->get_ref<const std::string&>());
  if (!known.ok()) {
    return unsupported(fmt::format("{}: tensor '{}': {}", path, name, known.error().message), name);
  }
  const auto shape = value.find("shape");
  if (shape == value.end() || !shape->is_array()) return bad("no shape");
  if (shape->size() > Shape::kMaxRank) {
    return bad(fmt::format("{} dimensions; at most {} are supported", shape->size(),
                           int{Shape::kMaxRank}));
  }
  std::vector<int64_t> dims;
  uint64_t elements = 1;
  for (const json& dim : *shape) {
    if (!dim.is_number_unsigned() || dim.get<uint64_t>() > kMaxElements) {
      return bad(fmt::format("bad shape {}", brief(*shape)));
    }
    const auto size = dim.get<uint64_t>();
    // Both factors are at most 2^48, so their product is first bounded by a division.
    if (size != 0 && elements > kMaxElements / size) {
      return bad(fmt::format("shape {} is too large", brief(*shape)));
    }
    elements *= size;
    dims.push_back(static_cast<int64_t>(size));
  }
  const auto offsets = value.find("data_offsets");
  if (offsets == value.end() || !offsets->is_array() || offsets->size() != 2 ||
      !(*offsets)[0].is_number_unsigned() || !(*offsets)[1].is_number_unsigned()) {
    return bad("data_offsets must be two non-negative integers");
  }
  Entry entry{name, *known, Shape(dims), (*offsets)[0].get<uint64_t>(),
              (*offsets)[1].get<uint64_t>()};
  const uint64_t expected = elements * size_of(entry.dtype);
  if (entry.end < entry.begin || entry.end - entry.begin != expected) {
    return bad(fmt::format("{} {} takes {} bytes, but data_offsets are [{}, {})",
                           to_string(entry.dtype), entry.shape.to_string(), expected, entry.begin,
                           entry.end));
  }
  return entry;
}

// Entries in the order of their data, which they must fill without holes or overlap.
Result<std::vector<Entry>> read_header(const std::string& path, const WholeFile& file) {
  const auto bad = [&](const std::string& problem) {
    return invalid_argument(fmt::format("{}: not a safetensors file: {}", path, problem));
  };
  if (file.size() < 8) return bad(fmt::format("{} bytes long", file.size()));
  uint64_t header_bytes = 0;
  for (int i = 7; i >= 0; --i) header_bytes = header_bytes << 8 | uint64_t(file.data()[i]);
  if (header_bytes > kMaxHeaderBytes) {
    return bad(
        fmt::format("header of {} bytes; at most {} are allowed", header_bytes, kMaxHeaderBytes));
  }
  if (header_bytes > file.size() - 8) {
    return bad(fmt::format("header of {} bytes in a file of {}", header_bytes, file.size()));
  }
  const std::string_view text(reinterpret_cast<const char*>(file.data()) + 8, header_bytes);
  MEDLEY_TRY_ASSIGN(const json header, parse_json(text, path + ": header"));
  if (!header.is_object()) return bad("the header is not an object");

  std::vector<Entry> entries;
  for (const auto& [name, value] : header.items()) {
    if (name == "__metadata__") continue;
    MEDLEY_TRY_ASSIGN(Entry entry, read_entry(path, name, value));
    entries.push_back(std::move(entry));
  }
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    return std::tie(a.begin, a.end) < std::tie(b.begin, b.end);
  });
  const uint64_t data_bytes = file.size() - 8 - header_bytes;
  uint64_t position = 0;
  for (const Entry& entry : entries) {
    if (entry.begin != position || entry.end > data_bytes) {
      return invalid_argument(
          fmt::format("{}: tensor '{}': data_offsets [{}, {}) {}", path, entry.name, entry.begin,
                      entry.end,
                      entry.end > data_bytes
                          ? fmt::format("lie beyond the {} data bytes", data_bytes)
                          : fmt::format("{} the data before, which ends at {}",
                                        entry.begin < position ? "overlap" : "leave a hole after",
                                        position)),
          entry.name);
    }
    position = entry.end;
  }
  if (position != data_bytes) {
    return invalid_argument(
        fmt::format("{}: {} data bytes, of which the tensors take {}", path, data_bytes, position));
  }
  return entries;
}

Result<std::string> read_text(const std::string& path) {
  std::error_code ignored;
  const uintmax_t size = std::filesystem::file_size(path, ignored);
  if (!ignored && size > kMaxIndexBytes) {
    return invalid_argument(fmt::format("{}: {} bytes; at most {}", path, size, kMaxIndexBytes));
  }
  std::ifstream in(path, std::ios::binary);
  std::stringstream text;
  text << in.rdbuf();
  if (!in) return invalid_argument(fmt::format("{}: can't be read", path));
  return text.str();
}

}  // namespace

struct Checkpoint::State {
  std::vector<WholeFile> files;
  std::vector<HostTensor> copies;  // of tensors whose data is not aligned in the file
  TensorMap tensors;
  size_t num_bytes = 0;

  // Returns the names it added.
  Result<std::set<std::string>> add_file(const std::string& path, WholeFile file) {
    MEDLEY_TRY_ASSIGN(const std::vector<Entry> entries, read_header(path, file));
    const uint64_t data_bytes = entries.empty() ? 0 : entries.back().end;
    const std::byte* data = file.data() + (file.size() - data_bytes);
    std::set<std::string> names;
    for (const Entry& entry : entries) {
      const std::byte* begin = data + entry.begin;
      ConstTensorView view(begin, entry.dtype, entry.shape);
      if (reinterpret_cast<uintptr_t>(begin) % size_of(entry.dtype) != 0) {
        HostTensor copy(entry.dtype, entry.shape);
        if (entry.end > entry.begin) {
          std::memcpy(copy.view().data, begin, entry.end - entry.begin);
        }
        view = std::as_const(copy).view();
        copies.push_back(std::move(copy));
      }
      if (!tensors.emplace(entry.name, view).second) {
        return invalid_argument(
            fmt::format("{}: tensor '{}' is in another shard too", path, entry.name), entry.name);
      }
      num_bytes += entry.end - entry.begin;
      names.insert(entry.name);
    }
    files.push_back(std::move(file));
    return names;
  }
};

Checkpoint::Checkpoint(std::unique_ptr<State> state) : state_(std::move(state)) {}
Checkpoint::Checkpoint(Checkpoint&&) noexcept = default;
Checkpoint& Checkpoint::operator=(Checkpoint&&) noexcept = default;
Checkpoint::~Checkpoint() = default;

Result<Checkpoint> Checkpoint::open_file(const std::string& path) {
  auto state = std::make_unique<State>();
  MEDLEY_TRY_ASSIGN(WholeFile file, WholeFile::map(path));
  MEDLEY_TRY(state->add_file(path, std::move(file)));
  return Checkpoint(std::move(state));
}

Result<Checkpoint> Checkpoint::read_file(const std::string& path, const OnBytes& on_bytes) {
  auto state = std::make_unique<State>();
  MEDLEY_TRY_ASSIGN(WholeFile file, WholeFile::copy(path, on_bytes));
  MEDLEY_TRY(state->add_file(path, std::move(file)));
  return Checkpoint(std::move(state));
}

Result<Checkpoint> Checkpoint::open_folder(const std::string& folder) {
  const std::string single = folder + "/model.safetensors";
  if (::access(single.c_str(), F_OK) == 0) return open_file(single);
  const std::string index_path = single + ".index.json";
  if (::access(index_path.c_str(), F_OK) != 0) {
    return not_found(
        fmt::format("{}: neither model.safetensors nor model.safetensors.index.json", folder));
  }
  MEDLEY_TRY_ASSIGN(const std::string text, read_text(index_path));
  MEDLEY_TRY_ASSIGN(const json index, parse_json(text, index_path));
  const auto weight_map = index.is_object() ? index.find("weight_map") : index.end();
  if (weight_map == index.end() || !weight_map->is_object()) {
    return invalid_argument(fmt::format("{}: no weight_map", index_path));
  }
  std::map<std::string, std::vector<std::string>> tensors_of_file;
  for (const auto& [tensor, file] : weight_map->items()) {
    if (!file.is_string() || file.get_ref<const std::string&>().find('/') != std::string::npos) {
      return invalid_argument(fmt::format("{}: tensor '{}': {} is not a file of the folder",
                                          index_path, tensor, brief(file)),
                              tensor);
    }
    tensors_of_file[file.get<std::string>()].push_back(tensor);
  }
  auto state = std::make_unique<State>();
  for (const auto& [file, tensors] : tensors_of_file) {
    const std::string path = fmt::format("{}/{}", folder, file);
    MEDLEY_TRY_ASSIGN(WholeFile shard, WholeFile::map(path));
    MEDLEY_TRY_ASSIGN(const std::set<std::string> found, state->add_file(path, std::move(shard)));
    for (const std::string& tensor : tensors) {
      if (found.contains(tensor)) continue;
      return invalid_argument(fmt::format("{}: tensor '{}' is not in {}", index_path, tensor, file),
                              tensor);
    }
  }
  return Checkpoint(std::move(state));
}

const ConstTensorView* Checkpoint::find(std::string_view name) const {
  const auto found = state_->tensors.find(name);
  return found == state_->tensors.end() ? nullptr : &found->second;
}

std::vector<std::string> Checkpoint::names() const {
  std::vector<std::string> names;
  for (const auto& [name, view] : state_->tensors) names.push_back(name);
  return names;
}

const TensorMap& Checkpoint::tensors() const { return state_->tensors; }

size_t Checkpoint::num_bytes() const { return state_->num_bytes; }

std::span<const std::byte> Checkpoint::file_bytes() const {
  const WholeFile& file = state_->files.at(0);
  return {file.data(), file.size()};
}

}  // namespace medley
