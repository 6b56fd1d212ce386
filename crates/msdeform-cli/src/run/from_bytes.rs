//! The call that `msdeform run` makes of files, from bytes: for fuzzers and property tests.

use msdeform::{DType, ValueLayout};

use super::call::Call;
use super::files::{Input, Kind, NAMES};
use super::sizes::SizeArgs;

/// The kinds of input, with the sizes from the command line for raw files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Files {
    /// One file.
    Safetensors,
    /// A file per tensor.
    Npy,
    /// A raw file per tensor, with sizes from the command line.
    Bin {
        /// Attention heads.
        heads: usize,
        /// Channels of a head.
        channels: usize,
        /// Points of every level.
        points: usize,
        /// Element type.
        dtype: DType,
        /// Memory order of the values.
        layout: ValueLayout,
    },
}

/// Loads the call that files describe, in the order value, `spatial_shapes`, `level_start_index`, `sampling_locations`,
/// `attention_weights`, `grad_output`, `reference_points`, `sampling_offsets`, `attention_logits`; a safetensors file comes alone. Returns whether they make one.
///
/// # Panics
/// If what was loaded has other sizes than its description: the fault that is looked for.
#[must_use]
pub fn load(files: Files, bytes: Vec<Vec<u8>>, backward: bool) -> bool {
    let (kind, args) = match files {
        Files::Safetensors => (Kind::Safetensors, SizeArgs::default()),
        Files::Npy => (Kind::Npy, SizeArgs::default()),
        Files::Bin { heads, channels, points, dtype, layout } => {
            let args = SizeArgs {
                heads: Some(heads),
                channels: Some(channels),
                points: vec![points],
                dtype: Some(dtype),
                sampling_dtype: Some(dtype),
                layout: Some(layout),
                ..SizeArgs::default()
            };
            (Kind::Bin, args)
        }
    };
    load_call(kind, NAMES.into_iter().zip(bytes).collect(), &args, backward)
}

/// The same with anything on the command line.
pub(super) fn load_call(
    kind: Kind,
    files: Vec<(&'static str, Vec<u8>)>,
    args: &SizeArgs,
    backward: bool,
) -> bool {
    let input = Input::in_memory(kind, files);
    let Ok(tensors) = input.tensors() else { return false };
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
