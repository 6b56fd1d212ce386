//! What kernels are compiled with and told where samples follow from offsets and logits (`kernels/offset_*.cuh`).

use msdeform::{DType, Offsets, ReferenceKind, ReferenceOf, RowStrides, SourceStrides};

use super::configuration::dtype_code;
use super::{Call, Configuration};
use crate::derived::Derived;
use crate::driver::LaunchGeometry;
use crate::pipeline::Pipeline;

const WHOLE_QUADS: &str = "WHOLE_QUADS";
const WHOLE_REFERENCES: &str = "WHOLE_REFERENCES";
const KEEPS: &str = "KEEPS";
const ROW_SUMS: &str = "ROW_SUMS";

/// The largest load of one instruction.
const PACKET_BYTES: usize = 16;

/// Refuses what the general kernels alone take: nearest pixels, more queries than 32 bits count, and queries further apart than
/// 31 bits say.
pub(super) fn check_fast(call: &Call<'_>) -> Result<(), String> {
    if call.problem.offsets().is_some_and(Offsets::is_nearest) {
        return Err(
            "it interpolates between pixels, and the problem reads the nearest ones".to_owned()
        );
    }
    let queries = call.problem.batch().saturating_mul(call.problem.queries());
    if call.problem.offsets().is_some() && u32::try_from(queries).is_err() {
        return Err(format!("all images have {queries} queries; it takes fewer than 2^32"));
    }
    let SourceStrides { references, offsets, logits } = call.sources;
    let furthest = references.query.max(offsets.query).max(logits.query);
    if call.problem.offsets().is_some() && i32::try_from(furthest).is_err() {
        return Err(format!("queries are {furthest} elements apart; it takes strides below 2^31"));
    }
    Ok(())
}

/// The macros of the rule by which samples follow from offsets; none for the plain operator.
pub(super) fn macros(call: &Call<'_>) -> Vec<(&'static str, i64)> {
    let rule = call.problem.offsets();
    rule.map_or_else(Vec::new, |rule| rule_macros(rule, call.problem.reference_dtype()).to_vec())
}

