//! A device's primary context: the one the CUDA runtime, PyTorch and cudarc use too, so that their
//! pointers and streams are valid in it.

use std::fmt;
use std::sync::Arc;

use cudarc::driver::sys;

use super::launches::{Label, Launches};
use super::{DeviceProps, Stream, driver, driver_version, is_initialised};
use crate::error::{CudaVersion, DriverError, Error, Result};

/// How many CUDA devices the driver sees.
///
/// # Errors
/// No driver, or one that is too old.
pub fn device_count() -> Result<usize> {
    match driver_version() {
        Err(Error::NoDevice { .. }) => return Ok(0),
        other => other?,
    };
    let mut count = 0;
    // SAFETY: the driver is initialised, `count` is writable.
    unsafe { driver!(cuDeviceGetCount(&raw mut count)) }?;
    Ok(usize::try_from(count).unwrap_or(0))
}

/// The primary context of one device, kept alive. Cloning is cheap.
#[derive(Clone)]
pub struct Context {
    inner: Arc<Primary>,
}

struct Primary {
    device: sys::CUdevice,
    raw: sys::CUcontext,
    driver: CudaVersion,
    props: DeviceProps,
    launches: Arc<Launches>,
    /// Whether every launch is waited for, so that a fault is known to be its own.
    is_blocking: bool,
}

// SAFETY: a context handle may be used from any thread; the driver locks inside.
unsafe impl Send for Primary {}
// SAFETY: as above; nothing here changes after construction.
unsafe impl Sync for Primary {}

