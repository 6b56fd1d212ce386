//! What a variant is: a kernel file, what it says about itself, and how it wants to be launched.
//!
//! Everything here is arithmetic on a [`Call`] and can be done, and tested, without a GPU. The engine
//! compiles and launches what comes out; the emulator runs the same configuration on the host.

pub mod bwd_general;
pub mod bwd_level_sort;
pub mod bwd_original;
pub mod bwd_tile_sort;
pub mod chunked_sample;
pub mod fwd_general;
pub mod fwd_split_gather;
pub mod fwd_tile_gather;
mod grad_output_rows;
mod query_walk;
mod sample_gradients;
mod tile_lists;

use std::sync::Arc;

use msdeform::{
    ATTENTION, DType, Direction, Mode, Operator, Problem, Role, Storage, ValueLayout, VariantSpec,
};

use crate::derived::Derived;
use crate::driver::{DeviceProps, LaunchGeometry};
use crate::error::Error;
use crate::gradients::Gradients;
use crate::params::{CallShape, INLINE_LEVELS, Params};
use crate::pipeline::{Pipeline, Reads, Step};
use crate::preamble::PreambleRecipe;
use crate::sources::{HEADERS, SourceFile};
use crate::strides::{OutputStrides, ValueStrides};

/// What a variant is asked to do.
#[derive(Clone, Copy, Debug)]
pub struct Call<'a> {
    /// The operator's sizes.
    pub problem: &'a Problem,
    /// Strides of the value tensor.
    pub strides: ValueStrides,
    /// The GPU.
    pub device: &'a DeviceProps,
    /// Width of the raster that the queries form, 0 if nothing is known.
    pub query_raster_width: u32,
    /// What only a backward call has; `None` makes it a forward call.
    pub backward: Option<BackwardCall>,
}

/// What only a backward call has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackwardCall {
    /// Which gradients are computed.
    pub gradients: Gradients,
    /// What is promised about their last bits.
    pub mode: Mode,
    /// Strides of the gradient of the output.
    pub grad_output: OutputStrides,
}

impl BackwardCall {
    /// All gradients, fast, of a contiguous gradient of the output.
    #[must_use]
    pub fn new(problem: &Problem) -> Self {
        Self {
            gradients: Gradients::ALL,
            mode: Mode::Fast,
            grad_output: OutputStrides::packed(problem),
        }
    }
}

impl<'a> Call<'a> {
    /// A forward call with packed values and no knowledge about the queries.
    #[must_use]
    pub fn new(problem: &'a Problem, device: &'a DeviceProps) -> Self {
        let strides = ValueStrides::packed(problem);
        Self { problem, strides, device, query_raster_width: 0, backward: None }
    }

    /// An ordinary call in a direction: everything packed, all gradients, fast.
    #[must_use]
    pub fn in_direction(
        direction: Direction,
        problem: &'a Problem,
        device: &'a DeviceProps,
    ) -> Self {
        let backward = match direction {
            Direction::Forward => None,
            Direction::Backward => Some(BackwardCall::new(problem)),
        };
        Self { backward, ..Self::new(problem, device) }
    }

