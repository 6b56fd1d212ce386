//! The shapes that known models call the operator with, and every kernel that the dispatcher may choose for them.
//!
//! A kernel is compiled for a model's sizes, and another choice of knobs is other machine code: a problem that was
//! verified says nothing about what its neighbour compiles. So what a GPU has verified is counted in what was compiled.

use std::collections::{BTreeMap, HashSet};
use std::sync::{Mutex, PoisonError};

use msdeform::{
    DType, Direction, Mode, Offsets, Problem, ProblemBuilder, ReferenceOf, ValueLayout,
};
use msdeform_cuda::ahead::other_sizes;
use msdeform_cuda::driver::DeviceProps;
use msdeform_cuda::variants::{
    BackwardCall, Call, Configuration, KnobChoices, Specialise, Unit, Variant,
};
use msdeform_cuda::{Gradients, dispatch};
use msdeform_devices::Device;

/// How models of a family call the operator.
#[derive(Clone, Copy, Debug)]
pub struct ModelShape {
    /// Which models do.
    pub models: &'static str,
    /// Heads.
    pub heads: usize,
    /// Channels of a head.
    pub channels: usize,
    /// Points of every level.
    pub points: &'static [usize],
    /// Queries of its decoders, with and without what denoising or groups add; an encoder's are its pixels.
    pub queries: &'static [usize],
    /// How samples of their encoders follow from offsets.
    pub encoder: &'static [Offsets],
    /// And those of their decoders.
    pub decoder: &'static [Offsets],
    /// Whether `patch()` replaces whole layers of theirs, which then call the operator from offsets.
    pub has_fused_layers: bool,
}

const POINTS: Offsets = Offsets::from_points();
const BOXES: Offsets = Offsets::from_boxes();
const ONE_BOX: Offsets = Offsets::from_boxes().one_for_all_levels();

/// What `msdeform.patch()` finds in Python, with the sizes that published checkpoints have.
pub static MODEL_SHAPES: &[ModelShape] = &[
    ModelShape {
        models: "Deformable-DETR, DINO, Grounding DINO, MM Grounding DINO",
        heads: 8,
        channels: 32,
        points: &[4, 4, 4, 4],
        queries: &[100, 300, 900, 1100],
        encoder: &[POINTS],
        decoder: &[POINTS, BOXES],
        has_fused_layers: true,
    },
    ModelShape {
        models: "RT-DETR, RT-DETRv2, D-FINE, DEIMv2, PP-DocLayout, Mask2Former, OneFormer, OmDet-Turbo",
        heads: 8,
        channels: 32,
        points: &[4, 4, 4],
        queries: &[300, 500, 900],
        encoder: &[POINTS],
        decoder: &[ONE_BOX, ONE_BOX.nearest()],
        has_fused_layers: true,
    },
    ModelShape {
        models: "D-FINE",
        heads: 8,
        channels: 32,
        points: &[3, 6, 3],
        queries: &[300, 500],
        encoder: &[],
        decoder: &[ONE_BOX, ONE_BOX.nearest()],
        has_fused_layers: true,
    },
    ModelShape {
        models: "D-FINE nano",
        heads: 8,
        channels: 16,
        points: &[6, 6],
        queries: &[300, 500],
        encoder: &[],
        decoder: &[ONE_BOX, ONE_BOX.nearest()],
        has_fused_layers: true,
    },
    ModelShape {
        models: "LW-DETR tiny to medium, RF-DETR",
        heads: 16,
        channels: 16,
        points: &[2],
        queries: &[100, 300, 3900],
        encoder: &[],
        decoder: &[BOXES],
        has_fused_layers: true,
    },
    ModelShape {
        models: "LW-DETR large",
        heads: 24,
        channels: 16,
        points: &[4, 4],
        queries: &[300, 3900],
        encoder: &[],
        decoder: &[BOXES],
        has_fused_layers: true,
    },
    ModelShape {
        models: "BEVFormer, over the cameras",
        heads: 8,
        channels: 32,
        points: &[8, 8, 8, 8],
        queries: &[900, 2500],
        encoder: &[],
        decoder: &[POINTS.anchors(4)],
        has_fused_layers: false,
    },
    ModelShape {
        models: "BEVFormer, over time",
        heads: 8,
        channels: 32,
        points: &[4],
        queries: &[900, 2500],
        encoder: &[],
        decoder: &[POINTS],
        has_fused_layers: false,
    },
];

