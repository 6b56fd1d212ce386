//! From candle's tensors to a call of the library and back.

use candle_core::backend::{BackendDevice, BackendStorage};
use candle_core::cpu_backend::CpuDevice;
use candle_core::{CpuStorage, DType, Device, Layout, Shape, Storage, Tensor};
use msdeform::cpu::is_for_one_thread;
use msdeform::{
    ATTENTION, CpuOptions, CpuPlan, Direction, FROM_OFFSETS, OffsetRule, Offsets, Problem, Role,
    SharedPlans, Signature, TensorSignature, TensorView, TensorViewMut,
};

use crate::{Error, Levels, Result};

/// Memory that the operator computes in: of the CPU or of a GPU.
pub(crate) trait Memory: Sized {
    /// It, if a tensor lies there.
    fn of(storage: &Storage) -> Option<&Self>;

    /// As what a tensor holds.
    fn into_storage(self) -> Storage;

    /// Computes what is wanted: the output, or gradients.
    fn compute(
        problem: &Problem,
        direction: Direction,
        read: &[Placed<'_, Self>],
        wanted: &[Role],
    ) -> Result<Vec<Self>>;
}

/// A tensor of a call, where it lies.
pub(crate) type Placed<'a, M> = (Role, &'a M, &'a Layout);

/// The description of a call, if the inputs of its operator, in the operator's order, fit each other.
pub(crate) fn problem<const COUNT: usize>(
    inputs: [&Tensor; COUNT],
    rule: Option<Offsets>,
    levels: &Levels,
) -> Result<Problem> {
    let operator = if rule.is_some() { &FROM_OFFSETS } else { &ATTENTION };
    let (value, positions) = (inputs[0], inputs[COUNT - 2]);
    let device = value.device();
    // Only the reference computes `f64`, and it runs on the CPU.
    let computed = DTYPES.map(|(dtype, _)| dtype);
    let computed = if device.is_cpu() { &computed[..] } else { &computed[..3] };
    let f64_or = |format: DType| match value.dtype() {
        DType::F64 => [DType::F64; 2],
        _ => [DType::F32, format],
    };
    let beside_value = f64_or(value.dtype());
    let beside_positions = f64_or(positions.dtype());
    let mut signatures = Vec::with_capacity(COUNT);
    for (&role, input) in operator.inputs.iter().zip(inputs) {
        let (tensor, location) = (role.name(), input.device().location());
        if !is_computed_on(device) {
            return Err(Error::Device { tensor, location });
        }
        if location != device.location() {
            return Err(Error::Devices { tensor, location, value: device.location() });
        }
        let accepted = match role {
            Role::Value => computed,
            Role::References => &beside_positions,
            Role::Weights | Role::Logits => &[positions.dtype()],
            _ => &beside_value,
        };
        let shape: Vec<i64> = input.dims().iter().map(|&size| size as i64).collect();
        signatures.push((format_of(role, input, accepted)?, shape));
    }
    let tensors: Vec<_> =
        signatures.iter().map(|(dtype, shape)| TensorSignature { dtype: *dtype, shape }).collect();
    let signature = Signature {
        rule: rule.map(OffsetRule::Exact),
        expands_references: true,
        ..Signature::new(&tensors, levels.lists())
    };
    Ok(signature.problem()?)
}

/// Whether there is code for a device in this build.
fn is_computed_on(device: &Device) -> bool {
    device.is_cpu() || (cfg!(feature = "cuda") && device.is_cuda())
}

/// The dtypes of tensors, and what the library calls them.
const DTYPES: [(DType, msdeform::DType); 4] = [
    (DType::F32, msdeform::DType::F32),
    (DType::F16, msdeform::DType::F16),
    (DType::BF16, msdeform::DType::Bf16),
    (DType::F64, msdeform::DType::F64),
];

fn format_of(role: Role, tensor: &Tensor, accepted: &[DType]) -> Result<msdeform::DType> {
    let found = tensor.dtype();
    let known = DTYPES.iter().find(|(dtype, _)| *dtype == found && accepted.contains(dtype));
    known.map(|(_, format)| *format).ok_or_else(|| {
        let mut names: Vec<String> = accepted.iter().map(|dtype| format!("{dtype:?}")).collect();
        names.dedup();
        Error::Format { tensor: role.name(), found, expected: names.join(" or ") }
    })
}

/// The elements of a result: their shape as one axis, and their dtype.
pub(crate) fn elements_of(problem: &Problem, role: Role) -> (Shape, DType) {
    let format = problem.format_of(role);
    let dtype = DTYPES.iter().find(|(_, known)| *known == format).map(|(dtype, _)| *dtype);
    (problem.len_of(role).into(), dtype.unwrap_or(DType::F32))
}

/// First axes of a tensor that may lie anywhere; the others follow each other. Values are always packed.
fn free_axes(role: Role, device: &Device) -> usize {
    if role == Role::Value { 0 } else { role.free_axes(device.is_cpu()) }
}

/// A tensor that can be read where it lies: itself, or a copy where its elements lie too far apart.
pub(crate) fn readable(role: Role, tensor: &Tensor) -> Result<Tensor> {
    let mut packed = 1;
    let (dims, strides) = (tensor.dims(), tensor.stride());
    for axis in (free_axes(role, tensor.device())..dims.len()).rev() {
        if dims[axis] > 1 && strides[axis] != packed {
            return Ok(tensor.contiguous()?);
        }
        packed *= dims[axis];
    }
    Ok(tensor.clone())
}

/// A tensor in host memory as the library reads it; the elements lie as [`readable`] has them.
fn view<'a>(
    problem: &Problem,
    &(role, storage, layout): &Placed<'a, CpuStorage>,
) -> Result<TensorView<'a>> {
    fn from<T>(elements: &[T], start: usize) -> &[T] {
        elements.get(start..).unwrap_or_default()
    }
    let start = layout.start_offset();
    let elements: TensorView<'a> = match storage {
        CpuStorage::F32(elements) => from(elements, start).into(),
        CpuStorage::F16(elements) => from(elements, start).into(),
        CpuStorage::BF16(elements) => from(elements, start).into(),
        CpuStorage::F64(elements) => from(elements, start).into(),
        other => {
            let (tensor, found) = (role.name(), other.dtype());
            return Err(Error::Format { tensor, found, expected: "a float".into() });
        }
    };
    let outer = layout.stride().iter().take(free_axes(role, &Device::Cpu));
    let outer: Vec<isize> = outer.map(|stride| stride.cast_signed()).collect();
    Ok(TensorView::of_rows(problem, role, elements, &outer)?)
}

