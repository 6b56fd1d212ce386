//! What a workload asks of a device, computed: work, bytes, floors, reuse, and what each technique of the
//! seed documents could gain.

mod footprint;
mod routes;
mod verdicts;

use msdeform::{DType, Direction, Problem};
use serde::{Deserialize, Serialize};

pub use footprint::{Footprint, footprints};
pub use routes::Route;
pub use verdicts::Verdict;

use crate::workload::WorkloadError;
use crate::{Ceilings, Floors, Work, WorkloadCase};

use crate::record::Figure;

/// Floating-point operations of a call. Per sample and channel four fused multiply-adds, one for each corner; the
/// backward has four for the dot products behind locations and weights, and four for the values.
pub fn flop(problem: &Problem, work: &Work, direction: Direction) -> f64 {
    let per_sample_channel = match direction {
        Direction::Forward => 8.0,
        Direction::Backward => 16.0,
    };
    work.samples as f64 * problem.channels() as f64 * per_sample_channel
}

/// The least time that one ceiling leaves.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Floor {
    pub ceiling: String,
    pub us: f64,
    /// What has to pass under it.
    pub what: String,
    /// When it holds, where a technique avoids it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub only_if: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    pub variant: String,
    pub median_us: f64,
    pub commit: String,
}

impl Measured {
    fn of(figure: &Figure) -> Self {
        Self {
            variant: figure.variant.clone(),
            median_us: figure.median_us,
            commit: figure.commit.clone(),
        }
    }
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Analysis {
    pub device: String,
    /// The workload, its locations, layout and format, and sizes.
    pub workload: String,
    pub locations: String,
    pub layout: String,
    pub dtype: String,
    /// `forward` or `backward`.
    pub direction: String,
    pub problem: String,
    /// What the call has to do; its operations are counted as the seed documents do.
    pub work: Work,
    /// Arithmetic operations: eight per sample and channel, twice that backward.
    pub flop: f64,
    pub flop_per_compulsory_byte: f64,
    /// Operations per byte that is gathered and not found in L1 by queries in tiles: what L2 sees.
    pub flop_per_l2_byte: f64,
    pub flop_per_gathered_byte: f64,
    /// What each ceiling leaves, the highest floor first.
    pub floors: Vec<Floor>,
    /// The ceiling of the highest floor that no technique avoids.
    pub binding: Option<String>,
    /// Reuse among queries that run together, of the first image.
    pub footprints: Vec<Footprint>,
    /// The ways to sum the gradient of the values; none forward, or without the ceilings.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub routes: Vec<Route>,
    /// The gather through L1 plus what misses it through L2, or DRAM if that takes longer; backward that and the fastest
    /// of the routes. Latency, launch and instructions are left out, so a measured time is above it,
    /// unless L2 kept the tensors of a small call from the run before.
    pub predicted_us: f64,
    pub measured: Option<Measured>,
    pub verdicts: Vec<Verdict>,
}

impl Analysis {
    /// Analyses a case in each of some directions for the device of some ceilings. `figures` may hold times to
    /// compare with the predictions.
    pub fn of(
        case: &WorkloadCase<'_>,
        directions: &[Direction],
        ceilings: &Ceilings,
        figures: &[Figure],
    ) -> Result<Vec<Self>, WorkloadError> {
        let problem = case.problem()?;
        let one_image = problem.to_builder().batch(problem.batch().min(1)).build();
        let one_image = one_image.unwrap_or_else(|_| problem.clone());
        let footprints = footprints(case.workload, &one_image, &case.inputs(&one_image)?);
        let analyse = |direction: &Direction| {
            Self::in_direction(case, &problem, *direction, footprints.clone(), ceilings, figures)
        };
        Ok(directions.iter().map(analyse).collect())
    }