/// Formats of values and of locations: one for both, or locations in single precision, as automatic mixed precision
/// leaves them.
const FORMATS: [(DType, DType); 5] = [
    (DType::F32, DType::F32),
    (DType::F16, DType::F16),
    (DType::F16, DType::F32),
    (DType::Bf16, DType::Bf16),
    (DType::Bf16, DType::F32),
];

/// The images that a model may get, as far as what is compiled depends on them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Image {
    /// Small: what is compiled depends on no other size of it.
    Usual,
    /// All levels are one pixel high.
    Thin,
    /// A level has more tiles of pixels than a block of `bwd_level_sort` can count, on any GPU. As few pixels as that takes:
    /// it is two rows high. For decoders: who asks once per pixel then asks so often that the level does not matter.
    Wide,
    /// Both.
    ThinAndWide,
    /// It has more tiles than `bwd_tile_sort` can count, on any GPU: what computes then is the same for every size.
    Huge,
}

/// As [`Image::Wide`] and [`Image::Huge`] say: a block has 227 KiB at most, and counts a tile of 4 x 4 pixels in 16 words or
/// in one.
const WIDE: i64 = 4 * (227 << 10) / (16 * 4);
const HUGE: i64 = 16 * WIDE;

impl Image {
    /// Those that a known model is looked at with in every size.
    const SIZED: [Self; 4] = [Self::Usual, Self::Thin, Self::Wide, Self::ThinAndWide];

    /// Height and width of a level.
    fn level(self, level: usize) -> (i64, i64) {
        let halved = |size: i64| {
            let halved = if level < 5 { size >> level } else { 0 };
            if halved < 2 { 2 } else { halved }
        };
        let usual = (halved(32), halved(40));
        match self {
            Self::Wide if level == 0 => (2, WIDE),
            Self::ThinAndWide if level == 0 => (1, WIDE),
            Self::Huge if level == 0 => (2, HUGE),
            Self::Usual | Self::Wide | Self::Huge => usual,
            Self::Thin | Self::ThinAndWide => (1, usual.1),
        }
    }

    const fn is_wide(self) -> bool {
        matches!(self, Self::Wide | Self::ThinAndWide | Self::Huge)
    }

    /// Sizes of a batch. The images of a batch are padded to one size: where a level is thin all of them are, which happens
    /// with one or two.
    const fn batches(self) -> &'static [usize] {
        match self {
            Self::Usual | Self::Wide => &[1, 2, 4, 8, 16, 32, 64],
            Self::Thin | Self::ThinAndWide => &[1, 2],
            Self::Huge => &[1],
        }
    }
}

/// What is asked for where values come from something frozen.
const WITHOUT_VALUE: Gradients = Gradients { value: false, ..Gradients::ALL };
/// What is asked for where references are learned.
pub(crate) const WITH_REFERENCES: Gradients = Gradients { references: true, ..Gradients::ALL };

/// A kernel that is compiled for a call that the dispatcher may get, and such a call.
#[derive(Clone, Debug)]
pub struct Specialisation {
    /// What the dispatcher chooses.
    pub variant: &'static dyn Variant,
    /// What of it is compiled, and with what.
    pub unit: Unit,
    /// The cheapest problem found for which it compiles that, with enough queries for all of it to run.
    pub problem: Problem,
    /// How it is called, where gradients are asked for.
    pub backward: Option<BackwardCall>,
}

impl Specialisation {
    /// The macros without their prefix, on one line; the step is one of them.
    #[must_use]
    pub fn name(&self) -> String {
        self.unit.name()
    }

    /// Takes a smaller image where the variant, asked by its name, compiles the same for it.
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
            && configured.units(&call).contains(&self.unit)
        {
            self.problem = smaller;
        }
    }
}

