//! The operators as the runtime sees them: tables of functions, and what these call.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::{self, NonNull};

use ort_sys::{
    ONNXTensorElementDataType as ElementType, OrtApi, OrtCustomOp, OrtCustomOpDomain,
    OrtCustomOpInputOutputCharacteristic as Characteristic, OrtKernelContext, OrtKernelInfo,
    OrtMemType, OrtShapeInferContext, OrtStatusPtr,
};

use crate::api::{Api, Context, KernelInfo, ShapeContext};
use crate::error::Error;
use crate::node::Node;
use crate::operators::{NODE_KINDS, Provider, Signature, element_type};
use crate::{API_VERSION, compute, cuda, guarded, infer};

/// An operator for one provider and types. The runtime passes the address of its first field to every function.
#[repr(C)]
struct CustomOp {
    table: OrtCustomOp,
    api: Api,
    signature: Signature,
}

/// What computes a node, with what it needs to fail properly.
struct Kernel {
    api: Api,
    on: On,
}

enum On {
    Cpu(compute::Kernel),
    Cuda(cuda::Kernel),
}

/// Makes the domains of a runtime, with all operators. Both are kept for ever, as sessions may be.
pub(crate) fn make_domains(api: Api) -> Result<Vec<NonNull<OrtCustomOpDomain>>, Error> {
    let mut domains: Vec<(&CStr, NonNull<OrtCustomOpDomain>)> = Vec::new();
    for kind in &NODE_KINDS {
        let domain = match domains.iter().find(|(name, _)| *name == kind.domain) {
            Some((_, domain)) => *domain,
            None => {
                let made = api.make_domain(kind.domain)?;
                domains.push((kind.domain, made));
                made
            }
        };
        let offered =
            |signature: &Signature| signature.provider != Provider::Cuda || cuda::is_offered();
        for signature in Signature::of(kind).into_iter().filter(offered) {
            let made = Box::new(CustomOp { table: table(), api, signature });
            let made: *const CustomOp = Box::leak(made);
            // SAFETY: it is never freed, and its functions take it for what it is.
            unsafe { api.add_operator(domain, made.cast())? };
        }
    }
    Ok(domains.into_iter().map(|(_, domain)| domain).collect())
}

/// The functions of every operator.
fn table() -> OrtCustomOp {
    // SAFETY: numbers and optional functions, for which zero means none. Newer fields, which are there if another crate
    // asks for a newer API, stay none.
    let mut table: OrtCustomOp = unsafe { MaybeUninit::zeroed().assume_init() };
    table.version = API_VERSION;
    table.GetName = Some(name);
    table.GetExecutionProviderType = Some(provider);
    table.GetInputType = Some(input_type);
    table.GetInputTypeCount = Some(input_count);
    table.GetOutputType = Some(output_type);
    table.GetOutputTypeCount = Some(one);
    table.KernelDestroy = Some(destroy_kernel);
    table.GetInputCharacteristic = Some(required);
    table.GetOutputCharacteristic = Some(required);
    table.GetInputMemoryType = Some(memory);
    table.GetVariadicInputMinArity = Some(first);
    table.GetVariadicInputHomogeneity = Some(first);
    table.GetVariadicOutputMinArity = Some(first);
    table.GetVariadicOutputHomogeneity = Some(first);
    table.CreateKernelV2 = Some(create_kernel);
    table.KernelComputeV2 = Some(compute_kernel);
    table.InferOutputShapeFn = Some(infer_shape);
    table.GetStartVersion = Some(first);
    table.GetEndVersion = Some(last_version);
    table
}

/// # Safety
/// It is one of those that [`make_domains`] made.
unsafe fn of<'a>(op: *const OrtCustomOp) -> &'a CustomOp {
    // SAFETY: the table is the first field of what was registered, which is never freed or changed.
    unsafe { &*op.cast::<CustomOp>() }
}

unsafe extern "system" fn name(op: *const OrtCustomOp) -> *const c_char {
    // SAFETY: the runtime passes what was registered.
    unsafe { of(op) }.signature.kind.name.as_ptr()
}

unsafe extern "system" fn provider(op: *const OrtCustomOp) -> *const c_char {
    // SAFETY: the runtime passes what was registered.
    unsafe { of(op) }.signature.provider.name().as_ptr()
}

