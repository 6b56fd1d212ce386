//! What a launch has besides the call: descriptors of the value tensor at the front of the parameter, and an attribute.
//! Only variants of the laboratory have one.

use std::any::Any;
use std::fmt::Debug;

use cudarc::driver::sys::CUlaunchAttribute;

use crate::driver::Context;
use crate::error::{DriverError, Result};
use crate::variants::Call;

/// How the beginning of a parameter is made.
pub trait PreambleRecipe: Debug + Send + Sync + Any {
    /// Allocates what it needs for a plan.
    ///
    /// # Errors
    /// The driver's error, or why this call has none.
    fn prepare(&self, context: &Context, call: &Call<'_>) -> Result<Box<dyn Preamble>>;
}

/// The beginning of a plan's parameter.
pub trait Preamble: Debug + Send + Sync {
    /// The words before the rest, for a value tensor at this address. The context is current.
    fn words(&self, value: u64) -> std::result::Result<Vec<u64>, DriverError>;

    /// An attribute of every launch, for a value tensor at this address.
    fn launch_attribute(&self, value: u64) -> Option<CUlaunchAttribute> {
        let _ = value;
        None
    }

    /// Bytes of device memory that it owns.
    fn device_bytes(&self) -> usize {
        0
    }
}