/// The same model and queries with an image of other levels, which follow each other.
fn with_levels(problem: &Problem, levels: Vec<(i64, i64)>) -> ProblemBuilder {
    problem.to_builder().packed().levels(levels)
}

/// Fewer leave most lanes and blocks of a kernel idle: it would be verified in a corner.
const ENOUGH_QUERIES: usize = 100;

/// What a problem costs whoever computes it by the reference: numbers that are drawn for the values, and read of them.
fn work(problem: &Problem) -> usize {
    problem.weights_len() * problem.channels() + problem.value_len()
}

/// Everything that may be compiled on a device, where samples are given or follow from offsets; nothing where that is no
/// GPU.
#[must_use]
pub fn specialisations_on(device: &dyn Device, from_offsets: bool) -> Vec<Specialisation> {
    let Some(props) = device.gpu().map(|engine| engine.context().props()) else {
        return Vec::new();
    };
    if from_offsets { specialisations_from_offsets(props) } else { specialisations(props) }
}

/// Everything that may be compiled on a GPU for these shapes, with the dispatcher's own tables, whatever the image, the batch
/// and the number of queries.
#[must_use]
pub fn specialisations(device: &DeviceProps) -> Vec<Specialisation> {
    in_every_size_on(device, false)
}

/// The same where samples follow from offsets, as the models let them: what the dispatcher would choose, whether or not
/// plans ask it for such calls.
#[must_use]
pub fn specialisations_from_offsets(device: &DeviceProps) -> Vec<Specialisation> {
    in_every_size_on(device, true)
}

fn in_every_size_on(device: &DeviceProps, from_offsets: bool) -> Vec<Specialisation> {
    type Known = Vec<(DeviceProps, bool, Vec<Specialisation>)>;
    // Over a million calls are looked at, which takes seconds, and whoever holds a ledger against it asks several times.
    static KNOWN: Mutex<Known> = Mutex::new(Vec::new());
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    let is_asked =
        |(gpu, kind, _): &&(DeviceProps, bool, _)| gpu == device && *kind == from_offsets;
    if let Some((.., found)) = known.iter().find(is_asked) {
        return found.clone();
    }
    let shapes = || MODEL_SHAPES.iter().map(Shape::from);
    let problems = |shape: Shape, images: &[Image]| {
        let given = shape.problems_with(images);
        if from_offsets { shape.with_offsets(&given) } else { given }
    };
    let mut all = in_every_size(shapes().flat_map(|shape| problems(shape, &Image::SIZED)));
    all.extend(shapes().flat_map(|shape| problems(shape, &[Image::Huge])));
    let mut found = specialisations_of(std::slice::from_ref(device), all, &Scope::everything());
    found.iter_mut().for_each(|found| found.shrink(device));
    known.push((device.clone(), from_offsets, found.clone()));
    found
}

/// Everything that may be compiled on some GPUs for some problems, called in some ways.
#[must_use]
pub fn specialisations_of(
    devices: &[DeviceProps],
    problems: impl IntoIterator<Item = Problem>,
    scope: &Scope,
) -> Vec<Specialisation> {
    let meant = problems.into_iter().filter(|problem| scope.dtypes.contains(&problem.dtype()));
    // The first that leads somewhere is kept: the cheapest that says something, and one for all kernels of a call.
    let mut problems: Vec<Problem> = meant.collect();
    problems.sort_by_key(|problem| (problem.queries() < ENOUGH_QUERIES, work(problem)));
    let mut seen = HashSet::new();
    let mut found: BTreeMap<(&str, Unit), Specialisation> = BTreeMap::new();
    for problem in &problems {
        for backward in scope.calls(problem) {
            for device in devices {
                let call = Call { backward, ..Call::new(problem, device) };
                let Some((variant, configured)) = chosen(&call) else { continue };
                if !seen.insert(Recipe::of(problem, backward, variant, &configured)) {
                    continue;
                }
                for unit in configured.units(&call) {
                    let name = (variant.spec().id, unit.clone());
                    let problem = problem.clone();
                    let reached = || Specialisation { variant, unit, problem, backward };
                    found.entry(name).or_insert_with(reached);
                }
            }
        }
    }
    found.into_values().collect()
}