fn rule_macros(rule: &Offsets, references: DType) -> [(&'static str, i64); 7] {
    let (of, anchors) = match rule.reference_of() {
        ReferenceOf::Level => (0, 0),
        ReferenceOf::Query => (1, 0),
        ReferenceOf::Anchor(count) => (2, count as i64),
    };
    [
        ("FROM_OFFSETS", 1),
        ("REFERENCE_DTYPE", i64::from(dtype_code(references))),
        ("REFERENCE_OF", of),
        ("ANCHORS", anchors),
        ("BOXES", i64::from(rule.kind() == ReferenceKind::Box)),
        ("SOFTMAX", i64::from(rule.has_softmax())),
        ("NEAREST", i64::from(rule.is_nearest())),
    ]
}

/// What pointers must be multiples of where channels are read by packets, and samples by `plain` bytes where they are given.
pub(super) fn aligned(call: &Call<'_>, plain: usize) -> Configuration {
    Configuration {
        sampling_alignment: sampling_alignment(call, plain),
        reference_alignment: reference_alignment(call),
        ..Configuration::default()
    }
}

/// Bytes that the pointers of samples must be multiples of: `plain` where they are given; where they follow from offsets,
/// whole packets if every quad starts at one.
fn sampling_alignment(call: &Call<'_>, plain: usize) -> usize {
    match call.problem.offsets() {
        None => plain,
        Some(_) if has_whole_quads(call) => PACKET_BYTES,
        Some(_) => call.problem.sampling_dtype().size_bytes(),
    }
}

/// Whether four neighbouring samples are always one packet of logits and one or two of offsets.
fn has_whole_quads(call: &Call<'_>) -> bool {
    let packet = (PACKET_BYTES / call.problem.sampling_dtype().size_bytes()) as i64;
    let is_whole = |strides: RowStrides| strides.image % packet == 0 && strides.query % packet == 0;
    call.problem.samples().is_multiple_of(4)
        && is_whole(call.sources.offsets)
        && is_whole(call.sources.logits)
}

/// Bytes that the pointer of references must be a multiple of: a whole reference if each starts at one.
fn reference_alignment(call: &Call<'_>) -> usize {
    match call.problem.offsets() {
        Some(rule) if has_whole_references(call) => {
            rule.kind().components() * call.problem.reference_dtype().size_bytes()
        }
        _ => 1,
    }
}

/// Whether a point or box is always one packet.
fn has_whole_references(call: &Call<'_>) -> bool {
    let strides = call.sources.references;
    call.problem.offsets().is_some_and(|rule| {
        let components = rule.kind().components() as i64;
        strides.image % components == 0 && strides.query % components == 0
    })
}

/// Tells the kernels where offsets, logits and references lie. Those that know their levels when they are compiled are
/// told too what an offset of one moves on each.
pub(super) fn derive(
    call: &Call<'_>,
    knows_levels: bool,
    derived: &mut Derived,
) -> Result<(), String> {
    let Some(rule) = call.problem.offsets() else { return Ok(()) };
    let problem = call.problem;
    let sources = call.sources;
    let queries = problem.queries() as i64;
    let all = [sources.references, sources.offsets, sources.logits];
    let images_follow = all.iter().all(|strides| strides.image == queries * strides.query);
    derived.count("images_follow", usize::from(images_follow || problem.batch() <= 1))?;
    for (image, query, strides) in [
        ("references_image_stride", "references_query_stride", sources.references),
        ("offsets_image_stride", "offsets_query_stride", sources.offsets),
        ("logits_image_stride", "logits_query_stride", sources.logits),
    ] {
        let size = |name: &str, stride: i64| {
            usize::try_from(stride).map_err(|_| format!("{name} is {stride}"))
        };
        derived.size(image, size(image, strides.image)?);
        let query_stride = size(query, strides.query)?;
        if knows_levels {
            derived.count(query, query_stride)?;
        } else {
            derived.size(query, query_stride);
        }
    }
    derived.float("offset_scale", rule.scale());
    if knows_levels {
        let steps = |of_points: fn(&msdeform::Level) -> usize| {
            problem.levels().iter().enumerate().map(move |(index, level)| match rule.kind() {
                ReferenceKind::Point => 1.0 / of_points(level) as f32,
                ReferenceKind::Box => rule.scale() / problem.level_samples(index).len() as f32,
            })
        };
        derived.floats("step_x", steps(|level| level.width));
        derived.floats("step_y", steps(|level| level.height));
    }
    Ok(())
}

/// Of a block in the steps `rows` and `finish`.
const THREADS: u32 = 128;

/// The kernels stride over what a grid cannot hold.
fn strided(items: u64, per_block: u32) -> LaunchGeometry {
    let blocks = items.div_ceil(u64::from(per_block)).clamp(1, i32::MAX as u64);
    LaunchGeometry::linear(blocks as u32, THREADS)
}

/// What the step `rows` works out of every row, for kernels that meet its samples one by one and would have to work it out for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KeptRows {
    /// There is no such step.
    Nothing,
    /// Its softmax: two numbers.
    Sums,
    /// The weight of every sample, as entries of lists have it.
    Weights,
}

/// What of a backward call goes through the workspace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct KeptGradients {
    /// Gradients of samples, for the step `finish`.
    pub(super) keeps: bool,
    /// By the step `rows`.
    pub(super) rows: KeptRows,
}

impl KeptGradients {
    /// `whole_rows`: a kernel has all samples of a row at hand when it stores their gradients.
    pub(super) fn of(call: &Call<'_>, whole_rows: bool, rows: KeptRows) -> Self {
        let Some(rule) = call.problem.offsets() else {
            return Self { keeps: false, rows: KeptRows::Nothing };
        };
        let gradients = call.gradients();
        let keeps = gradients.of_samples() && (gradients.references || !whole_rows);
        Self { keeps, rows: if rule.has_softmax() { rows } else { KeptRows::Nothing } }
    }

