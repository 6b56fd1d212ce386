//! The operators by name: what PyTorch is told, and which kernel it is given for each.

use std::ffi::{CStr, CString};

use crate::boxed::boxed;
use crate::error::CallError;
use crate::kernels::{Backward, Forward, LevelTensors, Levels, option_arguments};
use crate::libtorch::{BoxedKernel, Handle, Libtorch};
use crate::tensor::List;

const NAMESPACE: &CStr = c"msdeform";
const FILE: &CStr = c"msdeform-torch";

/// One direction of an operator: PyTorch's definition of it, and its kernel.
pub struct Operator {
    /// Name and overload.
    name: String,
    /// The definition without the name. The Python half has the same in `_operators.py`; `test_aoti.py` compares both.
    signature: String,
    kernel: BoxedKernel,
}

impl Operator {
    /// The definition.
    pub fn schema(&self) -> String {
        format!("{}{}", self.name, self.signature)
    }
}

/// All of them, in both directions.
pub fn operators() -> Vec<Operator> {
    let plain = both_directions::<0, List>("ms_deform_attn", "");
    let of_tensors = both_directions::<0, LevelTensors>("ms_deform_attn", ".tensor_levels");
    let fused = both_directions::<1, List>("ms_deform_attn_from_offsets", "");
    [plain, of_tensors, fused].into_iter().flatten().collect()
}

/// Both directions of an operator, by its place in the core's table, with its levels given as `L`.
fn both_directions<const OPERATOR: usize, L: Levels>(name: &str, overload: &str) -> [Operator; 2] {
    let operator = msdeform::Operator::ALL[OPERATOR];
    let tensors = operator.inputs.iter().map(|role| format!("Tensor {}, ", role.name()));
    let (tensors, levels) = (tensors.collect::<String>(), L::SCHEMA);
    let options = match option_arguments(operator) {
        0 => "",
        _ => ", float offset_scale, bool anchors, bool softmax, bool nearest",
    };
    let read = format!("{tensors}{levels}{options}");
    let (count, last) = (operator.inputs.len(), "bool deterministic=False");
    let gradients = vec!["Tensor"; count].join(", ");
    [
        Operator {
            name: format!("{name}{overload}"),
            signature: format!("({read}, {last}) -> Tensor"),
            kernel: boxed::<Forward<OPERATOR, L>>,
        },
        Operator {
            name: format!("{name}_backward{overload}"),
            signature: format!(
                "(Tensor grad_output, {read}, bool[{count}] wanted, {last}) -> ({gradients})"
            ),
            kernel: boxed::<Backward<OPERATOR, L>>,
        },
    ]
}

/// Defines the operators, for processes in which no Python did. PyTorch refuses if they are defined already.
pub fn define(torch: &Libtorch) -> Result<(), CallError> {
    let mut library: Handle = std::ptr::null_mut();
    let (namespace, file, at) = (NAMESPACE.as_ptr(), FILE.as_ptr(), &raw mut library);
    // SAFETY: two C strings, and a result that is writable.
    let code = unsafe { (torch.library_fragment)(namespace, file, line!(), at) };
    torch.succeeded(code, "open a library of operators")?;
    let defined = operators().iter().try_for_each(|operator| {
        let schema = CString::new(operator.schema()).unwrap_or_default();
        // SAFETY: a live library and a C string, which is copied.
        let code = unsafe { (torch.library_define)(library, schema.as_ptr()) };
        torch.succeeded(code, "define an operator")
    });
    keep_if(torch, library, defined)
}

/// A library stays, because what it has defined or registered is there as long as it is. If something was refused, the library
/// goes with all of that.
fn keep_if<T>(
    torch: &Libtorch,
    library: Handle,
    filled: Result<T, CallError>,
) -> Result<T, CallError> {
    if filled.is_err() {
        // SAFETY: ours, and not used again.
        unsafe { (torch.library_delete)(library) };
    }
    filled
}

/// Gives the operators that are defined their kernels: for the CPU and, if this libtorch has them, for GPUs. Returns
/// keys and names; an operator that this version of PyTorch cannot call natively is not among them.
pub fn implement(torch: &Libtorch) -> Result<Vec<(&'static str, String)>, CallError> {
    let keys = [c"CPU", c"CUDA"].into_iter().take(1 + usize::from(torch.has_cuda()));
    let mut done = Vec::new();
    for key in keys {
        let names = implement_for(torch, key)?;
        done.extend(names.into_iter().map(|name| (key.to_str().unwrap_or_default(), name)));
    }
    Ok(done)
}

fn implement_for(torch: &Libtorch, key: &CStr) -> Result<Vec<String>, CallError> {
    let (file, mut library): (_, Handle) = (FILE.as_ptr(), std::ptr::null_mut());
    let (namespace, at) = (NAMESPACE.as_ptr(), &raw mut library);
    // SAFETY: three C strings, and a result that is writable.
    let code = unsafe { (torch.library_of_key)(namespace, key.as_ptr(), file, line!(), at) };
    torch.succeeded(code, "open a library of kernels")?;
    // PyTorch hands over arguments that may be missing from version 2.13 on.
    let takes_optional = torch.delete_value().is_some();
    let known = operators().into_iter();
    let known = known.filter(|each| takes_optional || !each.signature.contains('?'));
    let names = known.map(|Operator { name, kernel, .. }| {
        let c_name = CString::new(name.as_str()).unwrap_or_default();
        // SAFETY: a library of one key; the kernel is that of the schema, by `both_directions`.
        unsafe { torch.implement(library, &c_name, kernel) }.map(|()| name)
    });
    keep_if(torch, library, names.collect())
}
