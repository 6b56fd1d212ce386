//! PyTorch's tensors through its `DLPack` exchange table: C functions that describe a tensor without a Python
//! object in between.
//!
//! The layout is that of `dlpack.h`, version 1; a newer major version may have another and is refused.

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;

use msdeform::DType;
use msdeform_torch::call::{Described, Place};
use pyo3::ffi::PyObject;

const MAJOR_VERSION: u32 = 1;
const CPU: i32 = 1;
const CUDA: i32 = 2;
const FLOAT: u8 = 2;
const BFLOAT: u8 = 4;

/// The table, `DLPackExchangeAPI`. Members that are not used here stand for their place.
#[repr(C)]
pub struct Exchange {
    major: u32,
    minor: u32,
    previous: *const Self,
    allocate: *const c_void,
    managed_from_object: *const c_void,
    object_from_managed: *const c_void,
    describe: Option<unsafe extern "C" fn(*mut PyObject, *mut DlTensor) -> c_int>,
    current_stream: Option<unsafe extern "C" fn(i32, i32, *mut *mut c_void) -> c_int>,
}

// SAFETY: the table is constant, and its functions may be called from any thread that holds the interpreter.
unsafe impl Send for Exchange {}
// SAFETY: as above.
unsafe impl Sync for Exchange {}

impl Exchange {
    /// The table at an address, or the one of a known version that it names as its predecessor.
    ///
    /// # Safety
    /// `table` is null or leads to an exchange table that is never freed.
    pub unsafe fn find(table: *const c_void) -> Option<&'static Self> {
        let mut table = table.cast::<Self>();
        loop {
            // SAFETY: the version and the predecessor come first in every version of the table.
            let (major, previous) = unsafe {
                if table.is_null() {
                    return None;
                }
                ((*table).major, (*table).previous)
            };
            if major == MAJOR_VERSION {
                // SAFETY: of this version, and the caller says that it stays.
                return Some(unsafe { &*table });
            }
            table = previous;
        }
    }

    /// What a tensor is. `None` if PyTorch refuses; the Python exception is then set.
    ///
    /// # Safety
    /// `tensor` is a live object of the type whose table this is, and the interpreter is held.
    pub unsafe fn describe(&self, tensor: *mut PyObject) -> Option<DlTensor> {
        let mut described = MaybeUninit::zeroed();
        // SAFETY: the caller's promise; `described` is writable. Zeros are a tensor without axes.
        unsafe {
            (self.describe?(tensor, described.as_mut_ptr()) == 0).then(|| described.assume_init())
        }
    }

    /// PyTorch's current stream on a GPU.
    pub fn current_stream(&self, ordinal: i32) -> Option<usize> {
        let mut stream = std::ptr::null_mut();
        // SAFETY: `stream` is writable.
        let refused = unsafe { self.current_stream?(CUDA, ordinal, &raw mut stream) };
        (refused == 0).then_some(stream.expose_provenance())
    }
}

/// `DLTensor`. The tensor owns shape and strides, which are valid until the tensor is resized or freed.
#[repr(C)]
pub struct DlTensor {
    data: *mut c_void,
    device_type: i32,
    device_id: i32,
    rank: i32,
    type_code: u8,
    type_bits: u8,
    type_lanes: u16,
    shape: *const i64,
    strides: *const i64,
    byte_offset: u64,
}

impl DlTensor {
    /// Of its first element.
    pub fn address(&self) -> u64 {
        self.data.expose_provenance() as u64 + self.byte_offset
    }

    /// `None` if nothing here computes in its dtype or on its device.
    ///
    /// # Safety
    /// The tensor lives for `'a` and is not resized.
    pub unsafe fn described<'a>(&self) -> Option<Described<'a>> {
        let place = match self.device_type {
            CPU => Place::Cpu,
            CUDA => Place::Gpu(self.device_id),
            _ => return None,
        };
        let dtype = match (self.type_code, self.type_bits, self.type_lanes) {
            (FLOAT, 32, 1) => DType::F32,
            (FLOAT, 16, 1) => DType::F16,
            (BFLOAT, 16, 1) => DType::Bf16,
            (FLOAT, 64, 1) => DType::F64,
            _ => return None,
        };
        let rank = usize::try_from(self.rank).unwrap_or(0);
        let numbers = |from: *const i64| -> &'a [i64] {
            if rank == 0 || from.is_null() {
                return &[];
            }
            // SAFETY: the table wrote the address of as many numbers as the tensor has axes, which stay as long as the tensor.
            unsafe { std::slice::from_raw_parts(from, rank) }
        };
        let (shape, strides) = (numbers(self.shape).into(), numbers(self.strides).into());
        Some(Described { address: self.address(), dtype, place, shape, strides })
    }
}