/// What the dispatcher chooses for a call, and how.
fn chosen(call: &Call<'_>) -> Option<(&'static dyn Variant, Configuration)> {
    let variant = dispatch::builtin(call).ok()?;
    Some((variant, variant.configure(call, &KnobChoices::default()).ok()?))
}

/// All that units follow from: of a hundred thousand calls nearly all have one that was there before, and macros take longer
/// to write than to be chosen.
#[derive(PartialEq, Eq, Hash)]
struct Recipe<'a> {
    variant: &'static str,
    specialise: Specialise,
    knobs: Vec<(&'static str, i64)>,
    constants: Vec<(&'static str, i64)>,
    steps: Vec<&'static str>,
    gradients: Option<Gradients>,
    formats: [DType; 3],
    sizes: [usize; 2],
    layout: ValueLayout,
    points: &'a [usize],
    offsets: Option<Offsets>,
}

impl<'a> Recipe<'a> {
    fn of(
        problem: &'a Problem,
        backward: Option<BackwardCall>,
        variant: &dyn Variant,
        configured: &Configuration,
    ) -> Self {
        Self {
            variant: variant.spec().id,
            specialise: configured.specialise,
            knobs: configured.knobs.clone(),
            constants: configured.constants.clone(),
            steps: configured.pipeline.launches().map(|(step, _)| step).collect(),
            gradients: backward.map(|backward| backward.gradients),
            formats: [problem.dtype(), problem.sampling_dtype(), problem.reference_dtype()],
            sizes: [problem.heads(), problem.channels()],
            layout: problem.layout(),
            points: problem.points(),
            offsets: problem.offsets().copied(),
        }
    }
}

/// The sizes that a model has, whatever it is given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Heads.
    pub heads: usize,
    /// Channels of a head.
    pub channels: usize,
    /// Points of every level.
    pub points: Vec<usize>,
    /// Queries, as many as are usual; one for every pixel is added.
    pub queries: Vec<usize>,
    /// How samples follow from offsets where every pixel asks.
    pub encoder: Vec<Offsets>,
    /// And where so many queries do.
    pub decoder: Vec<Offsets>,
}

impl From<&ModelShape> for Shape {
    fn from(shape: &ModelShape) -> Self {
        Self {
            heads: shape.heads,
            channels: shape.channels,
            points: shape.points.to_vec(),
            queries: shape.queries.to_vec(),
            encoder: shape.encoder.to_vec(),
            decoder: shape.decoder.to_vec(),
        }
    }
}

impl Shape {
    /// Problems in every format, for decoders and for the encoder, that lead to everything that is compiled for the shape.
    #[must_use]
    pub fn problems(&self) -> Vec<Problem> {
        self.problems_with(&[Image::Usual, Image::Thin])
    }

    fn problems_with(&self, images: &[Image]) -> Vec<Problem> {
        let mut problems = Vec::new();
        for image in images {
            let levels: Vec<(i64, i64)> =
                (0..self.points.len()).map(|level| image.level(level)).collect();
            let pixels: i64 = levels.iter().map(|(height, width)| height * width).sum();
            let of_encoder = (!image.is_wide()).then_some(pixels as usize);
            for queries in self.queries.iter().copied().chain(of_encoder) {
                let sizes = Problem::builder()
                    .heads(self.heads)
                    .channels(self.channels)
                    .queries(queries)
                    .levels(levels.iter().copied())
                    .points_per_level(self.points.clone());
                for (dtype, sampling) in FORMATS {
                    let formats = sizes.clone().dtype(dtype).sampling_dtype(sampling);
                    let of_batch = |&batch: &usize| formats.clone().batch(batch).build().ok();
                    problems.extend(image.batches().iter().filter_map(of_batch));
                }
            }
        }
        problems
    }