    /// Reserves memory for them and tells the kernels where.
    pub(super) fn reserve(self, call: &Call<'_>, pipeline: &mut Pipeline, derived: &mut Derived) {
        if call.problem.offsets().is_none() {
            return;
        }
        let gradients = call.gradients();
        let samples = call.problem.weights_len();
        let keeps_locations = self.keeps && (gradients.locations || gradients.references);
        let bytes = |kept: bool, bytes: usize| if kept { bytes } else { 0 };
        let weight_bytes = call.problem.sampling_dtype().size_bytes();
        for (name, bytes) in [
            ("row_sums_at", bytes(self.rows == KeptRows::Sums, call.rows() as usize * 8)),
            ("row_weights_at", bytes(self.rows == KeptRows::Weights, samples * weight_bytes)),
            ("kept_locations_at", bytes(keeps_locations, samples * 8)),
            ("kept_weights_at", bytes(self.keeps && gradients.weights, samples * 4)),
        ] {
            derived.size(name, pipeline.reserve(bytes));
        }
    }

    /// Queues what must come before the steps that weigh samples.
    pub(super) fn queue_rows(self, call: &Call<'_>, pipeline: &mut Pipeline) {
        if self.rows != KeptRows::Nothing {
            pipeline.launch("rows", strided(call.rows(), THREADS));
        }
    }

    /// Queues what comes after them.
    pub(super) fn queue_finish(self, call: &Call<'_>, pipeline: &mut Pipeline) {
        if self.keeps {
            let queries = call.rows() / call.problem.heads().max(1) as u64;
            pipeline.launch("finish", strided(queries, THREADS / 32));
        }
    }

    /// What the kernels are compiled with; nothing where samples are given.
    pub(super) fn constants(self, call: &Call<'_>) -> Vec<(&'static str, i64)> {
        if call.problem.offsets().is_none() {
            return Vec::new();
        }
        vec![(KEEPS, i64::from(self.keeps)), (ROW_SUMS, i64::from(self.rows != KeptRows::Nothing))]
    }
}

/// What the fast kernels of any direction are compiled with; nothing where samples are given. The general ones take numbers
/// at any address.
pub(super) fn constants(call: &Call<'_>) -> Vec<(&'static str, i64)> {
    if call.problem.offsets().is_none() {
        return Vec::new();
    }
    vec![
        (WHOLE_QUADS, i64::from(has_whole_quads(call))),
        (WHOLE_REFERENCES, i64::from(has_whole_references(call))),
    ]
}

#[cfg(test)]
mod tests {
    use msdeform::{BackwardCall, Direction, Gradients, Problem, ProblemBuilder, SourceStrides};

    use super::*;
    use crate::dispatch;
    use crate::driver::DeviceProps;
    use crate::variants::tests::deformable_detr;
    use crate::variants::{KnobChoices, Unit};

    fn model(queries: usize) -> ProblemBuilder {
        deformable_detr(queries).offsets(Offsets::from_points())
    }

    fn configured(call: &Call<'_>) -> Configuration {
        let variant = dispatch::builtin(call).unwrap();
        variant.configure(call, &KnobChoices::default()).unwrap()
    }

    fn units_of(call: &Call<'_>) -> Vec<Unit> {
        configured(call).units(dispatch::builtin(call).unwrap(), call)
    }