    fn in_direction(
        case: &WorkloadCase<'_>,
        problem: &Problem,
        direction: Direction,
        footprints: Vec<Footprint>,
        ceilings: &Ceilings,
        figures: &[Figure],
    ) -> Self {
        let work = Work::of(problem, direction);
        let flop = flop(problem, &work, direction);
        let floors = floors(problem, &work, direction, ceilings);
        let of_call = figures_of(case, problem, direction, ceilings, figures);
        let tiled = tiled(&footprints);
        let gather_us = predict_gather(problem, tiled, ceilings);
        let routes = match direction {
            Direction::Forward => Vec::new(),
            Direction::Backward => routes::routes(problem, &work, tiled, gather_us, ceilings),
        };
        let fastest = routes.iter().map(|route| route.us).reduce(f64::min);
        let compulsory = work.compulsory_bytes as f64;
        let dram_us =
            ceilings.ceiling("dram_copy").map_or(f64::NAN, |copy| compulsory / copy * 1e-3);
        let misses = tiled.map_or(1.0, |tiled| 1.0 - tiled.hit_rate);
        let mut analysis = Self {
            device: ceilings.device.name.clone(),
            workload: case.name(),
            locations: case.locations.name().to_owned(),
            layout: problem.layout().name().to_owned(),
            dtype: problem.dtype().name().to_owned(),
            direction: direction.name().to_owned(),
            problem: problem.to_string(),
            work,
            flop,
            flop_per_compulsory_byte: flop / compulsory,
            flop_per_l2_byte: flop / (work.gathered_bytes as f64 * misses),
            flop_per_gathered_byte: flop / work.gathered_bytes as f64,
            binding: floors.iter().find(|floor| floor.only_if.is_none()).map(|f| f.ceiling.clone()),
            floors,
            footprints,
            // `max` passes over a gather that was not probed.
            predicted_us: fastest.unwrap_or(gather_us).max(dram_us),
            routes,
            measured: measured(problem, &of_call),
            verdicts: Vec::new(),
        };
        analysis.verdicts = verdicts::verdicts(&analysis, problem, ceilings, &of_call);
        analysis
    }

    pub(crate) fn floor_us(&self, ceiling: &str) -> Option<f64> {
        self.floors.iter().find(|floor| floor.ceiling == ceiling).map(|floor| floor.us)
    }

    /// The grouping that a kernel which knows the queries' order can have at best: the tiles if they
    /// form an image, else as they come.
    pub(crate) fn tiled(&self) -> Option<&Footprint> {
        tiled(&self.footprints)
    }

