//! Tensors on a GPU: plans of `msdeform-cuda`, launched on candle's stream, in memory that candle allocates.

#![allow(unsafe_code, reason = "a launch trusts addresses")]

use std::sync::Arc;

use candle_core::backend::{BackendDevice, BackendStorage};
use candle_core::cuda_backend::cudarc::driver::{CudaStream, DevicePtr, DevicePtrMut, SyncOnDrop};
use candle_core::cuda_backend::{CudaStorageSlice, WrapErr};
use candle_core::{CudaStorage, DType, Storage};
use msdeform::{Direction, Gradients, Problem, Role, RowStrides, SharedPlans, SourceStrides};
use msdeform_cuda::{BackwardOptions, Engine, Plan, PlanOptions, Pointers, Stream, Workspace};

use crate::call::{Memory, Placed, elements_of};
use crate::{Error, Result};

impl Memory for CudaStorage {
    fn of(storage: &Storage) -> Option<&Self> {
        match storage {
            Storage::Cuda(storage) => Some(storage),
            _ => None,
        }
    }

    fn into_storage(self) -> Storage {
        Storage::Cuda(self)
    }

    fn compute(
        problem: &Problem,
        direction: Direction,
        read: &[Placed<'_, Self>],
        wanted: &[Role],
    ) -> Result<Vec<Self>> {
        let (Some((_, first, _)), false) = (read.first(), wanted.is_empty()) else {
            return Ok(Vec::new());
        };
        let device = first.device().clone();
        let stream = device.cuda_stream();
        let plan = plan(&Key {
            device: stream.context().ordinal(),
            problem: problem.clone(),
            gradients: (direction == Direction::Backward).then(|| wanted.iter().copied().collect()),
            sources: problem.offsets().map(|_| sources(problem, read)),
        })?;
        let mut results = Vec::with_capacity(wanted.len());
        for &role in wanted {
            let (shape, dtype) = elements_of(problem, role);
            // SAFETY: a launch writes every element.
            results.push(unsafe { device.alloc_uninit(&shape, dtype) }?);
        }
        // SAFETY: nothing reads it before the launch has written it.
        let mut workspace = unsafe { stream.alloc::<u8>(plan.workspace_bytes().max(1)) }.w()?;

        // What candle's events say about each tensor holds until these are dropped, after the launch.
        let mut guards = Vec::with_capacity(read.len() + wanted.len());
        let mut pointers = Pointers::default();
        for &(role, storage, layout) in read {
            let (start, guard) = read_from(role, storage, &stream)?;
            let bytes = layout.start_offset() * storage.dtype().size_in_bytes();
            pointers = pointers.with(role, start + bytes as u64);
            guards.push(guard);
        }
        for (&role, storage) in wanted.iter().zip(&mut results) {
            let (start, guard) = write_to(role, storage, &stream)?;
            pointers = pointers.with(role, start);
            guards.push(guard);
        }
        let (start, guard) = workspace.device_ptr_mut(&stream);
        guards.push(guard);
        // SAFETY: the stream is candle's for this device. The tensors have the formats, sizes and strides of the plan (`problem`
        // checked them, `readable` laid them out) and lie on that device; what is written and the workspace are allocations of
        // this call. Candle frees memory in the order of its stream, or after the events of the guards.
        unsafe {
            let stream = Stream::borrow(plan.context(), stream.cu_stream().cast())?;
            plan.launch(&stream, &pointers.with_workspace(start))?;
        }
        drop(guards);
        Ok(results)
    }
}

fn read_from<'a>(
    role: Role,
    storage: &'a CudaStorage,
    stream: &'a CudaStream,
) -> Result<(u64, SyncOnDrop<'a>)> {
    match &storage.slice {
        CudaStorageSlice::F32(elements) => Ok(elements.device_ptr(stream)),
        CudaStorageSlice::F16(elements) => Ok(elements.device_ptr(stream)),
        CudaStorageSlice::BF16(elements) => Ok(elements.device_ptr(stream)),
        _ => Err(wrong_format(role, storage.dtype())),
    }
}

fn write_to<'a>(
    role: Role,
    storage: &'a mut CudaStorage,
    stream: &'a CudaStream,
) -> Result<(u64, SyncOnDrop<'a>)> {
    let found = storage.dtype();
    match &mut storage.slice {
        CudaStorageSlice::F32(elements) => Ok(elements.device_ptr_mut(stream)),
        CudaStorageSlice::F16(elements) => Ok(elements.device_ptr_mut(stream)),
        CudaStorageSlice::BF16(elements) => Ok(elements.device_ptr_mut(stream)),
        _ => Err(wrong_format(role, found)),
    }
}

fn wrong_format(role: Role, found: DType) -> Error {
    Error::Format { tensor: role.name(), found, expected: "F32 or F16 or BF16".into() }
}

/// Where rows of queries lie, as candle has them.
fn sources(problem: &Problem, read: &[Placed<'_, CudaStorage>]) -> SourceStrides {
    let mut strides = SourceStrides::packed(problem);
    for (role, _, layout) in read {
        let of = match role {
            Role::References => &mut strides.references,
            Role::Offsets => &mut strides.offsets,
            Role::Logits => &mut strides.logits,
            _ => continue,
        };
        if let [image, query, ..] = *layout.stride() {
            *of = RowStrides { image: image as i64, query: query as i64 };
        }
    }
    strides
}

/// What a plan is for.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Key {
    device: usize,
    problem: Problem,
    /// Of a backward plan.
    gradients: Option<Gradients>,
    sources: Option<SourceStrides>,
}

/// About a kilobyte each: those of a few models in some sizes of images. Any number of threads may launch one at the same
/// time, because workspaces are the calls' own.
static PLANS: SharedPlans<Key, Arc<Plan>> = SharedPlans::new(256);

fn plan(key: &Key) -> Result<Arc<Plan>> {
    let make = || {
        let options = PlanOptions {
            backward: key
                .gradients
                .map(|gradients| BackwardOptions { gradients, ..Default::default() }),
            sources: key.sources,
            workspace: Workspace::OfCaller,
            ..PlanOptions::default()
        };
        let engine = Engine::shared(key.device, |_| ())?;
        Ok((key.clone(), Arc::new(Plan::new(&engine, &key.problem, &options)?)))
    };
    PLANS.shared(|of| of == key, make)
}
