//! Tensor maps: descriptions of tensors for the copy engine of compute capability 9.0 and later.

use std::ffi::c_void;

use crate::preamble::TileMap;
use cudarc::driver::sys;
use msdeform_cuda::{DriverError, driver};

/// A map as the hardware reads it.
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug)]
pub struct EncodedMap(sys::CUtensorMap);

impl EncodedMap {
    /// Words of a map.
    pub const WORDS: usize = size_of::<Self>() / size_of::<u64>();

    /// Its words.
    pub const fn words(&self) -> [u64; Self::WORDS] {
        self.0.opaque
    }

    /// All zeros, for the unused entries of a parameter.
    pub fn unused() -> Self {
        // SAFETY: an opaque array of integers.
        Self(unsafe { std::mem::zeroed() })
    }

    /// Asks the driver for the map of a tensor at an address. The driver does not read the tensor.
    ///
    /// # Errors
    /// The driver's error: an address or stride that is no multiple of 16, or a GPU without a copy engine.
    pub fn new(address: u64, map: &TileMap) -> Result<Self, DriverError> {
        let format = match map.element_bytes {
            2 => sys::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
            4 => sys::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_FLOAT32,
            _ => sys::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_UINT8,
        };
        let sizes: Vec<u64> = map.size.iter().map(|&size| u64::from(size)).collect();
        let steps = vec![1_u32; sizes.len()];
        let mut encoded = Self::unused();
        // SAFETY: `encoded` is writable and aligned to 64; the arrays have one entry per dimension (the
        // strides one less) and outlive the call; the driver only stores the address.
        unsafe {
            driver!(cuTensorMapEncodeTiled(
                &raw mut encoded.0,
                format,
                map.size.len() as u32,
                (address + map.offset_bytes) as *mut c_void,
                sizes.as_ptr(),
                map.stride_bytes.as_ptr(),
                map.tile.as_ptr(),
                steps.as_ptr(),
                sys::CUtensorMapInterleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
                sys::CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_NONE,
                sys::CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
                sys::CUtensorMapFloatOOBfill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
            ))
        }?;
        Ok(encoded)
    }
}
