//! What each technique of the seed documents could gain on a workload, with the number behind it.

use msdeform::{DType, DeviceKind, Problem};
use serde::{Deserialize, Serialize};

use super::{Analysis, Measured, Route};
use crate::Ceilings;
use crate::digits::{three_digits, time};
use crate::record::Figure;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    pub technique: String,
    /// `helps`, `little` or `no`.
    pub verdict: String,
    /// The number behind it, in a sentence.
    pub why: String,
    /// The time of a variant that uses it on the same call, if a record has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub measured: Option<Measured>,
}

/// Techniques, and what the ids of variants that use one have in them: `fwd_tensor_core` and its like.
const USED_BY: &[(&str, &[&str])] = &[
    ("tensor cores", &["tensor_core"]),
    ("warp specialisation", &["warp_spec"]),
    ("shared-memory caching", &["smem", "shared_memory"]),
    ("TMA tiles", &["tma"]),
    ("texture unit", &["texture"]),
    ("spatial ordering", &["spatial_sort"]),
    ("mixed precision", &["mixed_precision"]),
    ("plain atomics", &["bwd_original"]),
    ("sorting", &["_tile_sort", "_level_sort"]),
];

/// A route is worth a thought up to this many times the time of the fastest.
const NEAR: f64 = 1.5;

/// The fastest variant that uses a technique, exact or not: the best that the technique can do.
fn measured_with(technique: &str, of_call: &[&Figure]) -> Option<Measured> {
    let (_, parts) = USED_BY.iter().find(|(name, _)| *name == technique)?;
    let users = of_call.iter().filter(|f| parts.iter().any(|part| f.variant.contains(part)));
    users.min_by(|a, b| a.median_us.total_cmp(&b.median_us)).map(|best| Measured::of(best))
}

/// Bytes of metadata that travel through shared memory for a sample: an offset and four half weights.
const METADATA_BYTES: f64 = 12.0;

/// Shared memory that one block can have on Hopper.
const SHARED_BYTES: usize = 227 << 10;

const TEXTURE_WEIGHT_BITS: i32 = 8;