unsafe extern "system" fn input_type(op: *const OrtCustomOp, index: usize) -> ElementType {
    // SAFETY: the runtime passes what was registered.
    unsafe { of(op) }.signature.declared_type(index)
}

unsafe extern "system" fn input_count(op: *const OrtCustomOp) -> usize {
    // SAFETY: the runtime passes what was registered.
    unsafe { of(op) }.signature.kind.input_count()
}

unsafe extern "system" fn output_type(op: *const OrtCustomOp, _: usize) -> ElementType {
    // SAFETY: the runtime passes what was registered.
    element_type(unsafe { of(op) }.signature.format)
}

unsafe extern "system" fn one(_: *const OrtCustomOp) -> usize {
    1
}

unsafe extern "system" fn required(_: *const OrtCustomOp, _: usize) -> Characteristic {
    Characteristic::INPUT_OUTPUT_REQUIRED
}

unsafe extern "system" fn memory(op: *const OrtCustomOp, index: usize) -> OrtMemType {
    // SAFETY: the runtime passes what was registered.
    if unsafe { of(op) }.signature.is_read_by_host(index) {
        OrtMemType::OrtMemTypeCPUInput
    } else {
        OrtMemType::OrtMemTypeDefault
    }
}

/// The first version; and, because no operator is variadic, what is asked about those that are.
unsafe extern "system" fn first(_: *const OrtCustomOp) -> c_int {
    1
}

/// If the meaning changes, this becomes another version. Until then all versions are accepted.
unsafe extern "system" fn last_version(_: *const OrtCustomOp) -> c_int {
    c_int::MAX
}

unsafe extern "system" fn create_kernel(
    op: *const OrtCustomOp,
    _: *const OrtApi,
    info: *const OrtKernelInfo,
    to: *mut *mut c_void,
) -> OrtStatusPtr {
    // SAFETY: the runtime passes what was registered.
    let CustomOp { api, signature, .. } = *unsafe { of(op) };
    guarded(api, || {
        // SAFETY: the information is the runtime's and there until this returns.
        let info = unsafe { KernelInfo::new(api, info) };
        let node = Node::new(signature.kind, signature.format, &info)?;
        let on = match signature.provider {
            Provider::Cpu => On::Cpu(compute::Kernel::new(node)),
            Provider::Cuda => On::Cuda(cuda::Kernel::new(node)),
        };
        // SAFETY: there is room for a pointer.
        unsafe { to.write(Box::into_raw(Box::new(Kernel { api, on })).cast()) };
        Ok(())
    })
}

unsafe extern "system" fn compute_kernel(
    kernel: *mut c_void,
    context: *mut OrtKernelContext,
) -> OrtStatusPtr {
    // SAFETY: `create_kernel` made it, and it is only read from then on.
    let Kernel { api, on } = unsafe { &*kernel.cast::<Kernel>() };
    guarded(*api, || {
        // SAFETY: the context is that of a run which lasts until this returns.
        let context = unsafe { Context::new(*api, context) };
        match on {
            On::Cpu(kernel) => kernel.compute(&context),
            On::Cuda(kernel) => kernel.compute(&context),
        }
    })
}

unsafe extern "system" fn destroy_kernel(kernel: *mut c_void) {
    if !kernel.is_null() {
        let kernel = kernel.cast::<Kernel>();
        // SAFETY: `create_kernel` made it, and the runtime destroys it once. Nothing here panics; if it did, the border
        // must not see it.
        let _ = catch_unwind(AssertUnwindSafe(|| drop(unsafe { Box::from_raw(kernel) })));
    }
}

unsafe extern "system" fn infer_shape(
    op: *const OrtCustomOp,
    context: *mut OrtShapeInferContext,
) -> OrtStatusPtr {
    // SAFETY: the runtime passes what was registered: the first operator of this name, for any dtype of the values.
    let CustomOp { api, signature, .. } = *unsafe { of(op) };
    let _ = catch_unwind(AssertUnwindSafe(|| {
        // SAFETY: the context is the runtime's and there until this returns.
        infer::infer(signature.kind, &unsafe { ShapeContext::new(api, context) })
    }));
    // The runtime neither reads nor releases what this returns, and what is not known is no error.
    OrtStatusPtr(ptr::null_mut())
}
