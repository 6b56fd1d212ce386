//! Few queries: one block sorts the samples of a level, tiles summed on tensor cores.

use msdeform::{DType, Direction, Role, VariantSpec};

use super::chunked_sample::paired_sampling_alignment;
use super::grad_output_rows::{PACK, PackStep};
use super::offset_source::{self, KeptGradients, KeptRows};
use super::sample_gradients::{
    self, SAMPLE_BLOCKS, SAMPLE_WARPS, SPREAD, SampleStep, THIN, TILE_HEIGHT, TILE_WIDTH,
};
use super::tile_lists::{
    self, ENTRY_BYTES, GATHER_BLOCKS, ListCut, ListKnobs, ListSizes, ORDERED, PIECE, check,
    has_unowned_pixels, level_tiles,
};
use super::{Call, Configuration, Constant, Knob, KnobChoices, OURS, Specialise, Variant};
use crate::derived::Derived;
use crate::driver::LaunchGeometry;
use crate::kernel_source;
use crate::pipeline::{Pipeline, Region};

/// See `kernels/bwd_level_sort.cu`.
pub(crate) static BWD_LEVEL_SORT: Variant = Variant {
    takes_offsets: true,
    knobs: KNOBS,
    constants: CONSTANTS,
    ..Variant::new(&SPEC, kernel_source!("bwd_level_sort.cu"), supports, configure)
};

static SPEC: VariantSpec = VariantSpec {
    id: "bwd_level_sort",
    direction: Direction::Backward,
    idea: "a block sorts a level's samples by tile of pixels; every tile sums its list on tensor cores",
    why: "decoders: two launches, no atomics, and untouched pixels are zeroed by who owns them",
    ..OURS
};

const FEW: Knob = Knob {
    name: tile_lists::FEW,
    values: &[0, 64],
    meaning: "entries of a group of tiles up to which it is summed in the lanes, not on tensor cores",
};
const OVERLAP: Knob = Knob {
    name: "OVERLAP",
    values: &[0, 1],
    meaning: "launches start while the ones before them still run, where the GPU can",
};
const REGISTER_SAMPLES: Constant = Constant {
    name: "REGISTER_SAMPLES",
    values: &[0, 1, 2, 3, 4],
    meaning: "samples that a thread of the step sort keeps in registers; 0: none",
};
const SHARED_SAMPLES: Constant = Constant {
    name: "SHARED_SAMPLES",
    values: &[0, 1],
    meaning: "the step sort keeps samples in shared memory, if registers keep none: it reads them once",
};
/// Lists are not cut.
const UNCUT: Constant = Constant { name: PIECE, values: &[0], meaning: "lists are not cut" };
const SORT_AHEAD: Knob = Knob {
    name: "SORT_AHEAD",
    values: &[1, 2, 3],
    meaning: "samples of a lane that are on their way together, in the step sort if registers keep none",
};
static KNOBS: &[Knob] = &[
    FEW,
    SORT_AHEAD,
    OVERLAP,
    ENTRY_BYTES,
    GATHER_BLOCKS,
    SAMPLE_WARPS,
    SAMPLE_BLOCKS,
    TILE_WIDTH,
    TILE_HEIGHT,
    SPREAD,
];
static CONSTANTS: &[Constant] = &[REGISTER_SAMPLES, SHARED_SAMPLES, UNCUT, ORDERED, THIN, PACK];

/// Warps of a block in the step sort. A constant, because the order of the lists depends on it.
const SORT_WARPS: usize = 16;
/// Samples that a thread keeps in registers if it has no more, in half precision. In f32 it keeps none: `ddetr_dec` with 300
/// and 512 queries takes 24.5 and 31.6 us so, 24.8 and 32.1 otherwise. As many as there are would be a kernel for every number, and
/// gain 1 % (19.7 us instead of 19.9 in f16).
const MAX_REGISTER_SAMPLES: i64 = 4;
/// Samples of a level up to which the dispatcher comes here.
pub(crate) const USUAL_SAMPLES: usize = 4096;
/// Shared memory of one sample.
const SHARED_SAMPLE_BYTES: usize = 12;
/// Samples of a level beyond which its lists are taken to be long.
const DENSE_SAMPLES: usize = 2048;
/// Samples of one level of an (image, head): beyond, a list that is not cut takes too long.
const MAX_LEVEL_SAMPLES: usize = 1 << 16;

