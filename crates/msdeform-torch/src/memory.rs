//! Addresses that are handed over, as the slices that the library works on.

use std::ffi::c_void;

use msdeform::{DType, TensorView, TensorViewMut};

use crate::error::CallError;

/// The address of `len` elements. An empty tensor may have any address, an ordinary one must not be null.
fn pointer(
    tensor: &'static str,
    dtype: DType,
    address: usize,
    len: usize,
) -> Result<*mut c_void, CallError> {
    let element_bytes = dtype.size_bytes();
    match (address, len) {
        (0, 1..) => Err(CallError::NoMemory { tensor }),
        // Not null and not aligned cannot come from PyTorch or from a NumPy array that owns its memory.
        (_, 1..) if !address.is_multiple_of(element_bytes) => {
            let address = address as u64;
            Err(msdeform_cuda::Error::MisalignedElement { tensor, address, element_bytes }.into())
        }
        _ => Ok(std::ptr::with_exposed_provenance_mut(address)),
    }
}

/// A tensor to read.
///
/// # Safety
/// Unless it is null, the address leads to `len` elements of `dtype` that live for `'a`. No code writes
/// to them meanwhile.
pub unsafe fn slice<'a>(
    tensor: &'static str,
    dtype: DType,
    address: usize,
    len: usize,
) -> Result<TensorView<'a>, CallError> {
    let data = pointer(tensor, dtype, address, len)?;
    // SAFETY: neither null nor misaligned; the caller answers for length, life and dtype.
    Ok(unsafe { TensorView::from_raw_parts(dtype, data, len) })
}

/// A tensor to write.
///
/// # Safety
/// As for [`slice`], and no other code reads or writes the elements meanwhile.
pub unsafe fn slice_mut<'a>(
    tensor: &'static str,
    dtype: DType,
    address: usize,
    len: usize,
) -> Result<TensorViewMut<'a>, CallError> {
    let data = pointer(tensor, dtype, address, len)?;
    // SAFETY: neither null nor misaligned; the caller answers for length, life, exclusiveness and dtype.
    Ok(unsafe { TensorViewMut::from_raw_parts(dtype, data, len) })
}
