//! The call that `msdeform run` makes of files, from bytes: for fuzzers.

use super::call::Call;
use super::files::Input;

pub use super::files::{Kind, NAMES, Stored};
pub use super::npy::header;
pub use super::sizes::{OffsetArgs, SizeArgs};

/// Loads the call that files describe, each under one of [`NAMES`]; a safetensors file comes alone. Returns whether they
/// make one.
///
/// # Panics
/// If a loaded tensor has another size than its description: the fault that fuzzers look for.
#[must_use]
pub fn load(
    kind: Kind,
    files: Vec<(&'static str, Vec<u8>)>,
    args: &SizeArgs,
    backward: bool,
) -> bool {
    let input = Input::in_memory(kind, files);
    let Ok(tensors) = input.tensors() else { return false };
    for tensor in NAMES.iter().filter_map(|name| tensors.find(name)) {
        let Some((stored, shape)) = &tensor.stated else { continue };
        let bits = stored.bitsize() * shape.iter().product::<usize>();
        assert_eq!(bits, 8 * tensor.bytes.len(), "{}", tensor.name);
    }
    let Ok(call) = Call::describe(&tensors, args) else { return false };
    let Ok(inputs) = call.inputs(&tensors, backward) else { return false };
    let problem = &call.problem;
    for (role, buffer) in inputs.iter() {
        assert_eq!(buffer.len(), problem.len_of(role), "{role}");
        assert_eq!(buffer.dtype(), problem.format_of(role), "{role}");
    }
    let read = problem.operator().inputs.len() + usize::from(backward);
    assert_eq!(inputs.iter().count(), read, "every tensor that the operator reads");
    true
}
