//! Tensors and lists of PyTorch's that belong to a kernel while it runs.

use std::ffi::c_void;

use msdeform::DType;

use crate::call::{Described, Place, are_contiguous_rows};
use crate::error::CallError;
use crate::libtorch::{Handle, Libtorch, StableIValue};

/// PyTorch's words for formats, of which its getters have those that a tensor of integers or of numbers can be in.
const FORMATS: &str = "float32 float16 bfloat16 float64 int64 int32 int16 int8 uint8 uint16 uint32 uint64 bool \
                       complex32 complex64 complex128 float8_e5m2 float8_e4m3fn float8_e4m3fnuz";
const LAYOUTS: &str = "sparse_coo sparse_csr sparse_csc sparse_bsr sparse_bsc _mkldnn";
const DEVICES: &str = "cpu cuda meta xpu mps";

/// A tensor.
pub struct Tensor {
    torch: &'static Libtorch,
    handle: Handle,
}

impl Drop for Tensor {
    fn drop(&mut self) {
        // SAFETY: this value owns the handle, and drop is the last use of the handle.
        unsafe { (self.torch.tensor_delete)(self.handle) };
    }
}

/// An object of PyTorch's that an argument leads to.
pub trait Object {
    /// # Safety
    /// The value leads to an object of this kind that has no other owner.
    unsafe fn from_value(torch: &'static Libtorch, value: StableIValue) -> Self;
}

impl Object for Tensor {
    unsafe fn from_value(torch: &'static Libtorch, value: StableIValue) -> Self {
        Self { torch, handle: std::ptr::with_exposed_provenance_mut(value as usize) }
    }
}

impl Tensor {
    /// The tensor as the result of a kernel. The reader of the value owns the tensor.
    pub fn into_value(self) -> StableIValue {
        let value = self.handle.expose_provenance() as StableIValue;
        std::mem::forget(self);
        value
    }

    /// Contiguous and not written to. On a GPU it is memory of PyTorch's allocator: freed in the order of the current
    /// stream, and part of a graph that is being captured.
    pub fn empty(
        torch: &'static Libtorch,
        place: Place,
        shape: &[i64],
        format: i32,
    ) -> Result<Self, CallError> {
        let mut strides = vec![1_i64; shape.len()];
        for axis in (1..shape.len()).rev() {
            strides[axis - 1] = strides[axis].saturating_mul(shape[axis].max(1));
        }
        let mut handle = std::ptr::null_mut();
        let (device, index) = match place {
            Place::Cpu => (torch.cpu, 0),
            Place::Gpu(ordinal) => (torch.cuda, ordinal),
        };
        let (rank, sizes, strides) = (shape.len() as i64, shape.as_ptr(), strides.as_ptr());
        let result = &raw mut handle;
        // SAFETY: sizes and strides are as many as the rank says; the result is writable.
        let code =
            unsafe { (torch.tensor_empty)(rank, sizes, strides, format, device, index, result) };
        torch.succeeded(code, "allocate a tensor")?;
        Ok(Self { torch, handle })
    }

    /// Lets only the first axes have strides of their own: becomes a contiguous copy where others have.
    pub fn free_axes(&mut self, axes: usize) -> Result<(), CallError> {
        let shape = self.shape()?;
        if !are_contiguous_rows(shape, self.strides()?, axes) && !shape.contains(&0) {
            *self = self.copied_to(self.place()?)?;
        }
        Ok(())
    }

    /// A contiguous copy elsewhere, or here.
    pub fn copied_to(&self, place: Place) -> Result<Self, CallError> {
        let copy = Self::empty(self.torch, place, self.shape()?, self.format()?)?;
        // SAFETY: both are live tensors.
        let code = unsafe { (self.torch.tensor_copy)(copy.handle, self.handle, 0) };
        self.torch.succeeded(code, "copy a tensor")?;
        Ok(copy)
    }

