//! What a variant is: a kernel file, its description, and how it wants to be launched.
//!
//! Everything here is arithmetic on a [`Call`] and can be done, and tested, without a GPU. The engine
//! compiles and launches what comes out; the emulator runs the same configuration on the host.

pub(crate) mod bwd_general;
pub(crate) mod bwd_level_sort;
pub(crate) mod bwd_original;
pub(crate) mod bwd_tile_sort;
mod call;
pub mod chunked_sample;
mod configuration;
pub(crate) mod fwd_general;
pub(crate) mod fwd_split_gather;
pub(crate) mod fwd_tile_gather;
mod grad_output_rows;
mod offset_source;
mod query_walk;
mod sample_gradients;
mod tile_lists;

use msdeform::{DType, DeviceKind, Direction, Mode, Numerics, Problem, ValueLayout, VariantSpec};

use crate::error::Error;
use crate::params::{CallShape, INLINE_LEVELS};
use crate::sources::{HEADERS, SourceFile};

pub use call::Call;
use configuration::output_dtype;
pub use configuration::{Configuration, Specialise, Unit};

/// What the specs of the product's variants have in common.
pub const OURS: VariantSpec = VariantSpec {
    id: "",
    direction: Direction::Forward,
    device: DeviceKind::Cuda,
    dtypes: &DType::FAST,
    layouts: &ValueLayout::ALL,
    origin: "ours",
    idea: "",
    why: "",
    numerics: Numerics::Contract,
    rung: false,
};

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
pub type Constant = Knob;

/// Former names of knobs and constants, and those of today. Tuning files and recorded cases may have the former.
const FORMER_NAMES: [(&str, &str); 2] = [("HELD", "REGISTER_SAMPLES"), ("KEPT", "SHARED_SAMPLES")];

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
    pub fn new(variant: &Variant, chosen: &[(String, i64)]) -> Result<Self, Error> {
        let of_today = |name: &str| FORMER_NAMES.iter().find(|(former, _)| *former == name);
        let chosen: Vec<(String, i64)> = chosen
            .iter()
            .map(|(name, value)| {
                (of_today(name).map_or(name.as_str(), |(_, today)| today).to_owned(), *value)
            })
            .collect();
        for (name, value) in &chosen {
            let fits = |knob: &Knob| knob.name == name && knob.values.contains(value);
            if !variant.settings().any(fits) {
                let known = variant
                    .knobs
                    .iter()
                    .map(|Knob { name, values, .. }| format!("{name} in {values:?}"));
                let known = known.collect::<Vec<_>>().join(", ");
                return Err(Error::Knob {
                    variant: variant.spec.id,
                    name: name.clone(),
                    value: *value,
                    known: if known.is_empty() { "no knobs".to_owned() } else { known },
                });
            }
        }
        Ok(Self { chosen })
    }

    /// Knobs of a variant that is known to take them.
    pub(crate) fn of(known: &[(&str, i64)]) -> Self {
        Self { chosen: known.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect() }
    }

    /// All that the caller chose.
    pub fn chosen(&self) -> &[(String, i64)] {
        &self.chosen
    }

    /// What the caller chose, if anything.
    pub fn get(&self, name: &str) -> Option<i64> {
        self.chosen.iter().rev().find(|(chosen, _)| chosen == name).map(|(_, value)| *value)
    }
}

/// One kernel file and how to launch it: a row of the registry.
pub struct Variant {
    /// What tables and documentation say about it. Its id is the name of the kernel, and what the
    /// names of several start with.
    pub spec: &'static VariantSpec,
    /// The kernel.
    pub source: SourceFile,
    /// The headers that it may include.
    pub headers: fn() -> &'static [SourceFile],
    /// Whether a call in [`Mode::Deterministic`] is bitwise reproducible for any launch geometry. Sums in
    /// the order in which threads arrive (atomics) are not.
    pub is_deterministic: bool,
    /// Whether samples may follow from offsets and logits.
    pub takes_offsets: bool,
    /// Whether the output and its gradient may be stored in another format than the values.
    pub takes_other_outputs: bool,
    /// What may be tuned.
    pub knobs: &'static [Knob],
    /// What follows from a call and is compiled in.
    pub constants: &'static [Constant],
    /// Which calls it can do.
    pub supports: Supports,
    /// How it does one.
    pub configure: Configure,
}

