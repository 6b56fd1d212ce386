//! Addresses that are handed over, as the slices that the library works on.

use std::slice::{from_raw_parts, from_raw_parts_mut};

use msdeform::{DType, Slice, SliceMut};

use crate::error::CallError;

/// `len` elements at an address. An empty tensor may have any address, an ordinary one must not be null.
fn pointer<T>(tensor: &'static str, address: usize, len: usize) -> Result<*mut T, CallError> {
    match (address, len) {
        (_, 0) => Ok(std::ptr::NonNull::dangling().as_ptr()),
        (0, _) => Err(CallError::NoMemory { tensor }),
        // Not null and not aligned cannot come from PyTorch or from a NumPy array that owns its memory.
        _ if !address.is_multiple_of(align_of::<T>()) => {
            Err(msdeform_cuda::Error::MisalignedElement {
                tensor,
                address: address as u64,
                element_bytes: size_of::<T>(),
            }
            .into())
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
) -> Result<Slice<'a>, CallError> {
    // SAFETY: not null, aligned; the caller answers for length and life, in the format it names.
    unsafe {
        Ok(match dtype {
            DType::F32 => Slice::F32(from_raw_parts(pointer(tensor, address, len)?, len)),
            DType::F16 => Slice::F16(from_raw_parts(pointer(tensor, address, len)?, len)),
            DType::Bf16 => Slice::Bf16(from_raw_parts(pointer(tensor, address, len)?, len)),
            DType::F64 => Slice::F64(from_raw_parts(pointer(tensor, address, len)?, len)),
        })
    }
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
) -> Result<SliceMut<'a>, CallError> {
    // SAFETY: not null, aligned; the caller answers for length, life and exclusiveness, in the format it names. Every bit
    // pattern is a number, so memory that was never written is no problem.
    unsafe {
        Ok(match dtype {
            DType::F32 => SliceMut::F32(from_raw_parts_mut(pointer(tensor, address, len)?, len)),
            DType::F16 => SliceMut::F16(from_raw_parts_mut(pointer(tensor, address, len)?, len)),
            DType::Bf16 => SliceMut::Bf16(from_raw_parts_mut(pointer(tensor, address, len)?, len)),
            DType::F64 => SliceMut::F64(from_raw_parts_mut(pointer(tensor, address, len)?, len)),
        })
    }
}
