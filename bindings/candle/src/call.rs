//! From candle's tensors to a call of the library and back.

use candle_core::backend::{BackendDevice, BackendStorage};
use candle_core::cpu_backend::CpuDevice;
use candle_core::op::BackpropOp;
use candle_core::{CpuStorage, DType, Device, Layout, Shape, Storage, Tensor};
use msdeform::cpu::is_for_one_thread;
use msdeform::{
    CpuOptions, CpuPlan, Direction, OffsetRule, Offsets, Problem, Role, SharedPlans, Signature,
    TensorSignature, TensorView, TensorViewMut,
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
pub(crate) struct Placed<'a, M> {
    pub role: Role,
    pub storage: &'a M,
    pub layout: &'a Layout,
}

// Not derived, because that would require `M: Clone`.
impl<M> Clone for Placed<'_, M> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<M> Copy for Placed<'_, M> {}

/// The tensors of a call as the caller gave them.
pub(crate) struct CallTensors<'a> {
    pub value: &'a Tensor,
    /// References, with the rule by which samples follow from them.
    pub around: Option<(&'a Tensor, Offsets)>,
    /// Locations or offsets.
    pub positions: &'a Tensor,
    /// Weights or logits.
    pub shares: &'a Tensor,
}

impl CallTensors<'_> {
    /// The description of the call, if its tensors fit each other.
    pub(crate) fn problem(&self, levels: &Levels) -> Result<Problem> {
        let [of_positions, of_shares] = match self.around {
            None => [Role::Locations, Role::Weights],
            Some(_) => [Role::Offsets, Role::Logits],
        };
        let tensors = [
            (Role::Value, Some(self.value)),
            (Role::References, self.around.map(|(references, _)| references)),
            (of_positions, Some(self.positions)),
            (of_shares, Some(self.shares)),
        ];
        let tensors = tensors.into_iter().filter_map(|(role, tensor)| Some((role, tensor?)));
        let device = self.value.device();
        for (role, tensor) in tensors.clone() {
            let (tensor, location) = (role.name(), tensor.device().location());
            if !is_computed_on(device) {
                return Err(Error::Device { tensor, location });
            }
            if location != device.location() {
                return Err(Error::Devices { tensor, location, value: device.location() });
            }
        }
        // Only the reference computes `f64`, and it runs on the CPU.
        let computed = DTYPES.map(|(dtype, _)| dtype);
        let computed = if device.is_cpu() { &computed[..] } else { &computed[..3] };
        let f64_or = |format: DType| match self.value.dtype() {
            DType::F64 => [DType::F64; 2],
            _ => [DType::F32, format],
        };
        let beside_value = f64_or(self.value.dtype());
        let beside_positions = f64_or(self.positions.dtype());
        let mut signatures = Vec::with_capacity(4);
        for (role, tensor) in tensors {
            let accepted = match role {
                Role::Value => computed,
                Role::References => &beside_positions,
                Role::Weights | Role::Logits => &[self.positions.dtype()],
                _ => &beside_value,
            };
            let shape: Vec<i64> = tensor.dims().iter().map(|&size| size as i64).collect();
            signatures.push((format_of(role, tensor, accepted)?, shape));
        }
        let tensors: Vec<TensorSignature<'_>> = signatures
            .iter()
            .map(|(dtype, shape)| TensorSignature { dtype: *dtype, shape })
            .collect();
        let signature = Signature {
            rule: self.around.map(|(_, rule)| OffsetRule::Exact(rule)),
            expands_references: true,
            ..Signature::new(&tensors, levels.lists())
        };
        Ok(signature.problem()?)
    }
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

impl<'a> Placed<'a, CpuStorage> {
    fn elements(&self) -> Result<TensorView<'a>> {
        fn from<T>(elements: &[T], start: usize) -> &[T] {
            elements.get(start..).unwrap_or_default()
        }
        let start = self.layout.start_offset();
        Ok(match self.storage {
            CpuStorage::F32(elements) => from(elements, start).into(),
            CpuStorage::F16(elements) => from(elements, start).into(),
            CpuStorage::BF16(elements) => from(elements, start).into(),
            CpuStorage::F64(elements) => from(elements, start).into(),
            other => {
                let (tensor, found) = (self.role.name(), other.dtype());
                return Err(Error::Format { tensor, found, expected: "a float".into() });
            }
        })
    }

    /// As the library reads it; the elements lie as [`readable`] has them.
    fn view(&self, problem: &Problem) -> Result<TensorView<'a>> {
        let free = free_axes(self.role, &Device::Cpu);
        let outer: Vec<isize> =
            self.layout.stride().iter().take(free).map(|stride| stride.cast_signed()).collect();
        Ok(TensorView::of_rows(problem, self.role, self.elements()?, &outer)?)
    }
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
            views.push((placed.role, placed.view(problem)?));
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
        placed.push(Placed { role: *role, storage, layout });
    }
    run(&placed)
}

/// A result as a tensor that nothing was recorded for.
pub(crate) fn tensor(storage: Storage, shape: &[usize]) -> Tensor {
    Tensor::from_storage(storage, shape, BackpropOp::none(), false)
}
