//! What calls on a GPU need of PyTorch: its current stream, its allocator, and to know whether a graph is being captured.

use msdeform_cuda::Pointers;

use crate::call::{Head, with_key};
use crate::cuda;
use crate::error::CallError;
use crate::libtorch::Libtorch;
use crate::tensor::{Place, Tensor};

/// Queues a call on the current stream of a GPU.
///
/// # Safety
/// The pointers are those of live tensors of that GPU, which the head and the operands describe. No other code writes to
/// the tensors that the call writes.
pub unsafe fn launch(
    torch: &'static Libtorch,
    ordinal: i32,
    head: Head,
    (operands, levels): (&[Tensor], &[i64]),
    pointers: &Pointers,
) -> Result<(), CallError> {
    let head = Head { place: i64::from(ordinal), ..head };
    let plan = with_key(head, operands, levels, cuda::plan)?;
    let workspace = match plan.workspace_bytes() {
        0 => None,
        bytes => {
            let bytes = i64::try_from(bytes).map_err(|_| CallError::Size(bytes.to_string()))?;
            Some(Tensor::empty(torch, Place::Gpu(ordinal), &[bytes], torch.formats.byte)?)
        }
    };
    let at = workspace.as_ref().map_or(Ok(0), Tensor::address)?;
    let stream = torch.current_stream(ordinal)?;
    // SAFETY: the caller's promise. PyTorch's allocator frees memory, the workspace too, in the order of the stream, which is
    // its current one on the tensors' GPU.
    unsafe { plan.launch(stream, &pointers.with_workspace(at)) }
}

/// Fails with this message if a CUDA graph is being captured on the GPU: reading from it would have to wait.
pub fn refuse_capture(
    torch: &Libtorch,
    ordinal: i32,
    message: impl FnOnce() -> String,
) -> Result<(), CallError> {
    let stream = torch.current_stream(ordinal)?;
    let gpu = usize::try_from(ordinal).map_err(|_| CallError::Size(ordinal.to_string()))?;
    // SAFETY: PyTorch's current stream on that GPU.
    if unsafe { cuda::is_capturing(gpu, stream) }? {
        return Err(CallError::Capture(message()));
    }
    Ok(())
}

/// Refuses float64 while a graph is being captured: the CPU computes it, for gradient checks and comparisons.
pub fn refuse_captured_double(torch: &Libtorch, ordinal: i32) -> Result<(), CallError> {
    refuse_capture(torch, ordinal, || {
        "float64 is computed on the processor, which a CUDA graph cannot contain; use float32 under capture"
            .to_owned()
    })
}
