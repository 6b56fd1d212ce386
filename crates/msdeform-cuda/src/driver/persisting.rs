//! Part of L2 set aside for memory that is read again and again.

use std::ffi::c_void;
use std::sync::PoisonError;

use cudarc::driver::sys;

use super::{Context, driver};
use crate::error::Result;

/// A share of L2 that only windows use. The context's limit is raised while any of these lives, and everything
/// else in the context has that much less: only who launches with a window should hold one.
#[derive(Debug)]
pub(crate) struct PersistingL2 {
    context: Context,
    bytes: usize,
    longest_window: usize,
}

/// Memory whose lines stay in the set-aside share of L2 while a kernel runs.
#[derive(Clone, Copy, Debug, PartialEq)]
#[doc(hidden)]
pub struct AccessWindow {
    address: u64,
    bytes: usize,
    /// The share of its lines that stay; which ones, the hardware chooses. The others are treated as streams.
    hit_ratio: f32,
}

impl PersistingL2 {
    /// Sets aside as much as the device lets, at most `wanted` bytes. `None` where it has no such thing.
    ///
    /// # Errors
    /// The driver's error.
    pub(crate) fn set_aside(context: &Context, wanted: usize) -> Result<Option<Self>> {
        let props = context.props();
        let bytes = props.persisting_l2_bytes.min(wanted);
        if bytes == 0 || props.access_window_bytes == 0 {
            return Ok(None);
        }
        let _entered = context.enter()?;
        let mut limit =
            context.persisting_l2_limit().lock().unwrap_or_else(PoisonError::into_inner);
        if limit.bytes < bytes {
            set_limit(bytes)?;
            limit.bytes = bytes;
        }
        limit.holders += 1;
        let longest_window = props.access_window_bytes;
        Ok(Some(Self { context: context.clone(), bytes, longest_window }))
    }

    /// A window over a tensor, cut to what a window can span. Its hit ratio keeps what stays within the share.
    pub(crate) fn window(&self, address: u64, tensor_bytes: usize) -> AccessWindow {
        AccessWindow::of_share(address, tensor_bytes.min(self.longest_window), self.bytes)
    }
}

impl Drop for PersistingL2 {
    fn drop(&mut self) {
        let Ok(_entered) = self.context.enter() else { return };
        let mut limit =
            self.context.persisting_l2_limit().lock().unwrap_or_else(PoisonError::into_inner);
        limit.holders -= 1;
        if limit.holders == 0 {
            limit.bytes = 0;
            // A failure (the driver shutting down at exit) leaves nothing to do.
            let _ = set_limit(0);
            // SAFETY: the context is current.
            let _ = unsafe { driver!(cuCtxResetPersistingL2Cache()) };
        }
    }
}

/// Of the current context.
fn set_limit(bytes: usize) -> Result<()> {
    let limit = sys::CUlimit_enum::CU_LIMIT_PERSISTING_L2_CACHE_SIZE;
    // SAFETY: the caller entered a context.
    Ok(unsafe { driver!(cuCtxSetLimit(limit, bytes)) }?)
}

/// What a context has set aside, and for how many.
#[derive(Debug, Default)]
pub(super) struct PersistingL2Limit {
    bytes: usize,
    holders: usize,
}

impl AccessWindow {
    fn of_share(address: u64, bytes: usize, share: usize) -> Self {
        let hit_ratio = (share as f64 / bytes.max(1) as f64).min(1.0) as f32;
        Self { address, bytes, hit_ratio }
    }

    /// As a launch takes it.
    pub(super) fn attribute(&self) -> sys::CUlaunchAttribute {
        use sys::CUaccessProperty_enum::{
            CU_ACCESS_PROPERTY_PERSISTING, CU_ACCESS_PROPERTY_STREAMING,
        };
        // SAFETY: a C struct of integers, padding and a union of plain data.
        let mut attribute: sys::CUlaunchAttribute = unsafe { std::mem::zeroed() };
        attribute.id = sys::CUlaunchAttributeID_enum::CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW;
        attribute.value.accessPolicyWindow = sys::CUaccessPolicyWindow {
            base_ptr: self.address as *mut c_void,
            num_bytes: self.bytes,
            hitRatio: self.hit_ratio,
            hitProp: CU_ACCESS_PROPERTY_PERSISTING,
            missProp: CU_ACCESS_PROPERTY_STREAMING,
        };
        attribute
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_keeps_no_more_than_the_share_holds() {
        let ratio = |bytes, share| AccessWindow::of_share(0, bytes, share).hit_ratio;
        assert_eq!(ratio(1 << 20, 32 << 20), 1.0);
        assert_eq!(ratio(64 << 20, 32 << 20), 0.5);
        assert_eq!(ratio(0, 32 << 20), 1.0);
    }
}
