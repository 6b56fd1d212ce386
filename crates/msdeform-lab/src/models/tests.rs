//! That the lists are complete.

use std::collections::BTreeSet;

use msdeform::{ATTENTION, BackwardCall, FROM_OFFSETS, Mode, Operator};
use msdeform_cuda::variants::{Call, KnobChoices, Unit};
use msdeform_cuda::{DeviceProps, dispatch};

use crate::Random;

use super::specialisation::{ENOUGH_QUERIES, chosen, with_levels, work};
use super::*;
use crate::workload::{self, Tag};

/// Each kernel by the id of its variant and its macros.
fn names(found: &[Specialisation]) -> BTreeSet<(&str, String)> {
    found.iter().map(|found| (found.variant.spec.id, found.name())).collect()
}

/// The models that standard workloads are named after. The workloads of the seed documents are of no published model.
const MODEL_OF_WORKLOAD: [(&str, &str); 7] = [
    ("ddetr_enc", "Deformable-DETR"),
    ("ddetr_dec", "Deformable-DETR"),
    ("dino_dec", "DINO"),
    ("rtdetr_dec", "RT-DETR"),
    ("m2f_enc", "Mask2Former"),
    ("bevformer_sca", "BEVFormer, over the cameras"),
    ("bevformer_tsa", "BEVFormer, over time"),
];

#[test]
fn standard_workloads_have_the_shapes_of_their_models() {
    for workload in workload::by_tag(Tag::Standard).filter(|one| !one.name.starts_with("seed")) {
        let model = MODEL_OF_WORKLOAD.iter().find(|(name, _)| *name == workload.name);
        let (_, model) = model.unwrap_or_else(|| panic!("{}: name its model", workload.name));
        let points = workload.points_per_level();
        let is_of_model = |shape: &&ModelShape<'_>| {
            (shape.heads, shape.channels, shape.points)
                == (workload.heads, workload.channels, &points[..])
                && (shape.models == *model || shape.models.split(", ").any(|one| one == *model))
        };
        let shape = MODEL_SHAPES.iter().find(is_of_model);
        let shape = shape.unwrap_or_else(|| panic!("{} is not as {model} is", workload.name));
        // BEVFormer has no encoder in the table: each of its queries is a cell of the bird's-eye view.
        let has_all_pixels = workload.standard_queries() == workload.pixels();
        let is_of_encoder = has_all_pixels && !shape.encoder.is_empty();
        let rules = if is_of_encoder { shape.encoder } else { shape.decoder };
        assert!(rules.contains(&workload.references.rule()), "{}: its rule", workload.name);
        if workload.has(Tag::Decoder) {
            assert!(shape.queries.contains(&workload.standard_queries()), "{}", workload.name);
        }
    }
}

#[test]
fn the_fused_operator_has_twice_as_many_kernels_as_the_plain_one_and_shares_none() {
    let [plain, fused] =
        [&ATTENTION, &FROM_OFFSETS].map(|operator| specialisations(&DeviceProps::h200(), operator));
    for (found, expected) in [(&plain, 1700..2000), (&fused, 3300..3700)] {
        assert!(expected.contains(&found.len()), "{}", found.len());
        assert_eq!(names(found).len(), found.len());
    }
    assert!(names(&plain).is_disjoint(&names(&fused)));
    assert!(fused.iter().all(|found| found.name().contains(" FROM_OFFSETS=1")));
    for what in
        ["BOXES=1", "REFERENCE_OF=1", "ANCHORS=4", "NEAREST=1", "REFERENCE_DTYPE=2", "THIN=1"]
    {
        assert!(fused.iter().any(|found| found.name().contains(what)), "{what}");
    }
    let asks = |s: &Specialisation| s.backward.is_some_and(|call| call.gradients.references);
    assert!(fused.iter().any(asks));
}

#[test]
fn in_every_size_a_model_needs_what_it_needs_in_its_own_and_more() {
    let device = [DeviceProps::h200()];
    let decoder = &MODEL_SHAPES[1];
    let scope = Scope { dtypes: vec![DType::F16], modes: vec![Mode::Fast], ..Scope::default() };
    let found = |problems| specialisations_of(&device, problems, &scope);
    let own = || decoder.problems(&ATTENTION);
    let (own, all) = (found(own()), found(in_every_size(own())));
    let (own, all) = (names(&own), names(&all));
    assert!(own.is_subset(&all) && all.len() > own.len(), "{} {}", own.len(), all.len());
    assert!(all.len() < 2 * own.len(), "{} {}", own.len(), all.len());
}

