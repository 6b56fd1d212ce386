//! What a workload asks of a device, computed: work, bytes, floors, reuse, and what each technique of the
//! seed documents could gain.

mod footprint;
mod picture;
mod verdicts;

use msdeform::{DType, Direction, Problem};
use serde::{Deserialize, Serialize};

pub use footprint::{Footprint, footprints};
pub use picture::roofline_svg;
pub(crate) use picture::{Mark, Place, STYLE as PICTURE_STYLE, roofline};
pub use verdicts::{Verdict, verdicts};

use crate::record::Figure;
use crate::workload::WorkloadError;
use crate::{Case, Floors, Profile, Work};

/// Floating-point operations per sample and channel: four fused multiply-adds, one for each corner.
pub(crate) const FLOP_PER_SAMPLE_CHANNEL: f64 = 8.0;

/// The least time that one ceiling leaves.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Floor {
    /// The ceiling, as the profile names it.
    pub ceiling: String,
    /// Microseconds.
    pub us: f64,
    /// What has to pass under it.
    pub what: String,
}

/// How long it took, where a record says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// The variant.
    pub variant: String,
    /// Median.
    pub median_us: f64,
    /// The sources it was built from.
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

/// A forward call of a workload on a device.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Analysis {
    /// The device of the profile.
    pub device: String,
    /// The workload, its locations, layout and format, and sizes.
    pub workload: String,
    /// How locations are drawn.
    pub locations: String,
    /// Order of the values.
    pub layout: String,
    /// Storage of everything.
    pub dtype: String,
    /// The call in one line.
    pub problem: String,
    /// What the call has to do; its operations are counted as the seed documents do.
    pub work: Work,
    /// Arithmetic operations: eight per sample and channel.
    pub flop: f64,
    /// Operations per byte that must pass DRAM.
    pub flop_per_compulsory_byte: f64,
    /// Operations per gathered byte.
    pub flop_per_gathered_byte: f64,
    /// What each ceiling leaves, the highest floor first.
    pub floors: Vec<Floor>,
    /// Reuse among queries that run together, of the first image.
    pub footprints: Vec<Footprint>,
    /// The gather through L1 plus what misses it through L2, or DRAM if that takes longer. Latency, launch
    /// and instructions are left out, so a measured time is above it.
    pub predicted_us: f64,
    /// What a record says.
    pub measured: Option<Measured>,
    /// What each technique could gain.
    pub verdicts: Vec<Verdict>,
}

impl Analysis {
    /// Analyses a case for the device of a profile. `figures` may hold a time to set beside the prediction.
    ///
    /// # Errors
    /// [`WorkloadError`] if the case makes no problem.
    pub fn of(
        case: &Case<'_>,
        profile: &Profile,
        figures: &[Figure],
    ) -> Result<Self, WorkloadError> {
        let problem = case.problem()?;
        let work = Work::of(&problem, Direction::Forward);
        let flop = work.samples as f64 * problem.channels() as f64 * FLOP_PER_SAMPLE_CHANNEL;
        let one_image = problem.to_builder().batch(problem.batch().min(1)).build();
        let one_image = one_image.unwrap_or_else(|_| problem.clone());
        let inputs = case.inputs(&one_image);
        let footprints = footprints(case.workload, &one_image, &inputs);
        let floors = floors(&problem, &work, flop, profile);
        let of_call = figures_of(case, &problem, profile, figures);
        let predicted_us = predict(&problem, &work, &footprints, profile);
        let mut analysis = Self {
            device: profile.device.name.clone(),
            workload: case.workload.name.clone(),
            locations: case.locations.name().to_owned(),
            layout: problem.layout().name().to_owned(),
            dtype: problem.dtype().name().to_owned(),
            problem: problem.to_string(),
            work,
            flop,
            flop_per_compulsory_byte: flop / work.compulsory_bytes as f64,
            flop_per_gathered_byte: flop / work.gathered_bytes as f64,
            floors,
            footprints,
            predicted_us,
            measured: measured(&problem, &of_call),
            verdicts: Vec::new(),
        };
        analysis.verdicts = verdicts(&analysis, &problem, profile);
        for verdict in &mut analysis.verdicts {
            verdict.measured = verdicts::measured_with(&verdict.technique, &of_call);
        }
        Ok(analysis)
    }

    /// The floor of a ceiling, where the profile has it.
    #[must_use]
    pub fn floor_us(&self, ceiling: &str) -> Option<f64> {
        self.floors.iter().find(|floor| floor.ceiling == ceiling).map(|floor| floor.us)
    }

    /// The grouping that a kernel which knows the queries' order can have at best: the tiles if they
    /// form an image, else as they come.
    #[must_use]
    pub fn tiled(&self) -> Option<&Footprint> {
        let tiles = self.footprints.iter().find(|f| f.grouping.starts_with("tiles of 8 x 4"));
        tiles.or_else(|| self.footprints.first())
    }
}

