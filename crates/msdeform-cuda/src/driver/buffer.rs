//! Device memory for those who have no allocator of their own: the command line and the tests.

use cudarc::driver::sys::CUresult;
use msdeform::Element;

use super::guard::Guard;
use super::{Context, Stream, check, driver};
use crate::error::{DriverError, Error, Result};

/// Queues zeroing. The context must be current.
///
/// # Safety
/// The bytes are device memory of the stream's context, writable until the stream is done.
pub(crate) unsafe fn zero_bytes(
    stream: &Stream,
    address: u64,
    bytes: usize,
) -> std::result::Result<(), DriverError> {
    if bytes == 0 {
        return Ok(());
    }
    // SAFETY: as the caller promises.
    unsafe { driver!(cuMemsetD8Async(address, 0, bytes, stream.raw())) }
}

/// Plain device memory of `len` elements.
#[derive(Debug)]
pub struct DeviceBuffer<T> {
    context: Context,
    /// Null where the buffer is empty: the driver refuses to allocate nothing.
    address: u64,
    len: usize,
    guard: Guard,
    element: std::marker::PhantomData<T>,
}

impl<T: Copy + Send + Sync + 'static> DeviceBuffer<T> {
    /// Memory filled with the byte `fill`. `0xff` makes NaN of every float format: what an output
    /// should hold before a test.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], or the driver's error.
    pub fn filled(stream: &Stream, len: usize, fill: u8) -> Result<Self> {
        let mut buffer = Self::uninitialised(stream.context(), len)?;
        buffer.fill(stream, fill)?;
        Ok(buffer)
    }

    /// Memory that holds anything.
    pub(crate) fn uninitialised(context: &Context, len: usize) -> Result<Self> {
        let bytes =
            len.checked_mul(size_of::<T>()).ok_or(Error::OutOfMemory { bytes: usize::MAX })?;
        let guard = Guard::now();
        let around = guard.around(bytes).ok_or(Error::OutOfMemory { bytes })?;
        let mut address = 0;
        if bytes > 0 {
            let _entered = context.enter()?;
            let mut base = 0;
            // SAFETY: the context is current, `base` is writable.
            match unsafe { cudarc::driver::sys::cuMemAlloc_v2(&raw mut base, around) } {
                CUresult::CUDA_ERROR_OUT_OF_MEMORY => return Err(Error::OutOfMemory { bytes }),
                result => check("cuMemAlloc", result)?,
            }
            // SAFETY: just allocated, in the current context.
            address = unsafe { guard.raise(base, bytes) }?;
        }
        let element = std::marker::PhantomData;
        Ok(Self { context: context.clone(), address, len, guard, element })
    }

    /// Copies another buffer of the same device over the front of this one.
    ///
    /// # Errors
    /// [`Error::BufferTooSmall`] if the other one is longer, or the driver's error.
    pub fn copy_from_device(&mut self, stream: &Stream, source: &Self) -> Result<()> {
        self.check_room(source.len)?;
        if source.len == 0 {
            return Ok(());
        }
        let _entered = self.context.enter()?;
        let (to, from, bytes) = (self.address, source.address, source.bytes());
        // SAFETY: both ranges are allocations of their own with at least as many bytes.
        Ok(unsafe { driver!(cuMemcpyDtoDAsync_v2(to, from, bytes, stream.raw())) }?)
    }

    /// A copy of host memory. Done when this returns.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], or the driver's error.
    pub fn from_host(stream: &Stream, source: &[T]) -> Result<Self> {
        let mut buffer = Self::uninitialised(stream.context(), source.len())?;
        buffer.copy_from(stream, 0, source)?;
        Ok(buffer)
    }

    /// Copies host memory over a part of the buffer, after what is queued in the stream. Done when
    /// this returns.
    ///
    /// # Errors
    /// [`Error::BufferTooSmall`] if the part ends outside of the buffer, or the driver's error.
    pub fn copy_from(&mut self, stream: &Stream, offset: usize, source: &[T]) -> Result<()> {
        self.check_room(offset.saturating_add(source.len()))?;
        if !source.is_empty() {
            let _entered = self.context.enter()?;
            let to = self.address + (offset * size_of::<T>()) as u64;
            let (from, bytes) = (source.as_ptr().cast(), size_of_val(source));
            // SAFETY: the part lies inside of the allocation; `source` is borrowed until the stream
            // is done below.
            unsafe { driver!(cuMemcpyHtoDAsync_v2(to, from, bytes, stream.raw())) }?;
        }
        stream.synchronize()
    }

    /// Refuses copies that end outside of the buffer.
    fn check_room(&self, end: usize) -> Result<()> {
        if end <= self.len {
            return Ok(());
        }
        let required = end.saturating_mul(size_of::<T>());
        Err(Error::BufferTooSmall { tensor: "device buffer", required, found: self.bytes() })
    }

    /// Sets every byte.
    pub fn fill(&mut self, stream: &Stream, byte: u8) -> Result<()> {
        if self.len == 0 {
            return Ok(());
        }
        let _entered = self.context.enter()?;
        // SAFETY: the range is this buffer's own allocation.
        Ok(unsafe { driver!(cuMemsetD8Async(self.address, byte, self.bytes(), stream.raw())) }?)
    }

    /// The context it lies in.
    #[must_use]
    pub const fn context(&self) -> &Context {
        &self.context
    }

    /// Elements.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.len * size_of::<T>()
    }

    /// The device pointer; null if the buffer is empty.
    #[must_use]
    pub const fn address(&self) -> u64 {
        self.address
    }
}

impl<T: Element> DeviceBuffer<T> {
    /// A copy of the buffer in host memory, after what is queued in the stream.
    ///
    /// # Errors
    /// The driver's error; a fault in an earlier kernel is reported here.
    pub fn to_host(&self, stream: &Stream) -> Result<Vec<T>> {
        let mut copy = vec![T::default(); self.len];
        self.copy_to(stream, &mut copy)?;
        Ok(copy)
    }

    /// Copies the front of the buffer over host memory, after what is queued in the stream.
    ///
    /// # Errors
    /// [`Error::BufferTooSmall`] if `target` is longer than the buffer, or the driver's error.
    pub fn copy_to(&self, stream: &Stream, target: &mut [T]) -> Result<()> {
        self.check_room(target.len())?;
        if !target.is_empty() {
            let _entered = self.context.enter()?;
            let (to, bytes) = (target.as_mut_ptr().cast(), size_of_val(target));
            // SAFETY: `target` is exclusively borrowed until the stream is done below, the source
            // has at least as many bytes, and every bit pattern is a valid element.
            unsafe { driver!(cuMemcpyDtoHAsync_v2(to, self.address, bytes, stream.raw())) }?;
        }
        stream.synchronize()
    }
}

impl<T> Drop for DeviceBuffer<T> {
    fn drop(&mut self) {
        if self.address != 0
            && let Ok(_entered) = self.context.enter()
        {
            let bytes = self.len * size_of::<T>();
            // The driver waits for kernels that use it. A failure leaves nothing to do.
            // SAFETY: allocated in `uninitialised`, freed once.
            let _ = unsafe { driver!(cuMemFree_v2(self.guard.lower(self.address, bytes))) };
        }
    }
}
