//! Multi-scale deformable attention as custom operators of [ONNX Runtime](https://onnxruntime.ai), on its CPU provider and on
//! its CUDA provider.
//!
//! | domain | operator | |
//! |---|---|---|
//! | `msdeform` | `MSDeformAttn` | the plain operator |
//! | `msdeform` | `MSDeformAttnFromOffsets` | the fused operator, see [`msdeform::Offsets`] |
//! | `mmdeploy` | `MMCVMultiScaleDeformableAttention` | the first one as mmdeploy writes it |
//! | `trt.plugins` | `MultiscaleDeformableAttnPlugin_TRT` | the first one as the plugin of `TensorRT` takes it |
//!
//! `register_custom_ops_library` of a session's options loads this crate as a shared library, which the Python package
//! contains. Rust programs that link the crate call [`register`] instead. Values are `f32` or `f16`, and shapes may change
//! from run to run. On a CPU the session's threads do the work. On a GPU the work is queued on the session's stream. A session
//! without the CUDA provider never calls CUDA.

mod api;
mod call;
mod compute;
mod cuda;
mod custom_op;
mod error;
mod infer;
mod node;
mod operators;

use std::ffi::CStr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::sync::{Mutex, PoisonError};

use ort_sys::{
    OrtApi, OrtApiBase, OrtCustomOpDomain, OrtErrorCode, OrtSessionOptions, OrtStatusPtr,
};

use api::Api;
use error::Error;

/// The version of the C API that is asked for. 1.17 is the first one that lends kernels its threads and asks them for
/// shapes; every later one still answers to it.
const API_VERSION: u32 = 17;

/// Adds the operators to a session's options. ONNX Runtime looks for this symbol in a library of custom operators.
///
/// With the crate `ort`, 2.0.0-rc.15:
///
/// ```no_run
/// use ort::session::Session;
///
/// let environment = ort::init().build()?;
/// let mut builder =
///     Session::builder(&environment)?.with_operator_library("./libmsdeform_onnxruntime.so")?;
/// let session = builder.commit_from_file("model.onnx")?;
/// # Ok::<(), ort::Error>(())
/// ```
///
/// # Safety
/// The caller is ONNX Runtime, or has both arguments from it. The library stays loaded for as long as a session
/// that was made with these options is alive.
#[unsafe(no_mangle)]
pub unsafe extern "system" fn RegisterCustomOps(
    options: *mut OrtSessionOptions,
    base: *const OrtApiBase,
) -> OrtStatusPtr {
    // SAFETY: the caller's promise. Tables of functions never move.
    unsafe {
        let api = ((*base).GetApi)(API_VERSION);
        if api.is_null() {
            return too_old(base);
        }
        register(options, api)
    }
}

/// Adds the operators to a session's options, by the table of functions of the runtime that they belong to.
///
/// With the crate `ort`:
///
/// ```no_run
/// use ort::AsPointer;
///
/// let environment = ort::init().build()?;
/// let mut builder = ort::session::Session::builder(&environment)?;
/// // SAFETY: options and functions are of the same runtime.
/// let status = unsafe { msdeform_onnxruntime::register(builder.ptr_mut(), ort::api()) };
/// // SAFETY: the status was made by these functions, for us to take.
/// unsafe { ort::Error::result_from_status(status)? };
/// # Ok::<(), ort::Error>(())
/// ```
///
/// # Safety
/// As of [`RegisterCustomOps`]; `api` is the table of version 1.17 or newer.
pub unsafe fn register(options: *mut OrtSessionOptions, api: *const OrtApi) -> OrtStatusPtr {
    let Some(api) = NonNull::new(api.cast_mut()) else {
        return OrtStatusPtr::default();
    };
    // SAFETY: the caller's promise.
    let api = unsafe { Api::new(api) };
    // SAFETY: as above.
    guarded(api, || unsafe { add_domains(options, api) })
}

/// A status instead of an error or a panic, neither of which may cross the border.
fn guarded(api: Api, work: impl FnOnce() -> Result<(), Error>) -> OrtStatusPtr {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(())) => OrtStatusPtr::default(),
        Ok(Err(error)) => api.status_of(&error),
        Err(_) => api.status_of(&Error::Panic),
    }
}

/// # Safety
/// As of [`RegisterCustomOps`].
unsafe fn too_old(base: *const OrtApiBase) -> OrtStatusPtr {
    // SAFETY: the caller's promise; the first version of the API has had what makes a status from the beginning.
    unsafe {
        let version = CStr::from_ptr(((*base).GetVersionString)()).to_string_lossy();
        let text = format!(
            "msdeform needs ONNX Runtime 1.17 or newer, this is {version}; update the package onnxruntime\0"
        );
        let api = ((*base).GetApi)(1);
        if api.is_null() {
            return OrtStatusPtr::default();
        }
        ((*api).CreateStatus)(OrtErrorCode::ORT_NOT_IMPLEMENTED, text.as_ptr().cast())
    }
}

/// The domains of a runtime: made once, for all sessions, since they must outlive every one of them.
struct Domains {
    api: Api,
    domains: Vec<NonNull<OrtCustomOpDomain>>,
}

// SAFETY: the runtime only reads domains that are complete, and a lock guards their creation.
unsafe impl Send for Domains {}

/// More than one runtime may be loaded.
static DOMAINS: Mutex<Vec<Domains>> = Mutex::new(Vec::new());

/// # Safety
/// As of [`RegisterCustomOps`].
unsafe fn add_domains(options: *mut OrtSessionOptions, api: Api) -> Result<(), Error> {
    let mut known = DOMAINS.lock().unwrap_or_else(PoisonError::into_inner);
    let at = match known.iter().position(|found| found.api == api) {
        Some(at) => at,
        None => {
            known.push(Domains { api, domains: custom_op::make_domains(api)? });
            known.len() - 1
        }
    };
    for domain in &known[at].domains {
        // SAFETY: the options are the caller's; the domain is whole and never released.
        unsafe { api.add_domain(options, *domain)? };
    }
    Ok(())
}

/// The code of this page is compiled with the rest.
#[cfg(doctest)]
mod readme {
    #[doc = include_str!("../README.md")]
    struct OfTheCrate;
}
