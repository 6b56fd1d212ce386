//! What a registered implementation says about itself.

use std::str::FromStr;

use crate::{DType, Error, Problem, Role, ValueLayout};

/// Which way the operator runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Direction {
    /// Output from value, locations and weights.
    Forward,
    /// Gradients of value, locations and weights from the gradient of the output.
    Backward,
}

impl Direction {
    /// Both, in the order tables list them.
    pub const ALL: [Self; 2] = [Self::Forward, Self::Backward];

    /// The name used on the command line and in records.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Forward => "forward",
            Self::Backward => "backward",
        }
    }
}

impl FromStr for Direction {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        match name {
            "forward" | "fwd" => Ok(Self::Forward),
            "backward" | "bwd" => Ok(Self::Backward),
            _ => Err(format!("unknown direction `{name}`; known: forward, backward")),
        }
    }
}

/// What a backward pass promises about its last bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Mode {
    /// The quickest variant within the accuracy contract.
    #[default]
    Fast,
    /// Bitwise reproducible.
    Deterministic,
}

impl Mode {
    /// Both, in the order tables list them.
    pub const ALL: [Self; 2] = [Self::Fast, Self::Deterministic];

    /// The name used on the command line and in records.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Fast => "fast",
            Self::Deterministic => "deterministic",
        }
    }
}

impl FromStr for Mode {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|mode| mode.name() == name);
        found.ok_or_else(|| format!("unknown mode `{name}`; known: fast, deterministic"))
    }
}

/// What kind of machine a variant runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DeviceKind {
    /// The CPU.
    Cpu,
    /// An NVIDIA GPU.
    Cuda,
}

impl DeviceKind {
    /// The name used on the command line and in records.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Cuda => "cuda",
        }
    }
}

/// How exact a variant is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Numerics {
    /// Coordinates, weights and sums in `f32` or better: [`DType::rel_l2_bound`] holds.
    Contract,
    /// A choice worth showing that breaks the contract; its own relative L2 bound.
    Loose {
        /// The largest relative L2 error allowed.
        rel_l2: f64,
    },
}

/// One row of the registry: everything that tables, documentation and tests say about a variant.
#[derive(Clone, Debug)]
pub struct VariantSpec {
    /// Unique name: direction and mechanism.
    pub id: &'static str,
    /// Which way it runs.
    pub direction: Direction,
    /// Where it runs.
    pub device: DeviceKind,
    /// Value formats it takes.
    pub dtypes: &'static [DType],
    /// Value layouts it takes.
    pub layouts: &'static [ValueLayout],
    /// Where the technique comes from: a seed document or ours.
    pub origin: &'static str,
    /// The mechanism in one line.
    pub idea: &'static str,
    /// Why it is worth having, in one line.
    pub why: &'static str,
    /// How exact it is.
    pub numerics: Numerics,
    /// Whether it is kept to show a technique, and never dispatched to.
    pub rung: bool,
}

impl VariantSpec {
    /// The largest relative L2 error this variant may show for a format.
    pub fn rel_l2_bound(&self, dtype: DType) -> f64 {
        match self.numerics {
            Numerics::Contract => dtype.rel_l2_bound(),
            Numerics::Loose { rel_l2 } => rel_l2,
        }
    }

    /// The largest relative L2 error this variant may show for a tensor of a problem; see [`DType::rel_l2_bound_on`].
    pub fn rel_l2_bound_on(&self, problem: &Problem, role: Role) -> f64 {
        match self.numerics {
            Numerics::Contract => problem.format_of(role).rel_l2_bound_on(problem),
            Numerics::Loose { rel_l2 } => rel_l2,
        }
    }

    /// Refuses, by name, a problem whose format or layout is not on the lists above.
    ///
    /// # Errors
    /// [`Error::Unsupported`] with the reason.
    pub fn check_lists(&self, problem: &Problem) -> Result<(), Error> {
        let refuse = |reason| Err(Error::Unsupported { variant: self.id, reason });
        if !self.dtypes.contains(&problem.dtype()) {
            return refuse(format!("no {} values", problem.dtype()));
        }
        let (values, sampling) = (problem.dtype(), problem.sampling_dtype());
        for (what, found, others, wanted) in [
            ("locations and weights are", sampling, "values", values),
            ("the output is", problem.output_dtype(), "values", values),
            ("references are", problem.reference_dtype(), "offsets", sampling),
        ] {
            if found != wanted && found != DType::F32 {
                return refuse(format!(
                    "{what} {found}; expected f32 or {wanted}, the dtype of the {others}"
                ));
            }
        }
        if !self.layouts.contains(&problem.layout()) {
            return refuse(format!("no {} values", problem.layout()));
        }
        Ok(())
    }
}
