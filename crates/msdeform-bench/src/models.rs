//! The shapes that known models call the operator with, and every kernel that the dispatcher may choose for them.
//!
//! A kernel is compiled for a model's sizes, and another choice of knobs is other machine code: a problem that was
//! verified says nothing about what its neighbour compiles. So what a GPU has verified is counted in what was compiled.

use std::collections::{BTreeMap, HashSet};

use msdeform::{DType, Direction, Mode, Offsets, Problem, ReferenceOf};
use msdeform_cuda::ahead::other_sizes;
use msdeform_cuda::driver::DeviceProps;
use msdeform_cuda::variants::{BackwardCall, Call, KnobChoices, Unit, Variant};
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

/// Height and width of a level of an image, and of one whose levels are one pixel high. Small: what is compiled depends
/// on no other size of theirs.
fn image_level(level: usize, thin: bool) -> (i64, i64) {
    let halved = |size: i64| {
        let halved = if level < 5 { size >> level } else { 0 };
        if halved < 2 { 2 } else { halved }
    };
    (if thin { 1 } else { halved(32) }, halved(40))
}

/// Those of an image. The images of a batch are padded to one size: where a level is thin all of them are, which
/// happens with one or two.
const BATCHES: [usize; 7] = [1, 2, 4, 8, 16, 32, 64];
const THIN_BATCHES: [usize; 2] = [1, 2];

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
    /// The cheapest problem found that leads there.
    pub problem: Problem,
    /// How it is called, where gradients are asked for.
    pub backward: Option<BackwardCall>,
}

impl Specialisation {
    /// Every kernel of a call.
    fn of(device: &DeviceProps, problem: &Problem, backward: Option<BackwardCall>) -> Vec<Self> {
        let call = Call { backward, ..Call::new(problem, device) };
        let Ok(variant) = dispatch::builtin(&call) else { return Vec::new() };
        let configured = variant.configure(&call, &KnobChoices::default());
        let units = configured.map_or_else(|_| Vec::new(), |configured| configured.units(&call));
        let of_unit = |unit| Self { variant, unit, problem: problem.clone(), backward };
        units.into_iter().map(of_unit).collect()
    }

    /// The macros without their prefix, on one line; the step is one of them.
    #[must_use]
    pub fn name(&self) -> String {
        self.unit.name()
    }

