//! The tensors of a call, as the library takes them.

use std::ffi::c_void;

use half::{bf16, f16};
use msdeform::{Access, DType, Direction, Element, Problem, Role, TensorView, TensorViewMut};

use crate::border::{Growing, aligned, list};
use crate::problem::refuse_other_operator;
use crate::status::Failure;

/// A tensor that is read.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct msdeform_input {
    /// Its first element: in host memory for a CPU plan, in device memory for a CUDA plan. Null: not given.
    pub data: *const c_void,
    /// Bytes there: exactly those of a packed tensor; with strides at least as many as they reach.
    pub bytes: usize,
    /// Null: packed. Otherwise, on a CPU: elements from one image to the next and from one query to the next, for offsets
    /// and logits; and from one reference to the next, for references. What lies behind those axes follows each other. Zeros
    /// are legal: the same for all. Other tensors have none, nor have those of a CUDA plan, whose strides are options.
    pub strides: *const i64,
    /// Numbers there: 2 for offsets and logits, 3 for references.
    pub stride_count: usize,
}

/// A tensor that is written, packed.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct msdeform_output {
    /// Its first element. Null: not given; a gradient that is not given is not computed.
    pub data: *mut c_void,
    /// Bytes there, at least those of the tensor. All of the tensor is written.
    pub bytes: usize,
}

/// The tensors of a call. Set all of it to zero, then `struct_size` and those that the call has.
///
/// | call | reads | writes |
/// |---|---|---|
/// | forward | value, sampling_locations, attention_weights | output |
/// | forward, from offsets | value, reference_points, sampling_offsets, attention_logits | output |
/// | backward | what the forward call reads, grad_output | any of the gradients of what it reads |
///
/// Tensors of the other direction are left alone, so that one struct serves both. What is written must not lie over
/// anything else. A tensor without elements may be null.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct msdeform_tensors {
    /// sizeof(msdeform_tensors).
    pub struct_size: usize,
    /// [batch, spatial, heads, channels], or head-major.
    pub value: msdeform_input,
    /// [batch, queries, heads, samples, 2].
    pub sampling_locations: msdeform_input,
    /// [batch, queries, heads, samples].
    pub attention_weights: msdeform_input,
    /// [batch, queries, references, 2 or 4].
    pub reference_points: msdeform_input,
    /// [batch, queries, heads, samples, 2].
    pub sampling_offsets: msdeform_input,
    /// [batch, queries, heads, samples].
    pub attention_logits: msdeform_input,
    /// [batch, queries, heads * channels].
    pub grad_output: msdeform_input,
    /// [batch, queries, heads * channels].
    pub output: msdeform_output,
    /// Like value.
    pub grad_value: msdeform_output,
    /// Like sampling_locations.
    pub grad_sampling_locations: msdeform_output,
    /// Like attention_weights.
    pub grad_attention_weights: msdeform_output,
    /// Like reference_points.
    pub grad_reference_points: msdeform_output,
    /// Like sampling_offsets.
    pub grad_sampling_offsets: msdeform_output,
    /// Like attention_logits.
    pub grad_attention_logits: msdeform_output,
    /// For CUDA plans with `MSDEFORM_CUDA_WORKSPACE_CALLER`: device memory, see `msdeform_cuda_plan_get_info`.
    pub workspace: msdeform_output,
}

// SAFETY: `repr(C)` with a `usize` first; all fields are words; zero is a value of every field.
unsafe impl Growing for msdeform_tensors {
    const NAME: &'static str = "msdeform_tensors";
    const FIRST_BYTES: usize = (1 + 7 * 4 + 8 * 2) * size_of::<usize>();
}

impl msdeform_tensors {
    /// What a role is given as, whichever way it goes.
    pub(crate) const fn given(&self, role: Role) -> msdeform_input {
        const fn packed(output: msdeform_output) -> msdeform_input {
            let msdeform_output { data, bytes } = output;
            msdeform_input { data, bytes, strides: std::ptr::null(), stride_count: 0 }
        }
        match role {
            Role::Value => self.value,
            Role::Locations => self.sampling_locations,
            Role::Weights => self.attention_weights,
            Role::References => self.reference_points,
            Role::Offsets => self.sampling_offsets,
            Role::Logits => self.attention_logits,
            Role::GradOutput => self.grad_output,
            Role::Output => packed(self.output),
            Role::GradValue => packed(self.grad_value),
            Role::GradLocations => packed(self.grad_sampling_locations),
            Role::GradWeights => packed(self.grad_attention_weights),
            Role::GradReferences => packed(self.grad_reference_points),
            Role::GradOffsets => packed(self.grad_sampling_offsets),
            Role::GradLogits => packed(self.grad_attention_logits),
        }
    }
}

