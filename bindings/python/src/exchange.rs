//! PyTorch's tensors through its `DLPack` exchange table: C functions that describe a tensor without a Python
//! object in between.
//!
//! The layout is that of `dlpack.h`, version 1; a newer major version may have another and is refused.

use std::ffi::{c_int, c_void};

use msdeform::DType;
use msdeform_torch::call::{DTYPES, Described};
use msdeform_torch::error::CallError;
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
        let mut described = DlTensor::EMPTY;
        // SAFETY: the caller's promise; `described` is writable.
        let refused = unsafe { self.describe?(tensor, &raw mut described) };
        (refused == 0).then_some(described)
    }

    /// PyTorch's current stream on a GPU.
    pub fn current_stream(&self, ordinal: i32) -> Option<usize> {
        let mut stream = std::ptr::null_mut();
        // SAFETY: `stream` is writable.
        let refused = unsafe { self.current_stream?(CUDA, ordinal, &raw mut stream) };
        (refused == 0).then_some(stream.expose_provenance())
    }
}

/// The device of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    Cpu,
    /// The number of a GPU.
    Gpu(i32),
}

/// `DLTensor`. The tensor owns shape and strides, which are valid until the tensor is resized or freed.
#[derive(Clone, Copy)]
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
    const EMPTY: Self = Self {
        data: std::ptr::null_mut(),
        device_type: 0,
        device_id: 0,
        rank: 0,
        type_code: 0,
        type_bits: 0,
        type_lanes: 0,
        shape: std::ptr::null(),
        strides: std::ptr::null(),
        byte_offset: 0,
    };

    /// Of its first element.
    pub fn address(&self) -> u64 {
        self.data.expose_provenance() as u64 + self.byte_offset
    }

    /// Its device, if we compute there.
    pub fn place(&self) -> Option<Place> {
        match self.device_type {
            CPU => Some(Place::Cpu),
            CUDA => Some(Place::Gpu(self.device_id)),
            _ => None,
        }
    }

    /// Its dtype, if we compute in it.
    pub fn dtype(&self) -> Option<DType> {
        match (self.type_code, self.type_bits, self.type_lanes) {
            (FLOAT, 32, 1) => Some(DType::F32),
            (FLOAT, 16, 1) => Some(DType::F16),
            (BFLOAT, 16, 1) => Some(DType::Bf16),
            (FLOAT, 64, 1) => Some(DType::F64),
            _ => None,
        }
    }

    fn numbers(&self, from: *const i64) -> &[i64] {
        match usize::try_from(self.rank) {
            // SAFETY: the table wrote the address of as many numbers as the tensor has axes, which stay as
            // long as the tensor: callers hold it, and nothing here resizes it.
            Ok(rank) if rank > 0 && !from.is_null() => unsafe {
                std::slice::from_raw_parts(from, rank)
            },
            _ => &[],
        }
    }

    /// Sizes of its axes.
    pub fn shape(&self) -> &[i64] {
        self.numbers(self.shape)
    }

    /// Strides of its axes, in elements; empty where the table gives none.
    pub fn strides(&self) -> &[i64] {
        self.numbers(self.strides)
    }

    /// Whether it has elements.
    pub fn is_full(&self) -> bool {
        !self.data.is_null() && self.shape().iter().all(|&size| size > 0)
    }

    /// Whether its elements follow each other.
    pub fn is_contiguous(&self) -> bool {
        self.has_contiguous_rows(0)
    }

    /// Whether the elements of all axes but the first ones follow each other.
    pub fn has_contiguous_rows(&self, first: usize) -> bool {
        let mut expected = 1;
        self.strides().len() == self.shape().len()
            && self.shape().iter().zip(self.strides()).skip(first).rev().all(|(&size, &stride)| {
                let follows = size == 1 || stride == expected;
                expected *= size;
                follows
            })
    }

    /// Whether it may be the gradient of an output of this shape: with the dtype of the values, on their device.
    pub fn is_gradient_of(&self, output: &[i64], value: &Self) -> bool {
        self.shape() == output
            && self.strides().len() == output.len()
            && self.dtype() == value.dtype()
            && self.place() == value.place()
    }
}

impl Described for DlTensor {
    fn code(&self) -> i64 {
        let position =
            self.dtype().and_then(|dtype| DTYPES.iter().position(|&known| known == dtype));
        position.map_or(-1, |at| at as i64)
    }

    fn rank(&self) -> usize {
        self.shape().len()
    }

    fn write_shape(&self, numbers: &mut Vec<i64>) -> Result<(), CallError> {
        numbers.extend_from_slice(self.shape());
        Ok(())
    }

    fn stride(&self, axis: usize) -> Result<i64, CallError> {
        Ok(self.strides().get(axis).copied().unwrap_or(0))
    }

    fn address(&self) -> Result<u64, CallError> {
        Ok(self.address())
    }
}