    fn wall_us(&self) -> f64 {
        self.floors.iter().find(|floor| floor.only_if.is_none()).map_or(f64::NAN, |floor| floor.us)
    }
}

fn tiled(footprints: &[Footprint]) -> Option<&Footprint> {
    let tiles = footprints.iter().find(|f| f.grouping.starts_with("tiles of 8 x 4"));
    tiles.or_else(|| footprints.first())
}

fn floors(problem: &Problem, work: &Work, direction: Direction, ceilings: &Ceilings) -> Vec<Floor> {
    let mut found = Vec::new();
    let mut add = |ceiling: &str, us_at: &dyn Fn(f64) -> f64, what: &str| {
        let only_if = match (direction, ceiling) {
            (Direction::Backward, "l2_reduce_f32") => Some("by plain atomics".to_owned()),
            (Direction::Backward, "fma_f32") => Some("without tensor cores".to_owned()),
            _ => None,
        };
        found.extend(ceilings.ceiling(ceiling).map(|value| Floor {
            ceiling: ceiling.to_owned(),
            us: us_at(value),
            what: what.to_owned(),
            only_if,
        }));
    };
    add("launch_in_graph", &|us| us, "an empty kernel in a graph");
    let mut floor = |ceiling: &str, amount: f64, per_us: f64, what: &str| {
        add(ceiling, &|value| amount / (value * per_us), what);
    };
    // Both directions read every corner once; what the backward gathers besides are its updates.
    let gathered = Work::of(problem, Direction::Forward).gathered_bytes as f64;
    let (compulsory, flop) = (work.compulsory_bytes as f64, flop(problem, work, direction));
    // GB/s are 1e3 bytes a microsecond, TFLOP/s 1e6 operations.
    floor("l1_gather_line", gathered, 1e3, "every gathered byte once, all hits, no bank conflict");
    floor("dram_copy", compulsory, 1e3, "every input read once, every output written once");
    floor("l2_gather_line", compulsory, 1e3, "every byte of the tensors once from L2 to an SM");
    floor("l1d_copy", gathered, 1e3, "every gathered byte once, at the rate of a copy within L1");
    match direction {
        Direction::Forward => {
            floor("fma_f32", flop, 1e6, "four fused multiply-adds per sample and channel");
            if problem.dtype() == DType::F16 {
                floor("fma_f16", flop, 1e6, "the same in packed half");
            }
        }
        // Summed in f32 for every dtype.
        Direction::Backward => {
            floor("fma_f32", flop, 1e6, "eight fused multiply-adds per sample and channel");
            let updates = routes::update_bytes(problem, work) as f64;
            floor("l2_reduce_f32", updates, 1e3, "every corner and channel an atomic of its own");
        }
    }
    found.sort_by(|a, b| b.us.total_cmp(&a.us));
    found
}

/// Every corner's values through L1, and those that miss it through L2; not a number without these ceilings.
fn predict_gather(problem: &Problem, tiled: Option<&Footprint>, ceilings: &Ceilings) -> f64 {
    let misses = tiled.map_or(1.0, |tiled| 1.0 - tiled.hit_rate);
    Floors::of(problem, ceilings)
        .map_or(f64::NAN, |floors| floors.l1_us + misses * floors.without_l1_us)
}

fn figures_of<'a>(
    case: &WorkloadCase<'_>,
    problem: &Problem,
    direction: Direction,
    ceilings: &Ceilings,
    figures: &'a [Figure],
) -> Vec<&'a Figure> {
    let same = |figure: &&Figure| {
        figure.device == ceilings.device.slug
            && figure.workload == case.name()
            && figure.locations == case.locations.name()
            && figure.layout == problem.layout().name()
            && figure.dtype == problem.dtype().name()
            && figure.direction == direction.name()
            && (figure.batch, figure.queries) == (problem.batch(), problem.queries())
    };
    figures.iter().filter(same).collect()
}

fn measured(problem: &Problem, of_call: &[&Figure]) -> Option<Measured> {
    let bound = problem.dtype().rel_l2_bound_on(problem);
    let exact = of_call.iter().filter(|figure| figure.rel_l2 <= bound);
    exact.min_by(|a, b| a.median_us.total_cmp(&b.median_us)).map(|best| Measured::of(best))
}

#[cfg(test)]
mod tests {
    use crate::{Locations, workload};
    use msdeform::ValueLayout;

    use super::*;
    use crate::fixtures::{ceilings_of, record_of};
    use crate::record::newest;