/// What a call touches of one tensor.
#[derive(Clone, Copy)]
struct Range {
    role: Role,
    access: Access,
    address: usize,
    bytes: usize,
}

/// Refuses tensors of the other operator, and what is written over something else. `bytes_of` says how much of a tensor the
/// call touches.
pub(crate) fn check_together(
    problem: &Problem,
    direction: Direction,
    tensors: &msdeform_tensors,
    bytes_of: impl Fn(Role) -> usize,
) -> Result<(), Failure> {
    for role in Role::ALL.into_iter().filter(|role| !tensors.given(*role).data.is_null()) {
        refuse_other_operator(problem, role)?;
    }
    let ranges: Vec<Range> = problem
        .operator()
        .tensors(direction)
        .map(|(role, access)| {
            let address = tensors.given(role).data.addr();
            Range { role, access, address, bytes: if address == 0 { 0 } else { bytes_of(role) } }
        })
        .filter(|range| range.bytes > 0)
        .collect();
    for written in ranges.iter().filter(|range| range.access == Access::Write) {
        for other in ranges.iter().filter(|other| other.role != written.role) {
            let ends_before = |a: &Range, b: &Range| a.address.saturating_add(a.bytes) <= b.address;
            if !ends_before(written, other) && !ends_before(other, written) {
                let (written, other) = (written.role.name(), other.role.name());
                return Err(Failure::Overlap { written, other });
            }
        }
    }
    Ok(())
}

/// The tensors of a call in host memory, checked.
pub(crate) struct HostTensors<'a> {
    problem: &'a Problem,
    tensors: msdeform_tensors,
}

impl<'a> HostTensors<'a> {
    pub(crate) fn new(
        problem: &'a Problem,
        direction: Direction,
        tensors: msdeform_tensors,
    ) -> Result<Self, Failure> {
        let bytes_of = |role: Role| {
            let given = tensors.given(role);
            if given.strides.is_null() { problem.bytes_of(role) } else { given.bytes }
        };
        check_together(problem, direction, &tensors, bytes_of)?;
        Ok(Self { problem, tensors })
    }

    /// # Safety
    /// The caller guarantees: unless the tensor is null, its `data` leads to `bytes` bytes that live for `'a` and are not written
    /// to meanwhile.
    pub(crate) unsafe fn read(&self, role: Role) -> Result<TensorView<'a>, Failure> {
        let given = self.tensors.given(role);
        let (tensor, dtype) = (role.name(), self.problem.format_of(role));
        if given.strides.is_null() && given.stride_count == 0 {
            let required = self.problem.bytes_of(role);
            exactly(tensor, given.bytes, required)?;
            // SAFETY: passed on from the caller.
            return unsafe { elements(tensor, dtype, given.data, required) };
        }
        let shape = self.problem.shape_of(role);
        // SAFETY: passed on from the caller.
        let strides = unsafe { strides(role, &given, &shape)? };
        let whole = given.bytes - given.bytes % dtype.size_bytes();
        let bytes = if shape.contains(&0) { 0 } else { whole };
        // SAFETY: as above.
        let elements = unsafe { elements(tensor, dtype, given.data, bytes)? };
        Ok(TensorView::strided(elements, &shape, &strides)?)
    }

    /// # Safety
    /// The caller guarantees: unless the tensor is null, its `data` leads to `bytes` bytes that live for `'a` and that nothing else
    /// reads or writes meanwhile.
    pub(crate) unsafe fn write(&self, role: Role) -> Result<TensorViewMut<'a>, Failure> {
        let given = self.tensors.given(role);
        let (tensor, dtype) = (role.name(), self.problem.format_of(role));
        let required = self.problem.bytes_of(role);
        at_least(tensor, given.bytes, required)?;
        // SAFETY: passed on from the caller.
        unsafe { elements_mut(tensor, dtype, given.data.cast_mut(), required) }
    }

    /// A gradient that is not given is not computed.
    pub(crate) fn has(&self, role: Role) -> bool {
        !self.tensors.given(role).data.is_null()
    }
}

pub(crate) fn exactly(tensor: &'static str, found: usize, required: usize) -> Result<(), Failure> {
    let failure = Failure::Length { tensor, found, required, or_more: "" };
    if found == required { Ok(()) } else { Err(failure) }
}

pub(crate) fn at_least(tensor: &'static str, found: usize, required: usize) -> Result<(), Failure> {
    let failure = Failure::Length { tensor, found, required, or_more: " or more" };
    if found >= required { Ok(()) } else { Err(failure) }
}