type Judged = (&'static str, String);

/// `of_call` are the figures of the same call.
pub(super) fn verdicts(
    analysis: &Analysis,
    problem: &Problem,
    ceilings: &Ceilings,
    of_call: &[&Figure],
) -> Vec<Verdict> {
    let none = |what: &str| ("no", format!("a CPU has no {what}"));
    let mut found: Vec<(&str, Judged)> = if ceilings.device.kind == DeviceKind::Cpu.name() {
        vec![
            ("tensor cores", none("matrix units that the kernels use")),
            ("warp specialisation", none("warps; its threads are alike")),
            ("shared-memory caching", none("memory of a block; its caches fill themselves")),
            ("TMA tiles", none("copy engine; it prefetches rows")),
            ("texture unit", none("texture unit")),
        ]
    } else if analysis.routes.is_empty() {
        vec![
            ("tensor cores", tensor_cores(analysis)),
            ("warp specialisation", warp_specialisation(analysis)),
            ("shared-memory caching", shared_memory(analysis, problem)),
            ("TMA tiles", tma_tiles(analysis, problem, ceilings)),
            ("texture unit", texture(problem)),
        ]
    } else {
        let routes = analysis.routes.iter();
        let routes = routes.map(|route| (route.technique.as_str(), summation(analysis, route)));
        routes.chain([("tensor cores", tensor_cores(analysis))]).collect()
    };
    found.push(("spatial ordering", spatial_ordering(analysis)));
    found.push(("mixed precision", mixed_precision(analysis, problem)));
    let verdict = |(technique, (verdict, why)): (&str, Judged)| Verdict {
        technique: technique.to_owned(),
        verdict: verdict.to_owned(),
        why,
        measured: measured_with(technique, of_call),
    };
    found.into_iter().map(verdict).collect()
}

fn summation(analysis: &Analysis, route: &Route) -> Judged {
    let fastest = analysis.routes.iter().map(|route| route.us).fold(f64::INFINITY, f64::min);
    let why =
        format!("{}; with the gather for locations and weights {}", route.what, time(route.us));
    let verdict = match route.us / fastest {
        ratio if ratio <= 1.0 => "helps",
        ratio if ratio <= NEAR => "little",
        _ => "no",
    };
    (verdict, why)
}

fn tensor_cores(analysis: &Analysis) -> Judged {
    let wall = analysis.wall_us();
    let Some(arithmetic) = analysis.floor_us("fma_f32") else {
        return ("little", format!("arithmetic was not probed; the wall is {}", time(wall)));
    };
    let share = 100.0 * arithmetic / wall;
    let why = format!(
        "the multiply-adds take {} of an FMA pipe that is free for {} anyway ({share:.0} % of the wall); \
         tensor cores move them, the gather stays",
        time(arithmetic),
        time(wall)
    );
    (if share > 100.0 { "helps" } else { "little" }, why)
}

fn warp_specialisation(analysis: &Analysis) -> Judged {
    let share =
        100.0 * METADATA_BYTES * analysis.work.samples as f64 / analysis.work.gathered_bytes as f64;
    let why = format!(
        "it overlaps metadata with the gather, but both use the same data path: records of \
         {METADATA_BYTES} bytes, written once and read once, are {:.1} % of the gathered bytes",
        2.0 * share
    );
    (if share > 15.0 { "helps" } else { "little" }, why)
}

fn shared_memory(analysis: &Analysis, problem: &Problem) -> Judged {
    let row_bytes = problem.channels() * problem.dtype().size_bytes();
    let fitting: Vec<usize> = (0..problem.levels().len())
        .filter(|&l| {
            let level = problem.levels()[l];
            level.width * level.height * row_bytes <= SHARED_BYTES
        })
        .collect();
    let samples: usize = fitting.iter().map(|&l| problem.level_samples(l).len()).sum();
    let share = 100.0 * samples as f64 / problem.samples().max(1) as f64;
    let hit_rate = analysis.tiled().map_or(0.0, |tiled| tiled.hit_rate);
    let why = format!(
        "{} of {} levels fit {} KB for one head ({share:.0} % of the samples); shared memory has the same \
         128 bytes a cycle as L1, which serves {:.0} % within a tile of queries already",
        fitting.len(),
        problem.levels().len(),
        SHARED_BYTES >> 10,
        100.0 * hit_rate
    );
    (if hit_rate < 0.5 && share > 50.0 { "helps" } else { "little" }, why)
}

fn tma_tiles(analysis: &Analysis, problem: &Problem, ceilings: &Ceilings) -> Judged {
    let tile_bytes = 4 * problem.channels() * problem.dtype().size_bytes();
    let count = analysis.work.samples as f64;
    let tiles = format!("{:.1} M tiles of {tile_bytes} bytes", count * 1e-6);
    let Some(gb_per_s) = ceilings.ceiling("tma_tile_copy") else {
        let why = format!(
            "{tiles}, one copy instruction each, and every byte still crosses the shared-memory data path twice; not \
             probed on this device"
        );
        return ("little", why);
    };
    let (us, wall) = (count * tile_bytes as f64 / gb_per_s * 1e-3, analysis.wall_us());
    let why = format!("{tiles} take {} by TMA; the wall is {}", time(us), time(wall));
    (if us < wall { "helps" } else { "no" }, why)
}

fn texture(problem: &Problem) -> Judged {
    // A weight rounded to 8 bits is off by up to half a step, evenly: a step / sqrt(12) on average.
    let error = 0.5f64.powi(TEXTURE_WEIGHT_BITS) / 12f64.sqrt();
    let bound = problem.dtype().rel_l2_bound();
    let why = format!(
        "{TEXTURE_WEIGHT_BITS}-bit filter weights are off by {error:.1e} on average before anything else; \
         the contract of {} is {bound:.0e}",
        problem.dtype()
    );
    (if error < bound / 2.0 { "little" } else { "no" }, why)
}

fn spatial_ordering(analysis: &Analysis) -> Judged {
    let rate = |name: &str| {
        let found = analysis.footprints.iter().find(|f| f.grouping.starts_with(name));
        found.map(|f| 100.0 * f.hit_rate)
    };
    let as_is = rate("32 in a row").unwrap_or(0.0);
    let sorted = rate("32 along").unwrap_or(0.0);
    let tiles = rate("tiles of 8 x 4").map_or_else(String::new, |rate| {
        format!(", {rate:.0} % in tiles of 8 x 4, which cost no sort")
    });
    let best_free = rate("tiles of 8 x 4").unwrap_or(as_is);
    let why = format!(
        "32 queries find {as_is:.0} % of their sectors in L1 as they come{tiles}, {sorted:.0} % sorted along \
         a Morton curve"
    );
    (if sorted > best_free + 5.0 { "helps" } else { "little" }, why)
}

fn mixed_precision(analysis: &Analysis, problem: &Problem) -> Judged {
    let gathered = analysis.work.gathered_bytes as f64 * 1e-9;
    if problem.dtype() == DType::F32 {
        let halved = three_digits(gathered / 2.0);
        let why = format!(
            "half-precision values would gather {halved} GB instead of {}; every floor of memory halves",
            three_digits(gathered)
        );
        return ("helps", why);
    }
    let bytes = problem.sampling_dtype().size_bytes();
    let why = format!(
        "values are 2 bytes already ({} GB gathered, half of f32); locations and weights have {bytes} bytes",
        three_digits(gathered)
    );
    ("helps", why)
}