/// Whether a variant can do a call, beyond the formats and layouts of its spec. The reason completes "variant x cannot do
/// this: ...".
pub type Supports = fn(&Call<'_>) -> Result<(), String>;

/// How to compile and launch a variant. Only asked where it supports the call and the call is not
/// [empty](Call::is_empty). A knob that the caller chose is respected; where it makes the call impossible, the
/// reason is returned.
pub type Configure = fn(&Call<'_>, &KnobChoices) -> Result<Configuration, String>;

impl Variant {
    /// A variant of the plain operator with the product's headers, deterministic, without knobs.
    pub const fn new(
        spec: &'static VariantSpec,
        source: SourceFile,
        supports: Supports,
        configure: Configure,
    ) -> Self {
        Self {
            spec,
            source,
            headers: || HEADERS,
            is_deterministic: true,
            takes_offsets: false,
            takes_other_outputs: false,
            knobs: &[],
            constants: &[],
            supports,
            configure,
        }
    }

    /// What a caller or a test may set: the knobs, then the constants.
    pub fn settings(&self) -> impl Iterator<Item = &'static Knob> {
        self.knobs.iter().chain(self.constants)
    }

    /// Configures it for a call: see [`Configure`].
    ///
    /// # Errors
    /// The reason why it cannot.
    pub fn configure(&self, call: &Call<'_>, knobs: &KnobChoices) -> Result<Configuration, String> {
        (self.configure)(call, knobs)
    }

    /// Refuses, by name, what the variant cannot do.
    ///
    /// # Errors
    /// [`msdeform::Error::Unsupported`] with the reason, [`msdeform::Error::TooLarge`] for an axis
    /// that does not fit 31 bits.
    pub fn check(&self, call: &Call<'_>) -> Result<(), msdeform::Error> {
        self.spec.check_lists(call.problem)?;
        CallShape::of(call.problem, call.strides)?;
        if call.problem.offsets().is_some() && !self.takes_offsets {
            return Err(self.refusal(
                "it computes the plain operator, and the problem has offsets".to_owned(),
            ));
        }
        let (values, output) = (call.problem.dtype(), call.problem.output_dtype());
        if values != output && !self.takes_other_outputs {
            return Err(self.refusal(format!(
                "the output is {output} and values are {values}; it takes one dtype for both"
            )));
        }
        if self.spec.direction != call.direction() {
            return Err(self.refusal(format!("it computes the {}", self.spec.direction)));
        }
        if !self.is_deterministic
            && call.backward.is_some_and(|backward| backward.mode == Mode::Deterministic)
        {
            return Err(self.refusal(
                "its gradients are not bitwise reproducible, and the call is deterministic"
                    .to_owned(),
            ));
        }
        (self.supports)(call).map_err(|reason| self.refusal(reason))
    }

    pub(crate) fn refusal(&self, reason: String) -> msdeform::Error {
        msdeform::Error::Unsupported { variant: self.spec.id, reason }
    }
}

impl std::fmt::Debug for Variant {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.spec.id)
    }
}

/// Refuses more levels than travel inside the parameter.
pub fn check_inline_levels(problem: &Problem) -> Result<(), String> {
    let levels = problem.levels().len();
    if levels > INLINE_LEVELS {
        return Err(format!("there are {levels} levels; it takes at most {INLINE_LEVELS}"));
    }
    Ok(())
}

/// Refuses tensors that 32-bit indices do not reach the end of.
pub fn check_32_bit_indices(elements: &[(&str, usize)]) -> Result<(), String> {
    match elements.iter().find(|(_, elements)| i32::try_from(*elements).is_err()) {
        None => Ok(()),
        Some((tensor, elements)) => Err(format!(
            "`{tensor}` has {elements} elements; its 32-bit indices take fewer than 2^31"
        )),
    }
}

#[cfg(test)]
pub(crate) mod tests;