#[test]
fn every_row_of_the_dispatcher_is_reached_thin_levels_included() {
    let found = specialisations(&DeviceProps::h200(), &ATTENTION);
    let reached: BTreeSet<&str> = found.iter().map(|s| s.variant.spec.id).collect();
    for rule in dispatch::TABLES.iter().flat_map(|table| table.rules) {
        let id = rule.variant.spec.id;
        assert!(reached.contains(id), "{id}");
    }
    for variant in ["bwd_level_sort", "bwd_tile_sort"] {
        let thin =
            |s: &&Specialisation| s.variant.spec.id == variant && s.name().contains(" THIN=1");
        assert!(found.iter().any(|s| thin(&s)), "{variant}");
    }
}

fn compiled(
    device: &DeviceProps,
    problem: &Problem,
    backward: Option<BackwardCall>,
) -> Vec<(&'static str, Unit)> {
    let call = Call { backward, ..Call::new(problem, device) };
    let (variant, configured) = chosen(&call).unwrap();
    configured.units(variant, &call).into_iter().map(|unit| (variant.spec.id, unit)).collect()
}

#[test]
fn the_call_kept_for_a_specialisation_leads_there() {
    let device = DeviceProps::h200();
    for kept in Operator::ALL.into_iter().flat_map(|operator| specialisations(&device, operator)) {
        let call = Call { backward: kept.backward, ..Call::new(&kept.problem, &device) };
        kept.variant.check(&call).unwrap();
        let configured = kept.variant.configure(&call, &KnobChoices::default()).unwrap();
        assert!(configured.units(kept.variant, &call).contains(&kept.unit), "{}", kept.name());
    }
}

/// A run of the ledger computes each problem by the reference, which takes seconds on top of compiling.
#[test]
fn problems_of_the_lists_are_neither_a_burden_nor_trivial() {
    let device = DeviceProps::h200();
    for list in Operator::ALL.map(|operator| specialisations(&device, operator)) {
        let largest = list.iter().max_by_key(|kept| work(&kept.problem)).unwrap();
        assert!(work(&largest.problem) < 100_000_000, "{}", largest.problem);
        let few = list.iter().filter(|kept| kept.problem.queries() < ENOUGH_QUERIES).count();
        assert!(100 * few < 2 * list.len(), "{few} of {}", list.len());
    }
}

/// The levels of an image, some of them one pixel high or wide, some very wide.
fn levels(random: &mut Random, count: usize) -> Vec<(i64, i64)> {
    let smallest = if random.once_in(4) { 1 } else { 2 };
    let longest = if random.once_in(5) { 30_000 } else { 200 };
    let (height, width) = (random.scaled(1, 200), random.scaled(1, longest));
    let level = |index: usize| {
        let halved = |size: usize| (size >> index).max(smallest) as i64;
        (halved(height), halved(width))
    };
    (0..count).map(level).collect()
}

/// The ledger's promise: every kernel that a model needs, for any image, batch and number of queries, is on the lists.
#[test]
fn no_size_of_a_known_model_needs_a_kernel_that_is_on_no_list() {
    let device = DeviceProps::h200();
    let lists = Operator::ALL.map(|operator| specialisations(&device, operator));
    let listed = lists.iter().flatten().map(|s| (s.variant.spec.id, s.unit.clone()));
    let listed: HashSet<(&str, Unit)> = listed.collect();
    let (mut random, mut calls) = (Random::new(2027), 0);
    for shape in MODEL_SHAPES {
        let own = Operator::ALL.map(|operator| shape.problems_with(operator, &[Image::Usual]));
        let of_one_image: Vec<&Problem> =
            own.iter().flatten().filter(|problem| problem.batch() == 1).collect();
        for _ in 0..3000 {
            let model = random.one_of(&of_one_image);
            let levels = levels(&mut random, shape.points.len());
            let pixels = levels.iter().map(|(height, width)| (height * width) as usize).sum();
            let queries = if is_of_encoder(model) { pixels } else { random.scaled(1, 20_000) };
            let resized = with_levels(model, levels).queries(queries);
            let problem = resized.batch(random.scaled(1, 64)).build().unwrap();
            for backward in Scope::everything().calls(&problem) {
                for needed in compiled(&device, &problem, backward) {
                    assert!(listed.contains(&needed), "{problem}: {needed:?} {backward:?}");
                    calls += 1;
                }
            }
        }
    }
    assert!(calls > 100_000, "{calls}");
}