/// Samples of the level that has most, of one (image, head): what a block sorts.
pub(crate) fn level_samples(call: &Call<'_>) -> usize {
    let problem = call.problem;
    let points = (0..problem.levels().len()).map(|l| problem.level_samples(l).len()).max();
    points.unwrap_or(0) * problem.queries()
}

fn sort_shared_bytes(call: &Call<'_>, ordered: bool) -> usize {
    let tiles = level_tiles(call.problem).max().unwrap_or(0);
    (32 + tiles * if ordered { SORT_WARPS } else { 1 }) * 4
}

/// Whether samples stay in shared memory: as many as the dispatcher brings here, so that neither images nor numbers of queries
/// compile anything, nor GPUs: what one of them has verified serves all. An SM of 100 KiB has room for two blocks up to 900
/// queries of four points, others for all. Not where lists are ordered: counters take that room.
fn shared_samples(
    call: &Call<'_>,
    knobs: &KnobChoices,
    in_registers: i64,
    ordered: bool,
) -> Result<bool, String> {
    let problem = call.problem;
    let samples = level_samples(call);
    let are_like = problem.uniform_points().is_some_and(|points| (1..=32).contains(&points));
    let bytes = sort_shared_bytes(call, ordered) + SHARED_SAMPLE_BYTES * samples;
    let fits = samples <= USUAL_SAMPLES && bytes <= call.device.shared_bytes_per_block;
    let can = in_registers == 0 && are_like && fits;
    match knobs.get(SHARED_SAMPLES.name) {
        None => Ok(can && !ordered),
        Some(chosen) if chosen == 0 || can => Ok(chosen == 1),
        Some(chosen) => Err(format!(
            "SHARED_SAMPLES={chosen} needs REGISTER_SAMPLES=0, as many points on every level, at most {USUAL_SAMPLES} \
             samples of a level and {} bytes of shared memory; here REGISTER_SAMPLES={in_registers}, levels have {:?} \
             points, and {samples} samples of a level take {bytes} bytes",
            call.device.shared_bytes_per_block,
            problem.points()
        )),
    }
}

/// Two launches of the same blocks as one, the first at z = 0.
fn side_by_side(first: LaunchGeometry, second: LaunchGeometry) -> LaunchGeometry {
    let widest = |axis: usize| first.grid[axis].max(second.grid[axis]);
    LaunchGeometry {
        grid: [widest(0), widest(1), 2],
        shared_bytes: first.shared_bytes.max(second.shared_bytes),
        ..first
    }
}

fn supports(call: &Call<'_>) -> Result<(), String> {
    check(call)?;
    offset_source::check_fast(call)?;
    let samples = level_samples(call);
    if samples > MAX_LEVEL_SAMPLES {
        return Err(format!(
            "a level has {samples} samples; a block sorts at most {MAX_LEVEL_SAMPLES}"
        ));
    }
    let (needed, shared) = (sort_shared_bytes(call, true), call.device.shared_bytes_per_block);
    if needed > shared {
        return Err(format!(
            "the counters of a level take {needed} bytes of shared memory; a block has {shared}"
        ));
    }
    Ok(())
}