    /// The same with samples that follow from offsets; none where no rule is known. Offsets and logits are what layers make
    /// of the same format as values; references are like them, or in single precision, as automatic mixed precision leaves
    /// them.
    #[must_use]
    pub fn problems_from_offsets(&self) -> Vec<Problem> {
        self.with_offsets(&self.problems())
    }

    fn with_offsets(&self, given: &[Problem]) -> Vec<Problem> {
        let mut problems = Vec::new();
        for given in given.iter().filter(|given| given.sampling_dtype() == given.dtype()) {
            for rule in if is_of_encoder(given) { &self.encoder } else { &self.decoder } {
                let mut formats = vec![DType::F32, given.dtype()];
                formats.dedup();
                let follows = given.to_builder().offsets(*rule);
                let of_format = |format| follows.clone().reference_dtype(format).build().ok();
                problems.extend(formats.into_iter().filter_map(of_format));
            }
        }
        problems
    }
}

/// The same models in every size, for whoever does not know which will come. The ledger has the sizes that models have.
#[must_use]
pub fn in_every_size(problems: impl IntoIterator<Item = Problem>) -> Vec<Problem> {
    let mut seen = HashSet::new();
    let sizes = problems.into_iter().flat_map(|problem| {
        let mut sizes = other_sizes(&problem).peekable();
        let is_new = sizes.peek().is_some_and(|smallest| seen.insert(smallest.clone()));
        is_new.then_some(sizes).into_iter().flatten().collect::<Vec<_>>()
    });
    sizes.collect()
}

/// Which calls of a model are meant.
#[derive(Clone, Debug)]
pub struct Scope {
    /// Formats of the values.
    pub dtypes: Vec<DType>,
    /// Which way.
    pub directions: Vec<Direction>,
    /// What gradients promise.
    pub modes: Vec<Mode>,
    /// Which gradients are asked for at once.
    pub gradients: Vec<Gradients>,
    /// Whether those are meant too that hardly anybody makes; see `is_usual`.
    pub rare: bool,
}

impl Default for Scope {
    /// All that are usual.
    fn default() -> Self {
        Self {
            dtypes: DType::FAST.to_vec(),
            directions: Direction::ALL.to_vec(),
            modes: Mode::ALL.to_vec(),
            gradients: vec![Gradients::ALL, WITHOUT_VALUE, WITH_REFERENCES],
            rare: false,
        }
    }
}

impl Scope {
    /// Everything that the dispatcher may be asked for.
    fn everything() -> Self {
        Self { rare: true, ..Self::default() }
    }

    /// How a problem is called.
    fn calls(&self, problem: &Problem) -> Vec<Option<BackwardCall>> {
        let mut calls = Vec::new();
        for direction in &self.directions {
            if *direction == Direction::Forward {
                calls.push(None);
                continue;
            }
            let all = BackwardCall::new(problem);
            let both = |&mode| {
                self.gradients.iter().map(move |&gradients| BackwardCall { gradients, mode, ..all })
            };
            let asked = self.modes.iter().flat_map(both).filter(|call| {
                let exists = !call.gradients.references || problem.offsets().is_some();
                exists && (self.rare || is_usual(problem, *call))
            });
            calls.extend(asked.map(Some));
        }
        calls
    }
}

/// Whether gradients are asked for as people do: all of them; with the same bits every time, which none ask for with mixed
/// precision; without that of the values, where what they come from is frozen, in the formats that training has. The last two
/// not for thin images: they concern other steps than those do. Nor the gradients of references, which decoders alone train;
/// anchors are laid out once and for all.
fn is_usual(problem: &Problem, BackwardCall { gradients, mode, .. }: BackwardCall) -> bool {
    if (gradients, mode) == (Gradients::ALL, Mode::Fast) {
        return true;
    }
    let is_mixed = match problem.offsets() {
        None => problem.dtype() != problem.sampling_dtype(),
        Some(_) => problem.dtype() != problem.reference_dtype(),
    };
    let trains = |rule: &Offsets| !matches!(rule.reference_of(), ReferenceOf::Anchor(_));
    !is_thin(problem)
        && match (gradients, mode) {
            (Gradients::ALL, Mode::Deterministic) => !is_mixed,
            (WITHOUT_VALUE, Mode::Fast) => is_mixed || problem.dtype() == DType::F32,
            (WITH_REFERENCES, Mode::Fast) => {
                problem.offsets().is_some_and(trains) && !is_of_encoder(problem)
            }
            _ => false,
        }
}