    /// Where the tensor is. Kernels are called with tensors of the CPU and of GPUs.
    pub fn place(&self) -> Result<Place, CallError> {
        let device = self.number(self.torch.tensor_device)?;
        if device == self.torch.cpu {
            return Ok(Place::Cpu);
        }
        if device == self.torch.cuda {
            return Ok(Place::Gpu(self.number(self.torch.tensor_device_index)?));
        }
        Err(CallError::Devices(format!("a tensor on {}", self.device_name()?)))
    }

    /// Sizes of its axes.
    pub fn shape(&self) -> Result<&[i64], CallError> {
        self.numbers(self.torch.tensor_sizes)
    }

    fn strides(&self) -> Result<&[i64], CallError> {
        self.numbers(self.torch.tensor_strides)
    }

    fn numbers(
        &self,
        of: unsafe extern "C" fn(Handle, *mut *mut i64) -> i32,
    ) -> Result<&[i64], CallError> {
        let (mut rank, mut numbers) = (0_i64, std::ptr::null_mut());
        // SAFETY: a live tensor, and results that are writable.
        let codes = unsafe {
            [
                (self.torch.tensor_rank)(self.handle, &raw mut rank),
                of(self.handle, &raw mut numbers),
            ]
        };
        for code in codes {
            self.torch.succeeded(code, "tell the shape of a tensor")?;
        }
        match usize::try_from(rank) {
            // SAFETY: as many numbers as the tensor has axes, which stay as long as it: nothing here resizes it.
            Ok(rank) if rank > 0 => Ok(unsafe { std::slice::from_raw_parts(numbers, rank) }),
            _ => Ok(&[]),
        }
    }

    /// The address of its first element; 0 if it has no memory.
    pub fn address(&self) -> Result<u64, CallError> {
        let mut address: *mut c_void = std::ptr::null_mut();
        // SAFETY: a live tensor, and a result that is writable.
        let code = unsafe { (self.torch.tensor_data)(self.handle, &raw mut address) };
        self.torch.succeeded(code, "tell where a tensor is")?;
        Ok(address.expose_provenance() as u64)
    }

    /// PyTorch's number of its format.
    pub fn format(&self) -> Result<i32, CallError> {
        self.number(self.torch.tensor_format)
    }

    fn number(&self, of: unsafe extern "C" fn(Handle, *mut i32) -> i32) -> Result<i32, CallError> {
        let mut number = 0;
        // SAFETY: a live tensor, and a result that is writable.
        let code = unsafe { of(self.handle, &raw mut number) };
        self.torch.succeeded(code, "describe a tensor")?;
        Ok(number)
    }

    /// Its dtype, if we compute in it.
    pub fn dtype(&self) -> Option<DType> {
        let format = self.format().ok()?;
        let at = self.torch.dtypes.iter().position(|&ours| ours == format)?;
        DType::ALL.get(at).copied()
    }

    /// As a call takes it.
    pub fn described(&self) -> Result<Described<'_>, CallError> {
        let unknown = || CallError::Torch("a tensor lost its dtype".to_owned());
        Ok(Described {
            address: self.address()?,
            dtype: self.dtype().ok_or_else(unknown)?,
            place: self.place()?,
            shape: self.shape()?.into(),
            strides: self.strides()?.into(),
        })
    }

    /// PyTorch's name of its format.
    pub fn format_name(&self) -> Result<String, CallError> {
        Ok(format!("torch.{}", self.torch.name_of("dtype", self.format()?, FORMATS)))
    }