impl Context {
    /// Opens device `ordinal` (as `CUDA_VISIBLE_DEVICES` numbers them).
    ///
    /// # Errors
    /// No driver, an old driver, no such device, or a GPU older than compute capability 8.0.
    pub fn new(ordinal: usize) -> Result<Self> {
        let driver = driver_version().map_err(|error| match error {
            Error::NoDevice { count, .. } => Error::NoDevice { ordinal, count },
            other => other,
        })?;
        let count = device_count()?;
        let index = i32::try_from(ordinal).ok().filter(|_| ordinal < count);
        let Some(index) = index else { return Err(Error::NoDevice { ordinal, count }) };
        let mut device = 0;
        // SAFETY: the driver is initialised, `device` is writable.
        unsafe { driver!(cuDeviceGet(&raw mut device, index)) }?;
        let props = DeviceProps::query(device, ordinal)?;
        if props.compute_capability < (8, 0) {
            let (major, minor) = props.compute_capability;
            return Err(Error::OldGpu { name: props.name, major, minor });
        }
        let mut raw = std::ptr::null_mut();
        // SAFETY: `device` comes from cuDeviceGet; the reference taken here is given back in Drop.
        unsafe { driver!(cuDevicePrimaryCtxRetain(&raw mut raw, device)) }?;
        let inner = Primary {
            device,
            raw,
            driver,
            props,
            launches: Launches::of_context(raw.addr(), ordinal),
            is_blocking: is_blocking(std::env::var("CUDA_LAUNCH_BLOCKING").ok().as_deref()),
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// What the device is and has.
    #[must_use]
    pub fn props(&self) -> &DeviceProps {
        &self.inner.props
    }

    /// The device's number.
    #[must_use]
    pub fn ordinal(&self) -> usize {
        self.inner.props.ordinal
    }

    /// What the driver supports.
    #[must_use]
    pub fn driver(&self) -> CudaVersion {
        self.inner.driver
    }

    /// Waits for everything on the device and reports faults of earlier launches.
    ///
    /// # Errors
    /// The driver's error, such as an illegal address in an earlier kernel.
    pub fn synchronize(&self) -> Result<()> {
        let _entered = self.enter()?;
        let so_far = self.inner.launches.so_far();
        // SAFETY: the context is current.
        unsafe { driver!(cuCtxSynchronize()) }?;
        self.inner.launches.are_done(so_far, None);
        Ok(())
    }

    /// Free and total bytes of the device's memory.
    pub fn memory_bytes(&self) -> Result<(usize, usize)> {
        let _entered = self.enter()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: the context is current, both places are writable.
        unsafe { driver!(cuMemGetInfo_v2(&raw mut free, &raw mut total)) }?;
        Ok((free, total))
    }

    /// Makes this context the thread's current one until the guard is dropped. Costs one query where
    /// it already is, as in a process that uses one GPU.
    #[doc(hidden)]
    pub fn enter(&self) -> Result<Entered> {
        let mut current = std::ptr::null_mut();
        // SAFETY: the driver is initialised, `current` is writable.
        unsafe { driver!(cuCtxGetCurrent(&raw mut current)) }?;
        if current == self.inner.raw {
            return Ok(Entered { pushed: false });
        }
        // SAFETY: the context is alive as long as `self`; the guard pops it.
        unsafe { driver!(cuCtxPushCurrent_v2(self.inner.raw)) }?;
        Ok(Entered { pushed: true })
    }

    pub(super) fn launches(&self) -> &Launches {
        &self.inner.launches
    }

    /// Queues something, noted under a label so that a fault can be put down to it. The context must be
    /// current. Where `CUDA_LAUNCH_BLOCKING` asks for it, it is waited for.
    pub(crate) fn noted(
        &self,
        label: Label,
        stream: &Stream,
        queue: impl FnOnce() -> std::result::Result<(), DriverError>,
    ) -> Result<()> {
        let launches = self.launches();
        let lost = |source, exact| Error::ContextLost(Box::new(launches.lost(source, exact)));
        if self.inner.is_blocking {
            // A fault that is here already is somebody else's.
            stream.wait_unless_recording()?;
        }
        let ticket = launches.note(label, stream.raw().addr());
        let queued = match self.inner.is_blocking {
            true => queue().and_then(|()| stream.wait_unless_recording()),
            false => queue(),
        };
        queued.map_err(|source| match source.is_fault() {
            true if self.inner.is_blocking => lost(source, Some(label)),
            is_fault => {
                // It was not queued: neither done nor to blame.
                launches.forget(ticket);
                if is_fault { lost(source, None) } else { source.into() }
            }
        })
    }

    pub(crate) fn raw(&self) -> sys::CUcontext {
        self.inner.raw
    }
}

/// Whether the variable that CUDA itself reads asks to wait for every launch.
fn is_blocking(variable: Option<&str>) -> bool {
    variable.is_some_and(|value| value.trim().parse::<i64>().is_ok_and(|number| number != 0))
}

/// The driver's address of the thread's current context, if the driver still knows one.
pub(super) fn current() -> Option<usize> {
    if !is_initialised() {
        return None;
    }
    let mut current: sys::CUcontext = std::ptr::null_mut();
    // SAFETY: the driver is initialised, `current` is writable.
    unsafe { driver!(cuCtxGetCurrent(&raw mut current)) }.ok()?;
    Some(current.addr())
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Context(cuda:{} {})", self.ordinal(), self.inner.props.name)
    }
}

impl Drop for Primary {
    fn drop(&mut self) {
        // A failure here (the driver shutting down at exit) leaves nothing to do.
        // SAFETY: gives back the one reference taken in `Context::new`.
        let _ = unsafe { driver!(cuDevicePrimaryCtxRelease_v2(self.device)) };
    }
}

/// Restores the thread's context when dropped.
#[must_use]
#[doc(hidden)]
pub struct Entered {
    pushed: bool,
}

impl Drop for Entered {
    fn drop(&mut self) {
        if self.pushed {
            let mut popped = std::ptr::null_mut();
            // SAFETY: pops what `Context::enter` pushed on this thread.
            let _ = unsafe { driver!(cuCtxPopCurrent_v2(&raw mut popped)) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn launches_block_where_the_variable_of_cuda_says_so() {
        for on in ["1", " 1 ", "2"] {
            assert!(is_blocking(Some(on)), "{on:?}");
        }
        for off in [None, Some(""), Some("0"), Some("no")] {
            assert!(!is_blocking(off), "{off:?}");
        }
    }
}
