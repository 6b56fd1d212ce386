//! Plans: everything about a call that does not change from launch to launch, worked out once.

mod backward;
mod forward;

use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, Ordering};

use msdeform::{DType, Problem, VariantSpec};

use crate::dispatch;
use crate::driver::{
    Context, DeviceBuffer, EncodedMap, Label, LaunchGeometry, LayeredTexture, PersistingL2, Stream,
    ZEROING, check_pointer, zero_bytes,
};
use crate::engine::{Engine, Kernel};
use crate::error::{DriverError, Error, Result};
use crate::nvrtc::KernelResources;
use crate::params::{INLINE_LEVELS, LevelGeometry, level_geometry};
use crate::pipeline::{Region, Step};
use crate::preamble::TileMap;
use crate::registry;
use crate::strides::ValueStrides;
use crate::tuning::{self, Choice};
use crate::variants::{BackwardCall, Call, Configuration, KnobChoices, Variant};

pub use backward::{
    BackwardInputs, BackwardOptions, BackwardPlan, BackwardPointers, GradientBuffers, Workspace,
};
pub use forward::{DevicePointers, ForwardPlan};

/// Names a variant for every plan of its direction that does not name one itself.
pub const VARIANT_VARIABLE: &str = "MSDEFORM_VARIANT";

/// When a plan asks the driver what the pointers it is given point to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PointerChecks {
    /// On every launch: about a microsecond each.
    Every,
    /// On the first launch.
    #[default]
    First,
    /// Never; null and misaligned pointers are found all the same.
    Never,
}

/// What a caller may decide about a plan.
#[derive(Clone, Debug, Default)]
pub struct PlanOptions {
    /// The variant, instead of what `MSDEFORM_VARIANT` or the dispatcher says.
    pub variant: Option<String>,
    /// Knobs of that variant, instead of its own choice.
    pub knobs: Vec<(String, i64)>,
    /// Strides of the value tensor, if it is not contiguous.
    pub strides: Option<ValueStrides>,
    /// Width of the raster that the queries form, if they do (a hint for scheduling).
    pub query_raster_width: u32,
    /// When pointers are looked up.
    pub pointer_checks: PointerChecks,
}

impl PlanOptions {
    /// The call that these options make of a problem.
    fn call<'a>(
        &self,
        context: &'a Context,
        problem: &'a Problem,
        backward: Option<BackwardCall>,
    ) -> Result<Call<'a>> {
        let strides = self.strides.unwrap_or_else(|| ValueStrides::packed(problem));
        strides.check(problem)?;
        let (device, query_raster_width) = (context.props(), self.query_raster_width);
        Ok(Call { problem, strides, device, query_raster_width, backward })
    }

    /// What computes a call: the caller's choice or the environment's, or what was measured on this machine and
    /// else the dispatcher's. Whoever names a variant gets that one or an error: a silent
    /// substitute would be measured or trusted as something it is not. The environment speaks to both directions
    /// at once, so there a name of the other one is no choice.
    fn choices(&self, engine: &Engine, call: &Call<'_>) -> Result<Choices> {
        let named = match &self.variant {
            Some(id) => Some(registry::find(id)?),
            None => match std::env::var(VARIANT_VARIABLE) {
                Ok(id) if !id.is_empty() => Some(registry::find(&id)?)
                    .filter(|variant| variant.spec().direction == call.direction()),
                _ => None,
            },
        };
        let variant = named.unwrap_or_else(|| dispatch::builtin(call));
        variant.check(call)?;
        let sure = Choice { variant, knobs: KnobChoices::new(variant, &self.knobs)? };
        // Knobs without a variant are those of the dispatcher's.
        let is_open = named.is_none() && self.knobs.is_empty();
        let tuned = if is_open { tuning::choose(engine.tuning(), call) } else { None };
        Ok(Choices { tuned, sure })
    }
}

/// What computes a call.
struct Choices {
    /// What was measured on this machine, where it fits the call.
    tuned: Option<Choice>,
    /// What takes the call in any case.
    sure: Choice,
}

/// A tensor of a call in device memory.
#[derive(Clone, Copy)]
struct Tensor {
    name: &'static str,
    address: u64,
    bytes: usize,
    element_bytes: usize,
    /// Which of a configuration's alignments it must have.
    role: Role,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    /// Values, outputs and their gradients.
    Value,
    /// Locations, weights and their gradients.
    Sampling,
}

/// Looks at what a launch is given before anything is queued.
#[derive(Debug)]
struct Gate {
    context: Context,
    checks: PointerChecks,
    /// Relaxed: nothing is published by it. Who sees it late asks the driver once more.
    checked: AtomicBool,
}

