//! Poison around device memory: a write outside of a buffer is found when the buffer is freed.
//!
//! For tests and verification. [`DeviceBuffer`](super::DeviceBuffer) is memory for those who have no allocator of
//! their own; users' tensors come from elsewhere and are never touched.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use super::driver;
use crate::error::DriverError;

/// More than a block of threads would overrun a buffer by at once, and a multiple of any alignment.
const GUARD_BYTES: usize = 1024;
/// NaN in every format: what is read from it shows in the result.
const POISON: u8 = 0xFF;

static GUARDED: AtomicBool = AtomicBool::new(false);
static BROKEN: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Puts poison on both sides of every buffer that this process allocates from now on.
pub fn guard_allocations() {
    GUARDED.store(true, Ordering::Relaxed);
}

/// Takes the reports of out-of-bounds writes around buffers that were freed since the last call.
#[must_use]
pub fn broken_guards() -> Vec<String> {
    std::mem::take(&mut BROKEN.lock().unwrap_or_else(PoisonError::into_inner))
}

/// The bytes on each side of an allocation.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Guard {
    bytes: usize,
}

impl Guard {
    /// What allocations get now.
    pub(super) fn now() -> Self {
        Self { bytes: if GUARDED.load(Ordering::Relaxed) { GUARD_BYTES } else { 0 } }
    }

    /// Bytes to allocate for a buffer of `bytes`; `None` past the address space.
    pub(super) fn around(self, bytes: usize) -> Option<usize> {
        bytes.checked_add(2 * self.bytes)
    }

    /// Poisons both sides of an allocation; returns where the buffer starts.
    ///
    /// # Safety
    /// The context is current and `base` is an allocation of [`Guard::around`] `bytes` that is not in use yet.
    pub(super) unsafe fn raise(self, base: u64, bytes: usize) -> Result<u64, DriverError> {
        let address = base + self.bytes as u64;
        if self.bytes > 0 {
            // SAFETY: both ranges lie inside of the allocation.
            unsafe {
                driver!(cuMemsetD8_v2(base, POISON, self.bytes))?;
                driver!(cuMemsetD8_v2(address + bytes as u64, POISON, self.bytes))?;
            }
        }
        Ok(address)
    }

    /// The allocation around a buffer, after a look at its sides.
    ///
    /// # Safety
    /// The context is current and `address` is what [`Guard::raise`] returned for `bytes`.
    pub(super) unsafe fn lower(self, address: u64, bytes: usize) -> u64 {
        if self.bytes > 0 {
            // SAFETY: passed on from the caller. A context that is lost has worse to tell than its guards.
            let found = unsafe { self.look(address, bytes) };
            if let Ok(Some(place)) = found {
                let words = format!("a buffer of {bytes} bytes was written {place}");
                BROKEN.lock().unwrap_or_else(PoisonError::into_inner).push(words);
            }
        }
        address - self.bytes as u64
    }

    /// # Safety
    /// As [`Guard::lower`].
    unsafe fn look(self, address: u64, bytes: usize) -> Result<Option<String>, DriverError> {
        let (mut before, mut behind) = (vec![0u8; self.bytes], vec![0u8; self.bytes]);
        let base = address - self.bytes as u64;
        // SAFETY: the synchronization waits for every kernel that may still write; both ranges lie inside of the allocation.
        unsafe {
            driver!(cuCtxSynchronize())?;
            driver!(cuMemcpyDtoH_v2(before.as_mut_ptr().cast(), base, self.bytes))?;
            let end = address + bytes as u64;
            driver!(cuMemcpyDtoH_v2(behind.as_mut_ptr().cast(), end, self.bytes))?;
        }
        Ok(trespass(&before, &behind))
    }
}

/// Where poison is gone, nearest to the buffer first.
fn trespass(before: &[u8], behind: &[u8]) -> Option<String> {
    let is_hit = |byte: &u8| *byte != POISON;
    if let Some(at) = behind.iter().position(is_hit) {
        return Some(format!("{at} bytes behind its end"));
    }
    let at = before.iter().rposition(is_hit)?;
    Some(format!("{} bytes before its start", before.len() - at))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_write_on_either_side_is_named() {
        let whole = [POISON; 16];
        assert_eq!(trespass(&whole, &whole), None);
        let mut hit = whole;
        hit[3] = 0;
        assert_eq!(trespass(&whole, &hit).unwrap(), "3 bytes behind its end");
        assert_eq!(trespass(&hit, &whole).unwrap(), "13 bytes before its start");
    }

    #[test]
    fn nothing_is_added_unless_asked_for() {
        assert_eq!(Guard::default().around(12), Some(12));
        assert_eq!(Guard { bytes: 256 }.around(12), Some(524));
        assert_eq!(Guard { bytes: 256 }.around(usize::MAX), None);
    }
}
