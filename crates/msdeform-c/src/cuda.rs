//! Plans for GPUs: on the caller's stream and the caller's device memory.

use std::ffi::{CStr, c_char, c_void};

use msdeform::{
    Access, Direction, Gradients, Mode, OutputStrides, Problem, Role, RowStrides, SourceStrides,
    ValueStrides,
};
use msdeform_cuda::{
    Ahead, BackwardOptions, DiskCache, Engine, Plan, PlanOptions, PointerChecks, Pointers, Stream,
    WORKSPACE_ALIGNMENT, Workspace, registry,
};

use crate::border::{
    answer, checked, growing, hand_out, handle, list, read, read_or_zero, take_back,
};
use crate::problem::{constant, flag, msdeform_problem, unknown};
use crate::status::{Failure, entry, msdeform_message, msdeform_status, silently};
use crate::tensors::{at_least, check_together, exactly, msdeform_tensors};

/// What the address of a CUDA workspace must be a multiple of.
pub const MSDEFORM_CUDA_WORKSPACE_ALIGNMENT: usize = 256;
const _: () = assert!(MSDEFORM_CUDA_WORKSPACE_ALIGNMENT == WORKSPACE_ALIGNMENT);

/// What a CUDA plan computes.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum msdeform_direction {
    /// The output.
    Forward = 0,
    /// Gradients.
    Backward = 1,
}

/// Which gradients a CUDA plan computes; add them up.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum msdeform_gradients {
    /// All that the problem has.
    All = 0,
    /// Of the values.
    Value = 1,
    /// Of the locations, or of the offsets.
    Locations = 2,
    /// Of the weights, or of the logits.
    Weights = 4,
    /// Of the references, in calls from offsets.
    References = 8,
}

/// When a CUDA plan asks the driver what its pointers lead to. Null and misaligned pointers are always found.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum msdeform_pointer_checks {
    /// On its first launch.
    First = 0,
    /// On every launch: about a microsecond for each tensor.
    Every = 1,
    /// Never.
    Never = 2,
}

/// Whose memory the steps of a launch share.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum msdeform_cuda_workspace {
    /// The plan's own, allocated when it is made. Its launches must follow each other then: those on one stream do.
    Plan = 0,
    /// The caller's, given with every launch (`msdeform_tensors.workspace`). Launches on several streams need one each.
    Caller = 1,
}

/// How a GPU is opened. All zero, or null instead of it: with the user's folders.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct msdeform_cuda_engine_options {
    /// sizeof(msdeform_cuda_engine_options).
    pub struct_size: usize,
    /// The folder where compiled kernels are kept; null: what MSDEFORM_CACHE_DIR says, else the user's cache.
    pub cache_folder: *const c_char,
}

/// How a CUDA plan runs. All zero, or null instead of it: forward, of a packed tensor, with the library's own choices.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct msdeform_cuda_plan_options {
    /// sizeof(msdeform_cuda_plan_options).
    pub struct_size: usize,
    /// Null: values are packed. Otherwise elements from one image, head and pixel to the next: 3 numbers.
    pub value_strides: *const i64,
    /// Null: grad_output is packed. Otherwise elements from one image, query, head and channel to the next: 4 numbers, which
    /// may be zero.
    pub grad_output_strides: *const i64,
    /// Null: the library chooses. Otherwise the variant to use, by its name; it computes the call or refuses it.
    pub variant: *const c_char,
    /// One of `msdeform_direction`.
    pub direction: i32,
    /// A sum of `msdeform_gradients`.
    pub gradients: i32,
    /// 1: gradients are bitwise reproducible.
    pub deterministic: i32,
    /// One of `msdeform_pointer_checks`.
    pub pointer_checks: i32,
    /// One of `msdeform_cuda_workspace`.
    pub workspace: i32,
    /// Width of the raster that the queries form, if they do: a hint. Otherwise 0.
    pub query_raster_width: u32,
    /// Null: reference_points are packed. Otherwise elements from one image and query to the next: 2 numbers, which may be
    /// zero, for references that images or queries share. Only in calls from offsets, as the next two.
    pub reference_strides: *const i64,
    /// As above, of sampling_offsets: the numbers of one query follow each other.
    pub offset_strides: *const i64,
    /// As above, of attention_logits.
    pub logit_strides: *const i64,
}

