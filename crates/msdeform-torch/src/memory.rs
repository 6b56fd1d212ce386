//! Addresses that are handed over, as the slices that the library works on.

use half::{bf16, f16};
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
/// Unless it is null, the address leads to `len` elements of `dtype` that live for `'a` and that nobody
/// writes to meanwhile.
pub unsafe fn slice<'a>(
    tensor: &'static str,
    dtype: DType,
    address: usize,
    len: usize,
) -> Result<Slice<'a>, CallError> {
    /// # Safety
    /// As of [`slice`].
    unsafe fn typed<'a, T>(
        tensor: &'static str,
        address: usize,
        len: usize,
    ) -> Result<&'a [T], CallError> {
        let pointer = pointer::<T>(tensor, address, len)?;
        // SAFETY: not null, aligned; the caller answers for length and life.
        Ok(unsafe { std::slice::from_raw_parts(pointer, len) })
    }
    // SAFETY: the caller's promise, in the format it names.
    unsafe {
        Ok(match dtype {
            DType::F32 => Slice::F32(typed::<f32>(tensor, address, len)?),
            DType::F16 => Slice::F16(typed::<f16>(tensor, address, len)?),
            DType::Bf16 => Slice::Bf16(typed::<bf16>(tensor, address, len)?),
            DType::F64 => Slice::F64(typed::<f64>(tensor, address, len)?),
        })
    }
}

/// A tensor to write.
///
/// # Safety
/// As of [`slice`], and nobody else reads or writes it meanwhile.
pub unsafe fn slice_mut<'a>(
    tensor: &'static str,
    dtype: DType,
    address: usize,
    len: usize,
) -> Result<SliceMut<'a>, CallError> {
    /// # Safety
    /// As of [`slice_mut`].
    unsafe fn typed<'a, T>(
        tensor: &'static str,
        address: usize,
        len: usize,
    ) -> Result<&'a mut [T], CallError> {
        let pointer = pointer::<T>(tensor, address, len)?;
        // SAFETY: not null, aligned; the caller answers for length, life and exclusiveness. Every bit
        // pattern is a number, so memory that was never written is no problem.
        Ok(unsafe { std::slice::from_raw_parts_mut(pointer, len) })
    }
    // SAFETY: the caller's promise, in the format it names.
    unsafe {
        Ok(match dtype {
            DType::F32 => SliceMut::F32(typed::<f32>(tensor, address, len)?),
            DType::F16 => SliceMut::F16(typed::<f16>(tensor, address, len)?),
            DType::Bf16 => SliceMut::Bf16(typed::<bf16>(tensor, address, len)?),
            DType::F64 => SliceMut::F64(typed::<f64>(tensor, address, len)?),
        })
    }
}