    /// The operator that is called.
    #[must_use]
    pub fn operator(&self) -> &'static Operator {
        &ATTENTION
    }

    /// Whether a tensor of the operator is part of this call: all but the gradients that nobody asked for.
    #[must_use]
    pub fn has(&self, role: Role) -> bool {
        self.backward.is_none_or(|backward| backward.gradients.includes(role))
    }

    /// Bytes from the first element of a tensor to one past its last.
    #[must_use]
    pub fn extent(&self, role: Role) -> usize {
        let problem = self.problem;
        let elements = match (role, self.backward) {
            (Role::Value, _) => self.strides.extent(problem),
            (Role::GradOutput, Some(backward)) => backward.grad_output.extent(problem),
            _ => problem.len_of(role),
        };
        elements * problem.format_of(role).size_bytes()
    }

    /// Which way it runs.
    #[must_use]
    pub const fn direction(&self) -> Direction {
        match self.backward {
            None => Direction::Forward,
            Some(_) => Direction::Backward,
        }
    }

    /// Which gradients are asked for; none by a forward call.
    #[must_use]
    pub fn gradients(&self) -> Gradients {
        const NONE: Gradients = Gradients { value: false, locations: false, weights: false };
        self.backward.map_or(NONE, |backward| backward.gradients)
    }

    /// Whether there is nothing for a kernel to do: no output, or no sample that could contribute to a
    /// gradient, which are then all zero. Variants are not configured for such calls.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        let is_without = |role: &Role| self.problem.len_of(*role) == 0;
        let nothing_contributes = || self.operator().inputs.iter().any(is_without);
        is_without(&self.operator().output) || (self.backward.is_some() && nothing_contributes())
    }

    /// Output rows: one per image, query and head.
    #[must_use]
    pub fn rows(&self) -> u64 {
        // Fits: Problem checked the output's element count.
        (self.problem.batch() * self.problem.queries() * self.problem.heads()) as u64
    }
}

/// Something that may be tuned. What kernels read of it is the macro `MSDA_<name>`; some concern the launch alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Knob {
    /// Its name, in capitals.
    pub name: &'static str,
    /// The values it takes.
    pub values: &'static [i64],
    /// What it changes.
    pub meaning: &'static str,
}

/// Something that follows from the call: the macro `MSDA_<name>` for the kernels that read it. Nothing to tune; a test may
/// set another value that holds for the call as well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Constant {
    /// Its name, in capitals.
    pub name: &'static str,
    /// The values it has.
    pub values: &'static [i64],
    /// What it says.
    pub meaning: &'static str,
}

/// Which sizes are compiled in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Specialise {
    /// Only the number formats; everything else is read from the parameters.
    Formats,
    /// Formats, layout, channels, levels and points.
    Model,
    /// As [`Specialise::Model`], and the number of heads.
    ModelAndHeads,
}