fn configure(call: &Call<'_>, knobs: &KnobChoices) -> Result<Configuration, String> {
    let problem = call.problem;
    // By the samples alone, so that another image compiles nothing; what each choice brings is in
    // docs/kernels/bwd_level_sort.md.
    let (is_single, is_dense) =
        (problem.dtype() == DType::F32, level_samples(call) > DENSE_SAMPLES);
    let gather_blocks = if is_single { 6 } else { 7 };
    let list_knobs = ListKnobs::of(call, knobs, gather_blocks)?;
    let (wants_value, wants_samples) = (call.gradients().value, call.gradients().of_samples());
    // In one launch where they are small, unless the caller wants other blocks.
    let together = wants_value
        && wants_samples
        && sample_gradients::is_small(call)
        && knobs.get(SAMPLE_WARPS.name).is_none();
    let samples = SampleStep::of(call, knobs, together.then_some(SORT_WARPS))?;
    let pack = PackStep::of(call, knobs)?;
    let few = knobs.get(FEW.name).unwrap_or(64);
    let overlaps = knobs.get(OVERLAP.name).unwrap_or(1) == 1 && call.device.overlaps_launches;
    let each = level_samples(call).div_ceil(32 * SORT_WARPS) as i64;
    // Samples of the fused operator would take more registers than there are.
    let is_fused = problem.offsets().is_some();
    let fits_registers = !is_single && each <= MAX_REGISTER_SAMPLES && !is_fused;
    let in_registers = knobs.get(REGISTER_SAMPLES.name).unwrap_or(if fits_registers {
        MAX_REGISTER_SAMPLES
    } else {
        0
    });
    if in_registers > 0 && in_registers < each {
        return Err(format!(
            "REGISTER_SAMPLES={in_registers}, but a thread has {each} samples; leave REGISTER_SAMPLES out"
        ));
    }
    if in_registers > 0 && is_fused {
        return Err(format!(
            "REGISTER_SAMPLES={in_registers}, but registers keep no samples of the fused operator; \
             leave REGISTER_SAMPLES out"
        ));
    }
    let in_shared = shared_samples(call, knobs, in_registers, list_knobs.ordered)?;
    let sample_bytes = if in_shared { SHARED_SAMPLE_BYTES * level_samples(call) } else { 0 };
    // Samples of the fused operator take more registers on their way.
    let can_read_ahead = if in_shared { !is_fused } else { is_dense && !is_single };
    let ahead = knobs.get(SORT_AHEAD.name).unwrap_or(if can_read_ahead { 2 } else { 1 });
    let (mut pipeline, mut unused) = (Pipeline::default(), Pipeline::default());
    let mut derived = Derived::default();
    pack.queue(problem, &mut pipeline, &mut derived);
    let workspace = if wants_value { &mut pipeline } else { &mut unused };
    let entry_bytes = list_knobs.entry_bytes;
    let cut = ListCut { piece: 0, parts: 0, entry_bytes, groups: few > 0 };
    let lists = ListSizes::reserve(problem, workspace, &mut derived, cut)?;
    samples.derive(&mut derived)?;
    derived.count("samples_behind", usize::from(wants_samples && !together))?;
    let kept = KeptGradients::of(call, samples.has_whole_rows(), KeptRows::Nothing);
    kept.reserve(call, &mut pipeline, &mut derived);
    offset_source::derive(call, true, &mut derived)?;
    if wants_value {
        if has_unowned_pixels(problem) {
            pipeline.zero(Region::Tensor(Role::GradValue));
        }
        let sort = LaunchGeometry {
            grid: [problem.levels().len() as u32, lists.grid_slabs(), 1],
            block: [32 * SORT_WARPS as u32, 1, 1],
            shared_bytes: (sort_shared_bytes(call, list_knobs.ordered) + sample_bytes) as u32,
            cluster: 1,
            overlaps: false,
        };
        if together {
            pipeline.launch("sort_and_samples", side_by_side(sort, samples.geometry));
        } else {
            pipeline.launch("sort", sort);
        }
        pipeline.launch("gather", lists.gather_groups()?);
    }
    if wants_samples && !together {
        pipeline.launch("samples", samples.geometry);
    }
    kept.queue_finish(call, &mut pipeline);
    // The step samples waits when it is done: enough behind the others, not alone.
    if overlaps && wants_value {
        pipeline.overlap_launches();
    }
    let mut chosen =
        vec![(FEW.name, few), (SORT_AHEAD.name, ahead), (OVERLAP.name, i64::from(overlaps))];
    chosen.extend(list_knobs.knobs());
    chosen.extend(samples.knobs);
    let mut constants = vec![
        (REGISTER_SAMPLES.name, in_registers),
        (SHARED_SAMPLES.name, i64::from(in_shared)),
        (UNCUT.name, 0),
        ("SORT_THREADS", 32 * SORT_WARPS as i64),
        list_knobs.ordered(),
        pack.constant(),
    ];
    constants.extend(lists.constants());
    constants.extend(samples.constants());
    constants.extend(kept.constants(call));
    constants.extend(offset_source::constants(call));
    Ok(Configuration {
        specialise: Specialise::ModelAndHeads,
        knobs: chosen,
        constants,
        pipeline,
        derived,
        ..offset_source::aligned(call, paired_sampling_alignment(call))
    })
}