/// Whether some level is one pixel high.
pub(crate) fn is_thin(problem: &Problem) -> bool {
    problem.levels().iter().any(|level| level.height < 2)
}

/// Whether every pixel asks.
const fn is_of_encoder(problem: &Problem) -> bool {
    problem.queries() == problem.spatial()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn a_ledger_run_has_about_two_thousand_kernels_to_compile_and_none_twice() {
        let found = specialisations(&DeviceProps::h200());
        assert!((1900..2400).contains(&found.len()), "{}", found.len());
        let names: BTreeSet<_> = found.iter().map(|s| (s.variant.spec().id, s.name())).collect();
        assert_eq!(names.len(), found.len());
    }

    #[test]
    fn a_ledger_run_of_calls_from_offsets_has_twice_as_many_and_none_is_one_of_the_plain_operator()
    {
        let found = specialisations_from_offsets(&DeviceProps::h200());
        assert!((3800..4600).contains(&found.len()), "{}", found.len());
        let names: BTreeSet<_> = found.iter().map(|s| (s.variant.spec().id, s.name())).collect();
        assert_eq!(names.len(), found.len());
        assert!(found.iter().all(|s| s.name().contains(" FROM_OFFSETS=1")));
        let plain = specialisations(&DeviceProps::h200());
        assert!(plain.iter().all(|s| !names.contains(&(s.variant.spec().id, s.name()))));
        for what in
            ["BOXES=1", "REFERENCE_OF=1", "ANCHORS=4", "NEAREST=1", "REFERENCE_DTYPE=2", "THIN=1"]
        {
            assert!(found.iter().any(|s| s.name().contains(what)), "{what}");
        }
        let asks = |s: &&Specialisation| s.backward.is_some_and(|call| call.gradients.references);
        assert!(found.iter().any(|s| asks(&s)));
    }

    #[test]
    fn in_every_size_a_model_needs_what_it_needs_in_its_own_and_more() {
        let device = [DeviceProps::h200()];
        let decoder = Shape::from(&MODEL_SHAPES[1]);
        let scope = Scope { dtypes: vec![DType::F16], modes: vec![Mode::Fast], ..Scope::default() };
        let names = |problems: Vec<Problem>| -> BTreeSet<_> {
            let found = specialisations_of(&device, problems, &scope);
            found.into_iter().map(|s| (s.variant.spec().id, s.name())).collect()
        };
        let (own, all) = (names(decoder.problems()), names(in_every_size(decoder.problems())));
        assert!(own.is_subset(&all) && all.len() > own.len(), "{} {}", own.len(), all.len());
        assert!(all.len() < 2 * own.len(), "{} {}", own.len(), all.len());
    }

    #[test]
    fn every_row_of_the_dispatcher_is_reached_thin_levels_included() {
        let found = specialisations(&DeviceProps::h200());
        let reached: BTreeSet<&str> = found.iter().map(|s| s.variant.spec().id).collect();
        for rule in dispatch::TABLES.iter().flat_map(|table| table.rules) {
            let id = rule.variant.spec().id;
            assert!(reached.contains(id), "{id}");
        }
        for variant in ["bwd_level_sort", "bwd_tile_sort"] {
            let thin = |s: &&Specialisation| {
                s.variant.spec().id == variant && s.name().contains(" THIN=1")
            };
            assert!(found.iter().any(|s| thin(&s)), "{variant}");
        }
    }

    /// What a call compiles, by the dispatcher itself.
    fn compiled(
        device: &DeviceProps,
        problem: &Problem,
        backward: Option<BackwardCall>,
    ) -> Vec<(&'static str, Unit)> {
        let call = Call { backward, ..Call::new(problem, device) };
        let (variant, configured) = chosen(&call).unwrap();
        configured.units(&call).into_iter().map(|unit| (variant.spec().id, unit)).collect()
    }

    #[test]
    fn the_call_kept_for_a_specialisation_leads_there() {
        let device = DeviceProps::h200();
        for kept in
            specialisations(&device).into_iter().chain(specialisations_from_offsets(&device))
        {
            let call = Call { backward: kept.backward, ..Call::new(&kept.problem, &device) };
            kept.variant.check(&call).unwrap();
            let configured = kept.variant.configure(&call, &KnobChoices::default()).unwrap();
            assert!(configured.units(&call).contains(&kept.unit), "{}", kept.name());
        }
    }

    /// What a run of the ledger takes beside compiling: seconds of the reference.
    #[test]
    fn problems_of_the_lists_are_neither_a_burden_nor_trivial() {
        let device = DeviceProps::h200();
        for list in [specialisations(&device), specialisations_from_offsets(&device)] {
            let largest = list.iter().max_by_key(|kept| work(&kept.problem)).unwrap();
            assert!(work(&largest.problem) < 100_000_000, "{}", largest.problem);
            let few = list.iter().filter(|kept| kept.problem.queries() < ENOUGH_QUERIES).count();
            assert!(100 * few < 2 * list.len(), "{few} of {}", list.len());
        }
    }

    /// The same numbers in every run, below a bound.
    struct Numbers(u64);

    impl Numbers {
        fn below(&mut self, bound: usize) -> usize {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (self.0 >> 33) as usize % bound
        }

        /// From one on, as many small ones as large ones.
        fn spread(&mut self, most: usize) -> usize {
            let bound = 1 << (1 + self.below(most.ilog2() as usize + 1));
            1 + self.below(bound.min(most))
        }

        /// The levels of an image, some of them one pixel high or wide, some very wide.
        fn levels(&mut self, count: usize) -> Vec<(i64, i64)> {
            let (is_thin, is_wide) = (self.below(4) == 0, self.below(5) == 0);
            let smallest = if is_thin { 1 } else { 2 };
            let longest = if is_wide { 30_000 } else { 200 };
            let (height, width) = (self.spread(200), self.spread(longest));
            let level = |index: usize| {
                let halved = |size: usize| (size >> index).max(smallest) as i64;
                (halved(height), halved(width))
            };
            (0..count).map(level).collect()
        }
    }

    /// The ledger's promise: a model may be called with whatever images, batch and queries, and what then runs is on the lists
    /// that a GPU goes through.
    #[test]
    fn no_size_of_a_known_model_needs_a_kernel_that_is_on_no_list() {
        let device = DeviceProps::h200();
        let lists = [specialisations(&device), specialisations_from_offsets(&device)];
        let listed = lists.iter().flatten().map(|s| (s.variant.spec().id, s.unit.clone()));
        let listed: HashSet<(&str, Unit)> = listed.collect();
        let (mut numbers, mut asked) = (Numbers(2027), 0);
        for shape in MODEL_SHAPES.iter().map(Shape::from) {
            let own = shape.problems_with(&[Image::Usual]);
            let follow = shape.with_offsets(&own);
            let of_one_image: Vec<&Problem> =
                own.iter().chain(&follow).filter(|problem| problem.batch() == 1).collect();
            for _ in 0..3000 {
                let model = of_one_image[numbers.below(of_one_image.len())];
                let levels = numbers.levels(shape.points.len());
                let pixels = levels.iter().map(|(height, width)| (height * width) as usize).sum();
                let queries = if is_of_encoder(model) { pixels } else { numbers.spread(20_000) };
                let resized = with_levels(model, levels).queries(queries);
                let problem = resized.batch(numbers.spread(64)).build().unwrap();
                for backward in Scope::everything().calls(&problem) {
                    for needed in compiled(&device, &problem, backward) {
                        assert!(listed.contains(&needed), "{problem}: {needed:?} {backward:?}");
                        asked += 1;
                    }
                }
            }
        }
        assert!(asked > 100_000, "{asked}");
    }
}