/// Plans that no call uses now: a few for a model, for a few sizes of its images.
static PLANS: SharedPlans<Problem, CpuPlan> = SharedPlans::new(32);

impl Memory for CpuStorage {
    fn of(storage: &Storage) -> Option<&Self> {
        match storage {
            Storage::Cpu(storage) => Some(storage),
            _ => None,
        }
    }

    fn into_storage(self) -> Storage {
        Storage::Cpu(self)
    }

    fn compute(
        problem: &Problem,
        _: Direction,
        read: &[Placed<'_, Self>],
        wanted: &[Role],
    ) -> Result<Vec<Self>> {
        let mut results: Vec<CpuStorage> = Vec::with_capacity(wanted.len());
        for &role in wanted {
            let (shape, dtype) = elements_of(problem, role);
            results.push(CpuDevice.zeros_impl(&shape, dtype)?);
        }
        let mut views = Vec::with_capacity(read.len());
        for placed in read {
            views.push((placed.0, view(problem, placed)?));
        }
        let written = wanted.iter().zip(&mut results).filter_map(|(&role, storage)| {
            let elements: TensorViewMut<'_> = match storage {
                CpuStorage::F32(elements) => elements.into(),
                CpuStorage::F16(elements) => elements.into(),
                CpuStorage::BF16(elements) => elements.into(),
                CpuStorage::F64(elements) => elements.into(),
                _ => return None,
            };
            Some((role, elements))
        });
        let make = || {
            // Without a number the threads are those of rayon's pool, which candle computes on as well.
            let threads = is_for_one_thread(problem).then_some(1);
            let plan = CpuPlan::new(problem, &CpuOptions { threads, isa: None })?;
            Ok((problem.clone(), plan))
        };
        let is_it = |of: &Problem| of == problem;
        let run = |plan: &mut CpuPlan| plan.run(views, written);
        PLANS.with(is_it, make, CpuPlan::workspace_bytes, run)?;
        Ok(results)
    }
}

/// Runs something with tensors where they lie.
pub(crate) fn with_placed<M: Memory, T>(
    tensors: &[(Role, &Tensor)],
    run: impl FnOnce(&[Placed<'_, M>]) -> Result<T>,
) -> Result<T> {
    let guards: Vec<_> =
        tensors.iter().map(|(role, tensor)| (*role, tensor.storage_and_layout())).collect();
    let mut placed = Vec::with_capacity(guards.len());
    for (role, (storage, layout)) in &guards {
        let Some(storage) = M::of(storage) else {
            let location = storage.device().location();
            return Err(Error::Device { tensor: role.name(), location });
        };
        placed.push((*role, storage, *layout));
    }
    run(&placed)
}