#[cfg(test)]
mod tests {
    use msdeform::{BackwardCall, Gradients, Offsets, ProblemBuilder};

    use super::*;
    use crate::driver::DeviceProps;
    use crate::variants::tests::{self, deformable_detr as decoder};

    fn configured(problem: ProblemBuilder) -> Result<Configuration, String> {
        tests::configured(&BWD_LEVEL_SORT, problem, |backward| backward)
    }

    #[test]
    fn a_decoder_takes_two_launches_and_little_memory() {
        let pipeline = configured(decoder(300)).unwrap().pipeline;
        let names: Vec<&str> = pipeline.launches().map(|(name, _)| name).collect();
        assert_eq!(names, ["sort_and_samples", "gather"]);
        assert_eq!(
            pipeline.launches().next().unwrap().1.grid,
            [5, 16, 2],
            "4 levels of 16 images and heads; 5 times 64 queries of 8 pairs of heads"
        );
        assert_eq!(
            pipeline.workspace_bytes / 1_000_000,
            5,
            "four entries of 16 bytes for every sample"
        );
    }

    #[test]
    fn the_gather_has_a_block_for_every_sixteen_tiles_of_a_sparse_level_and_no_other() {
        let grid = |queries: usize| {
            let pipeline = configured(decoder(queries)).unwrap().pipeline;
            pipeline.launches().find(|(name, _)| *name == "gather").unwrap().1.grid
        };
        // 1050, 273, 77 and 24 tiles. 1200 samples: groups of four, of two, and single tiles twice.
        assert_eq!(grid(300), [16, 66 + 35 + 20 + 6, 1]);
        // 4 samples: groups of four everywhere.
        assert_eq!(grid(1), [16, 66 + 18 + 5 + 2, 1]);
    }

    #[test]
    fn registers_keep_samples_while_they_are_few() {
        let held = |queries: usize| {
            let constants = configured(decoder(queries)).unwrap().constants;
            constants.iter().find(|(name, _)| *name == REGISTER_SAMPLES.name).unwrap().1
        };
        assert_eq!([1, 300, 512, 513].map(held), [4, 4, 4, 0]);
        let (problem, device) = (decoder(300).build().unwrap(), DeviceProps::h200());
        let call = Call::in_direction(Direction::Backward, &problem, &device);
        let two =
            KnobChoices::new(&BWD_LEVEL_SORT, &[(REGISTER_SAMPLES.name.to_owned(), 2)]).unwrap();
        let error = BWD_LEVEL_SORT.configure(&call, &two).unwrap_err();
        assert!(error.contains("a thread has 3 samples"), "{error}");
        let former = KnobChoices::new(&BWD_LEVEL_SORT, &[("HELD".to_owned(), 2)]).unwrap();
        assert_eq!(former.chosen(), two.chosen());

        let offsets = Offsets::from_points();
        let problem = decoder(20).offsets(offsets).build().unwrap();
        let call = Call::in_direction(Direction::Backward, &problem, &device);
        let error = BWD_LEVEL_SORT.configure(&call, &two).unwrap_err();
        assert!(error.contains("of the fused operator"), "{error}");
        assert!(BWD_LEVEL_SORT.configure(&call, &KnobChoices::default()).is_ok());
    }