impl Gate {
    fn new(context: &Context, checks: PointerChecks) -> Self {
        Self { context: context.clone(), checks, checked: AtomicBool::new(false) }
    }

    fn check_stream(&self, stream: &Stream) -> Result<()> {
        if stream.context().raw() == self.context.raw() {
            return Ok(());
        }
        let (expected, found) = (self.context.ordinal(), stream.context().ordinal());
        Err(Error::WrongDevice { what: "stream", expected, found })
    }

    fn check_tensors(&self, tensors: &[Tensor]) -> Result<()> {
        // An empty tensor is never touched: its pointer may be anything.
        let tensors = tensors.iter().filter(|tensor| tensor.bytes > 0);
        for &Tensor { name: tensor, address, element_bytes, .. } in tensors.clone() {
            if address == 0 {
                return Err(Error::NullPointer { tensor });
            }
            if !address.is_multiple_of(element_bytes as u64) {
                return Err(Error::MisalignedElement { tensor, address, element_bytes });
            }
        }
        let ask = match self.checks {
            PointerChecks::Every => true,
            PointerChecks::First => !self.checked.load(Ordering::Relaxed),
            PointerChecks::Never => false,
        };
        if ask {
            for tensor in tensors {
                check_pointer(&self.context, tensor.name, tensor.address, tensor.bytes)?;
            }
            self.checked.store(true, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Refuses buffers that are too small or on another GPU.
    fn check_buffers<const N: usize>(&self, buffers: [BufferCheck<'_>; N]) -> Result<()> {
        for BufferCheck { tensor, required, found, context } in buffers {
            if found < required {
                return Err(Error::BufferTooSmall { tensor, required, found });
            }
            if context.raw() != self.context.raw() {
                let (expected, found) = (self.context.ordinal(), context.ordinal());
                return Err(Error::WrongDevice { what: tensor, expected, found });
            }
        }
        Ok(())
    }
}

/// A buffer of this crate, for a tensor of so many bytes.
struct BufferCheck<'a> {
    tensor: &'static str,
    required: usize,
    found: usize,
    context: &'a Context,
}

impl<'a> BufferCheck<'a> {
    fn new<T: msdeform::Element>(
        tensor: &'static str,
        required: usize,
        buffer: &'a DeviceBuffer<T>,
    ) -> Self {
        Self { tensor, required, found: buffer.bytes(), context: buffer.context() }
    }
}

/// A variant, compiled, with everything but the pointers.
#[derive(Debug)]
struct Prepared<P> {
    spec: &'static VariantSpec,
    configuration: Configuration,
    queue: Vec<Queued>,
    params: P,
    /// What of L2 is set aside for the values, and their size.
    persisting_value: Option<(PersistingL2, usize)>,
    preamble: Preamble,
}

/// What the parameter begins with.
#[derive(Debug)]
enum Preamble {
    Nothing,
    /// Descriptors that follow the value's address, and how many the parameter has room for.
    Maps(Vec<TileMap>, usize),
    /// Textures, one per level, which are the plan's own.
    Textures(Vec<LayeredTexture>),
}

/// Where a launch starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Start {
    /// At the first step.
    Preparation,
    /// Behind what an earlier launch prepared.
    Operator,
}

/// A step with what it needs.
#[derive(Debug)]
enum Queued {
    Launch { entry: String, kernel: Kernel, geometry: LaunchGeometry, label: Label },
    Zero { region: Region, label: Label },
}

/// A kernel of a plan: what it is called, how it is launched, what it takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlannedKernel<'a> {
    /// The entry in the variant's file.
    pub entry: &'a str,
    /// Grid, block and shared memory.
    pub geometry: LaunchGeometry,
    /// Registers and memory.
    pub resources: KernelResources,
}

impl<P> Prepared<P> {
    /// The best choice that this GPU takes. What was measured with another compiler may need more registers
    /// now: then a call is none the worse, and only what is sure to fit may fail.
    fn best(
        engine: &Engine,
        choices: &Choices,
        call: &Call<'_>,
        params: impl Fn(&Configuration) -> Result<P>,
    ) -> Result<Self> {
        let make = |Choice { variant, knobs }: &Choice| {
            let made = Self::new(engine, *variant, call, knobs, &params)?;
            match made.knobs_if_maps_are_refused(engine.context(), *variant)? {
                Some(knobs) => Self::new(engine, *variant, call, &knobs, &params),
                None => Ok(made),
            }
        };
        let tuned = choices.tuned.as_ref().and_then(|tuned| make(tuned).ok());
        tuned.map_or_else(|| make(&choices.sure), Ok)
    }

