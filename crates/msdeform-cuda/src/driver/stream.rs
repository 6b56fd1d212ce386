//! Streams: our own, or the caller's.

use std::ffi::c_void;

use cudarc::driver::sys;

use super::{Context, Event, driver};
use crate::error::{DriverError, Error, Result};

/// A queue of work on one device.
#[derive(Debug)]
pub struct Stream {
    context: Context,
    raw: sys::CUstream,
    owned: bool,
}

// SAFETY: a stream handle may be used from any thread; the driver locks inside.
unsafe impl Send for Stream {}
// SAFETY: as above; nothing here changes after construction.
unsafe impl Sync for Stream {}

impl Stream {
    /// A new stream that does not wait for the default stream.
    pub fn new(context: &Context) -> Result<Self> {
        let _entered = context.enter()?;
        let mut raw = std::ptr::null_mut();
        let flags = sys::CUstream_flags_enum::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: the context is current, `raw` is writable.
        unsafe { driver!(cuStreamCreate(&raw mut raw, flags)) }?;
        Ok(Self { context: context.clone(), raw, owned: true })
    }

    /// The device's default stream.
    #[must_use]
    pub fn default_of(context: &Context) -> Self {
        Self { context: context.clone(), raw: std::ptr::null_mut(), owned: false }
    }

    /// Somebody else's stream: `torch.cuda.current_stream().cuda_stream`, or
    /// `cudarc_stream.cu_stream().cast()`. It is not destroyed here.
    ///
    /// # Safety
    /// `raw` is null or a stream that lives as long as this value.
    ///
    /// # Errors
    /// [`Error::WrongContext`] if it is not a stream of this device's primary context.
    pub unsafe fn borrow(context: &Context, raw: *mut c_void) -> Result<Self> {
        let raw: sys::CUstream = raw.cast();
        // 0, 1 and 2 mean the default stream of whichever context is current.
        if raw.addr() > 2 {
            let mut owner = std::ptr::null_mut();
            let _entered = context.enter()?;
            // SAFETY: the caller promises that `raw` is a stream; `owner` is writable.
            unsafe { driver!(cuStreamGetCtx(raw, &raw mut owner)) }?;
            if owner != context.raw() {
                return Err(Error::WrongContext { device: context.ordinal() });
            }
        }
        Ok(Self { context: context.clone(), raw, owned: false })
    }

    /// The context it belongs to.
    #[must_use]
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// The driver's handle, for other libraries.
    #[must_use]
    pub fn raw_handle(&self) -> *mut c_void {
        self.raw.cast()
    }

    /// Waits until everything queued so far is done.
    ///
    /// # Errors
    /// The driver's error; a fault in an earlier kernel is reported here.
    pub fn synchronize(&self) -> Result<()> {
        let _entered = self.context.enter()?;
        let launches = self.context.launches();
        let so_far = launches.so_far();
        // SAFETY: the stream is alive.
        unsafe { driver!(cuStreamSynchronize(self.raw)) }?;
        launches.are_done(so_far, Some(self.raw.addr()));
        Ok(())
    }

    /// Waits as above, except where a graph is being recorded: that would break the recording, and nothing runs
    /// yet. The context must be current.
    pub(super) fn wait_unless_recording(&self) -> std::result::Result<(), DriverError> {
        if self.is_recording()? {
            return Ok(());
        }
        // SAFETY: the stream is alive.
        unsafe { driver!(cuStreamSynchronize(self.raw)) }
    }

    /// Lets later work of this stream wait for an event of another.
    pub fn wait_for(&self, event: &Event) -> Result<()> {
        let _entered = self.context.enter()?;
        // SAFETY: both handles are alive.
        Ok(unsafe { driver!(cuStreamWaitEvent(self.raw, event.raw(), 0)) }?)
    }

    /// Whether what is queued is being recorded in a graph.
    pub fn is_capturing(&self) -> Result<bool> {
        let _entered = self.context.enter()?;
        Ok(self.is_recording()?)
    }

    /// The same in a context that is current.
    fn is_recording(&self) -> std::result::Result<bool, DriverError> {
        let mut status = sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
        // SAFETY: the stream is alive, `status` is writable.
        unsafe { driver!(cuStreamIsCapturing(self.raw, &raw mut status)) }?;
        Ok(status != sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE)
    }

    pub(crate) fn raw(&self) -> sys::CUstream {
        self.raw
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if self.owned {
            // The driver keeps what is queued running. A failure leaves nothing to do.
            // SAFETY: created in `new`, destroyed once.
            let _ = unsafe { driver!(cuStreamDestroy_v2(self.raw)) };
        }
    }
}
