//! The CUDA driver as owned handles: context, stream, module, event, graph, memory.
//!
//! cudarc's bindings look every symbol up at run time and panic where the library or a symbol is
//! missing (where another crate has them linked, a process without the library does not start). [`driver_version`] is the gate: every handle starts from a [`Context`], a context starts
//! there, and behind it libcuda is present, initialised and new enough to have every function used
//! in this module.

mod buffer;
mod context;
mod device;
mod event;
mod graph;
mod guard;
mod launches;
mod library;
mod module;
mod pointer;
mod ring;
mod stream;

use std::ffi::CStr;
use std::sync::OnceLock;

use cudarc::driver::sys::{self, CUresult};

pub use buffer::DeviceBuffer;
pub(crate) use buffer::zero_bytes;
pub use context::{Context, device_count};
pub use device::DeviceProps;
pub use event::Event;
pub use graph::Graph;
pub use guard::{broken_guards, guard_allocations};
pub use launches::Launched;
pub(crate) use launches::{Label, ZEROING, lost_context};
pub use module::{Function, LaunchGeometry, Module};
pub(crate) use pointer::check_pointer;
pub use stream::Stream;

use crate::error::{CudaVersion, DriverError, Error, Result};

/// The oldest driver interface that has every function used here, and that cubins of the oldest
/// NVRTC in use (12.0) load on.
const OLDEST_DRIVER: CudaVersion = CudaVersion { major: 12, minor: 0 };

/// What the driver supports, after loading and initialising it once.
///
/// # Errors
/// [`Error::MissingDriver`], [`Error::OldDriver`], [`Error::Forked`], or why it did not initialise.
pub fn driver_version() -> Result<CudaVersion> {
    let (process, version) = VERSION.get_or_init(|| (std::process::id(), initialise()));
    if version.is_ok() && *process != std::process::id() {
        return Err(Error::Forked);
    }
    version.clone()
}

/// What the driver said, and to which process.
static VERSION: OnceLock<(u32, Result<CudaVersion>)> = OnceLock::new();

/// Whether there is a driver to call.
fn is_initialised() -> bool {
    VERSION.get().is_some_and(|(_, version)| version.is_ok())
}

/// Whether the driver belongs to the process that this one was forked off. It refuses every call then.
pub(crate) fn was_initialised_before_a_fork() -> bool {
    is_initialised() && VERSION.get().is_some_and(|(process, _)| *process != std::process::id())
}

fn initialise() -> Result<CudaVersion> {
    if library::driver().is_none() {
        return Err(Error::MissingDriver);
    }
    let mut number = 0;
    // SAFETY: libcuda is present, every version of it has this function, `number` is writable.
    check("cuDriverGetVersion", unsafe { sys::cuDriverGetVersion(&raw mut number) })?;
    let found = CudaVersion::from_driver(number);
    if found < OLDEST_DRIVER {
        return Err(Error::OldDriver { found, required: OLDEST_DRIVER });
    }
    // SAFETY: no preconditions.
    match unsafe { sys::cuInit(0) } {
        CUresult::CUDA_ERROR_NO_DEVICE => Err(Error::NoDevice { ordinal: 0, count: 0 }),
        // A stub libcuda, as toolkits ship for linking, answers every call with this.
        CUresult::CUDA_ERROR_STUB_LIBRARY => Err(Error::MissingDriver),
        result => Ok(check("cuInit", result).map(|()| found)?),
    }
}

/// Turns the driver's answer into a result.
#[doc(hidden)]
pub fn check(call: &'static str, result: CUresult) -> std::result::Result<(), DriverError> {
    if result == CUresult::CUDA_SUCCESS {
        return Ok(());
    }
    let text = |get: unsafe fn(CUresult, *mut *const std::ffi::c_char) -> CUresult| {
        let mut text = std::ptr::null();
        // SAFETY: `get` is one of the two functions below; both write a pointer to a static string,
        // or null.
        let found = unsafe { get(result, &raw mut text) };
        if found != CUresult::CUDA_SUCCESS || text.is_null() {
            return format!("error {}", result as u32);
        }
        // SAFETY: not null, and the driver's strings are static and end with a zero.
        unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
    };
    Err(DriverError {
        call,
        code: result as u32,
        name: text(sys::cuGetErrorName),
        description: text(sys::cuGetErrorString),
    })
}

/// Calls a driver function and names it in the error: `driver!(cuCtxSynchronize())`.
#[doc(hidden)]
#[macro_export]
macro_rules! driver {
    ($function:ident ( $($argument:expr),* $(,)? )) => {
        $crate::check(
            stringify!($function),
            ::cudarc::driver::sys::$function($($argument),*),
        )
    };
}
pub(crate) use driver;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_read_and_compare_like_versions() {
        assert_eq!(CudaVersion::from_driver(12090).to_string(), "12.9");
        assert_eq!(CudaVersion::from_driver(13010).to_string(), "13.1");
        assert!(CudaVersion::from_driver(12090) < CudaVersion::from_driver(13000));
    }
}