    #[test]
    fn samples_stay_in_shared_memory_where_two_blocks_still_fit_an_sm() {
        let kept = |problem: ProblemBuilder| {
            let configuration = configured(problem).unwrap();
            let launch = configuration.pipeline.launches().next().unwrap().1;
            let kept = configuration
                .constants
                .iter()
                .find(|(name, _)| *name == SHARED_SAMPLES.name)
                .unwrap()
                .1;
            (kept, 2 * (launch.shared_bytes as usize + 1024) <= 100 << 10)
        };
        assert_eq!(kept(decoder(900)), (1, true));
        assert_eq!(kept(decoder(300)), (0, true), "registers keep them");
        assert_eq!(kept(decoder(300).offsets(Offsets::from_points())), (1, true));
        assert_eq!(kept(decoder(1024)).0, 1, "what the dispatcher brings");
        assert_eq!(kept(decoder(1025)).0, 0);
        assert_eq!(kept(decoder(600).points_per_level([4, 4, 4, 3])).0, 0, "points differ");
        assert_eq!(kept(decoder(100).dtype(DType::F32).points(33)).0, 0, "more than lanes");
        let largest = decoder(900).levels([(180, 320), (90, 160), (45, 80), (23, 40)]);
        assert_eq!(kept(largest), (1, false), "another image compiles nothing");

        let (problem, device) = (decoder(1025).build().unwrap(), DeviceProps::h200());
        let call = Call::in_direction(Direction::Backward, &problem, &device);
        let one =
            KnobChoices::new(&BWD_LEVEL_SORT, &[(SHARED_SAMPLES.name.to_owned(), 1)]).unwrap();
        let error = BWD_LEVEL_SORT.configure(&call, &one).unwrap_err();
        assert!(error.contains("4100 samples"), "{error}");
    }

    #[test]
    fn in_f32_all_blocks_that_sort_or_walk_run_at_once() {
        for (queries, tiles) in [(300, 10), (900, 12)] {
            let pipeline = configured(decoder(queries).dtype(DType::F32)).unwrap().pipeline;
            let grid = pipeline.launches().next().unwrap().1.grid;
            assert_eq!(grid, [tiles, 16, 2], "{queries} queries");
            assert!(
                4 * 16 + tiles * 16 <= 2 * 132,
                "{queries} queries: two blocks on each of 132 SMs"
            );
        }
    }

    #[test]
    fn launches_overlap_unless_samples_are_alone() {
        let overlapping = |device: DeviceProps, gradients: Gradients| {
            // Enough rows that the step samples has a launch of its own.
            let problem = decoder(1000).build().unwrap();
            let backward = Some(BackwardCall { gradients, ..BackwardCall::new(&problem) });
            let call = Call { backward, ..Call::new(&problem, &device) };
            let pipeline =
                BWD_LEVEL_SORT.configure(&call, &KnobChoices::default()).unwrap().pipeline;
            pipeline.launches().map(|(name, launch)| (name, launch.overlaps)).collect::<Vec<_>>()
        };
        let h200 = DeviceProps::h200;
        assert_eq!(
            overlapping(h200(), Gradients::ALL),
            [("sort", true), ("gather", true), ("samples", true)]
        );
        let of_samples = Gradients { value: false, ..Gradients::ALL };
        assert_eq!(overlapping(h200(), of_samples), [("samples", false)]);
        let older = DeviceProps { overlaps_launches: false, ..h200() };
        assert!(overlapping(older, Gradients::ALL).iter().all(|(_, overlaps)| !overlaps));
    }

    #[test]
    fn more_samples_than_a_block_should_sort_are_refused() {
        configured(decoder(1 << 14)).unwrap();
        let error = configured(decoder((1 << 14) + 1)).unwrap_err();
        assert!(error.contains("65540 samples"), "{error}");
        let error = configured(decoder(10).levels([(400, 600)])).unwrap_err();
        assert!(error.contains("shared memory"), "{error}");
    }
}
