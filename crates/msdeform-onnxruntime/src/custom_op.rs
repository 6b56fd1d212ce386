//! The operators as the runtime sees them: tables of functions, and what these call.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::{self, NonNull};

use msdeform::DType;
use ort_sys::{
    ONNXTensorElementDataType as ElementType, OrtApi, OrtCustomOp, OrtCustomOpDomain,
    OrtCustomOpInputOutputCharacteristic as Characteristic, OrtKernelContext, OrtKernelInfo,
    OrtMemType, OrtShapeInferContext, OrtStatusPtr,
};

use crate::api::{Api, Context, KernelInfo, ShapeContext};
use crate::compute::Kernel;
use crate::error::Error;
use crate::operators::{FORMATS, OPERATORS, Operator, element_type};
use crate::{API_VERSION, guarded, infer};

/// An operator for values of one format. The runtime passes the address of its first field to every function.
#[repr(C)]
struct CustomOp {
    table: OrtCustomOp,
    api: Api,
    operator: &'static Operator,
    format: DType,
}

/// A kernel, with what it needs to fail properly.
struct Node {
    api: Api,
    kernel: Kernel,
}

/// Makes the domains of a runtime, with all operators. Both are kept for ever, as sessions may be.
pub(crate) fn make_domains(api: Api) -> Result<Vec<NonNull<OrtCustomOpDomain>>, Error> {
    let mut domains: Vec<(&CStr, NonNull<OrtCustomOpDomain>)> = Vec::new();
    for operator in &OPERATORS {
        let known =
            domains.iter().find(|(name, _)| *name == operator.domain).map(|(_, domain)| *domain);
        let domain = match known {
            Some(domain) => domain,
            None => {
                let made = api.make_domain(operator.domain)?;
                domains.push((operator.domain, made));
                made
            }
        };
        for format in FORMATS {
            let made = Box::new(CustomOp { table: table(), api, operator, format });
            let made: *const CustomOp = Box::leak(made);
            // SAFETY: it is never freed, and its functions take it for what it is.
            unsafe { api.add_operator(domain, made.cast())? };
        }
    }
    Ok(domains.into_iter().map(|(_, domain)| domain).collect())
}

/// The functions of every operator.
fn table() -> OrtCustomOp {
    // SAFETY: numbers and optional functions, for which zero means none. Newer fields, which are there if a crate beside us
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
    table.GetVariadicInputMinArity = Some(no_variadic);
    table.GetVariadicInputHomogeneity = Some(no_variadic);
    table.GetVariadicOutputMinArity = Some(no_variadic);
    table.GetVariadicOutputHomogeneity = Some(no_variadic);
    table.CreateKernelV2 = Some(create_kernel);
    table.KernelComputeV2 = Some(compute);
    table.InferOutputShapeFn = Some(infer_shape);
    table.GetStartVersion = Some(first_version);
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
    unsafe { of(op) }.operator.name.as_ptr()
}

unsafe extern "system" fn provider(_: *const OrtCustomOp) -> *const c_char {
    c"CPUExecutionProvider".as_ptr()
}

unsafe extern "system" fn input_type(op: *const OrtCustomOp, index: usize) -> ElementType {
    // SAFETY: the runtime passes what was registered.
    let CustomOp { operator, format, .. } = unsafe { of(op) };
    operator.declared_type(index, *format)
}

unsafe extern "system" fn input_count(op: *const OrtCustomOp) -> usize {
    // SAFETY: the runtime passes what was registered.
    unsafe { of(op) }.operator.inputs.len()
}

unsafe extern "system" fn output_type(op: *const OrtCustomOp, _: usize) -> ElementType {
    // SAFETY: the runtime passes what was registered.
    element_type(unsafe { of(op) }.format)
}

unsafe extern "system" fn one(_: *const OrtCustomOp) -> usize {
    1
}

unsafe extern "system" fn required(_: *const OrtCustomOp, _: usize) -> Characteristic {
    Characteristic::INPUT_OUTPUT_REQUIRED
}

unsafe extern "system" fn memory(_: *const OrtCustomOp, _: usize) -> OrtMemType {
    OrtMemType::OrtMemTypeDefault
}

unsafe extern "system" fn no_variadic(_: *const OrtCustomOp) -> c_int {
    1
}

unsafe extern "system" fn first_version(_: *const OrtCustomOp) -> c_int {
    1
}

/// A meaning that changes will be another version; until then nobody knows how far this one reaches.
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
    let CustomOp { api, operator, format, .. } = *unsafe { of(op) };
    guarded(api, || {
        // SAFETY: the information is the runtime's and there until this returns.
        let info = unsafe { KernelInfo::new(api, info) };
        let kernel = Kernel::new(operator, format, &info)?;
        // SAFETY: there is room for a pointer.
        unsafe { to.write(Box::into_raw(Box::new(Node { api, kernel })).cast()) };
        Ok(())
    })
}

unsafe extern "system" fn compute(
    node: *mut c_void,
    context: *mut OrtKernelContext,
) -> OrtStatusPtr {
    // SAFETY: `create_kernel` made it, and it is only read from then on.
    let Node { api, kernel } = unsafe { &*node.cast::<Node>() };
    guarded(*api, || {
        // SAFETY: the context is that of a run which lasts until this returns.
        kernel.compute(&unsafe { Context::new(*api, context) })
    })
}

unsafe extern "system" fn destroy_kernel(node: *mut c_void) {
    if !node.is_null() {
        // SAFETY: `create_kernel` made it, and the runtime destroys it once. Nothing here panics; if it did, the border
        // must not see it.
        let _ =
            catch_unwind(AssertUnwindSafe(|| drop(unsafe { Box::from_raw(node.cast::<Node>()) })));
    }
}

unsafe extern "system" fn infer_shape(
    op: *const OrtCustomOp,
    context: *mut OrtShapeInferContext,
) -> OrtStatusPtr {
    // SAFETY: the runtime passes what was registered: the first operator of this name, whatever the values' format.
    let CustomOp { api, operator, .. } = *unsafe { of(op) };
    let _ = catch_unwind(AssertUnwindSafe(|| {
        // SAFETY: the context is the runtime's and there until this returns.
        infer::infer(operator, &unsafe { ShapeContext::new(api, context) })
    }));
    // The runtime neither reads nor releases what this returns, and what is not known is no error.
    OrtStatusPtr(ptr::null_mut())
}
