#pragma once

#include <cstddef>
#include <cstdint>

// The C interface of the Rust library; conventions in rust/src/abi.rs. Only ffi.cc uses it.
extern "C" {

struct MedleyBytes {
  const uint8_t* data;
  size_t size;
};

struct MedleySink {
  void* context;
  void (*write)(void* context, const uint8_t* data, size_t size);
};

enum MedleyStatus : int32_t {
  kMedleyOk = 0,
  kMedleyInvalid = 1,
  kMedleyNotFound = 2,
  kMedleyUnsupported = 3,
  kMedleyInternal = 4,
};

struct MedleyJoining {
  uint32_t byte_fallback;
  uint32_t strip_char;
  uint32_t strip_start;
};

struct MedleyTokenizer;
struct MedleyChatTemplate;
struct MedleyHasher;

MedleyStatus medley_tokenizer_load(MedleyBytes path, MedleyTokenizer** out, MedleySink error);
void medley_tokenizer_free(MedleyTokenizer* tokenizer);
MedleyStatus medley_tokenizer_encode(const MedleyTokenizer* tokenizer, MedleyBytes text,
                                     bool add_special_tokens, MedleySink ids, MedleySink error);
MedleyStatus medley_tokenizer_decode(const MedleyTokenizer* tokenizer, const uint32_t* ids,
                                     size_t num_ids, bool skip_special_tokens, MedleySink text,
                                     MedleySink error);
int64_t medley_tokenizer_token_to_id(const MedleyTokenizer* tokenizer, MedleyBytes token);
bool medley_tokenizer_id_to_token(const MedleyTokenizer* tokenizer, uint32_t id, MedleySink token);
MedleyStatus medley_tokenizer_pieces(const MedleyTokenizer* tokenizer, MedleySink bytes,
                                     MedleySink ends, MedleySink flags, MedleyJoining* joining,
                                     MedleySink error);

MedleyStatus medley_chat_template_compile(MedleyBytes source, MedleyChatTemplate** out,
                                          MedleySink error);
void medley_chat_template_free(MedleyChatTemplate* chat_template);
MedleyStatus medley_chat_template_render(const MedleyChatTemplate* chat_template,
                                         MedleyBytes variables, int64_t now, MedleySink text,
                                         MedleySink error);

MedleyHasher* medley_hasher_new();
void medley_hasher_free(MedleyHasher* hasher);
MedleyStatus medley_hasher_update(MedleyHasher* hasher, MedleyBytes bytes, MedleySink error);
MedleyStatus medley_hasher_update_file(MedleyHasher* hasher, MedleyBytes path, MedleySink error);
void medley_hasher_finish(const MedleyHasher* hasher, uint8_t* digest);

}  // extern "C"
