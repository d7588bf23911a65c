#include "ffi/ffi.h"

#include <cstring>

#include <fmt/format.h>

#include "ffi/abi.h"

namespace medley::ffi {
namespace {

MedleyBytes bytes_of(std::string_view text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

MedleySink sink_to(std::string& out) {
  return {&out, [](void* context, const uint8_t* data, size_t size) {
            static_cast<std::string*>(context)->assign(reinterpret_cast<const char*>(data), size);
          }};
}

template <class T>
MedleySink sink_to(std::vector<T>& out) {
  return {&out, [](void* context, const uint8_t* data, size_t size) {
            auto& values = *static_cast<std::vector<T>*>(context);
            values.resize(size / sizeof(T));
            if (size != 0) std::memcpy(values.data(), data, size);
          }};
}

Error error_of(MedleyStatus status, std::string message) {
  switch (status) {
    case kMedleyInvalid:
      return invalid_argument(std::move(message));
    case kMedleyNotFound:
      return not_found(std::move(message));
    case kMedleyUnsupported:
      return unsupported(std::move(message));
    case kMedleyOk:
    case kMedleyInternal:
      break;
  }
  return internal_error(std::move(message));
}

}  // namespace

std::string_view TokenPieces::bytes(int32_t id) const {
  if (id < 0 || static_cast<size_t>(id) >= num_ids()) return {};
  const uint32_t begin = id == 0 ? 0 : ends_[id - 1];
  return std::string_view(bytes_).substr(begin, ends_[id] - begin);
}

bool TokenPieces::has(int32_t id, Flag flag) const {
  if (id < 0 || static_cast<size_t>(id) >= num_ids()) return flag == kAbsent;
  return (flags_[id] & flag) != 0;
}

void Tokenizer::Free::operator()(MedleyTokenizer* handle) const { medley_tokenizer_free(handle); }

Result<Tokenizer> Tokenizer::load(const std::string& path) {
  std::string error;
  MedleyTokenizer* raw = nullptr;
  MedleyStatus status = medley_tokenizer_load(bytes_of(path), &raw, sink_to(error));
  if (status != kMedleyOk) return error_of(status, std::move(error));
  Handle handle(raw);

  auto pieces = std::make_unique<TokenPieces>();
  MedleyJoining joining{};
  status = medley_tokenizer_pieces(raw, sink_to(pieces->bytes_), sink_to(pieces->ends_),
                                   sink_to(pieces->flags_), &joining, sink_to(error));
  if (status != kMedleyOk) return error_of(status, fmt::format("{}: {}", path, error));
  pieces->byte_fallback_ = joining.byte_fallback != 0;
  pieces->strip_char_ = joining.strip_char;
  pieces->strip_start_ = joining.strip_start;
  return Tokenizer(std::move(handle), std::move(pieces));
}

Result<std::vector<int32_t>> Tokenizer::encode(std::string_view text,
                                               bool add_special_tokens) const {
  std::vector<int32_t> ids;
  std::string error;
  const MedleyStatus status = medley_tokenizer_encode(
      handle_.get(), bytes_of(text), add_special_tokens, sink_to(ids), sink_to(error));
  if (status != kMedleyOk) return error_of(status, std::move(error));
  return ids;
}

Result<std::string> Tokenizer::decode(std::span<const int32_t> ids,
                                      bool skip_special_tokens) const {
  std::string text;
  std::string error;
  const MedleyStatus status =
      medley_tokenizer_decode(handle_.get(), reinterpret_cast<const uint32_t*>(ids.data()),
                              ids.size(), skip_special_tokens, sink_to(text), sink_to(error));
  if (status != kMedleyOk) return error_of(status, std::move(error));
  return text;
}

std::optional<int32_t> Tokenizer::token_to_id(std::string_view token) const {
  const int64_t id = medley_tokenizer_token_to_id(handle_.get(), bytes_of(token));
  if (id < 0) return std::nullopt;
  return static_cast<int32_t>(id);
}

std::optional<std::string> Tokenizer::id_to_token(int32_t id) const {
  std::string token;
  if (!medley_tokenizer_id_to_token(handle_.get(), static_cast<uint32_t>(id), sink_to(token)))
    return std::nullopt;
  return token;
}

void ChatTemplate::Free::operator()(MedleyChatTemplate* handle) const {
  medley_chat_template_free(handle);
}

Result<ChatTemplate> ChatTemplate::compile(std::string_view source) {
  std::string error;
  MedleyChatTemplate* raw = nullptr;
  const MedleyStatus status = medley_chat_template_compile(bytes_of(source), &raw, sink_to(error));
  if (status != kMedleyOk) return error_of(status, std::move(error));
  return ChatTemplate(Handle(raw));
}

Result<std::string> ChatTemplate::render(std::string_view variables_json,
                                         int64_t now_seconds) const {
  std::string text;
  std::string error;
  const MedleyStatus status = medley_chat_template_render(
      handle_.get(), bytes_of(variables_json), now_seconds, sink_to(text), sink_to(error));
  if (status != kMedleyOk) return error_of(status, std::move(error));
  return text;
}

void Blake3Hasher::Free::operator()(MedleyHasher* handle) const { medley_hasher_free(handle); }

Blake3Hasher::Blake3Hasher() : handle_(medley_hasher_new()) {}

void Blake3Hasher::update(std::span<const std::byte> bytes) {
  std::string error;
  const MedleyBytes view{reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()};
  const MedleyStatus status = medley_hasher_update(handle_.get(), view, sink_to(error));
  MEDLEY_CHECK(status == kMedleyOk, error);
}

Result<void> Blake3Hasher::update_file(const std::string& path) {
  std::string error;
  const MedleyStatus status =
      medley_hasher_update_file(handle_.get(), bytes_of(path), sink_to(error));
  if (status != kMedleyOk) return error_of(status, std::move(error));
  return {};
}

Blake3Digest Blake3Hasher::finish() const {
  Blake3Digest digest;
  medley_hasher_finish(handle_.get(), digest.data());
  return digest;
}

Blake3Digest blake3(std::span<const std::byte> bytes) {
  Blake3Hasher hasher;
  hasher.update(bytes);
  return hasher.finish();
}

Result<Blake3Digest> blake3_file(const std::string& path) {
  Blake3Hasher hasher;
  MEDLEY_TRY(hasher.update_file(path));
  return hasher.finish();
}

std::string to_hex(const Blake3Digest& digest) {
  std::string text;
  text.reserve(2 * digest.size());
  for (const uint8_t byte : digest) text += fmt::format("{:02x}", byte);
  return text;
}

}  // namespace medley::ffi