/// What there is to know about a CUDA plan.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct msdeform_cuda_plan_info {
    /// sizeof(msdeform_cuda_plan_info).
    pub struct_size: usize,
    /// Bytes of the workspace that a launch needs, of the plan or of the caller.
    pub workspace_bytes: usize,
    /// Bytes of device memory that are the plan's own.
    pub own_bytes: usize,
    /// The variant that was chosen, with a zero at its end.
    pub variant: [c_char; 64],
}

growing! {
    msdeform_cuda_engine_options 2 * size_of::<usize>();
    msdeform_cuda_plan_options 4 * size_of::<usize>() + 24;
    msdeform_cuda_plan_info 3 * size_of::<usize>() + 64;
}

/// A GPU, ready to make plans: its context, its compiler, the kernels loaded so far. One for each device is enough; any
/// number of threads may use it at the same time, and it may be destroyed while plans made with it live on.
pub struct msdeform_cuda_engine {
    engine: Engine,
}

/// A call in one direction on a GPU, ready to be launched any number of times on any stream of its device. Launching
/// allocates nothing, waits for nothing, and can be captured in a CUDA graph.
pub struct msdeform_cuda_plan {
    plan: Plan,
}

/// Sets `count` to the number of GPUs that the CUDA driver sees. Without a driver `MSDEFORM_STATUS_CUDA_UNAVAILABLE`.
///
/// Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn msdeform_cuda_device_count(
    count: *mut usize,
    message: *mut msdeform_message,
) -> msdeform_status {
    entry(message, || {
        let to = checked("count", count)?;
        // SAFETY: not null and aligned; the caller promises a number.
        unsafe { to.write(0) };
        let found = msdeform_cuda::device_count()?;
        // SAFETY: as above.
        unsafe { to.write(found) };
        Ok(())
    })
}

/// Opens GPU `device`, as CUDA_VISIBLE_DEVICES numbers them. It is closed with `msdeform_cuda_engine_destroy`; streams and
/// pointers are those of the device's primary context, which the CUDA runtime and PyTorch use.
///
/// Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn msdeform_cuda_engine_create(
    device: i32,
    options: *const msdeform_cuda_engine_options,
    engine: *mut *mut msdeform_cuda_engine,
    message: *mut msdeform_message,
) -> msdeform_status {
    entry(message, || {
        // SAFETY: the caller promises that pointers lead to what their types say.
        unsafe {
            hand_out(engine, || {
                let options = read_or_zero(options)?;
                let ordinal = usize::try_from(device)
                    .map_err(|_| unknown("device", device, "0 and above"))?;
                let cache = match text("cache_folder", options.cache_folder)? {
                    Some(folder) => DiskCache::in_folder(folder),
                    None => DiskCache::of_user(),
                };
                Ok(msdeform_cuda_engine { engine: Engine::with_cache(ordinal, cache)? })
            })
        }
    })
}

/// Closes a GPU. Plans that were made with it stay valid. Null is allowed.
///
/// Any thread, once, after the last use in any other.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn msdeform_cuda_engine_destroy(engine: *mut msdeform_cuda_engine) {
    // SAFETY: the caller gives the handle up.
    silently(|| unsafe { take_back(engine) });
}

/// Chooses, compiles and loads what a problem needs on a GPU, and allocates the plan's workspace. Kernels that were never
/// compiled take seconds, others microseconds. The plan is destroyed with `msdeform_cuda_plan_destroy`.
///
/// Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn msdeform_cuda_plan_create(
    engine: *const msdeform_cuda_engine,
    problem: *const msdeform_problem,
    options: *const msdeform_cuda_plan_options,
    plan: *mut *mut msdeform_cuda_plan,
    message: *mut msdeform_message,
) -> msdeform_status {
    entry(message, || {
        // SAFETY: the caller promises that pointers lead to what their types say, and live handles.
        unsafe {
            hand_out(plan, || {
                let problem = &handle("problem", problem)?.problem;
                let options = plan_options(problem, &read_or_zero(options)?)?;
                let engine = &handle("engine", engine)?.engine;
                Ok(msdeform_cuda_plan { plan: Plan::new(engine, problem, &options)? })
            })
        }
    })
}

/// Destroys a plan. Its workspace is freed when the kernels that use it are done. Null is allowed.
///
/// Any thread, once, after the last use in any other.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn msdeform_cuda_plan_destroy(plan: *mut msdeform_cuda_plan) {
    // SAFETY: the caller gives the handle up.
    silently(|| unsafe { take_back(plan) });
}

