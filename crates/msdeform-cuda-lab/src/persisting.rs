//! Part of L2 set aside for the values, which are read again and again.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::{Mutex, PoisonError};

use cudarc::driver::sys;
use msdeform::Role;
use msdeform_cuda::preamble::{Preamble, PreambleRecipe};
use msdeform_cuda::variants::Call;
use msdeform_cuda::{Context, DriverError, Result, driver};

/// Launches with a window over the values: its lines stay in a share of L2 that only windows use.
#[derive(Debug)]
pub(crate) struct PersistingValue;

/// The share of a plan. Everything else in the context has that much less of L2 while one of these lives.
#[derive(Debug)]
struct Share {
    context: Context,
    bytes: usize,
    /// Of the value tensor, cut to what a window can span.
    window_bytes: usize,
}

/// Bytes that a context has set aside, and for how many plans.
#[derive(Clone, Copy, Debug, Default)]
struct Limit {
    bytes: usize,
    holders: usize,
}

/// By the number of the device.
static LIMITS: Mutex<BTreeMap<usize, Limit>> = Mutex::new(BTreeMap::new());

impl PreambleRecipe for PersistingValue {
    fn prepare(&self, context: &Context, call: &Call<'_>) -> Result<Box<dyn Preamble>> {
        use sys::CUdevice_attribute_enum::{
            CU_DEVICE_ATTRIBUTE_MAX_ACCESS_POLICY_WINDOW_SIZE as LONGEST_WINDOW,
            CU_DEVICE_ATTRIBUTE_MAX_PERSISTING_L2_CACHE_SIZE as LARGEST_SHARE,
        };
        let _entered = context.enter()?;
        let value_bytes = call.extent(Role::Value);
        let bytes = value_bytes.min(attribute(LARGEST_SHARE)?);
        let window_bytes = value_bytes.min(attribute(LONGEST_WINDOW)?);
        let mut limits = LIMITS.lock().unwrap_or_else(PoisonError::into_inner);
        let limit = limits.entry(context.props().ordinal).or_default();
        if limit.bytes < bytes {
            set_limit(bytes)?;
            limit.bytes = bytes;
        }
        limit.holders += 1;
        Ok(Box::new(Share { context: context.clone(), bytes, window_bytes }))
    }
}

impl Preamble for Share {
    fn words(&self, _: u64) -> std::result::Result<Vec<u64>, DriverError> {
        Ok(Vec::new())
    }

    fn launch_attribute(&self, value: u64) -> Option<sys::CUlaunchAttribute> {
        // A GPU without a share has no windows either.
        (self.bytes > 0 && self.window_bytes > 0)
            .then(|| window(value, self.window_bytes, hit_ratio(self.window_bytes, self.bytes)))
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let Ok(_entered) = self.context.enter() else { return };
        let mut limits = LIMITS.lock().unwrap_or_else(PoisonError::into_inner);
        let limit = limits.entry(self.context.props().ordinal).or_default();
        limit.holders -= 1;
        if limit.holders == 0 && limit.bytes > 0 {
            limit.bytes = 0;
            // A failure (the driver shutting down at exit) leaves nothing to do.
            let _ = set_limit(0);
            // SAFETY: the context is current.
            let _ = unsafe { sys::cuCtxResetPersistingL2Cache() };
        }
    }
}

/// Of the device of the current context.
fn attribute(which: sys::CUdevice_attribute) -> Result<usize> {
    let (mut device, mut value) = (0, 0);
    // SAFETY: the caller entered a context; both results are writable.
    unsafe {
        driver!(cuCtxGetDevice(&raw mut device))?;
        driver!(cuDeviceGetAttribute(&raw mut value, which, device))?;
    }
    Ok(usize::try_from(value).unwrap_or(0))
}

/// Of the current context.
fn set_limit(bytes: usize) -> Result<()> {
    let limit = sys::CUlimit_enum::CU_LIMIT_PERSISTING_L2_CACHE_SIZE;
    // SAFETY: the caller entered a context.
    Ok(unsafe { driver!(cuCtxSetLimit(limit, bytes)) }?)
}

/// The part of a window's lines that stay, so that they fit the share. The others are treated as streams.
fn hit_ratio(window_bytes: usize, share_bytes: usize) -> f32 {
    (share_bytes as f64 / window_bytes.max(1) as f64).min(1.0) as f32
}

fn window(address: u64, bytes: usize, hit_ratio: f32) -> sys::CUlaunchAttribute {
    use sys::CUaccessProperty_enum::{CU_ACCESS_PROPERTY_PERSISTING, CU_ACCESS_PROPERTY_STREAMING};
    // SAFETY: a C struct of integers, padding and a union of plain data.
    let mut attribute: sys::CUlaunchAttribute = unsafe { std::mem::zeroed() };
    attribute.id = sys::CUlaunchAttributeID_enum::CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW;
    attribute.value.accessPolicyWindow = sys::CUaccessPolicyWindow {
        base_ptr: address as *mut c_void,
        num_bytes: bytes,
        hitRatio: hit_ratio,
        hitProp: CU_ACCESS_PROPERTY_PERSISTING,
        missProp: CU_ACCESS_PROPERTY_STREAMING,
    };
    attribute
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_keeps_no_more_than_the_share_holds() {
        assert_eq!(hit_ratio(1 << 20, 32 << 20), 1.0);
        assert_eq!(hit_ratio(64 << 20, 32 << 20), 0.5);
        assert_eq!(hit_ratio(0, 32 << 20), 1.0);
    }
}