    fn samples(&self) -> usize {
        self.problem.weights_len()
    }
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

/// Everything that may be compiled on a GPU for these shapes, with the dispatcher's own tables.
#[must_use]
pub fn specialisations(device: &DeviceProps) -> Vec<Specialisation> {
    let problems = MODEL_SHAPES.iter().flat_map(|shape| Shape::from(shape).problems());
    specialisations_of(std::slice::from_ref(device), problems, &Scope::default())
}

/// The same where samples follow from offsets, as the models let them: what the dispatcher would choose, whether or not
/// plans ask it for such calls.
#[must_use]
pub fn specialisations_from_offsets(device: &DeviceProps) -> Vec<Specialisation> {
    let problems = MODEL_SHAPES.iter().flat_map(|shape| Shape::from(shape).problems_from_offsets());
    specialisations_of(std::slice::from_ref(device), problems, &Scope::default())
}

/// Everything that may be compiled on some GPUs for some problems, called in some ways.
#[must_use]
pub fn specialisations_of(
    devices: &[DeviceProps],
    problems: impl IntoIterator<Item = Problem>,
    scope: &Scope,
) -> Vec<Specialisation> {
    let mut found: BTreeMap<(&str, Unit), Specialisation> = BTreeMap::new();
    for problem in problems.into_iter().filter(|problem| scope.dtypes.contains(&problem.dtype())) {
        for backward in calls(&problem).into_iter().filter(|call| scope.has(*call)) {
            let reached =
                devices.iter().flat_map(|device| Specialisation::of(device, &problem, backward));
            for reached in reached {
                let name = (reached.variant.spec().id, reached.unit.clone());
                if found.get(&name).is_none_or(|known| reached.samples() < known.samples()) {
                    found.insert(name, reached);
                }
            }
        }
    }
    found.into_values().collect()
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
        let mut problems = Vec::new();
        for (thin, batches) in [(false, &BATCHES[..]), (true, &THIN_BATCHES[..])] {
            let levels: Vec<(i64, i64)> =
                (0..self.points.len()).map(|level| image_level(level, thin)).collect();
            let pixels: i64 = levels.iter().map(|(height, width)| height * width).sum();
            for queries in self.queries.iter().copied().chain([pixels as usize]) {
                let sizes = Problem::builder()
                    .heads(self.heads)
                    .channels(self.channels)
                    .queries(queries)
                    .levels(levels.iter().copied())
                    .points_per_level(self.points.clone());
                for (dtype, sampling) in FORMATS {
                    let formats = sizes.clone().dtype(dtype).sampling_dtype(sampling);
                    let of_batch = |&batch: &usize| formats.clone().batch(batch).build().ok();
                    problems.extend(batches.iter().filter_map(of_batch));
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
        let mut problems = Vec::new();
        let given = self.problems();
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
}

impl Default for Scope {
    /// All of them.
    fn default() -> Self {
        Self {
            dtypes: DType::FAST.to_vec(),
            directions: Direction::ALL.to_vec(),
            modes: Mode::ALL.to_vec(),
            gradients: vec![Gradients::ALL, WITHOUT_VALUE, WITH_REFERENCES],
        }
    }
}

impl Scope {
    fn has(&self, call: Option<BackwardCall>) -> bool {
        match call {
            None => self.directions.contains(&Direction::Forward),
            Some(backward) => {
                self.directions.contains(&Direction::Backward)
                    && self.modes.contains(&backward.mode)
                    && self.gradients.contains(&backward.gradients)
            }
        }
    }
}

/// How a problem is called: forward; for all gradients; with the same bits every time, which few ask for and none with
/// mixed precision; and without the gradient of the values, where what they come from is frozen, in the formats that
/// training has. The last two not for thin images: they concern other steps than those do. Nor the gradients of references,
/// which decoders alone train; anchors are laid out once and for all.
fn calls(problem: &Problem) -> Vec<Option<BackwardCall>> {
    let all = BackwardCall::new(problem);
    let mut calls = vec![None, Some(all)];
    let is_thin = is_thin(problem);
    let is_mixed = match problem.offsets() {
        None => problem.dtype() != problem.sampling_dtype(),
        Some(_) => problem.dtype() != problem.reference_dtype(),
    };
    if !is_thin && !is_mixed {
        calls.push(Some(BackwardCall { mode: Mode::Deterministic, ..all }));
    }
    if !is_thin && (is_mixed || problem.dtype() == DType::F32) {
        calls.push(Some(BackwardCall { gradients: WITHOUT_VALUE, ..all }));
    }
    let trains = |rule: &Offsets| !matches!(rule.reference_of(), ReferenceOf::Anchor(_));
    if !is_thin && problem.offsets().is_some_and(trains) && !is_of_encoder(problem) {
        calls.push(Some(BackwardCall { gradients: WITH_REFERENCES, ..all }));
    }
    calls
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
    fn a_ledger_run_has_about_a_thousand_kernels_to_compile_and_none_twice() {
        let found = specialisations(&DeviceProps::h200());
        assert!((1000..1400).contains(&found.len()), "{}", found.len());
        let names: BTreeSet<_> = found.iter().map(|s| (s.variant.spec().id, s.name())).collect();
        assert_eq!(names.len(), found.len());
    }

    #[test]
    fn a_ledger_run_of_calls_from_offsets_has_about_as_many_and_none_is_one_of_the_plain_operator()
    {
        let found = specialisations_from_offsets(&DeviceProps::h200());
        assert!((1200..1800).contains(&found.len()), "{}", found.len());
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
    fn every_row_of_the_dispatcher_but_the_last_resorts_is_reached_thin_levels_included() {
        let found = specialisations(&DeviceProps::h200());
        let reached: BTreeSet<&str> = found.iter().map(|s| s.variant.spec().id).collect();
        let fallbacks = ["bwd_original", "bwd_general"];
        for rule in dispatch::TABLES.iter().flat_map(|table| table.rules) {
            let id = rule.variant.spec().id;
            assert_eq!(reached.contains(id), !fallbacks.contains(&id), "{id}");
        }
        for variant in ["bwd_level_sort", "bwd_tile_sort"] {
            let thin = |s: &&Specialisation| {
                s.variant.spec().id == variant && s.name().contains(" THIN=1")
            };
            assert!(found.iter().any(|s| thin(&s)), "{variant}");
        }
    }

    #[test]
    fn the_call_kept_for_a_specialisation_leads_there() {
        let device = DeviceProps::h200();
        for kept in
            specialisations(&device).into_iter().chain(specialisations_from_offsets(&device))
        {
            let again = Specialisation::of(&device, &kept.problem, kept.backward);
            assert!(again.iter().any(|again| again.unit == kept.unit), "{}", kept.name());
        }
    }
}