/// How a variant wants to be compiled and launched for one call.
#[derive(Clone, Debug)]
pub struct Configuration {
    /// Which sizes are compiled in.
    pub specialise: Specialise,
    /// The value of every knob of the variant.
    pub knobs: Vec<(&'static str, i64)>,
    /// What follows from the call, for the kernels that read it.
    pub constants: Vec<(&'static str, i64)>,
    /// What is queued: for most a single launch, `geometry.into()`.
    pub pipeline: Pipeline,
    /// Bytes that the pointers of value, output and their gradients must be multiples of.
    pub value_alignment: usize,
    /// Bytes that the pointers of locations, weights and their gradients must be multiples of.
    pub sampling_alignment: usize,
    /// Numbers that the kernels find in their parameter. Which ones there are is the variant's, never the call's.
    pub derived: Derived,
    /// What the parameter begins with, where the call alone does not say enough.
    pub preamble: Option<Arc<dyn PreambleRecipe>>,
    /// The knob with which the variant does without it, for where the driver refuses to make it.
    pub without_preamble: Option<(&'static str, i64)>,
    /// Whether part of L2 is set aside for the values while the plan lives.
    pub persisting_value: bool,
}

impl Default for Configuration {
    /// Everything stable compiled in, 16-byte loads, no hints and nothing to launch yet.
    fn default() -> Self {
        Self {
            specialise: Specialise::Model,
            knobs: Vec::new(),
            constants: Vec::new(),
            pipeline: Pipeline::default(),
            value_alignment: 16,
            sampling_alignment: 16,
            derived: Derived::default(),
            preamble: None,
            without_preamble: None,
            persisting_value: false,
        }
    }
}

impl Configuration {
    /// What every kernel of the pipeline is compiled from, in the order they are launched, each once.
    #[must_use]
    pub fn units(&self, call: &Call<'_>) -> Vec<Unit> {
        let mut units: Vec<Unit> = Vec::new();
        for step in &self.pipeline.steps {
            if let Step::Launch { name, reads, .. } = *step
                && units.iter().all(|known| known.step != name)
            {
                units.push(Unit { step: name, defines: self.defines_of(call, name, reads) });
            }
        }
        units
    }

    /// The macros of all of them together, for whoever compiles them as one.
    #[must_use]
    pub fn defines(&self, call: &Call<'_>) -> Vec<String> {
        let mut all: Vec<String> = Vec::new();
        for define in self.units(call).into_iter().flat_map(|unit| unit.defines) {
            if !all.contains(&define) {
                all.push(define);
            }
        }
        all
    }

    /// The macros of one kernel, as compiler options. Never holds an image's size, a batch or
    /// a number of queries: they change from call to call and must not compile again.
    fn defines_of(&self, call: &Call<'_>, step: &str, reads: Reads) -> Vec<String> {
        let problem = call.problem;
        let mut defines = Vec::new();
        let mut define = |name: &str, value: String| defines.push(format!("-DMSDA_{name}={value}"));
        define("VALUE_DTYPE", dtype_code(problem.dtype()).to_string());
        define("SAMPLING_DTYPE", dtype_code(problem.sampling_dtype()).to_string());
        match self.specialise {
            Specialise::Formats => define("LEVELS", INLINE_LEVELS.to_string()),
            Specialise::Model | Specialise::ModelAndHeads => {
                let levels = problem.levels().len();
                let mut offsets = vec!["0".to_owned()];
                offsets.extend((0..levels).map(|l| problem.level_samples(l).end.to_string()));
                define("LEVELS", levels.to_string());
                define("CHANNELS", problem.channels().to_string());
                define("SAMPLES", problem.samples().to_string());
                define("POINT_OFFSETS", offsets.join(","));
                define("LAYOUT", layout_code(problem.layout()).to_string());
            }
        }
        if self.specialise == Specialise::ModelAndHeads {
            define("HEADS", problem.heads().to_string());
        }
        if let Some(backward) = call.backward.filter(|_| reads.includes(GRADIENTS)) {
            define(GRADIENTS, backward.gradients.mask().to_string());
        }
        for (name, value) in self.knobs.iter().chain(&self.constants) {
            if reads.includes(name) {
                define(name, value.to_string());
            }
        }
        if let Some(declaration) = self.derived.declaration() {
            define(DERIVED, declaration);
        }
        if reads != Reads::All {
            let step = if step.is_empty() { "MAIN" } else { step };
            define(&format!("STEP_{}", step.to_uppercase()), "1".to_owned());
        }
        defines
    }

    /// The parameter of the kernels, complete but for the pointers to tensors.
    ///
    /// # Errors
    /// [`msdeform::Error::TooLarge`] where an axis does not fit 31 bits.
    pub fn params(&self, call: &Call<'_>, level_table: u64) -> Result<Params, msdeform::Error> {
        let shape = CallShape::of(call.problem, call.strides)?;
        Ok(Params::of(call, &self.derived, &CallShape { level_table, ..shape }))
    }

    /// Bytes that pointers to tensors of a kind must be multiples of.
    #[must_use]
    pub const fn alignment(&self, storage: Storage) -> usize {
        match storage {
            Storage::Channels => self.value_alignment,
            Storage::Samples => self.sampling_alignment,
        }
    }

    /// The launch of a variant that has one.
    #[must_use]
    pub fn geometry(&self) -> Option<LaunchGeometry> {
        let mut launches = self.pipeline.launches();
        let only = launches.next().map(|(_, geometry)| geometry);
        only.filter(|_| launches.next().is_none())
    }
}

/// The constant that says which gradients are asked for, as [`Gradients::mask`].
pub const GRADIENTS: &str = "GRADIENTS";

/// The macro that declares [`Configuration::derived`].
const DERIVED: &str = "DERIVED";

/// What one kernel is compiled from, beside the sources.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Unit {
    /// The step that launches it.
    pub step: &'static str,
    /// Its macros.
    pub defines: Vec<String>,
}

impl Unit {
    /// The macros without their prefix, on one line; the step is one of them. Not how the parameter is declared, which is
    /// the same for all units of a variant.
    #[must_use]
    pub fn name(&self) -> String {
        let short = self.defines.iter().map(|define| define.trim_start_matches("-DMSDA_"));
        short.filter(|define| !define.starts_with(DERIVED)).collect::<Vec<_>>().join(" ")
    }
}

/// Knobs that the caller sets; the variant chooses the others.
#[derive(Clone, Debug, Default)]
pub struct KnobChoices {
    chosen: Vec<(String, i64)>,
}

impl KnobChoices {
    /// Checks names and values against what the variant takes.
    ///
    /// # Errors
    /// [`Error::Knob`] naming what it takes.
    pub fn new(variant: &dyn Variant, chosen: &[(String, i64)]) -> Result<Self, Error> {
        let knobs = variant.knobs().iter().map(|knob| (knob.name, knob.values));
        let constants = variant.constants().iter().map(|constant| (constant.name, constant.values));
        for (name, value) in chosen {
            let fits = |(known, values): (&str, &[i64])| known == name && values.contains(value);
            if !knobs.clone().chain(constants.clone()).any(fits) {
                let known = knobs.map(|(name, values)| format!("{name} in {values:?}"));
                let known = known.collect::<Vec<_>>().join(", ");
                return Err(Error::Knob {
                    variant: variant.spec().id,
                    name: name.clone(),
                    value: *value,
                    known: if known.is_empty() { "no knobs".to_owned() } else { known },
                });
            }
        }
        Ok(Self { chosen: chosen.to_vec() })
    }

    /// Knobs of a variant that is known to take them.
    pub(crate) fn of(known: &[(&str, i64)]) -> Self {
        Self { chosen: known.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect() }
    }

    /// All that the caller chose.
    #[must_use]
    pub fn chosen(&self) -> &[(String, i64)] {
        &self.chosen
    }

    /// What the caller chose, if anything.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<i64> {
        self.chosen.iter().rev().find(|(chosen, _)| chosen == name).map(|(_, value)| *value)
    }
}

/// One kernel file and how to launch it. Implemented by one unit struct per file of this folder.
pub trait Variant: Send + Sync {
    /// What tables and documentation say about it. Its id is the name of the kernel, and what the
    /// names of several start with.
    fn spec(&self) -> &'static VariantSpec;

