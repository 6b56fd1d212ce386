//! A plan: everything about a call that does not change from launch to launch, worked out once.

use std::sync::atomic::{AtomicBool, Ordering};

use msdeform::{DType, Element, Problem, VariantSpec};

use crate::dispatch;
use crate::driver::{Context, DeviceBuffer, LaunchGeometry, Stream, check_pointer};
use crate::engine::{Engine, Kernel};
use crate::error::{Error, Result};
use crate::nvrtc::KernelResources;
use crate::params::{ForwardParams, INLINE_LEVELS, LevelGeometry, level_geometry};
use crate::registry;
use crate::strides::ValueStrides;
use crate::variants::{Call, Configuration, KnobChoices, Variant};

/// Names a variant for every plan that does not name one itself.
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

/// The tensors of a forward call, in device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DevicePointers {
    /// In the problem's layout, or with the plan's strides.
    pub value: u64,
    /// `[N, Lq, M, samples, 2]`.
    pub locations: u64,
    /// `[N, Lq, M, samples]`.
    pub weights: u64,
    /// `[N, Lq, M * D]`.
    pub output: u64,
}

/// A forward call, ready to be launched any number of times, from any thread, on any stream of its
/// device. Launching allocates nothing, waits for nothing, takes no lock, and can be captured in a
/// graph.
///
/// A plan belongs to one problem. Making one for another image size, batch or number of queries
/// compiles nothing: it takes microseconds.
#[derive(Debug)]
pub struct ForwardPlan {
    context: Context,
    problem: Problem,
    extents: Extents,
    main: Option<Prepared>,
    /// Takes over where pointers are not aligned as `main` needs them.
    unaligned: Option<Prepared>,
    /// Keeps `ForwardParams::level_table` alive.
    _level_table: Option<DeviceBuffer<LevelGeometry>>,
    pointer_checks: PointerChecks,
    pointers_checked: AtomicBool,
    spec: &'static VariantSpec,
}

/// A variant, compiled, with everything but the pointers.
#[derive(Debug)]
struct Prepared {
    spec: &'static VariantSpec,
    kernel: Kernel,
    configuration: Configuration,
    params: ForwardParams,
}

/// Bytes of each tensor, from its pointer on.
#[derive(Clone, Copy, Debug)]
struct Extents {
    value: usize,
    locations: usize,
    weights: usize,
    output: usize,
}

impl ForwardPlan {
    /// Chooses, compiles and loads what the problem needs.
    ///
    /// # Errors
    /// A variant that was asked for and cannot do it, strides that make no sense, no NVRTC, or what
    /// compiler and driver say. Never for a valid problem that leaves the choice to the dispatcher.
    pub fn new(engine: &Engine, problem: &Problem, options: &PlanOptions) -> Result<Self> {
        let context = engine.context();
        let strides = options.strides.unwrap_or_else(|| ValueStrides::packed(problem));
        strides.check(problem)?;
        let call = Call {
            problem,
            strides,
            device: context.props(),
            query_raster_width: options.query_raster_width,
        };
        let variant = choose(&call, options.variant.as_deref())?;
        variant.check(&call)?;
        let knobs = KnobChoices::new(variant, &options.knobs)?;
        let (value_bytes, sampling_bytes) = element_bytes(problem);
        let mut plan = Self {
            context: context.clone(),
            problem: problem.clone(),
            extents: Extents {
                value: strides.extent(problem) * value_bytes,
                locations: problem.locations_len() * sampling_bytes,
                weights: problem.weights_len() * sampling_bytes,
                output: problem.output_len() * value_bytes,
            },
            main: None,
            unaligned: None,
            _level_table: None,
            pointer_checks: options.pointer_checks,
            pointers_checked: AtomicBool::new(false),
            spec: variant.spec(),
        };
        if problem.output_len() == 0 {
            return Ok(plan);
        }
        let level_table = level_table(context, problem)?;
        let table_address = level_table.as_ref().map_or(0, DeviceBuffer::address);
        let main = Prepared::new(engine, variant, &call, &knobs, table_address)?;
        if main.configuration.value_alignment > value_bytes
            || main.configuration.sampling_alignment > sampling_bytes
        {
            let fallback = dispatch::LAST_RESORT;
            let scalar = KnobChoices::new(fallback, &[("VECTOR".to_owned(), 1)])?;
            plan.unaligned = Some(Prepared::new(engine, fallback, &call, &scalar, table_address)?);
        }
        plan.main = Some(main);
        plan._level_table = level_table;
        Ok(plan)
    }

