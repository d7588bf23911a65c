//! Hugging Face tokenizers (tokenizer.json), and the table of pieces from which the C++ side
//! decodes incrementally.

use std::path::Path;
use std::str::FromStr;

use tokenizers::decoders::DecoderWrapper;
use tokenizers::tokenizer::Decoder;

use crate::abi::{guarded, Bytes, Failure, Sink, Status};

pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
}

const PIECE_SPECIAL: u8 = 1;
const PIECE_BYTE: u8 = 2;
const PIECE_ABSENT: u8 = 4;

/// How pieces join to text; see src/ffi/ffi.h.
#[repr(C)]
#[derive(Default)]
pub struct Joining {
    byte_fallback: u32,
    strip_char: u32,
    strip_start: u32,
}

#[no_mangle]
pub unsafe extern "C" fn medley_tokenizer_load(
    path: Bytes,
    out: *mut *mut Tokenizer,
    error: Sink,
) -> Status {
    guarded(error, || {
        let path = path.text("the path")?;
        let text =
            std::fs::read_to_string(Path::new(path)).map_err(|e| Failure::of_file(path, &e))?;
        let mut inner = tokenizers::Tokenizer::from_str(&text)
            .map_err(|e| Failure::invalid(format!("{path} is not a tokenizer: {e}")))?;
        inner
            .with_truncation(None)
            .map_err(|e| Failure::invalid(format!("{path}: {e}")))?
            .with_padding(None);
        *out = Box::into_raw(Box::new(Tokenizer { inner }));
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn medley_tokenizer_free(tokenizer: *mut Tokenizer) {
    drop(Box::from_raw(tokenizer));
}

#[no_mangle]
pub unsafe extern "C" fn medley_tokenizer_encode(
    tokenizer: *const Tokenizer,
    text: Bytes,
    add_special_tokens: bool,
    ids: Sink,
    error: Sink,
) -> Status {
    guarded(error, || {
        let text = text.text("the text")?;
        let encoding = (*tokenizer)
            .inner
            .encode_fast(text, add_special_tokens)
            .map_err(|e| Failure::invalid(format!("cannot tokenize: {e}")))?;
        ids.put_u32s(encoding.get_ids());
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn medley_tokenizer_decode(
    tokenizer: *const Tokenizer,
    ids: *const u32,
    num_ids: usize,
    skip_special_tokens: bool,
    text: Sink,
    error: Sink,
) -> Status {
    guarded(error, || {
        let ids = if num_ids == 0 { &[] } else { std::slice::from_raw_parts(ids, num_ids) };
        let decoded = (*tokenizer)
            .inner
            .decode(ids, skip_special_tokens)
            .map_err(|e| Failure::invalid(format!("cannot decode: {e}")))?;
        text.put(decoded.as_bytes());
        Ok(())
    })
}

/// The id, or -1 where the vocabulary has no such token.
#[no_mangle]
pub unsafe extern "C" fn medley_tokenizer_token_to_id(
    tokenizer: *const Tokenizer,
    token: Bytes,
) -> i64 {
    match std::str::from_utf8(token.get()) {
        Ok(token) => (*tokenizer).inner.token_to_id(token).map_or(-1, i64::from),
        Err(_) => -1,
    }
}

/// Writes nothing and returns false where no token has this id.
#[no_mangle]
pub unsafe extern "C" fn medley_tokenizer_id_to_token(
    tokenizer: *const Tokenizer,
    id: u32,
    token: Sink,
) -> bool {
    match (*tokenizer).inner.id_to_token(id) {
        Some(text) => {
            token.put(text.as_bytes());
            true
        }
        None => false,
    }
}

/// One entry per id up to the highest: `bytes` concatenated, `ends[id]` the end of its bytes, and
/// one flag byte. The sinks are written once each.
#[no_mangle]
pub unsafe extern "C" fn medley_tokenizer_pieces(
    tokenizer: *const Tokenizer,
    bytes: Sink,
    ends: Sink,
    flags: Sink,
    joining: *mut Joining,
    error: Sink,
) -> Status {
    guarded(error, || {
        let inner = &(*tokenizer).inner;
        let plan = PiecePlan::of(inner.get_decoder())?;
        let num_ids = inner.get_vocab(true).values().max().map_or(0, |id| *id as usize + 1);
        let added = inner.get_added_vocabulary();
        let mut all_bytes = Vec::new();
        let mut all_ends = Vec::with_capacity(num_ids);
        let mut all_flags = Vec::with_capacity(num_ids);
        for id in 0..num_ids as u32 {
            let mut flag = PIECE_ABSENT;
            if let Some(token) = inner.id_to_token(id) {
                flag = if added.is_special_token(&token) { PIECE_SPECIAL } else { 0 };
                if plan.append(token, &mut all_bytes)? {
                    flag |= PIECE_BYTE;
                }
            }
            all_flags.push(flag);
            all_ends.push(all_bytes.len() as u32);
        }
        bytes.put(&all_bytes);
        ends.put_u32s(&all_ends);
        flags.put(&all_flags);
        *joining = plan.joining;
        Ok(())
    })
}

/// The decoder of a tokenizer.json, split into a step per token and a rule for joining.
struct PiecePlan<'a> {
    byte_of_char: Option<Vec<Option<u8>>>,
    replaces: Vec<&'a DecoderWrapper>,
    joining: Joining,
}

impl<'a> PiecePlan<'a> {
    fn of(decoder: Option<&'a DecoderWrapper>) -> Result<Self, Failure> {
        let decoder = decoder.ok_or_else(|| {
            Failure::unsupported("a tokenizer.json without decoder is not supported")
        })?;
        let mut plan =
            PiecePlan { byte_of_char: None, replaces: Vec::new(), joining: Joining::default() };
        let steps = match decoder {
            DecoderWrapper::Sequence(sequence) => sequence.get_decoders(),
            single => std::slice::from_ref(single),
        };
        let mut fused = false;
        for step in steps {
            let per_token =
                !fused && plan.byte_of_char.is_none() && plan.joining.byte_fallback == 0;
            match step {
                DecoderWrapper::ByteLevel(_) if per_token && plan.replaces.is_empty() => {
                    plan.byte_of_char = Some(byte_level_table());
                }
                DecoderWrapper::Replace(_) if per_token => plan.replaces.push(step),
                DecoderWrapper::ByteFallback(_) if per_token => plan.joining.byte_fallback = 1,
                DecoderWrapper::Fuse(_) => fused = true,
                DecoderWrapper::Strip(strip)
                    if fused && strip.stop == 0 && plan.joining.strip_start == 0 =>
                {
                    plan.joining.strip_char = strip.content as u32;
                    plan.joining.strip_start = strip.start as u32;
                }
                _ => {
                    return Err(Failure::unsupported(format!(
                        "this decoder of tokenizer.json is not supported: expected ByteLevel, or a \
                         sequence of Replace, ByteFallback, Fuse, Strip (start only); found {}",
                        serde_json::to_string(decoder).unwrap_or_default()
                    )))
                }
            }
        }
        Ok(plan)
    }

    /// True when the token stands for one raw byte.
    fn append(&self, token: String, out: &mut Vec<u8>) -> Result<bool, Failure> {
        if let Some(table) = &self.byte_of_char {
            let mapped: Option<Vec<u8>> =
                token.chars().map(|c| table.get(c as usize).copied().flatten()).collect();
            out.extend(mapped.unwrap_or_else(|| token.into_bytes()));
            return Ok(false);
        }
        let mut tokens = vec![token];
        for replace in &self.replaces {
            tokens = replace
                .decode_chain(tokens)
                .map_err(|e| Failure::invalid(format!("cannot decode a token: {e}")))?;
        }
        let token = tokens.concat();
        if self.joining.byte_fallback == 1 {
            if let Some(byte) = fallback_byte(&token) {
                out.push(byte);
                return Ok(true);
            }
        }
        out.extend_from_slice(token.as_bytes());
        Ok(false)
    }
}

fn fallback_byte(token: &str) -> Option<u8> {
    if token.len() != 6 || !token.starts_with("<0x") || !token.ends_with('>') {
        return None;
    }
    u8::from_str_radix(token.get(3..5)?, 16).ok()
}

/// GPT-2's byte alphabet: printable Latin-1 bytes stand for themselves, the others for the
/// characters from U+0100 on, in order (openai/gpt-2, src/encoder.py).
fn byte_level_table() -> Vec<Option<u8>> {
    let mut table = vec![None; 512];
    let mut next = 256;
    for byte in 0..=255u8 {
        if matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF) {
            table[byte as usize] = Some(byte);
        } else {
            table[next] = Some(byte);
            next += 1;
        }
    }
    table
}