    /// Its shape and its numbers, of any format of integers.
    pub fn integers(
        self,
        torch: &'static Libtorch,
        name: &'static str,
    ) -> Result<(Vec<i64>, Vec<i64>), CallError> {
        check_dense(&[(name, &self)])?;
        let shape = self.shape()?.to_vec();
        let found = torch.name_of("dtype", self.format()?, FORMATS);
        if !(found.starts_with("int") || found.starts_with("uint")) {
            return Err(CallError::NoIntegers { tensor: name, found: format!("torch.{found}") });
        }
        let count = shape
            .iter()
            .try_fold(1_usize, |count, &size| count.checked_mul(usize::try_from(size).ok()?));
        let count = count.ok_or_else(|| CallError::Size(format!("{shape:?}")))?;
        if count == 0 {
            return Ok((shape, Vec::new()));
        }
        if self.address()? == 0 {
            return Err(CallError::Levels(format!(
                "`{name}` has no numbers in it: it is on the device `meta`, or its storage was freed"
            )));
        }
        let wide = Self::empty(torch, Place::Cpu, &shape, torch.int64)?;
        // SAFETY: both are live tensors.
        let code = unsafe { (torch.tensor_copy)(wide.handle, self.handle, 0) };
        torch.succeeded(code, "read a tensor of integers")?;
        let at: *const i64 = std::ptr::with_exposed_provenance(wide.address()? as usize);
        // SAFETY: a contiguous tensor of so many 64-bit integers, just written.
        Ok((shape, unsafe { std::slice::from_raw_parts(at, count) }.to_vec()))
    }

    /// Whether it is where kernels are, as memory and strides.
    fn is_dense(&self) -> Result<bool, CallError> {
        Ok(self.number(self.torch.tensor_layout)? == self.torch.strided)
    }

    fn device_name(&self) -> Result<String, CallError> {
        let name =
            self.torch.name_of("device_type", self.number(self.torch.tensor_device)?, DEVICES);
        let index = self.number(self.torch.tensor_device_index)?;
        Ok(if name == "cuda" { format!("{name}:{index}") } else { name })
    }
}

/// Refuses tensors of more than one device and sparse ones: an address of one device means nothing on another.
pub fn check_dense(tensors: &[(&'static str, &Tensor)]) -> Result<(), CallError> {
    let first = tensors.first().and_then(|(_, tensor)| tensor.place().ok());
    for (name, tensor) in tensors {
        if first.is_none() || tensor.place().ok() != first {
            let found: Result<Vec<String>, CallError> = tensors
                .iter()
                .map(|(name, tensor)| Ok(format!("`{name}` on {}", tensor.device_name()?)))
                .collect();
            return Err(CallError::Devices(found?.join(", ")));
        }
        if !tensor.is_dense()? {
            let layout = tensor.number(tensor.torch.tensor_layout)?;
            let found = format!("torch.{}", tensor.torch.name_of("layout", layout, LAYOUTS));
            return Err(CallError::Layout { tensor: name, found });
        }
    }
    Ok(())
}

/// A list of numbers.
pub struct List {
    torch: &'static Libtorch,
    handle: Handle,
}

impl Drop for List {
    fn drop(&mut self) {
        // SAFETY: this value owns the handle, and drop is the last use of the handle.
        unsafe { (self.torch.list_delete)(self.handle) };
    }
}

impl Object for List {
    unsafe fn from_value(torch: &'static Libtorch, value: StableIValue) -> Self {
        Self { torch, handle: std::ptr::with_exposed_provenance_mut(value as usize) }
    }
}

impl List {
    /// Its numbers.
    pub fn numbers(&self) -> Result<Vec<i64>, CallError> {
        let mut size = 0;
        // SAFETY: a live list, and a result that is writable.
        let code = unsafe { (self.torch.list_size)(self.handle, &raw mut size) };
        self.torch.succeeded(code, "tell the length of a list")?;
        let mut numbers = Vec::with_capacity(size);
        for at in 0..size {
            let mut number = 0;
            // SAFETY: as above.
            let code = unsafe { (self.torch.list_item)(self.handle, at, &raw mut number) };
            self.torch.succeeded(code, "read a list")?;
            numbers.push(number.cast_signed());
        }
        Ok(numbers)
    }

    /// Its flags. PyTorch checks that they are as many as the schema has.
    pub fn flags(&self) -> Result<Vec<bool>, CallError> {
        Ok(self.numbers()?.into_iter().map(is_set).collect())
    }
}

/// A flag takes the lowest byte of its number.
pub const fn is_set(number: i64) -> bool {
    number & 0xff != 0
}