fn floors(problem: &Problem, work: &Work, flop: f64, profile: &Profile) -> Vec<Floor> {
    let mut found = Vec::new();
    let mut floor = |ceiling: &str, amount: f64, per_us: f64, what: &str| {
        if let Some(value) = profile.ceiling(ceiling) {
            let us = amount / (value * per_us);
            found.push(Floor { ceiling: ceiling.to_owned(), us, what: what.to_owned() });
        }
    };
    let (gathered, compulsory) = (work.gathered_bytes as f64, work.compulsory_bytes as f64);
    // GB/s are 1e3 bytes a microsecond, TFLOP/s 1e6 operations.
    floor("l1_gather_line", gathered, 1e3, "every gathered byte once, all hits, no bank conflict");
    floor("dram_copy", compulsory, 1e3, "every input read once, every output written once");
    floor("l2_gather_line", compulsory, 1e3, "every byte of the tensors once from L2 to an SM");
    floor("l1d_copy", gathered, 1e3, "every gathered byte once, at the rate of a copy within L1");
    floor("fma_f32", flop, 1e6, "four fused multiply-adds per sample and channel");
    if problem.dtype() == DType::F16 {
        floor("fma_f16", flop, 1e6, "the same in packed half");
    }
    if let Some(launch) = profile.ceiling("launch_in_graph") {
        let what = "an empty kernel in a graph".to_owned();
        found.push(Floor { ceiling: "launch_in_graph".to_owned(), us: launch, what });
    }
    found.sort_by(|a, b| b.us.total_cmp(&a.us));
    found
}

fn predict(problem: &Problem, work: &Work, footprints: &[Footprint], profile: &Profile) -> f64 {
    let Some(floors) = Floors::of(problem, profile) else {
        return profile
            .ceiling("dram_copy")
            .map_or(f64::NAN, |copy| work.compulsory_bytes as f64 / copy * 1e-3);
    };
    let tiled = footprints.iter().find(|f| f.grouping.starts_with("tiles of 8 x 4"));
    let hit_rate = tiled.or_else(|| footprints.first()).map_or(0.0, |f| f.hit_rate);
    (floors.l1_us + (1.0 - hit_rate) * floors.without_l1_us).max(floors.dram_us)
}

/// What records say about the call, by any variant.
fn figures_of<'a>(
    case: &Case<'_>,
    problem: &Problem,
    profile: &Profile,
    figures: &'a [Figure],
) -> Vec<&'a Figure> {
    let same = |figure: &&Figure| {
        figure.device == profile.device.slug
            && figure.workload == case.workload.name
            && figure.locations == case.locations.name()
            && figure.layout == problem.layout().name()
            && figure.dtype == problem.dtype().name()
            && figure.direction == Direction::Forward.name()
            && (figure.batch, figure.queries) == (problem.batch(), problem.queries())
    };
    figures.iter().filter(same).collect()
}

/// The fastest exact one.
fn measured(problem: &Problem, of_call: &[&Figure]) -> Option<Measured> {
    let exact = of_call.iter().filter(|figure| figure.rel_l2 <= problem.dtype().rel_l2_bound());
    exact.min_by(|a, b| a.median_us.total_cmp(&b.median_us)).map(|best| Measured::of(best))
}

#[cfg(test)]
mod tests {
    use msdeform::ValueLayout;

    use super::*;
    use crate::profile::tests::profile_of;
    use crate::record::newest;
    use crate::record::tests::record_of;
    use crate::workload::{self, Sizes};
    use crate::{Locations, STANDARD_SEED};

    fn analysed(name: &str, dtype: DType) -> Analysis {
        let workload = workload::find(name).unwrap();
        let case = Case {
            workload,
            locations: Locations::Local,
            layout: workload.layouts[0],
            dtype,
            sizes: Sizes::default(),
            seed: STANDARD_SEED,
        };
        Analysis::of(&case, &profile_of("h200"), &[]).unwrap()
    }

    #[test]
    fn a_technique_stands_beside_what_its_variant_took() {
        let record = record_of("2026-01-01T00:00:00Z", 100.0);
        let mut figures = newest(std::slice::from_ref(&record));
        figures[0].rel_l2 = f64::NAN;
        figures[0].variant = "fwd_tensor_core".to_owned();
        let mut exact = figures[0].clone();
        (exact.variant, exact.median_us, exact.rel_l2) = ("fwd_exact".to_owned(), 150.0, 1e-6);
        figures.push(exact);
        let workload = workload::find("ddetr_enc").unwrap();
        let case = Case {
            workload,
            locations: Locations::Local,
            layout: workload.layouts[0],
            dtype: DType::F32,
            sizes: Sizes { batch: Some(1), queries: None },
            seed: STANDARD_SEED,
        };
        let profile = profile_of(&record.device.slug);
        let analysis = Analysis::of(&case, &profile, &figures).unwrap();
        assert_eq!(analysis.measured.unwrap().variant, "fwd_exact", "an inexact time is none");
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
    fn every_technique_of_the_seed_documents_has_a_verdict_with_a_number() {
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
}
