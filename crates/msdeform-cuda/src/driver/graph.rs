//! CUDA graphs: a recorded sequence of launches, replayed with one call.

use cudarc::driver::sys;

use super::{Context, Stream, driver};
use crate::error::Result;

/// Launches recorded once and ready to be replayed.
#[derive(Debug)]
pub struct Graph {
    context: Context,
    graph: sys::CUgraph,
    executable: sys::CUgraphExec,
}

// SAFETY: the handles may be used from any thread; concurrent launches are ordered by the driver.
unsafe impl Send for Graph {}

impl Graph {
    /// Records what `work` queues in `stream`, without running it. The pointers and sizes of that
    /// moment are kept.
    ///
    /// # Errors
    /// The error of `work`, or the driver's error about something that cannot be recorded.
    pub fn capture(stream: &Stream, work: impl FnOnce(&Stream) -> Result<()>) -> Result<Self> {
        let context = stream.context().clone();
        let _entered = context.enter()?;
        // Only calls of this thread are held against the recording: other threads may allocate.
        let mode = sys::CUstreamCaptureMode_enum::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream is alive.
        unsafe { driver!(cuStreamBeginCapture_v2(stream.raw(), mode)) }?;
        let worked = work(stream);
        let mut graph = std::ptr::null_mut();
        // The recording must end even if `work` failed, or the stream stays unusable.
        // SAFETY: the recording was begun above; `graph` is writable.
        let ended = unsafe { driver!(cuStreamEndCapture(stream.raw(), &raw mut graph)) };
        let mut recorded =
            Self { context: context.clone(), graph, executable: std::ptr::null_mut() };
        worked?;
        ended?;
        // SAFETY: the graph is valid, `executable` is writable.
        unsafe {
            driver!(cuGraphInstantiateWithFlags(&raw mut recorded.executable, recorded.graph, 0))
        }?;
        Ok(recorded)
    }

    /// Queues the recorded launches.
    ///
    /// # Safety
    /// Everything the recorded launches use (memory, plans, modules) is still there, and is left
    /// alone until the stream is done.
    pub unsafe fn launch(&self, stream: &Stream) -> Result<()> {
        let _entered = self.context.enter()?;
        // SAFETY: both handles are alive; the caller answers for what the launches use.
        Ok(unsafe { driver!(cuGraphLaunch(self.executable, stream.raw())) }?)
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // Failures leave nothing to do.
        if !self.executable.is_null() {
            // SAFETY: instantiated in `capture`, destroyed once.
            let _ = unsafe { driver!(cuGraphExecDestroy(self.executable)) };
        }
        if !self.graph.is_null() {
            // SAFETY: recorded in `capture`, destroyed once.
            let _ = unsafe { driver!(cuGraphDestroy(self.graph)) };
        }
    }
}