/// All strides of a tensor of which the first are given.
///
/// # Safety
/// The list has as many numbers as it says.
unsafe fn strides(
    role: Role,
    given: &msdeform_input,
    shape: &[usize],
) -> Result<Vec<isize>, Failure> {
    let tensor = role.name();
    let refuse = |reason: String| Failure::Strides { tensor, reason };
    let axes = match role {
        Role::References => 3,
        Role::Offsets | Role::Logits => 2,
        _ => return Err(refuse("it must be packed; copy it first".into())),
    };
    if given.stride_count != axes {
        return Err(refuse(format!("`stride_count` is {}, expected {axes}", given.stride_count)));
    }
    // SAFETY: passed on from the caller.
    let outer = unsafe { list("strides", given.strides, axes)? };
    let mut strides = Vec::with_capacity(shape.len());
    for &stride in outer {
        let positive = isize::try_from(stride).ok().filter(|stride| *stride >= 0);
        strides
            .push(positive.ok_or_else(|| refuse(format!("{stride} is below zero or too large")))?);
    }
    let inner = &shape[axes..];
    strides.extend(
        (1..=inner.len()).map(|axis| inner[axis..].iter().product::<usize>().cast_signed()),
    );
    Ok(strides)
}

/// Refuses null and misaligned pointers, and sizes past the address space. An empty tensor may have any address.
fn pointer<T: Element>(
    tensor: &'static str,
    data: *mut c_void,
    bytes: usize,
) -> Result<*mut T, Failure> {
    if bytes == 0 {
        return Ok(std::ptr::dangling_mut());
    }
    if data.is_null() {
        return Err(Failure::NullPointer(tensor));
    }
    aligned(tensor, data.cast::<T>())?;
    let is_addressable = data.addr().checked_add(bytes).is_some() && isize::try_from(bytes).is_ok();
    if is_addressable { Ok(data.cast()) } else { Err(msdeform::Error::TooLarge { tensor }.into()) }
}

/// # Safety
/// Unless it is null, the pointer leads to `bytes` bytes of elements that live for `'a` and are not written to meanwhile.
unsafe fn elements<'a>(
    tensor: &'static str,
    dtype: DType,
    data: *const c_void,
    bytes: usize,
) -> Result<TensorView<'a>, Failure> {
    /// # Safety
    /// As above.
    unsafe fn typed<'a, T: Element>(
        tensor: &'static str,
        data: *const c_void,
        bytes: usize,
    ) -> Result<&'a [T], Failure> {
        let pointer = pointer::<T>(tensor, data.cast_mut(), bytes)?;
        // SAFETY: not null, aligned, addressable; the caller answers for length and life.
        Ok(unsafe { std::slice::from_raw_parts(pointer, bytes / size_of::<T>()) })
    }
    // SAFETY: the caller's promise; every bit pattern is a number in every format.
    unsafe {
        Ok(match dtype {
            DType::F32 => typed::<f32>(tensor, data, bytes)?.into(),
            DType::F16 => typed::<f16>(tensor, data, bytes)?.into(),
            DType::Bf16 => typed::<bf16>(tensor, data, bytes)?.into(),
            DType::F64 => typed::<f64>(tensor, data, bytes)?.into(),
        })
    }
}

/// # Safety
/// As of [`elements`], and nothing else reads or writes them meanwhile.
unsafe fn elements_mut<'a>(
    tensor: &'static str,
    dtype: DType,
    data: *mut c_void,
    bytes: usize,
) -> Result<TensorViewMut<'a>, Failure> {
    /// # Safety
    /// As above.
    unsafe fn typed<'a, T: Element>(
        tensor: &'static str,
        data: *mut c_void,
        bytes: usize,
    ) -> Result<&'a mut [T], Failure> {
        let pointer = pointer::<T>(tensor, data, bytes)?;
        // SAFETY: not null, aligned, addressable; the caller answers for length, life and exclusiveness.
        Ok(unsafe { std::slice::from_raw_parts_mut(pointer, bytes / size_of::<T>()) })
    }
    // SAFETY: the caller's promise; every bit pattern is a number in every format.
    unsafe {
        Ok(match dtype {
            DType::F32 => typed::<f32>(tensor, data, bytes)?.into(),
            DType::F16 => typed::<f16>(tensor, data, bytes)?.into(),
            DType::Bf16 => typed::<bf16>(tensor, data, bytes)?.into(),
            DType::F64 => typed::<f64>(tensor, data, bytes)?.into(),
        })
    }
}
