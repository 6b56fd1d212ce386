//! What the driver knows about a pointer that somebody hands us.

use cudarc::driver::sys::{self, CUpointer_attribute_enum as Attribute};

use super::{Context, driver};
use crate::error::{Error, Result};

/// Refuses a pointer that is not memory of the context's device, or whose allocation is known to end
/// before `bytes` bytes. Asks the driver; takes well under a microsecond.
pub(crate) fn check_pointer(
    context: &Context,
    tensor: &'static str,
    address: u64,
    bytes: usize,
) -> Result<()> {
    // Zeros are what the driver leaves for memory it does not know.
    let (mut memory_type, mut ordinal, mut managed, mut plain) = (0u32, 0i32, 0u32, 0u32);
    let (mut range_start, mut range_bytes) = (0u64, 0usize);
    let mut attributes = [
        Attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
        Attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
        Attribute::CU_POINTER_ATTRIBUTE_IS_MANAGED,
        Attribute::CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE,
        Attribute::CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
        Attribute::CU_POINTER_ATTRIBUTE_RANGE_SIZE,
    ];
    let mut places: [*mut std::ffi::c_void; 6] = [
        (&raw mut memory_type).cast(),
        (&raw mut ordinal).cast(),
        (&raw mut managed).cast(),
        (&raw mut plain).cast(),
        (&raw mut range_start).cast(),
        (&raw mut range_bytes).cast(),
    ];
    let _entered = context.enter()?;
    // SAFETY: six attributes and six places, each at least as large as the documented type; any
    // number may be asked about.
    unsafe {
        driver!(cuPointerGetAttributes(6, attributes.as_mut_ptr(), places.as_mut_ptr(), address))
    }?;
    let is_device = memory_type == sys::CUmemorytype_enum::CU_MEMORYTYPE_DEVICE as u32;
    if !is_device && managed == 0 {
        return Err(Error::HostPointer { tensor, address });
    }
    let expected = context.ordinal();
    if managed == 0
        && let Ok(found) = usize::try_from(ordinal)
        && found != expected
    {
        return Err(Error::WrongDevice { what: tensor, expected, found });
    }
    // Memory mapped piece by piece (PyTorch's expandable segments) has a range per piece, which tells
    // nothing about the tensor; plain allocations have one range.
    if plain != 0 && range_bytes > 0 {
        let found = (range_start + range_bytes as u64).saturating_sub(address) as usize;
        if found < bytes {
            return Err(Error::BufferTooSmall { tensor, required: bytes, found });
        }
    }
    Ok(())
}