    /// The kernel.
    fn source(&self) -> SourceFile;

    /// The headers that it may include.
    fn headers(&self) -> &'static [SourceFile] {
        HEADERS
    }

    /// Whether a call in [`Mode::Deterministic`] gives the same bits on every run, whatever the launch
    /// geometry. Sums in an order that depends on who comes first (atomics) do not.
    fn is_deterministic(&self) -> bool {
        true
    }

    /// What may be tuned.
    fn knobs(&self) -> &'static [Knob] {
        &[]
    }

    /// What follows from a call and is compiled in.
    fn constants(&self) -> &'static [Constant] {
        &[]
    }

    /// Whether it can do this, beyond the formats and layouts of its spec.
    ///
    /// # Errors
    /// The reason, in words that complete "variant x cannot do this: ...".
    fn supports(&self, call: &Call<'_>) -> Result<(), String>;

    /// How to compile and launch it. Only asked where it supports the call and the call is not
    /// [empty](Call::is_empty). A knob that the caller chose is respected; where it makes the call impossible, the
    /// reason is returned.
    ///
    /// # Errors
    /// The reason, as for [`Variant::supports`].
    fn configure(&self, call: &Call<'_>, knobs: &KnobChoices) -> Result<Configuration, String>;
}

impl dyn Variant + '_ {
    /// Refuses, by name, what the variant cannot do.
    ///
    /// # Errors
    /// [`msdeform::Error::Unsupported`] with the reason, [`msdeform::Error::TooLarge`] for an axis
    /// that does not fit 31 bits.
    pub fn check(&self, call: &Call<'_>) -> Result<(), msdeform::Error> {
        self.spec().check_lists(call.problem)?;
        CallShape::of(call.problem, call.strides)?;
        if self.spec().direction != call.direction() {
            return Err(self.refusal(format!("it computes the {}", self.spec().direction)));
        }
        if !self.is_deterministic()
            && call.backward.is_some_and(|backward| backward.mode == Mode::Deterministic)
        {
            return Err(self.refusal("its last bits differ from run to run".to_owned()));
        }
        self.supports(call).map_err(|reason| self.refusal(reason))
    }

    pub(crate) fn refusal(&self, reason: String) -> msdeform::Error {
        msdeform::Error::Unsupported { variant: self.spec().id, reason }
    }
}