/// What there is to know about a plan. `info->struct_size` must be set.
///
/// Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn msdeform_cuda_plan_get_info(
    plan: *const msdeform_cuda_plan,
    info: *mut msdeform_cuda_plan_info,
    message: *mut msdeform_message,
) -> msdeform_status {
    entry(message, || {
        // SAFETY: the caller promises a live handle.
        let msdeform_cuda_plan { plan } = unsafe { handle("plan", plan)? };
        let mut variant = [0; 64];
        let name = plan.variant().id.as_bytes();
        for (to, &byte) in variant.iter_mut().take(63).zip(name) {
            *to = byte.cast_signed();
        }
        let found = msdeform_cuda_plan_info {
            struct_size: 0,
            workspace_bytes: plan.workspace_bytes(),
            own_bytes: plan.own_bytes(),
            variant,
        };
        // SAFETY: the caller promises a struct of the size that it says.
        unsafe { answer(info, &found) }
    })
}

/// Queues a call on a stream (`CUstream` or `cudaStream_t`; null is the default stream) and returns at once. Tensors are in
/// device memory and must stay there until the stream is done with them.
///
/// Any thread; with the workspace of the plan one launch at a time, with one of the caller any number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn msdeform_cuda_launch(
    plan: *const msdeform_cuda_plan,
    stream: *mut c_void,
    tensors: *const msdeform_tensors,
    message: *mut msdeform_message,
) -> msdeform_status {
    // SAFETY: the caller promises that pointers lead to what their types say, a live stream, and tensors of the bytes that
    // they say which live until the stream is done.
    entry(message, || unsafe { handle("plan", plan)?.launch(stream, &read(tensors)?) })
}

/// # Safety
/// Unless it is null, the pointer leads to a text that ends with a zero.
unsafe fn text<'a>(name: &'static str, pointer: *const c_char) -> Result<Option<&'a str>, Failure> {
    if pointer.is_null() {
        return Ok(None);
    }
    // SAFETY: passed on from the caller.
    let text = unsafe { CStr::from_ptr(pointer) };
    text.to_str().map(Some).map_err(|_| Failure::NotUtf8 { name })
}

/// # Safety
/// Pointers lead to what their types say.
unsafe fn plan_options(
    problem: &Problem,
    given: &msdeform_cuda_plan_options,
) -> Result<PlanOptions, Failure> {
    let direction = constant(
        "direction",
        given.direction,
        "MSDEFORM_DIRECTION_FORWARD, _BACKWARD",
        [
            (msdeform_direction::Forward as i32, Direction::Forward),
            (msdeform_direction::Backward as i32, Direction::Backward),
        ],
    )?;
    let pointer_checks = constant(
        "pointer_checks",
        given.pointer_checks,
        "MSDEFORM_POINTER_CHECKS_FIRST, _EVERY, _NEVER",
        [
            (msdeform_pointer_checks::First as i32, PointerChecks::First),
            (msdeform_pointer_checks::Every as i32, PointerChecks::Every),
            (msdeform_pointer_checks::Never as i32, PointerChecks::Never),
        ],
    )?;
    let workspace = constant(
        "workspace",
        given.workspace,
        "MSDEFORM_CUDA_WORKSPACE_PLAN, _CALLER",
        [
            (msdeform_cuda_workspace::Plan as i32, Workspace::OfPlan),
            (msdeform_cuda_workspace::Caller as i32, Workspace::OfCaller),
        ],
    )?;
    // SAFETY: passed on from the caller, as are the next.
    let of_value = unsafe { numbers::<3>("value_strides", given.value_strides)? };
    let strides = of_value.map(|[batch, head, pixel]| ValueStrides { batch, head, pixel });
    // SAFETY: as above.
    let of_output = unsafe { numbers::<4>("grad_output_strides", given.grad_output_strides)? };
    let grad_output_strides = of_output.map(|[batch, query, head, channel]| OutputStrides {
        batch,
        query,
        head,
        channel,
    });
    // SAFETY: as above.
    let sources = unsafe { source_strides(problem, given)? };
    // SAFETY: as above.
    let variant = match unsafe { text("variant", given.variant)? } {
        Some(id) => Some(registry::find(id)?),
        None => None,
    };
    let gradients = gradients(problem, given.gradients)?;
    let mode =
        if flag("deterministic", given.deterministic)? { Mode::Deterministic } else { Mode::Fast };
    let backward = BackwardOptions { gradients, mode, grad_output_strides };
    Ok(PlanOptions {
        backward: (direction == Direction::Backward).then_some(backward),
        variant,
        knobs: Vec::new(),
        strides,
        sources,
        query_raster_width: given.query_raster_width,
        pointer_checks,
        workspace,
        ahead: Ahead::Nothing,
    })
}

