//! Conventions of the C interface, mirrored by src/ffi/abi.h.
//!
//! Bytes come in as `Bytes` (borrowed for the call) and go out through a `Sink`, which copies them
//! on the C++ side, so no memory changes hands. Handles are boxes freed by their own function.
//! A function that can fail returns a `Status` and writes its message to an error sink; a panic
//! becomes `Status::Internal` and never unwinds into C++.

use std::ffi::c_void;
use std::panic::{catch_unwind, AssertUnwindSafe};

#[repr(C)]
#[derive(Clone, Copy)]
pub struct Bytes {
    data: *const u8,
    size: usize,
}

impl Bytes {
    /// The caller keeps the bytes alive and unchanged for the duration of the call.
    pub unsafe fn get<'a>(self) -> &'a [u8] {
        if self.size == 0 {
            &[]
        } else {
            std::slice::from_raw_parts(self.data, self.size)
        }
    }

    pub unsafe fn text<'a>(self, what: &str) -> Result<&'a str, Failure> {
        std::str::from_utf8(self.get()).map_err(|e| {
            Failure::invalid(format!("{what} is not valid UTF-8 at byte {}", e.valid_up_to()))
        })
    }
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct Sink {
    context: *mut c_void,
    write: extern "C" fn(*mut c_void, *const u8, usize),
}

impl Sink {
    pub fn put(self, bytes: &[u8]) {
        (self.write)(self.context, bytes.as_ptr(), bytes.len());
    }

    /// Native byte order.
    pub fn put_u32s(self, values: &[u32]) {
        (self.write)(self.context, values.as_ptr().cast(), std::mem::size_of_val(values));
    }
}

#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Status {
    Ok = 0,
    Invalid = 1,
    NotFound = 2,
    Unsupported = 3,
    Internal = 4,
}

pub struct Failure {
    pub status: Status,
    pub message: String,
}

impl Failure {
    pub fn invalid(message: impl Into<String>) -> Self {
        Failure { status: Status::Invalid, message: message.into() }
    }

    pub fn unsupported(message: impl Into<String>) -> Self {
        Failure { status: Status::Unsupported, message: message.into() }
    }

    pub fn of_file(path: &str, error: &std::io::Error) -> Self {
        let status = match error.kind() {
            std::io::ErrorKind::NotFound => Status::NotFound,
            _ => Status::Invalid,
        };
        Failure { status, message: format!("cannot read {path}: {error}") }
    }
}

pub fn guarded(error: Sink, body: impl FnOnce() -> Result<(), Failure>) -> Status {
    let failure = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => return Status::Ok,
        Ok(Err(failure)) => failure,
        Err(panic) => Failure {
            status: Status::Internal,
            message: format!("panic in the Rust library: {}", panic_text(panic.as_ref())),
        },
    };
    error.put(failure.message.as_bytes());
    failure.status
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> &str {
    if let Some(text) = panic.downcast_ref::<&str>() {
        text
    } else if let Some(text) = panic.downcast_ref::<String>() {
        text
    } else {
        "no message"
    }
}
