//! The tensors of a call, as the library takes them.

use std::ffi::c_void;

use msdeform::{Access, DType, Direction, Problem, Role, TensorView, TensorViewMut};

use crate::border::{growing, list};
use crate::problem::{msdeform_role, refuse_other_operator};
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

growing! {
    msdeform_tensors (1 + 7 * 4 + 8 * 2) * size_of::<usize>();
}

impl msdeform_tensors {
    /// What a role is given as, whether it is read or written.
    pub(crate) fn given(&self, role: Role) -> msdeform_input {
        let field = ROLES.iter().find(|(_, of, _)| *of == role).map(|(.., field)| field);
        field.map_or(NOT_GIVEN, |field| field(self))
    }
}

const NOT_GIVEN: msdeform_input =
    msdeform_input { data: std::ptr::null(), bytes: 0, strides: std::ptr::null(), stride_count: 0 };

const fn packed(output: msdeform_output) -> msdeform_input {
    msdeform_input { data: output.data, bytes: output.bytes, ..NOT_GIVEN }
}

/// The field of a role.
type Field = fn(&msdeform_tensors) -> msdeform_input;

/// Each tensor as the header names it, as the library does, and where a call gives it.
pub(crate) const ROLES: [(msdeform_role, Role, Field); Role::COUNT] = [
    (msdeform_role::Value, Role::Value, |it| it.value),
    (msdeform_role::SamplingLocations, Role::Locations, |it| it.sampling_locations),
    (msdeform_role::AttentionWeights, Role::Weights, |it| it.attention_weights),
    (msdeform_role::ReferencePoints, Role::References, |it| it.reference_points),
    (msdeform_role::SamplingOffsets, Role::Offsets, |it| it.sampling_offsets),
    (msdeform_role::AttentionLogits, Role::Logits, |it| it.attention_logits),
    (msdeform_role::Output, Role::Output, |it| packed(it.output)),
    (msdeform_role::GradOutput, Role::GradOutput, |it| it.grad_output),
    (msdeform_role::GradValue, Role::GradValue, |it| packed(it.grad_value)),
    (msdeform_role::GradSamplingLocations, Role::GradLocations, |it| {
        packed(it.grad_sampling_locations)
    }),
    (msdeform_role::GradAttentionWeights, Role::GradWeights, |it| {
        packed(it.grad_attention_weights)
    }),
    (msdeform_role::GradReferencePoints, Role::GradReferences, |it| {
        packed(it.grad_reference_points)
    }),
    (msdeform_role::GradSamplingOffsets, Role::GradOffsets, |it| packed(it.grad_sampling_offsets)),
    (msdeform_role::GradAttentionLogits, Role::GradLogits, |it| packed(it.grad_attention_logits)),
];

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
        let dtype = self.problem.format_of(role);
        let is_packed = given.strides.is_null() && given.stride_count == 0;
        // SAFETY: passed on from the caller.
        let outer = if is_packed { Vec::new() } else { unsafe { strides(role, &given)? } };
        let required = self.problem.bytes_of(role);
        let bytes = if is_packed {
            exactly(role.name(), given.bytes, required)?;
            required
        } else if required == 0 {
            0
        } else {
            given.bytes - given.bytes % dtype.size_bytes()
        };
        check_elements(role, dtype, given.data, bytes)?;
        // SAFETY: the caller answers for length and life; the rest is checked.
        let elements =
            unsafe { TensorView::from_raw_parts(dtype, given.data, bytes / dtype.size_bytes()) };
        match is_packed {
            true => Ok(elements),
            false => Ok(TensorView::of_rows(self.problem, role, elements, &outer)?),
        }
    }

    /// # Safety
    /// The caller guarantees: unless the tensor is null, its `data` leads to `bytes` bytes that live for `'a` and that nothing else
    /// reads or writes meanwhile.
    pub(crate) unsafe fn write(&self, role: Role) -> Result<TensorViewMut<'a>, Failure> {
        let given = self.tensors.given(role);
        let (dtype, len) = (self.problem.format_of(role), self.problem.len_of(role));
        let required = self.problem.bytes_of(role);
        at_least(role.name(), given.bytes, required)?;
        check_elements(role, dtype, given.data, required)?;
        // SAFETY: the caller answers for length, life and exclusiveness; the rest is checked.
        Ok(unsafe { TensorViewMut::from_raw_parts(dtype, given.data.cast_mut(), len) })
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

/// The strides of a tensor's first axes.
///
/// # Safety
/// The list has as many numbers as it says.
unsafe fn strides(role: Role, given: &msdeform_input) -> Result<Vec<isize>, Failure> {
    let refuse = |reason: String| Failure::Strides { tensor: role.name(), reason };
    let axes = role.free_axes(true);
    if axes == 0 {
        return Err(refuse("it must be packed; copy it first".into()));
    }
    if given.stride_count != axes {
        return Err(refuse(format!("`stride_count` is {}, expected {axes}", given.stride_count)));
    }
    // SAFETY: passed on from the caller.
    let outer = unsafe { list("strides", given.strides, axes)? };
    let stride = |&stride: &i64| {
        let positive = isize::try_from(stride).ok().filter(|stride| *stride >= 0);
        positive.ok_or_else(|| refuse(format!("{stride} is below zero or too large")))
    };
    outer.iter().map(stride).collect()
}

/// Refuses null and misaligned pointers, and sizes past the address space. An empty tensor may have any address.
fn check_elements(
    role: Role,
    dtype: DType,
    data: *const c_void,
    bytes: usize,
) -> Result<(), Failure> {
    let (tensor, address, alignment) = (role.name(), data.addr(), dtype.size_bytes());
    let is_addressable = address.checked_add(bytes).is_some() && isize::try_from(bytes).is_ok();
    match bytes {
        0 => Ok(()),
        _ if data.is_null() => Err(Failure::NullPointer(tensor)),
        _ if !address.is_multiple_of(alignment) => {
            Err(Failure::Misaligned { name: tensor, address, alignment })
        }
        _ if !is_addressable => Err(msdeform::Error::TooLarge { tensor }.into()),
        _ => Ok(()),
    }
}
