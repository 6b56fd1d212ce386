//! Every kernel that the dispatcher may choose for known models.

use std::collections::{BTreeMap, HashSet};
use std::hash::Hash;
use std::sync::{Mutex, PoisonError};

use crate::device::{CudaDevice, Device};
use msdeform::{BackwardCall, Operator, Problem, ProblemBuilder};
use msdeform_cuda::variants::{Call, Configuration, KnobChoices, Unit, Variant};
use msdeform_cuda::{DeviceProps, dispatch};

use super::image::{Image, WIDE};
use super::{MODEL_SHAPES, Scope, in_every_size};

/// A kernel that is compiled for a call that the dispatcher may get, and such a call.
#[derive(Clone, Debug)]
pub struct Specialisation {
    pub variant: &'static Variant,
    pub unit: Unit,
    /// The cheapest problem found for which it compiles that, with enough queries for all of it to run.
    pub problem: Problem,
    pub backward: Option<BackwardCall>,
}

impl Specialisation {
    /// The macros without their prefix, on one line; the step is one of them.
    pub fn name(&self) -> String {
        self.unit.name()
    }

    /// Takes a smaller image if the variant compiles the same for it.
    fn shrink(&mut self, device: &DeviceProps) {
        let image = match self.problem.levels() {
            [first, ..] if (first.width as i64) < WIDE => return,
            [first, ..] if first.height < 2 => Image::Thin,
            _ => Image::Usual,
        };
        let levels = (0..self.problem.levels().len()).map(|level| image.level(level)).collect();
        let Ok(smaller) = with_levels(&self.problem, levels).build() else { return };
        let call = Call { backward: self.backward, ..Call::new(&smaller, device) };
        if self.variant.check(&call).is_ok()
            && let Ok(configured) = self.variant.configure(&call, &KnobChoices::default())
            && configured.units(self.variant, &call).contains(&self.unit)
        {
            self.problem = smaller;
        }
    }
}

/// The same model and queries with an image of other levels, which follow each other.
pub(super) fn with_levels(problem: &Problem, levels: Vec<(i64, i64)>) -> ProblemBuilder {
    problem.to_builder().packed().levels(levels)
}

/// Fewer leave most lanes and blocks of a kernel idle: it would be verified in a corner.
pub(super) const ENOUGH_QUERIES: usize = 100;

/// Cost of a problem for the reference: numbers that are drawn for the values, and numbers that are read of them.
pub(super) fn work(problem: &Problem) -> usize {
    problem.weights_len() * problem.channels() + problem.value_len()
}

/// All kernels that dispatch can choose on this GPU for an operator. Empty on a CPU.
pub fn specialisations_on(device: &dyn Device, operator: &'static Operator) -> Vec<Specialisation> {
    CudaDevice::of(device)
        .map_or_else(Vec::new, |gpu| specialisations(gpu.engine().context().props(), operator))
}

/// All kernels that dispatch can choose for calls of an operator by known models, for any image, batch and number of queries.
pub fn specialisations(device: &DeviceProps, operator: &'static Operator) -> Vec<Specialisation> {
    type Known = Vec<(DeviceProps, &'static str, Vec<Specialisation>)>;
    // The list comes from over a million calls, which takes seconds; a comparison with the ledger asks several times.
    static KNOWN: Mutex<Known> = Mutex::new(Vec::new());
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    let is_wanted =
        |(gpu, name, _): &&(DeviceProps, &str, _)| gpu == device && *name == operator.name;
    if let Some((.., found)) = known.iter().find(is_wanted) {
        return found.clone();
    }
    let problems = |images: &'static [Image]| {
        MODEL_SHAPES.iter().flat_map(move |shape| shape.problems_with(operator, images))
    };
    let mut all = in_every_size(problems(&Image::SIZED));
    all.extend(problems(&[Image::Huge]));
    let mut found = specialisations_of(std::slice::from_ref(device), all, &Scope::everything());
    found.iter_mut().for_each(|found| found.shrink(device));
    known.push((device.clone(), operator.name, found.clone()));
    found
}

/// Everything that may be compiled on some GPUs for some problems, called in some ways.
pub fn specialisations_of(
    devices: &[DeviceProps],
    problems: impl IntoIterator<Item = Problem>,
    scope: &Scope,
) -> Vec<Specialisation> {
    let meant = problems.into_iter().filter(|problem| scope.dtypes.contains(&problem.dtype()));
    // The first problem of each kernel is kept: the cheapest with enough queries, and one for all kernels of a call.
    let mut problems: Vec<Problem> = meant.collect();
    problems.sort_by_cached_key(|problem| (problem.queries() < ENOUGH_QUERIES, work(problem)));
    let mut seen = HashSet::new();
    let mut found: BTreeMap<(&str, Unit), Specialisation> = BTreeMap::new();
    for problem in &problems {
        for backward in scope.calls(problem) {
            for device in devices {
                let call = Call { backward, ..Call::new(problem, device) };
                let Some((variant, configured)) = chosen(&call) else { continue };
                if !seen.insert(recipe(problem, backward, variant, &configured)) {
                    continue;
                }
                for unit in configured.units(variant, &call) {
                    let name = (variant.spec.id, unit.clone());
                    let problem = problem.clone();
                    let reached = || Specialisation { variant, unit, problem, backward };
                    found.entry(name).or_insert_with(reached);
                }
            }
        }
    }
    found.into_values().collect()
}

pub(super) fn chosen(call: &Call<'_>) -> Option<(&'static Variant, Configuration)> {
    let variant = dispatch::builtin(call).ok()?;
    Some((variant, variant.configure(call, &KnobChoices::default()).ok()?))
}

/// All that units follow from: of a hundred thousand calls nearly all have one that was there before, and macros take longer
/// to write than to be chosen.
///
/// Names are literals and count by their addresses, because hashing their letters would take most of the time.
fn recipe<'a>(
    problem: &'a Problem,
    backward: Option<BackwardCall>,
    variant: &Variant,
    configured: &Configuration,
) -> impl Hash + Eq + use<'a> {
    let literal = |name: &'static str| [name.as_ptr().addr(), name.len()];
    let chosen = configured.knobs.iter().chain(&configured.constants);
    let values: Vec<i64> = chosen.clone().map(|&(_, value)| value).collect();
    let names = chosen.map(|&(name, _)| name);
    let steps = configured.pipeline.launches().map(|(step, _)| step);
    let names: Vec<usize> = names.chain(steps).chain([variant.spec.id]).flat_map(literal).collect();
    let dtypes = (problem.dtype(), problem.sampling_dtype(), problem.reference_dtype());
    let sizes = (problem.heads(), problem.channels(), problem.points(), problem.layout());
    let gradients = backward.map(|backward| backward.gradients);
    let specialise = configured.specialise;
    (specialise, names, values, gradients, dtypes, sizes, problem.offsets().copied())
}