impl std::fmt::Debug for dyn Variant + '_ {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.spec().id)
    }
}

/// The number that stands for a format in the JIT macros. The formats kernels do not store (f64) are
/// refused before this is asked, by the lists in their specs.
fn dtype_code(dtype: DType) -> i32 {
    match dtype {
        DType::F32 | DType::F64 => 0,
        DType::F16 => 1,
        DType::Bf16 => 2,
    }
}

fn layout_code(layout: ValueLayout) -> i32 {
    match layout {
        ValueLayout::Interleaved => 0,
        ValueLayout::HeadMajor => 1,
        ValueLayout::HeadMajorPadded => 2,
    }
}

/// Refuses more levels than travel inside the parameter.
///
/// # Errors
/// How many there are.
pub fn check_inline_levels(problem: &Problem) -> Result<(), String> {
    let levels = problem.levels().len();
    if levels > INLINE_LEVELS {
        return Err(format!("{levels} levels, at most {INLINE_LEVELS}"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;
    use crate::registry::REGISTRY;

    fn problem(variant: &dyn Variant, batch: usize, queries: usize, size: usize) -> Problem {
        let dtypes = variant.spec().dtypes;
        let dtype = if dtypes.contains(&DType::F16) { DType::F16 } else { dtypes[0] };
        Problem::builder()
            .batch(batch)
            .heads(8)
            .channels(32)
            .queries(queries)
            .levels([(size as i64, size as i64 + 3), (size as i64 / 2, size as i64 / 2)])
            .points(4)
            .dtype(dtype)
            .layout(variant.spec().layouts[0])
            .build()
            .unwrap()
    }

    /// What is compiled for a model, whatever the batch and the number of queries: kernels by step.
    fn compiled_for(direction: Direction, dtype: DType) -> BTreeMap<String, BTreeSet<Vec<String>>> {
        let device = DeviceProps::h200();
        let mut units: BTreeMap<String, BTreeSet<Vec<String>>> = BTreeMap::new();
        // Miri, thousands of times slower, takes a few of them.
        let step = if cfg!(miri) { 399 } else { 1 };
        for batch in [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64] {
            for queries in (1..=2000).step_by(step) {
                let problem = Problem::builder()
                    .batch(batch)
                    .heads(8)
                    .channels(32)
                    .queries(queries)
                    .levels([(100, 167), (50, 84), (25, 42), (13, 21)])
                    .points(4)
                    .dtype(dtype)
                    .build()
                    .unwrap();
                let call = Call::in_direction(direction, &problem, &device);
                let variant = crate::dispatch::builtin(&call).unwrap();
                let configured = variant.configure(&call, &KnobChoices::default()).unwrap();
                for unit in configured.units(&call) {
                    let entry = crate::pipeline::entry_name(variant.spec().id, unit.step);
                    units.entry(entry).or_default().insert(unit.defines);
                }
            }
        }
        units
    }

    /// What each number stands for: a choice between variants, between few and many samples, or rows. More would stop a
    /// training whose images have other sizes with every batch.
    #[test]
    fn what_is_compiled_for_a_model_is_bounded() {
        for dtype in DType::FAST {
            for direction in Direction::ALL {
                let most = match direction {
                    Direction::Forward => 2,
                    Direction::Backward => 4,
                };
                let units = compiled_for(direction, dtype);
                for (entry, found) in &units {
                    assert!(found.len() <= most, "{dtype} {entry}: {found:#?}");
                }
                let all: usize = units.values().map(BTreeSet::len).sum();
                assert!(all <= 24, "{dtype} {direction}: {all} kernels");
            }
        }
    }

    /// Nothing that an encoder gets depends on the image.
    #[test]
    fn image_sizes_never_compile_again() {
        let device = DeviceProps::h200();
        for variant in REGISTRY {
            let units = |problem: &Problem| {
                let call = Call::in_direction(variant.spec().direction, problem, &device);
                variant.check(&call).ok()?;
                let configuration = variant.configure(&call, &KnobChoices::default()).ok()?;
                Some(configuration.units(&call))
            };
            let large = units(&problem(*variant, 2, 4096, 64));
            assert!(large.is_some(), "{variant:?} refuses an ordinary problem");
            assert_eq!(large, units(&problem(*variant, 2, 5000, 72)), "{variant:?}");
            assert_eq!(large, units(&problem(*variant, 3, 4096, 64)), "{variant:?}");
        }
    }

    #[test]
    fn a_fixed_configuration_names_everything_stable() {
        let problem = Problem::builder()
            .heads(8)
            .channels(32)
            .queries(9)
            .levels([(4, 4), (2, 2)])
            .points_per_level([3, 5])
            .layout(ValueLayout::HeadMajor)
            .dtype(DType::Bf16)
            .sampling_dtype(DType::F32)
            .build()
            .unwrap();
        let configuration = Configuration {
            specialise: Specialise::ModelAndHeads,
            knobs: vec![("TILE", 16)],
            pipeline: LaunchGeometry::linear(1, 32).into(),
            value_alignment: 16,
            sampling_alignment: 4,
            ..Configuration::default()
        };
        let device = DeviceProps::h200();
        let mut call = Call::new(&problem, &device);
        assert_eq!(
            configuration.defines(&call).join(" "),
            "-DMSDA_VALUE_DTYPE=2 -DMSDA_SAMPLING_DTYPE=0 -DMSDA_LEVELS=2 -DMSDA_CHANNELS=32 \
             -DMSDA_SAMPLES=8 -DMSDA_POINT_OFFSETS=0,3,8 -DMSDA_LAYOUT=1 -DMSDA_HEADS=8 \
             -DMSDA_TILE=16"
        );
        let gradients = Gradients { locations: false, ..Gradients::ALL };
        call.backward = Some(BackwardCall { gradients, ..BackwardCall::new(&problem) });
        let defines = configuration.defines(&call).join(" ");
        assert!(defines.contains("-DMSDA_HEADS=8 -DMSDA_GRADIENTS=5 -DMSDA_TILE"), "{defines}");
    }

    #[test]
    fn a_variant_refuses_the_other_direction_and_a_promise_it_cannot_keep() {
        let device = DeviceProps::h200();
        for variant in REGISTRY {
            let problem = problem(*variant, 1, 16, 8);
            for direction in Direction::ALL {
                let mut call = Call::in_direction(direction, &problem, &device);
                let fits = direction == variant.spec().direction;
                assert_eq!(variant.check(&call).is_ok(), fits, "{variant:?} {direction}");
                if let Some(backward) = &mut call.backward {
                    backward.mode = Mode::Deterministic;
                    let keeps = fits && variant.is_deterministic();
                    assert_eq!(variant.check(&call).is_ok(), keeps, "{variant:?} deterministic");
                }
            }
        }
    }

    #[test]
    fn knobs_are_checked_by_name_and_value() {
        let general: &dyn Variant = &fwd_general::FwdGeneral;
        let choose = |name: &str, value| KnobChoices::new(general, &[(name.to_owned(), value)]);
        assert_eq!(choose("VECTOR", 4).unwrap().get("VECTOR"), Some(4));
        for (name, value) in [("VECTOR", 3), ("SPEED", 4)] {
            let error = choose(name, value).unwrap_err().to_string();
            assert!(error.contains("fwd_general") && error.contains("VECTOR in"), "{error}");
        }
    }
}
