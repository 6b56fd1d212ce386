//! Events: points in a stream, with the GPU's own clock.

use std::sync::OnceLock;

use cudarc::driver::sys::{self, CUresult};

use super::{Context, Stream, check, driver, library};
use crate::error::{DriverError, Error, Result};

/// A point in a stream that can be waited for and timed.
#[derive(Debug)]
pub struct Event {
    context: Context,
    raw: sys::CUevent,
}

// SAFETY: an event handle may be used from any thread; the driver locks inside.
unsafe impl Send for Event {}
// SAFETY: as above; nothing here changes after construction.
unsafe impl Sync for Event {}

impl Event {
    /// A new event that keeps the time.
    pub fn new(context: &Context) -> Result<Self> {
        let _entered = context.enter()?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: the context is current, `raw` is writable.
        unsafe { driver!(cuEventCreate(&raw mut raw, 0)) }?;
        Ok(Self { context: context.clone(), raw })
    }

    /// Moves the event to the end of what is queued in the stream.
    pub fn record(&self, stream: &Stream) -> Result<()> {
        let _entered = self.context.enter()?;
        // SAFETY: both handles are alive.
        Ok(unsafe { driver!(cuEventRecord(self.raw, stream.raw())) }?)
    }

    /// Waits until the stream has passed the event.
    ///
    /// # Errors
    /// The driver's error; a fault in an earlier kernel is reported here.
    pub fn synchronize(&self) -> Result<()> {
        let _entered = self.context.enter()?;
        // SAFETY: the event is alive.
        Ok(unsafe { driver!(cuEventSynchronize(self.raw)) }?)
    }

    /// Microseconds from `earlier` to this event; both must have been passed.
    ///
    /// # Errors
    /// The driver's error, such as an event that was not recorded or not passed.
    pub fn elapsed_us_since(&self, earlier: &Self) -> Result<f64> {
        let _entered = self.context.enter()?;
        let mut milliseconds = 0f32;
        let elapsed_time = elapsed_time()?;
        // SAFETY: both events are alive, `milliseconds` is writable.
        let result = unsafe { elapsed_time(&raw mut milliseconds, earlier.raw, self.raw) };
        check("cuEventElapsedTime", result)?;
        Ok(f64::from(milliseconds) * 1e3)
    }

    pub(super) fn raw(&self) -> sys::CUevent {
        self.raw
    }
}

type ElapsedTime = unsafe extern "C" fn(*mut f32, sys::CUevent, sys::CUevent) -> CUresult;

/// The bindings for CUDA 13 only know the second version of this function, which drivers before 12.8
/// do not have; every driver has the first.
fn elapsed_time() -> Result<ElapsedTime> {
    static FUNCTION: OnceLock<Option<ElapsedTime>> = OnceLock::new();
    let look_up = || {
        // SAFETY: the type is the documented one, and the library is never unloaded.
        let found = unsafe { library::driver()?.get::<ElapsedTime>(b"cuEventElapsedTime\0") };
        found.ok().map(|symbol| *symbol)
    };
    FUNCTION.get_or_init(look_up).ok_or_else(|| {
        Error::Driver(DriverError {
            call: "cuEventElapsedTime",
            code: CUresult::CUDA_ERROR_NOT_FOUND as u32,
            name: "CUDA_ERROR_NOT_FOUND".to_owned(),
            description: "the driver has no such function".to_owned(),
        })
    })
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: created in `new`, destroyed once; a failure leaves nothing to do.
        let _ = unsafe { driver!(cuEventDestroy_v2(self.raw)) };
    }
}
