//! How a variant wants to be compiled and launched for one call.

use std::sync::Arc;

use msdeform::{DType, Storage, ValueLayout};

use super::{Call, Variant, offset_source};
use crate::derived::Derived;
use crate::driver::LaunchGeometry;
use crate::kernel_text::{KernelText, MACRO_PREFIX};
use crate::params::{CallShape, INLINE_LEVELS, Params};
use crate::pipeline::Pipeline;
use crate::preamble::PreambleRecipe;

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
    /// Of the output and its gradient, where they have a format of their own.
    pub output_alignment: Option<usize>,
    /// Bytes that the pointers of locations, weights and their gradients must be multiples of.
    pub sampling_alignment: usize,
    /// Of the references, where samples follow from offsets.
    pub reference_alignment: usize,
    /// Numbers that the kernels find in their parameter. Which ones there are is the variant's, never the call's.
    pub derived: Derived,
    /// What the parameter begins with, where the call alone does not say enough.
    pub preamble: Option<Arc<dyn PreambleRecipe>>,
    /// The knob with which the variant does without it, for where the driver refuses to make it.
    pub without_preamble: Option<(&'static str, i64)>,
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
            output_alignment: None,
            sampling_alignment: 16,
            reference_alignment: 1,
            derived: Derived::default(),
            preamble: None,
            without_preamble: None,
        }
    }
}

impl Configuration {
    /// What every kernel of the pipeline is compiled from, in the order they are launched, each once.
    pub fn units(&self, variant: &Variant, call: &Call<'_>) -> Vec<Unit> {
        let is_fused = call.problem.offsets().is_some();
        let all = self.macros(call);
        let mut units: Vec<Unit> = Vec::new();
        for (step, _) in self.pipeline.launches() {
            if units.iter().all(|known| known.step != step) {
                let text = KernelText::of_step(variant, step, is_fused);
                let own = all.iter().filter(|(name, _)| text.mentions(name));
                let own = own.map(|(name, value)| format!("-D{MACRO_PREFIX}{name}={value}"));
                let step_macro = text.step.iter().map(|name| format!("-D{MACRO_PREFIX}{name}=1"));
                units.push(Unit { step, defines: own.chain(step_macro).collect() });
            }
        }
        units
    }

    /// The macros of all kernels together, for a compilation of all kernels as one text.
    pub fn defines(&self, variant: &Variant, call: &Call<'_>) -> Vec<String> {
        let mut all: Vec<String> = Vec::new();
        for define in self.units(variant, call).into_iter().flat_map(|unit| unit.defines) {
            if !all.contains(&define) {
                all.push(define);
            }
        }
        all
    }

    /// The macros that a kernel may mention, without their prefix. Never an image's size, a batch or a number of queries:
    /// they change from call to call and must not compile again.
    fn macros(&self, call: &Call<'_>) -> Vec<(&'static str, String)> {
        let problem = call.problem;
        let mut macros = vec![
            ("VALUE_DTYPE", dtype_code(problem.dtype()).to_string()),
            ("SAMPLING_DTYPE", dtype_code(problem.sampling_dtype()).to_string()),
        ];
        match self.specialise {
            Specialise::Formats => macros.push(("LEVELS", INLINE_LEVELS.to_string())),
            Specialise::Model | Specialise::ModelAndHeads => {
                let levels = problem.levels().len();
                let mut offsets = vec!["0".to_owned()];
                offsets.extend((0..levels).map(|l| problem.level_samples(l).end.to_string()));
                macros.extend([
                    ("LEVELS", levels.to_string()),
                    ("CHANNELS", problem.channels().to_string()),
                    ("SAMPLES", problem.samples().to_string()),
                    ("POINT_OFFSETS", offsets.join(",")),
                    ("LAYOUT", layout_code(problem.layout()).to_string()),
                ]);
            }
        }
        if self.specialise == Specialise::ModelAndHeads {
            macros.push(("HEADS", problem.heads().to_string()));
        }
        if let Some(backward) = call.backward {
            macros.push((GRADIENTS, backward.gradients.mask().to_string()));
        }
        let numbers = self.knobs.iter().chain(&self.constants).copied();
        let numbers = offset_source::macros(call).into_iter().chain(numbers);
        macros.extend(numbers.map(|(name, value)| (name, value.to_string())));
        macros.extend(self.derived.declaration().map(|declaration| (DERIVED, declaration)));
        macros
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
    pub const fn alignment(&self, storage: Storage) -> usize {
        match storage {
            Storage::Channels => self.value_alignment,
            Storage::Output => match self.output_alignment {
                Some(alignment) => alignment,
                None => self.value_alignment,
            },
            Storage::Samples => self.sampling_alignment,
            Storage::References => self.reference_alignment,
        }
    }

    /// The launch of a variant that has one.
    pub fn geometry(&self) -> Option<LaunchGeometry> {
        let mut launches = self.pipeline.launches();
        let only = launches.next().map(|(_, geometry)| geometry);
        only.filter(|_| launches.next().is_none())
    }
}

/// The constant that says which gradients are asked for, as [`Gradients::mask`](msdeform::Gradients::mask).
const GRADIENTS: &str = "GRADIENTS";

/// The macro that declares [`Configuration::derived`].
const DERIVED: &str = "DERIVED";

/// What one kernel is compiled from, in addition to the sources.
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
    pub fn name(&self) -> String {
        let short = self.defines.iter().map(|define| define.trim_start_matches("-DMSDA_"));
        short.filter(|define| !define.starts_with(DERIVED)).collect::<Vec<_>>().join(" ")
    }
}

/// The constant that says how the output and its gradient are stored, for kernels that
/// [take other formats](super::Variant::takes_other_outputs) than the values'.
pub(super) const OUTPUT_DTYPE: &str = "OUTPUT_DTYPE";

/// Its value for a call.
pub(super) fn output_dtype(call: &Call<'_>) -> (&'static str, i64) {
    (OUTPUT_DTYPE, i64::from(dtype_code(call.problem.output_dtype())))
}

/// The number that stands for a format in the JIT macros. The formats kernels do not store (f64) are
/// refused before this is asked, by the lists in their specs.
pub(super) fn dtype_code(dtype: DType) -> i32 {
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
