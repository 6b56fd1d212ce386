//! The operators by name: what PyTorch is told, and which kernel it is given for each.

use std::ffi::{CStr, CString};

use crate::boxed::boxed;
use crate::error::CallError;
use crate::kernels::{Backward, Forward, LevelTensors, Levels};
use crate::libtorch::{BoxedKernel, Handle, Libtorch};
use crate::tensor::List;

const NAMESPACE: &CStr = c"msdeform";
const FILE: &CStr = c"msdeform-torch";

/// One direction of an operator: PyTorch's definition of it, and its kernel.
pub struct Operator {
    /// Name and overload.
    pub name: &'static CStr,
    /// The definition without the name. The Python half has the same in `_operators.py`; `test_aoti.py` compares both.
    signature: &'static str,
    kernel: BoxedKernel,
    /// Whether there are arguments that may be missing, which PyTorch hands over from version 2.13 on.
    has_optional: bool,
}

impl Operator {
    /// The definition.
    #[must_use]
    pub fn schema(&self) -> String {
        format!("{}{}", self.name.to_string_lossy(), self.signature)
    }
}

/// A name of PyTorch's, made of literals.
macro_rules! c_name {
    ($($part:expr),+) => {
        match CStr::from_bytes_with_nul(concat!($($part),+, "\0").as_bytes()) {
            Ok(name) => name,
            Err(_) => c"",
        }
    };
}

/// Both directions of an operator: its name, its overload, how its kernels take the levels, its place in the core's table, its
/// tensors, levels and options in a schema, which gradients may be wanted, and their results.
macro_rules! both_directions {
    (
        $name:literal $overload:literal, $levels:ty, $place:literal,
        $tensors:literal, $numbers:literal, $wanted:literal -> $gradients:literal
    ) => {
        [
            Operator {
                name: c_name!($name, $overload),
                signature: concat!(
                    "(",
                    $tensors,
                    ", ",
                    $numbers,
                    ", bool deterministic=False) -> Tensor"
                ),
                kernel: boxed::<Forward<$place, $levels>>,
                has_optional: <$levels as Levels>::HAS_OPTIONAL,
            },
            Operator {
                name: c_name!($name, "_backward", $overload),
                signature: concat!(
                    "(Tensor grad_output, ",
                    $tensors,
                    ", ",
                    $numbers,
                    ", ",
                    $wanted,
                    " wanted, bool deterministic=False) -> ",
                    $gradients
                ),
                kernel: boxed::<Backward<$place, $levels>>,
                has_optional: <$levels as Levels>::HAS_OPTIONAL,
            },
        ]
    };
}

/// All of them, in both directions.
pub static OPERATORS: [[Operator; 2]; 3] = [
    both_directions!(
        "ms_deform_attn" "", List, 0,
        "Tensor value, Tensor sampling_locations, Tensor attention_weights",
        "SymInt[] levels",
        "bool[3]" -> "(Tensor, Tensor, Tensor)"
    ),
    both_directions!(
        "ms_deform_attn" ".tensor_levels", LevelTensors, 0,
        "Tensor value, Tensor sampling_locations, Tensor attention_weights",
        "Tensor spatial_shapes, Tensor? level_start_index, SymInt[]? points",
        "bool[3]" -> "(Tensor, Tensor, Tensor)"
    ),
    both_directions!(
        "ms_deform_attn_from_offsets" "", List, 1,
        "Tensor value, Tensor reference_points, Tensor sampling_offsets, Tensor attention_logits",
        "SymInt[] levels, float offset_scale, bool anchors, bool softmax, bool nearest",
        "bool[4]" -> "(Tensor, Tensor, Tensor, Tensor)"
    ),
];

/// Defines the operators, for processes in which no Python did.
///
/// # Errors
/// PyTorch refuses; it does if they are defined already.
pub fn define(torch: &Libtorch) -> Result<(), CallError> {
    let mut library: Handle = std::ptr::null_mut();
    // SAFETY: two C strings, and a result that is writable.
    let code = unsafe {
        (torch.library_fragment)(NAMESPACE.as_ptr(), FILE.as_ptr(), line!(), &raw mut library)
    };
    torch.succeeded(code, "open a library of operators")?;
    let defined = OPERATORS.as_flattened().iter().try_for_each(|operator| {
        let schema = CString::new(operator.schema()).unwrap_or_default();
        // SAFETY: a live library and a C string, which is copied.
        let code = unsafe { (torch.library_define)(library, schema.as_ptr()) };
        torch.succeeded(code, "define an operator")
    });
    if defined.is_err() {
        // What the library has defined goes with it.
        // SAFETY: ours, and not used again.
        unsafe { (torch.library_delete)(library) };
    }
    // Else it stays: what it has defined is there as long as it is.
    defined
}

/// The dispatch keys that kernels are registered for.
const CPU: &CStr = c"CPU";
const CUDA: &CStr = c"CUDA";

/// Gives the operators that are defined their kernels: for the CPU and, if this libtorch has them, for GPUs. Returns
/// keys and names; an operator that this version of PyTorch cannot call natively is not among them.
///
/// # Errors
/// PyTorch refuses.
pub fn implement(torch: &Libtorch) -> Result<Vec<(&'static CStr, &'static CStr)>, CallError> {
    let mut done = implement_for(torch, CPU)?;
    if torch.has_cuda() {
        done.extend(implement_for(torch, CUDA)?);
    }
    Ok(done)
}

fn implement_for(
    torch: &Libtorch,
    key: &'static CStr,
) -> Result<Vec<(&'static CStr, &'static CStr)>, CallError> {
    let mut library: Handle = std::ptr::null_mut();
    // SAFETY: three C strings, and a result that is writable.
    let code = unsafe {
        (torch.library_of_key)(
            NAMESPACE.as_ptr(),
            key.as_ptr(),
            FILE.as_ptr(),
            line!(),
            &raw mut library,
        )
    };
    torch.succeeded(code, "open a library of kernels")?;
    let mut names = Vec::new();
    for operator in OPERATORS.as_flattened() {
        if operator.has_optional && torch.delete_value().is_none() {
            continue;
        }
        // SAFETY: a library of one key; the kernel is that of the schema, by the table above.
        let done = unsafe { torch.implement(library, operator.name, operator.kernel) };
        if let Err(error) = done {
            // SAFETY: ours, and not used again; the kernels that it has registered go with it.
            unsafe { (torch.library_delete)(library) };
            return Err(error);
        }
        names.push((key, operator.name));
    }
    // The library stays: what it has registered is there as long as it is.
    Ok(names)
}