    fn new(
        engine: &Engine,
        variant: &'static dyn Variant,
        call: &Call<'_>,
        knobs: &KnobChoices,
        params: impl FnOnce(&Configuration) -> Result<P>,
    ) -> Result<Self> {
        let spec = variant.spec();
        let configuration =
            variant.configure(call, knobs).map_err(|reason| variant.refusal(reason))?;
        let code = engine.code(variant, &configuration, call)?;
        let params = params(&configuration)?;
        let mut queue = Vec::with_capacity(configuration.pipeline.steps.len());
        for step in &configuration.pipeline.steps {
            queue.push(match *step {
                Step::Zero(region) => {
                    Queued::Zero { region, label: Label::new(spec.id, ZEROING, call.problem) }
                }
                Step::Launch { name, geometry } => {
                    let (entry, kernel) = code.kernel(name)?;
                    kernel
                        .function
                        .prepare(&geometry, call.device)
                        .map_err(|source| Error::from(source).in_launch_of(spec.id))?;
                    let label = Label::new(spec.id, &entry, call.problem);
                    Queued::Launch { entry, kernel, geometry, label }
                }
            });
        }
        let refuse = |reason| variant.refusal(reason);
        let preamble = match (configuration.tile_maps, configuration.textures) {
            (None, None) => Preamble::Nothing,
            (Some(maps), _) => {
                let capacity = maps.capacity(call.problem.levels().len());
                Preamble::Maps(maps.of(call).map_err(refuse)?, capacity)
            }
            (None, Some(textures)) => {
                let shapes = textures.of(call).map_err(refuse)?.into_iter();
                let made = shapes.map(|shape| LayeredTexture::new(engine.context(), shape));
                Preamble::Textures(made.collect::<Result<_>>()?)
            }
        };
        let persisting_value = if configuration.persisting_value {
            let bytes = call.strides.extent(call.problem) * call.problem.dtype().size_bytes();
            PersistingL2::set_aside(engine.context(), bytes)?.map(|share| (share, bytes))
        } else {
            None
        };
        Ok(Self { spec, configuration, queue, params, preamble, persisting_value })
    }

    /// The knobs with which the variant does without its tensor maps, if the driver refuses to make these.
    /// It is asked before the first launch, with an address like any other, which it only stores.
    fn knobs_if_maps_are_refused(
        &self,
        context: &Context,
        variant: &dyn Variant,
    ) -> Result<Option<KnobChoices>> {
        const ANY_ADDRESS: u64 = 1 << 32;
        let (Preamble::Maps(maps, _), Some((knob, value))) =
            (&self.preamble, self.configuration.without_maps)
        else {
            return Ok(None);
        };
        let _entered = context.enter()?;
        if maps.iter().all(|map| EncodedMap::new(ANY_ADDRESS, map).is_ok()) {
            return Ok(None);
        }
        KnobChoices::new(variant, &[(knob.to_owned(), value)]).map(Some)
    }

    fn is_aligned(&self, tensors: &[Tensor]) -> bool {
        tensors.iter().all(|tensor| {
            let alignment = match tensor.role {
                Role::Value => self.configuration.value_alignment,
                Role::Sampling => self.configuration.sampling_alignment,
            };
            tensor.bytes == 0 || tensor.address.is_multiple_of(alignment as u64)
        })
    }

    /// Whether some pointers are aligned for their elements and not for this.
    fn needs_fallback(&self, problem: &Problem) -> bool {
        let (value_bytes, sampling_bytes) = element_bytes(problem);
        self.configuration.value_alignment > value_bytes
            || self.configuration.sampling_alignment > sampling_bytes
    }

    /// Bytes of the textures it owns.
    fn texture_bytes(&self) -> usize {
        match &self.preamble {
            Preamble::Textures(textures) => textures.iter().map(LayeredTexture::bytes).sum(),
            Preamble::Nothing | Preamble::Maps(..) => 0,
        }
    }