/// # Safety
/// Pointers lead to what their types say.
unsafe fn source_strides(
    problem: &Problem,
    given: &msdeform_cuda_plan_options,
) -> Result<Option<SourceStrides>, Failure> {
    let read = |role: Role, name, pointer| {
        // SAFETY: passed on from the caller.
        let found = unsafe { numbers::<2>(name, pointer)? };
        if found.is_some() && problem.offsets().is_none() {
            let reason = format!("`{name}` is given, but the problem has no offsets");
            return Err(Failure::Strides { tensor: role.name(), reason });
        }
        let packed = SourceStrides::packed(problem).of(role).unwrap_or_default();
        Ok(found.map_or(packed, |[image, query]| RowStrides { image, query }))
    };
    let sources = SourceStrides {
        references: read(Role::References, "reference_strides", given.reference_strides)?,
        offsets: read(Role::Offsets, "offset_strides", given.offset_strides)?,
        logits: read(Role::Logits, "logit_strides", given.logit_strides)?,
    };
    Ok(problem.offsets().map(|_| sources))
}

/// # Safety
/// Unless it is null, the pointer leads to `COUNT` numbers.
unsafe fn numbers<const COUNT: usize>(
    name: &'static str,
    pointer: *const i64,
) -> Result<Option<[i64; COUNT]>, Failure> {
    if pointer.is_null() {
        return Ok(None);
    }
    // SAFETY: passed on from the caller.
    let found = unsafe { list(name, pointer, COUNT)? };
    Ok(found.first_chunk().copied())
}

fn gradients(problem: &Problem, mask: i32) -> Result<Gradients, Failure> {
    let all = Gradients::all_of(problem);
    let found = match mask.cast_unsigned() {
        0 => all,
        mask => Gradients::from_mask(mask),
    };
    if !(0..16).contains(&mask) || (found.references && !all.references) {
        let known = "a sum of MSDEFORM_GRADIENTS_VALUE, _LOCATIONS, _WEIGHTS and, from offsets, _REFERENCES";
        return Err(unknown("gradients", mask, known));
    }
    Ok(found)
}

const _: () = {
    use msdeform_gradients::{Locations, References, Value, Weights};
    let all = Value as u32 | Locations as u32 | Weights as u32 | References as u32;
    let references = Gradients::from_mask(References as u32);
    assert!(Gradients::from_mask(all).mask() == 15 && references.references);
    assert!(
        Gradients::from_mask(Value as u32).value && Gradients::from_mask(Weights as u32).weights
    );
};

impl msdeform_cuda_plan {
    /// # Safety
    /// The stream is alive; tensors lead to as many bytes of device memory as they say, stay until the stream is done, and
    /// nothing else uses those that are written.
    unsafe fn launch(
        &self,
        stream: *mut c_void,
        tensors: &msdeform_tensors,
    ) -> Result<(), Failure> {
        let (problem, direction) = (self.plan.problem(), self.plan.variant().direction);
        check_together(problem, direction, tensors, |role| self.plan.bytes_of(role).unwrap_or(0))?;
        let mut pointers = Pointers::default();
        for (role, access) in problem.operator().tensors(direction) {
            let (given, tensor) = (tensors.given(role), role.name());
            let Some(required) = self.plan.bytes_of(role) else {
                if given.data.is_null() {
                    continue;
                }
                let reason =
                    "the plan does not compute it; add it to the plan's `gradients`".into();
                return Err(Failure::WrongTensor { tensor, reason });
            };
            if !given.strides.is_null() || given.stride_count != 0 {
                let reason = "those of a CUDA plan are among its options".to_owned();
                return Err(Failure::Strides { tensor, reason });
            }
            let may_be_strided = role == Role::GradOutput || role.free_axes(false) > 0;
            match access {
                _ if given.data.is_null() => {} // The plan refuses it, or does not need it.
                Access::Read if !may_be_strided => exactly(tensor, given.bytes, required)?,
                _ => at_least(tensor, given.bytes, required)?,
            }
            pointers = pointers.with(role, given.data.addr() as u64);
        }
        if !tensors.workspace.data.is_null() {
            at_least("workspace", tensors.workspace.bytes, self.plan.workspace_bytes())?;
            pointers = pointers.with_workspace(tensors.workspace.data.addr() as u64);
        }
        // SAFETY: passed on from the caller.
        unsafe {
            let stream = Stream::borrow(self.plan.context(), stream)?;
            Ok(self.plan.launch(&stream, &pointers)?)
        }
    }
}
