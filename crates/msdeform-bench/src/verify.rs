//! Every variant that fits against the `f64` reference, on small but representative problems.

use std::borrow::Cow;

use msdeform::{Direction, Problem, Role, VariantSpec, reference};
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use msdeform_devices::compare::{
    BORDER_DISTANCE, Comparison, as_stored, away_from_borders, border_distance_of_sums,
    references_away_from_borders,
};
use msdeform_devices::device::{Device, DeviceError, Outputs, Prepared};
use msdeform_devices::workload::WorkloadError;
use msdeform_devices::{Buffer, Case, HostTensors, case::Label, memory};

/// How large a verified problem may be.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Samples times channels that the reference computes; queries are thinned out to stay below.
    pub sample_channels: usize,
    /// Elements of the value tensor; the batch is reduced to one image to stay below.
    pub value_elements: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { sample_channels: 1 << 20, value_elements: 4 << 20 }
    }
}

impl Limits {
    /// No limits: the workload as it is, however long the reference takes.
    pub const NONE: Self = Self { sample_channels: usize::MAX, value_elements: usize::MAX };

    /// The problem to verify for a case: at most two images (one where those are large) and an even
    /// choice of the queries.
    ///
    /// # Errors
    /// [`WorkloadError::Problem`].
    pub fn shrink(&self, case: &Case<'_>) -> Result<Problem, WorkloadError> {
        let whole = case.problem()?;
        if self.sample_channels == usize::MAX {
            return Ok(whole);
        }
        let image_elements = whole.value_len() / whole.batch().max(1);
        let affordable = self.value_elements / image_elements.max(1);
        let batch = whole.batch().min(affordable.clamp(1, 2));
        let per_query = batch * whole.heads() * whole.samples() * whole.channels();
        let queries = whole.queries().min((self.sample_channels / per_query.max(1)).max(16));
        whole
            .to_builder()
            .batch(batch)
            .queries(queries)
            .build()
            .map_err(|source| WorkloadError::Problem { name: case.workload.name.clone(), source })
    }
}

/// One tensor of a verified run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TensorCheck {
    /// `output`, `grad_value`, `grad_locations`, ...: the role's name in kernels.
    pub tensor: String,
    /// How far it is from the reference.
    #[serde(flatten)]
    pub comparison: Comparison,
    /// The largest relative L2 error allowed.
    pub bound: f64,
    /// Whether it is within the bound.
    pub pass: bool,
}

/// One variant on one case.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Verification {
    /// What was run.
    #[serde(flatten)]
    pub label: Label,
    /// Every tensor it wrote; empty if it failed to run.
    pub tensors: Vec<TensorCheck>,
    /// Whether all of them are within their bounds.
    pub pass: bool,
    /// Why it failed to run, if it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

impl Verification {
    /// The worst relative L2 error of its tensors; NaN if one is NaN or nothing ran.
    #[must_use]
    pub fn worst_rel_l2(&self) -> f64 {
        let errors = || self.tensors.iter().map(|check| check.comparison.rel_l2);
        if self.tensors.is_empty() || errors().any(f64::is_nan) {
            return f64::NAN;
        }
        errors().fold(0.0, f64::max)
    }

    /// Elements compared in all tensors.
    #[must_use]
    pub fn elements(&self) -> usize {
        self.tensors.iter().map(|check| check.comparison.elements).sum()
    }
}

/// A combination that was not run, and why.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Skip {
    /// What was not run.
    #[serde(flatten)]
    pub label: Label,
    /// Why not.
    pub reason: String,
}

/// Everything found out about one case.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Report {
    /// What was run.
    pub checked: Vec<Verification>,
    /// What was not.
    pub skipped: Vec<Skip>,
}

impl Report {
    /// Whether nothing failed. True for an empty report: callers that need evidence count.
    #[must_use]
    pub fn passed(&self) -> bool {
        self.checked.iter().all(|check| check.pass)
    }

    /// Takes over the rows of another report.
    pub fn extend(&mut self, other: Self) {
        self.checked.extend(other.checked);
        self.skipped.extend(other.skipped);
    }

    /// Every check that failed.
    pub fn failures(&self) -> impl Iterator<Item = &Verification> {
        self.checked.iter().filter(|check| !check.pass)
    }
}