    fn case_of(name: &str, dtype: DType) -> WorkloadCase<'static> {
        let first = WorkloadCase::first_of(workload::find(name).unwrap());
        WorkloadCase { locations: Locations::Local, dtype, ..first }
    }

    fn analysed(name: &str, dtype: DType) -> Analysis {
        let (case, directions) = (case_of(name, dtype), [Direction::Forward]);
        Analysis::of(&case, &directions, &ceilings_of("h200"), &[]).unwrap().remove(0)
    }

    #[test]
    fn a_technique_shows_the_time_of_its_variant() {
        let record = record_of("2026-01-01T00:00:00Z", 100.0);
        let mut figures = newest(std::slice::from_ref(&record));
        figures[0].rel_l2 = f64::NAN;
        figures[0].variant = "fwd_tensor_core".to_owned();
        let mut exact = figures[0].clone();
        (exact.variant, exact.median_us, exact.rel_l2) = ("fwd_exact".to_owned(), 150.0, 1e-6);
        figures.push(exact);
        let mut case = case_of("ddetr_enc", DType::F32);
        case.sizes.batch = Some(1);
        let ceilings = ceilings_of(&record.device.slug);
        let directions = [Direction::Forward];
        let analysis = Analysis::of(&case, &directions, &ceilings, &figures).unwrap().remove(0);
        assert_eq!(
            analysis.measured.unwrap().variant,
            "fwd_exact",
            "an inexact variant does not count"
        );
        let with = |technique: &str| {
            let found = analysis.verdicts.iter().find(|v| v.technique == technique).unwrap();
            found.measured.as_ref().map(|measured| measured.median_us)
        };
        assert_eq!(with("tensor cores"), Some(100.0));
        assert_eq!(with("texture unit"), None);
    }

    #[test]
    fn an_encoder_is_bound_by_l1_and_half_precision_halves_it() {
        let half = analysed("ddetr_enc", DType::F16);
        assert_eq!(half.floors[0].ceiling, "l1_gather_line");
        assert!((half.floors[0].us - 45.0).abs() < 0.5, "{:?}", half.floors[0]);
        assert!(
            half.predicted_us > half.floors[0].us && half.predicted_us < 2.0 * half.floors[0].us
        );
        let single = analysed("ddetr_enc", DType::F32);
        assert!((single.floors[0].us / half.floors[0].us - 2.0).abs() < 1e-9);
        assert_eq!(half.layout, ValueLayout::Interleaved.name());
        assert!(half.measured.is_none());
    }

    #[test]
    fn every_technique_has_a_verdict_with_a_number() {
        let analysis = analysed("rtdetr_dec", DType::F16);
        let named: Vec<&str> = analysis.verdicts.iter().map(|v| v.technique.as_str()).collect();
        for technique in [
            "tensor cores",
            "warp specialisation",
            "shared-memory caching",
            "TMA tiles",
            "texture unit",
            "spatial ordering",
            "mixed precision",
        ] {
            assert!(named.contains(&technique), "{technique} is missing in {named:?}");
        }
        for verdict in &analysis.verdicts {
            assert!(verdict.why.chars().any(|c| c.is_ascii_digit()), "{verdict:?}");
        }
    }

    #[test]
    fn a_backward_does_twice_the_work_of_a_forward() {
        let forward = analysed("ddetr_enc", DType::F16);
        let mut ceilings = ceilings_of("h200");
        let mut reduce = ceilings.ceilings[0].clone();
        (reduce.name, reduce.value) = ("l2_reduce_f32".to_owned(), 3_500.0);
        ceilings.ceilings.push(reduce);
        let case = case_of("ddetr_enc", DType::F16);
        let backward =
            Analysis::of(&case, &[Direction::Backward], &ceilings, &[]).unwrap().remove(0);
        assert!((backward.flop / forward.flop - 2.0).abs() < 1e-12);
        assert_eq!(backward.floors[0].ceiling, "l2_reduce_f32");
        assert_eq!(backward.floors[0].only_if.as_deref(), Some("by plain atomics"));
        assert_eq!(backward.binding.as_deref(), Some("l1_gather_line"));
        assert_eq!(backward.floor_us("l1_gather_line"), forward.floor_us("l1_gather_line"));
        // Values and sampling tensors are read and written, the output's gradient is read.
        assert!(backward.floor_us("dram_copy") > forward.floor_us("dram_copy"));
        let fastest = backward.routes.iter().map(|route| route.us).fold(f64::INFINITY, f64::min);
        assert!((backward.predicted_us - fastest).abs() < 1e-12);
        assert!(backward.predicted_us > forward.predicted_us);
        let verdict = |name: &str| {
            let found = backward.verdicts.iter().find(|v| v.technique == name).unwrap();
            found.verdict.as_str()
        };
        assert_eq!((verdict("sorting"), verdict("plain atomics")), ("helps", "no"));
        assert!(forward.routes.is_empty());
    }

    #[test]
    fn ceilings_without_those_of_a_gpu_still_give_a_prediction() {
        let mut ceilings = ceilings_of("x");
        ceilings.ceilings.retain(|ceiling| ceiling.name == "dram_copy");
        let case = case_of("ddetr_dec", DType::F32);
        for analysis in Analysis::of(&case, &Direction::ALL, &ceilings, &[]).unwrap() {
            assert_eq!(analysis.floor_us("dram_copy"), Some(analysis.predicted_us));
            assert_eq!(analysis.binding.as_deref(), Some("dram_copy"));
        }
    }
}