    /// Queues the steps. The context must be current. `value` is the address of the value tensor.
    ///
    /// # Safety
    /// `params` holds what the kernels take, valid until the stream is done, and `region` returns the
    /// address and size of memory that may be zeroed.
    unsafe fn queue(
        &self,
        stream: &Stream,
        params: &P,
        value: u64,
        start: Start,
        region: impl Fn(Region) -> (u64, usize),
    ) -> Result<()> {
        let refused = |source: DriverError| Error::from(source).in_launch_of(self.spec.id);
        let (with_maps, with_textures);
        let argument = match &self.preamble {
            Preamble::Nothing => std::ptr::from_ref(params).cast::<c_void>(),
            Preamble::Maps(maps, capacity) => {
                with_maps = parameter_with_maps(params, maps, *capacity, value).map_err(refused)?;
                with_maps.as_ptr().cast::<c_void>()
            }
            Preamble::Textures(textures) => {
                with_textures = parameter_with_textures(params, textures);
                with_textures.as_ptr().cast::<c_void>()
            }
        };
        let window =
            self.persisting_value.as_ref().map(|(share, bytes)| share.window(value, *bytes));
        let skipped = match start {
            Start::Preparation => 0,
            Start::Operator => self.configuration.pipeline.preparation,
        };
        let noted = |label: Label, queue: &dyn Fn() -> std::result::Result<(), DriverError>| {
            stream.context().noted(label, stream, queue)
        };
        for step in self.queue.iter().skip(skipped) {
            match step {
                // SAFETY: the parameter begins with what the kernel declares (a layout test holds
                // that); the caller answers for what it points to.
                Queued::Launch { kernel, geometry, label, .. } => noted(*label, &|| unsafe {
                    kernel.function.launch(stream, geometry, window, argument)
                }),
                Queued::Zero { region: target, label } => {
                    let (address, bytes) = region(*target);
                    // SAFETY: the caller answers for the region.
                    noted(*label, &|| unsafe { zero_bytes(stream, address, bytes) })
                }
            }
            .map_err(|error| error.in_launch_of(self.spec.id))?;
        }
        Ok(())
    }

    fn kernels(&self) -> impl Iterator<Item = PlannedKernel<'_>> {
        self.queue.iter().filter_map(|step| match step {
            Queued::Launch { entry, kernel, geometry, .. } => {
                Some(PlannedKernel { entry, geometry: *geometry, resources: kernel.resources })
            }
            Queued::Zero { .. } => None,
        })
    }
}

/// The bytes of a parameter that begins with tensor maps.
fn parameter_with_maps<P>(
    params: &P,
    maps: &[TileMap],
    capacity: usize,
    value: u64,
) -> std::result::Result<Vec<EncodedMap>, DriverError> {
    let tail = size_of::<P>().div_ceil(size_of::<EncodedMap>());
    let mut bytes = vec![EncodedMap::unused(); capacity + tail];
    for (encoded, map) in bytes.iter_mut().zip(maps) {
        *encoded = EncodedMap::new(value, map)?;
    }
    // SAFETY: the last `tail` entries are plain bytes and at least as large as the parameter.
    unsafe {
        let target = bytes.as_mut_ptr().add(capacity).cast::<u8>();
        std::ptr::copy_nonoverlapping(std::ptr::from_ref(params).cast(), target, size_of::<P>());
    }
    Ok(bytes)
}

/// The bytes of a parameter that begins with the handles of textures: `struct LevelTexture { texture, surface }`
/// of every level.
fn parameter_with_textures<P>(params: &P, textures: &[LayeredTexture]) -> Vec<u64> {
    let handles = textures.iter().flat_map(|texture| [texture.texture(), texture.surface()]);
    let mut words: Vec<u64> = handles.collect();
    let first = words.len();
    words.resize(first + size_of::<P>().div_ceil(size_of::<u64>()), 0);
    // SAFETY: the words from `first` on are plain bytes and at least as large as the parameter.
    unsafe {
        let target = words.as_mut_ptr().add(first).cast::<u8>();
        std::ptr::copy_nonoverlapping(std::ptr::from_ref(params).cast(), target, size_of::<P>());
    }
    words
}

/// Levels that do not fit the parameter, in device memory.
fn level_table(
    context: &Context,
    problem: &Problem,
) -> Result<Option<DeviceBuffer<LevelGeometry>>> {
    if problem.levels().len() <= INLINE_LEVELS {
        return Ok(None);
    }
    let stream = Stream::new(context)?;
    Ok(Some(DeviceBuffer::from_plain(&stream, &level_geometry(problem)?)?))
}

fn element_bytes(problem: &Problem) -> (usize, usize) {
    (problem.dtype().size_bytes(), problem.sampling_dtype().size_bytes())
}

fn check_dtype(tensor: &'static str, expected: DType, found: DType) -> Result<()> {
    if expected == found {
        return Ok(());
    }
    Err(msdeform::Error::DtypeMismatch { tensor, expected, found }.into())
}
