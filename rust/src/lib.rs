//! The C interface behind src/ffi/ffi.h. `abi` holds the conventions shared by all functions.

mod abi;
mod chat_template;
mod hash;
mod python_text;
mod tokenizer;