    /// Queues the operator on the caller's stream.
    ///
    /// # Safety
    /// Each pointer leads to a tensor of the plan's problem that stays valid until the stream is
    /// done; nothing else writes to them meanwhile; the output overlaps no other tensor. What is
    /// recorded in a graph must hold for every replay.
    ///
    /// # Errors
    /// Before the launch: a null, misaligned or host pointer, another device's tensor or stream, an
    /// allocation that is too small, each by name. [`Error::Launch`] with the variant's name if the
    /// driver refuses.
    pub unsafe fn launch(&self, stream: &Stream, pointers: DevicePointers) -> Result<()> {
        if stream.context().raw() != self.context.raw() {
            return Err(Error::WrongDevice {
                what: "stream",
                expected: self.context.ordinal(),
                found: stream.context().ordinal(),
            });
        }
        let Some(main) = &self.main else { return Ok(()) };
        self.check_pointers(&pointers)?;
        let prepared = match &self.unaligned {
            Some(unaligned) if !main.is_aligned(&pointers) => unaligned,
            _ => main,
        };
        let DevicePointers { value, locations, weights, output } = pointers;
        let params = ForwardParams { value, locations, weights, output, ..prepared.params };
        let entered = self.context.enter()?;
        // SAFETY: the parameter begins with what the kernel declares (a layout test holds that); the
        // caller answers for the tensors, the plan owns the level table.
        let launched = unsafe {
            prepared.kernel.function.launch(stream, &prepared.configuration.geometry, &params)
        };
        drop(entered);
        launched.map_err(|source| Error::Launch { variant: prepared.spec.id, source })
    }

    /// Queues the operator on buffers of this crate; their formats and sizes are checked.
    ///
    /// # Errors
    /// A format or size that is not the problem's, and as [`ForwardPlan::launch`].
    pub fn run<V: Element, S: Element>(
        &self,
        stream: &Stream,
        value: &DeviceBuffer<V>,
        locations: &DeviceBuffer<S>,
        weights: &DeviceBuffer<S>,
        output: &mut DeviceBuffer<V>,
    ) -> Result<()> {
        check_dtype("value", self.problem.dtype(), V::DTYPE)?;
        check_dtype("sampling_locations", self.problem.sampling_dtype(), S::DTYPE)?;
        for (tensor, required, found) in [
            ("value", self.extents.value, value.bytes()),
            ("sampling_locations", self.extents.locations, locations.bytes()),
            ("attention_weights", self.extents.weights, weights.bytes()),
            ("output", self.extents.output, output.bytes()),
        ] {
            if found < required {
                return Err(Error::BufferTooSmall { tensor, required, found });
            }
        }
        let contexts = [value.context(), locations.context(), weights.context(), output.context()];
        if let Some(other) = contexts.iter().find(|context| context.raw() != self.context.raw()) {
            let (expected, found) = (self.context.ordinal(), other.ordinal());
            return Err(Error::WrongDevice { what: "tensor", expected, found });
        }
        let pointers = DevicePointers {
            value: value.address(),
            locations: locations.address(),
            weights: weights.address(),
            output: output.address(),
        };
        // SAFETY: sizes are checked above; freeing a buffer waits for the kernels that use it; the
        // output is exclusively borrowed and is an allocation of its own.
        unsafe { self.launch(stream, pointers) }
    }

