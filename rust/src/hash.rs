//! BLAKE3 (https://github.com/BLAKE3-team/BLAKE3-specs), on all cores for large input.

use crate::abi::{guarded, Bytes, Failure, Sink, Status};

#[no_mangle]
pub extern "C" fn medley_hasher_new() -> *mut blake3::Hasher {
    Box::into_raw(Box::new(blake3::Hasher::new()))
}

#[no_mangle]
pub unsafe extern "C" fn medley_hasher_free(hasher: *mut blake3::Hasher) {
    drop(Box::from_raw(hasher));
}

#[no_mangle]
pub unsafe extern "C" fn medley_hasher_update(
    hasher: *mut blake3::Hasher,
    bytes: Bytes,
    error: Sink,
) -> Status {
    guarded(error, || {
        // Below this size threads cost more than they save (crate documentation).
        const PARALLEL_BYTES: usize = 128 * 1024;
        let bytes = bytes.get();
        if bytes.len() < PARALLEL_BYTES {
            (*hasher).update(bytes);
        } else {
            (*hasher).update_rayon(bytes);
        }
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn medley_hasher_update_file(
    hasher: *mut blake3::Hasher,
    path: Bytes,
    error: Sink,
) -> Status {
    guarded(error, || {
        let path = path.text("the path")?;
        (*hasher).update_mmap_rayon(path).map_err(|e| Failure::of_file(path, &e))?;
        Ok(())
    })
}

/// Writes 32 bytes; the hasher may go on afterwards.
#[no_mangle]
pub unsafe extern "C" fn medley_hasher_finish(hasher: *const blake3::Hasher, digest: *mut u8) {
    let hash = (*hasher).finalize();
    std::ptr::copy_nonoverlapping(hash.as_bytes().as_ptr(), digest, 32);
}