    fn steps(problem: &Problem, gradients: Gradients) -> Vec<&'static str> {
        let device = DeviceProps::h200();
        let backward = Some(BackwardCall { gradients, ..BackwardCall::new(problem) });
        let call = Call { backward, ..Call::new(problem, &device) };
        configured(&call).pipeline.launches().map(|(name, _)| name).collect()
    }

    #[test]
    fn gradients_of_samples_are_kept_only_where_a_kernel_cannot_finish_them() {
        let with_references = Gradients { references: true, ..Gradients::ALL };
        let decoder = model(300).build().unwrap();
        assert_eq!(steps(&decoder, Gradients::ALL), ["sort_and_samples", "gather"]);
        assert_eq!(steps(&decoder, with_references), ["sort_and_samples", "gather", "finish"]);
        // Eight quads are two stages of a warp in half precision.
        let many_points = model(300).points(8).build().unwrap();
        assert_eq!(steps(&many_points, Gradients::ALL).last(), Some(&"finish"));
        let encoder = model(22_223).build().unwrap();
        let all = steps(&encoder, Gradients::ALL);
        let in_order =
            ["count", "offsets", "plan", "rows", "scatter", "samples", "gather", "combine"];
        assert_eq!(all, in_order);
        let raw = model(22_223).offsets(Offsets::from_points().raw_weights()).build().unwrap();
        assert!(!steps(&raw, Gradients::ALL).contains(&"rows"), "no softmax");
    }

    #[test]
    fn nearest_pixels_go_to_the_general_kernels() {
        let (device, nearest) = (DeviceProps::h200(), Offsets::from_boxes().nearest());
        let problem = model(300).offsets(nearest).build().unwrap();
        for direction in Direction::ALL {
            let call = Call::in_direction(direction, &problem, &device);
            let id = dispatch::builtin(&call).unwrap().spec.id;
            assert!(id.ends_with("_general"), "{id}");
        }
    }

    #[test]
    fn packets_are_read_where_every_quad_starts_at_one() {
        let (problem, device) = (model(300).build().unwrap(), DeviceProps::h200());
        let packed = Call::new(&problem, &device);
        assert_eq!(configured(&packed).sampling_alignment, 16);
        let projection = |row: i64| {
            let strides = RowStrides { image: 300 * row, query: row };
            SourceStrides { offsets: strides, logits: strides, ..packed.sources }
        };
        let alignment = |row| {
            let call = Call { sources: projection(row), ..packed };
            configured(&call).sampling_alignment
        };
        assert_eq!((alignment(3 * 8 * 16), alignment(3 * 8 * 16 + 5)), (16, 2));
        let odd = model(300).points(3).build().unwrap();
        assert_eq!(configured(&Call::new(&odd, &device)).sampling_alignment, 16, "12 samples");
        let odd = model(300).points_per_level([1, 1, 1, 4]);
        let odd = odd.build().unwrap();
        assert_eq!(configured(&Call::new(&odd, &device)).sampling_alignment, 2, "7 samples");
    }

    #[test]
    fn neither_sizes_nor_strides_compile_again() {
        let device = DeviceProps::h200();
        let units = |queries: usize, batch: usize, row: i64, direction| {
            let problem = model(queries).batch(batch).build().unwrap();
            let strides = RowStrides { image: 0, query: row };
            let packed = Call::in_direction(direction, &problem, &device);
            let sources = SourceStrides { references: strides, ..packed.sources };
            let call = Call { sources, ..packed };
            units_of(&call)
        };
        for direction in Direction::ALL {
            let first = units(22_223, 2, 8, direction);
            assert_eq!(first, units(22_223, 3, 16, direction), "{direction}");
            assert_eq!(first, units(40_000, 2, 0, direction), "{direction}");
        }
    }

    #[test]
    fn another_rule_compiles_only_what_looks_at_samples() {
        let device = DeviceProps::h200();
        let units = |rule: Offsets| {
            let problem = model(22_223).offsets(rule).build().unwrap();
            let call = Call::in_direction(Direction::Backward, &problem, &device);
            units_of(&call)
        };
        let (points, boxes) = (units(Offsets::from_points()), units(Offsets::from_boxes()));
        let other = points.iter().zip(&boxes).filter(|(of_points, of_boxes)| of_points != of_boxes);
        let other: Vec<&str> = other.map(|(unit, _)| unit.step).collect();
        assert_eq!(other, ["count", "rows", "scatter", "samples"]);
    }

    /// In bf16 a step that took raw weights for those of a softmax read each as another number.
    #[test]
    fn who_writes_entries_and_who_reads_them_agree_on_the_format_of_their_weights() {
        let device = DeviceProps::h200();
        for (queries, writes) in [(300, "sort_and_samples"), (22_223, "scatter")] {
            for rule in [Offsets::from_boxes(), Offsets::from_boxes().raw_weights()] {
                let problem = model(queries).dtype(DType::Bf16).offsets(rule).build().unwrap();
                let call = Call::in_direction(Direction::Backward, &problem, &device);
                let units = units_of(&call);
                let wanted = format!("-DMSDA_SOFTMAX={}", i64::from(rule.has_softmax()));
                for step in [writes, "gather"] {
                    let unit = units.iter().find(|unit| unit.step == step).unwrap();
                    assert!(unit.defines.contains(&wanted), "{queries} {step}: {unit:?}");
                }
            }
        }
    }
}