    /// The problem it was made for.
    #[must_use]
    pub fn problem(&self) -> &Problem {
        &self.problem
    }

    /// The variant that was chosen.
    #[must_use]
    pub fn variant(&self) -> &'static VariantSpec {
        self.spec
    }

    /// How it is launched; `None` where the output is empty and nothing is.
    #[must_use]
    pub fn geometry(&self) -> Option<LaunchGeometry> {
        self.main.as_ref().map(|main| main.configuration.geometry)
    }

    /// The knobs it was compiled with.
    #[must_use]
    pub fn knobs(&self) -> &[(&'static str, i64)] {
        self.main.as_ref().map_or(&[], |main| &main.configuration.knobs)
    }

    /// What the kernel takes; `None` where nothing is launched.
    #[must_use]
    pub fn resources(&self) -> Option<KernelResources> {
        self.main.as_ref().map(|main| main.kernel.resources)
    }

    fn check_pointers(&self, pointers: &DevicePointers) -> Result<()> {
        let (value_bytes, sampling_bytes) = element_bytes(&self.problem);
        let tensors = [
            ("value", pointers.value, self.extents.value, value_bytes),
            ("sampling_locations", pointers.locations, self.extents.locations, sampling_bytes),
            ("attention_weights", pointers.weights, self.extents.weights, sampling_bytes),
            ("output", pointers.output, self.extents.output, value_bytes),
        ];
        // An empty tensor is never read: its pointer may be anything.
        let tensors = tensors.iter().filter(|(_, _, bytes, _)| *bytes > 0);
        for &(tensor, address, _, element_bytes) in tensors.clone() {
            if address == 0 {
                return Err(Error::NullPointer { tensor });
            }
            if !address.is_multiple_of(element_bytes as u64) {
                return Err(Error::MisalignedElement { tensor, address, element_bytes });
            }
        }
        let ask = match self.pointer_checks {
            PointerChecks::Every => true,
            PointerChecks::First => !self.pointers_checked.load(Ordering::Relaxed),
            PointerChecks::Never => false,
        };
        if ask {
            for &(tensor, address, bytes, _) in tensors {
                check_pointer(&self.context, tensor, address, bytes)?;
            }
            self.pointers_checked.store(true, Ordering::Relaxed);
        }
        Ok(())
    }
}

impl Prepared {
    fn new(
        engine: &Engine,
        variant: &'static dyn Variant,
        call: &Call<'_>,
        knobs: &KnobChoices,
        level_table: u64,
    ) -> Result<Self> {
        let configuration =
            variant.configure(call, knobs).map_err(|reason| variant.refusal(reason))?;
        let kernel = engine.kernel(variant, &configuration, call.problem)?;
        let params = ForwardParams { level_table, ..configuration.params(call)? };
        let spec = variant.spec();
        kernel
            .function
            .prepare(&configuration.geometry, call.device)
            .map_err(|source| Error::Launch { variant: spec.id, source })?;
        Ok(Self { spec, kernel, configuration, params })
    }

    fn is_aligned(&self, pointers: &DevicePointers) -> bool {
        let value = self.configuration.value_alignment as u64;
        let sampling = self.configuration.sampling_alignment as u64;
        pointers.value.is_multiple_of(value)
            && pointers.output.is_multiple_of(value)
            && pointers.locations.is_multiple_of(sampling)
            && pointers.weights.is_multiple_of(sampling)
    }
}

/// The caller's choice, the environment's, or the dispatcher's. Whoever names a variant gets that one
/// or an error: a silent substitute would be measured or trusted as something it is not.
fn choose(call: &Call<'_>, named: Option<&str>) -> Result<&'static dyn Variant> {
    let from_environment = std::env::var(VARIANT_VARIABLE).ok().filter(|id| !id.is_empty());
    match named.or(from_environment.as_deref()) {
        Some(id) => Ok(registry::find(id)?),
        None => Ok(dispatch::forward(call)),
    }
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
