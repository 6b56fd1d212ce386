//! A workload with everything chosen: one point of the grid that is verified and timed.

use msdeform::{ATTENTION, DType, Direction, Operator, Problem, ValueLayout, VariantSpec};
use serde::{Deserialize, Serialize};

use super::{Locations, Sizes, Workload, WorkloadError};
use crate::{Draw, HostTensors, STANDARD_SEED, memory};

/// A workload with layout, dtype, locations and sizes. A call of it has a direction and a variant too.
#[derive(Clone, Debug)]
pub struct WorkloadCase<'a> {
    pub workload: &'a Workload,
    pub locations: Locations,
    pub layout: ValueLayout,
    pub dtype: DType,
    pub operator: &'static Operator,
    pub sizes: Sizes,
    pub seed: u64,
}

/// What identifies a case and a variant in tables and records.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Label {
    /// Name of the workload, and of the operator where that is not the plain one: see [`WorkloadCase::name`].
    pub workload: String,
    /// `local` or `uniform`; edge workloads have more.
    pub locations: String,
    pub layout: String,
    pub dtype: String,
    /// `forward`, `backward` or, both as one, [`TRAINING`].
    pub direction: String,
    /// Id in the registry; a training step has two, joined by `+`.
    pub variant: String,
    pub batch: usize,
    pub queries: usize,
}

/// The direction of a training step in tables and records: a forward and a backward, timed as one.
pub const TRAINING: &str = "training";

/// What follows the name of a workload in tables and records, so that figures of two operators are never the same row.
fn suffix(operator: &Operator) -> String {
    match operator.name {
        "plain" => String::new(),
        // Records of the fused operator are older than its name.
        "fused" => " from offsets".to_owned(),
        name => format!(" {name}"),
    }
}

/// The name of a workload's calls of an operator in tables and records.
pub fn name_of(workload: &str, operator: &Operator) -> String {
    workload.to_owned() + &suffix(operator)
}

/// The workload and the operator in such a name.
pub fn split_name(name: &str) -> (&str, &'static Operator) {
    let others = Operator::ALL.into_iter().filter(|operator| **operator != ATTENTION);
    let mut found = others.filter_map(|other| Some((name.strip_suffix(&suffix(other))?, other)));
    found.next().unwrap_or((name, &ATTENTION))
}

impl<'a> WorkloadCase<'a> {
    /// A call of the plain operator in `f32`, in the workload's own sizes and the first of its layouts and locations.
    pub fn first_of(workload: &'a Workload) -> Self {
        Self {
            workload,
            locations: workload.locations[0],
            layout: workload.layouts[0],
            dtype: DType::F32,
            operator: &ATTENTION,
            sizes: Sizes::default(),
            seed: STANDARD_SEED,
        }
    }

    pub fn name(&self) -> String {
        name_of(&self.workload.name, self.operator)
    }

    pub fn problem(&self) -> Result<Problem, WorkloadError> {
        self.workload.problem_of(self.operator, self.dtype, self.layout, self.sizes)
    }

    /// The inputs of a problem of this case, which may have fewer images and queries than the case.
    pub fn inputs(&self, problem: &Problem) -> Result<HostTensors, WorkloadError> {
        // What a run writes is kept twice: where it runs, and for a look at it.
        let needed = memory::of_inputs(problem) + 2 * memory::of_outputs(problem, true);
        memory::ensure_room(format_args!("workload `{}`", self.workload.name), needed)?;
        let total_queries = self.sizes.queries.unwrap_or_else(|| self.workload.standard_queries());
        let reference_points = self.workload.reference_points;
        let draw =
            Draw { locations: self.locations, reference_points, seed: self.seed, total_queries };
        Ok(HostTensors::generate(problem, &draw))
    }

    /// The label of one variant, or of a forward and a backward as one training step.
    pub fn label(&self, variants: &[&VariantSpec], problem: &Problem) -> Label {
        let direction = match variants {
            [one] => one.direction.name(),
            _ => TRAINING,
        };
        let ids: Vec<&str> = variants.iter().map(|variant| variant.id).collect();
        Label {
            workload: self.name(),
            locations: self.locations.name().to_owned(),
            layout: self.layout.name().to_owned(),
            dtype: self.dtype.name().to_owned(),
            direction: direction.to_owned(),
            variant: ids.join("+"),
            batch: problem.batch(),
            queries: problem.queries(),
        }
    }
}

/// Which directions are wanted: both unless one is named.
pub fn directions(wanted: Option<Direction>) -> Vec<Direction> {
    wanted.map_or_else(|| Direction::ALL.to_vec(), |direction| vec![direction])
}
