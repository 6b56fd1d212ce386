//! The operators by name: what PyTorch is told, and which kernel it is given for each.

use std::ffi::{CStr, CString};

use crate::boxed::boxed;
use crate::error::CallError;
use crate::kernels::{Backward, Forward, LevelTensors};
use crate::libtorch::{BoxedKernel, Handle, Libtorch};
use crate::tensor::List;

const NAMESPACE: &CStr = c"msdeform";
const FILE: &CStr = c"msdeform-torch";

/// An operator: PyTorch's definition of it and the kernel, which computes where its tensors are.
pub struct Operator {
    /// Name and overload.
    pub name: &'static CStr,
    /// What follows the name in the definition. The same as in the Python half, `_schema.py`; a test of that holds it.
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

macro_rules! tensors {
    () => {
        "Tensor value, Tensor sampling_locations, Tensor attention_weights"
    };
}
macro_rules! read {
    () => {
        "Tensor spatial_shapes, Tensor? level_start_index, SymInt[]? points"
    };
}
macro_rules! gradients {
    () => {
        "bool[3] wanted, bool deterministic=False) -> (Tensor, Tensor, Tensor)"
    };
}
macro_rules! source {
    () => {
        "Tensor value, Tensor reference_points, Tensor sampling_offsets, Tensor attention_logits"
    };
}
macro_rules! rule {
    () => {
        "SymInt[] levels, float offset_scale, bool anchors, bool softmax, bool nearest"
    };
}

/// All of them.
pub static OPERATORS: [Operator; 6] = [
    Operator {
        name: c"ms_deform_attn",
        signature: concat!(
            "(",
            tensors!(),
            ", SymInt[] levels, bool deterministic=False) -> Tensor"
        ),
        kernel: boxed::<Forward<3, List>>,
        has_optional: false,
    },
    Operator {
        name: c"ms_deform_attn.tensor_levels",
        signature: concat!("(", tensors!(), ", ", read!(), ", bool deterministic=False) -> Tensor"),
        kernel: boxed::<Forward<3, LevelTensors>>,
        has_optional: true,
    },
    Operator {
        name: c"ms_deform_attn_backward",
        signature: concat!(
            "(Tensor grad_output, ",
            tensors!(),
            ", SymInt[] levels, ",
            gradients!()
        ),
        kernel: boxed::<Backward<3, List>>,
        has_optional: false,
    },
    Operator {
        name: c"ms_deform_attn_backward.tensor_levels",
        signature: concat!("(Tensor grad_output, ", tensors!(), ", ", read!(), ", ", gradients!()),
        kernel: boxed::<Backward<3, LevelTensors>>,
        has_optional: true,
    },
    Operator {
        name: c"ms_deform_attn_from_offsets",
        signature: concat!("(", source!(), ", ", rule!(), ", bool deterministic=False) -> Tensor"),
        kernel: boxed::<Forward<4, List>>,
        has_optional: false,
    },
    Operator {
        name: c"ms_deform_attn_from_offsets_backward",
        signature: concat!(
            "(Tensor grad_output, ",
            source!(),
            ", ",
            rule!(),
            ", bool[4] wanted, bool deterministic=False) -> (Tensor, Tensor, Tensor, Tensor)"
        ),
        kernel: boxed::<Backward<4, List>>,
        has_optional: false,
    },
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
    let defined = OPERATORS.iter().try_for_each(|operator| {
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

/// Gives the operators that are defined their kernels: for the processor and, where this libtorch has them, for GPUs. Returns
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
    for operator in &OPERATORS {
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