/// Runs the given variants on every case; `done` hears of each case that is finished.
///
/// Where the processor is not the device, cases run side by side: most of the time goes into the plain
/// reference and, the first time, into compiling kernels.
///
/// # Errors
/// As [`verify_case`].
pub fn verify_cases(
    device: &dyn Device,
    cases: &[Case<'_>],
    variants: &[&'static VariantSpec],
    limits: Limits,
    done: impl Fn(&Case<'_>) + Sync,
) -> Result<Report, WorkloadError> {
    let verify = |case: &Case<'_>| {
        let report = verify_case(device, case, variants, limits);
        done(case);
        report
    };
    let reports: Result<Vec<Report>, WorkloadError> = if device.threads().is_none() {
        cases.par_iter().map(verify).collect()
    } else {
        cases.iter().map(verify).collect()
    };
    let mut all = Report::default();
    reports?.into_iter().for_each(|report| all.extend(report));
    Ok(all)
}

/// Has a device compile in the background what [`verify_cases`] will ask for. Returns at once.
///
/// # Errors
/// [`WorkloadError::Problem`].
pub fn compile_later(
    device: &dyn Device,
    cases: &[Case<'_>],
    variants: &[&'static VariantSpec],
    limits: Limits,
) -> Result<(), WorkloadError> {
    for case in cases {
        let problem = limits.shrink(case)?;
        let fitting = variants.iter().filter(|variant| device.supports(variant, &problem).is_ok());
        fitting.for_each(|variant| device.compile_later(variant, &problem));
    }
    Ok(())
}

/// Runs the given variants on a case and compares them with the reference.
///
/// # Errors
/// [`WorkloadError::Problem`] and [`WorkloadError::Memory`]; what a device says is part of the report.
pub fn verify_case(
    device: &dyn Device,
    case: &Case<'_>,
    variants: &[&'static VariantSpec],
    limits: Limits,
) -> Result<Report, WorkloadError> {
    let problem = limits.shrink(case)?;
    let mut report = Report::default();
    let mut fitting = Vec::new();
    for &variant in variants {
        match device.supports(variant, &problem) {
            Ok(()) => fitting.push(variant),
            Err(error) => report
                .skipped
                .push(Skip { label: case.label(variant, &problem), reason: reason(error) }),
        }
    }
    if fitting.is_empty() {
        return Ok(report);
    }
    memory::ensure_room(
        format_args!("checking workload `{}`", case.workload.name),
        memory::of_reference(&problem, true) + memory::of_inputs(&problem),
    )?;
    let inputs = case.inputs(&problem)?;
    let oracle = Oracle::new(&problem, &inputs, &fitting);
    for variant in fitting {
        let label = case.label(variant, &problem);
        report.checked.push(match run_once(device, variant, &problem, &inputs) {
            Ok(outputs) => {
                let tensors = oracle.check(&outputs, variant, &problem);
                let pass = tensors.iter().all(|check| check.pass);
                Verification { label, tensors, pass, error: None }
            }
            Err(error) => {
                let error = Some(error.to_string());
                Verification { label, tensors: Vec::new(), pass: false, error }
            }
        });
    }
    Ok(report)
}

/// The reason of a refusal without the variant's name, which its row already says.
fn reason(error: DeviceError) -> String {
    match error {
        DeviceError::Unsupported { reason, .. } => reason,
        other => other.to_string(),
    }
}

fn run_once(
    device: &dyn Device,
    variant: &VariantSpec,
    problem: &Problem,
    inputs: &HostTensors,
) -> Result<Outputs, DeviceError> {
    run_twice(device.prepare(variant, problem, inputs)?.as_mut(), variant.id)
}

/// Runs twice, on poisoned outputs: what a first run leaves behind (workspace, zeroing) must not reach into the
/// second, and a promise of the same bits is held.
pub(crate) fn run_twice(
    prepared: &mut dyn Prepared,
    variant: &str,
) -> Result<Outputs, DeviceError> {
    let mut run = || {
        prepared.poison()?;
        prepared.run()?;
        prepared.read()
    };
    let (first, second) = (run()?, run()?);
    if prepared.promises_same_bits() && !first.has_same_bits(&second) {
        return Err(DeviceError::OtherBits { variant: variant.to_owned() });
    }
    Ok(second)
}

/// The reference on given inputs: every tensor that the operator writes, in `f64`.
#[must_use]
pub fn reference_of(
    problem: &Problem,
    inputs: &HostTensors,
    direction: Direction,
) -> Vec<(Role, Vec<f64>)> {
    let inputs = inputs.widened();
    reference::compute(problem, direction, |role| inputs.get(role))
}

/// What the reference says about given inputs, for the directions that are asked for.
#[derive(Clone, Debug)]
pub struct Oracle {
    expected: Vec<(Role, Vec<f64>)>,
    compared: Compared,
    /// Whether a format may be too small for what is expected.
    may_overflow: bool,
}

/// Which gradients are compared of those that jump where a sample is on a cell border.
#[derive(Clone, Debug)]
struct Compared {
    /// Per sample, of its location or offset.
    samples: Vec<bool>,
    /// Per reference.
    references: Vec<bool>,
    /// Numbers of a reference.
    components: usize,
}

impl Compared {
    fn of(problem: &Problem, inputs: &HostTensors) -> Self {
        let locations = inputs.widened().locations(problem);
        Self {
            samples: away_from_borders(problem, &locations, BORDER_DISTANCE),
            references: references_away_from_borders(
                problem,
                &locations,
                border_distance_of_sums(problem),
            ),
            components: problem.offsets().map_or(1, |rule| rule.kind().components()),
        }
    }

    /// Whether an element of a gradient is.
    fn contains(&self, role: Role, index: usize) -> bool {
        match role {
            Role::GradLocations | Role::GradOffsets => self.samples[index / 2],
            Role::GradReferences => self.references[index / self.components],
            _ => true,
        }
    }
}

impl Oracle {
    /// Computes the reference for every direction that one of the variants runs.
    #[must_use]
    pub fn new(problem: &Problem, inputs: &HostTensors, variants: &[&VariantSpec]) -> Self {
        let wanted = |direction| variants.iter().any(|variant| variant.direction == direction);
        // The two directions are the reference's only parallelism: it stays plain.
        let directions = Direction::ALL.into_par_iter().filter(|direction| wanted(*direction));
        let expected =
            directions.flat_map_iter(|direction| reference_of(problem, inputs, direction));
        Self {
            expected: expected.collect(),
            compared: Compared::of(problem, inputs),
            may_overflow: false,
        }
    }

    /// Takes results of the same inputs for granted, in place of the reference.
    #[must_use]
    pub fn of_outputs(problem: &Problem, inputs: &HostTensors, trusted: &Outputs) -> Self {
        let expected = trusted.iter().map(|(role, buffer)| (role, buffer.to_f64()));
        Self {
            expected: expected.collect(),
            compared: Compared::of(problem, inputs),
            may_overflow: false,
        }
    }

    /// For inputs that nobody chose: results that a format cannot hold are right if they are infinite.
    #[must_use]
    pub fn allowing_overflow(self) -> Self {
        Self { may_overflow: true, ..self }
    }

    /// Compares what a variant wrote, tensor by tensor, with the bounds of that variant.
    #[must_use]
    pub fn check(
        &self,
        outputs: &Outputs,
        variant: &VariantSpec,
        problem: &Problem,
    ) -> Vec<TensorCheck> {
        let check = |(role, buffer): (Role, &Buffer)| {
            let found = buffer.to_f64();
            let comparison = match self.expected.iter().find(|(known, _)| *known == role) {
                Some((_, expected)) => {
                    let held: Cow<'_, [f64]> = if self.may_overflow {
                        let stored = |(index, &expected): (usize, &f64)| {
                            let found = found.get(index).copied().unwrap_or(f64::NAN);
                            as_stored(expected, found, buffer.dtype())
                        };
                        expected.iter().enumerate().map(stored).collect()
                    } else {
                        expected.into()
                    };
                    let is_compared = |index| self.compared.contains(role, index);
                    Comparison::filtered(&found, &held, is_compared)
                }
                // The oracle holds every direction of the variants it was made for; anything else compares
                // nothing and must not pass.
                None => Comparison::of(&[], &[f64::NAN]),
            };
            let bound = variant.rel_l2_bound_on(problem, role);
            let pass = comparison.is_within(bound);
            TensorCheck { tensor: role.field().to_owned(), comparison, bound, pass }
        };
        outputs.iter().map(check).collect()
    }
}
