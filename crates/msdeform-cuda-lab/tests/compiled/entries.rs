//! The kernels to compile: every variant in representative specialisations for every architecture.

use std::collections::{BTreeMap, BTreeSet};

use msdeform::{BackwardCall, DType, Direction, Error, Gradients, Offsets, Problem};
use msdeform_cuda::variants::{Call, KnobChoices, Variant};
use msdeform_cuda::{DeviceProps, Recipe, dispatch, entry_name};
use msdeform_cuda_lab::REGISTRY;

use super::table::Key;

/// One compilation, with every kernel that comes out of it.
pub struct Entry {
    pub keys: Vec<Key>,
    pub recipe: Recipe,
    pub arch: String,
    /// Kernels whose launch may start before the one before it is done.
    pub overlapping: Vec<String>,
    /// Whether the dispatcher may choose it on a GPU like the one that verifies kernels.
    pub is_dispatched: bool,
}

/// The architectures, with what a block may ask of shared memory on each.
const ARCHITECTURES: [((u32, u32), usize); 5] =
    [((8, 0), 163), ((8, 9), 99), ((9, 0), 227), ((10, 0), 227), ((12, 0), 99)];

/// Every entry once, and the number of refusals of variants by reason.
pub fn entries() -> (Vec<Entry>, BTreeMap<String, usize>) {
    let mut seen = BTreeSet::new();
    let mut found = Vec::new();
    let mut refused = BTreeMap::new();
    for variant in REGISTRY.iter().copied() {
        for device in devices() {
            for problem in problems(variant).into_iter().flatten() {
                let call = Call::in_direction(variant.spec.direction, &problem, &device);
                match entries_of(variant, &call) {
                    Ok(all) => {
                        found.extend(all.into_iter().filter(|e| seen.insert(e.keys.clone())));
                    }
                    Err(reason) => *refused.entry(reason).or_default() += 1,
                }
            }
        }
    }
    for device in devices() {
        for problem in problems_from_offsets() {
            for direction in Direction::ALL {
                let call = Call::in_direction(direction, &problem, &device);
                let variant = dispatch::builtin(&call).unwrap();
                let all = entries_of(variant, &call).unwrap();
                found.extend(all.into_iter().filter(|entry| seen.insert(entry.keys.clone())));
            }
        }
    }
    (found, refused)
}

fn devices() -> impl Iterator<Item = DeviceProps> {
    ARCHITECTURES.into_iter().map(|(compute_capability, shared_kib)| DeviceProps {
        compute_capability,
        shared_bytes_per_block: shared_kib << 10,
        ..DeviceProps::h200()
    })
}

/// Kernels of which only the machine code is searched: levels one pixel thin, numbers of points that are no multiple of
/// four, wide heads, single gradients, gradients of references. Some resemble the code that compilers got wrong.
pub fn rare_entries() -> Vec<Entry> {
    let mut seen = BTreeSet::new();
    let mut found = Vec::new();
    let device = DeviceProps::h200();
    for variant in REGISTRY.iter().copied().filter(|variant| !variant.spec.rung) {
        for problem in rare_problems(variant.spec.dtypes).into_iter().flatten() {
            let whole = Call::in_direction(variant.spec.direction, &problem, &device);
            for gradients in [Gradients::ALL, Gradients { value: false, ..Gradients::ALL }] {
                let backward = whole.backward.map(|call| BackwardCall { gradients, ..call });
                // Refusals are expected here; the table's kernels count theirs.
                let all = entries_of(variant, &Call { backward, ..whole }).unwrap_or_default();
                found.extend(all.into_iter().filter(|entry| seen.insert(entry.keys.clone())));
            }
        }
    }
    // Gradients of references need steps that other calls do without.
    for problem in problems_from_offsets() {
        let call = Call::in_direction(Direction::Backward, &problem, &device);
        let gradients = Gradients { references: true, ..Gradients::ALL };
        let backward = call.backward.map(|call| BackwardCall { gradients, ..call });
        let call = Call { backward, ..call };
        let all = entries_of(dispatch::builtin(&call).unwrap(), &call).unwrap();
        found.extend(all.into_iter().filter(|entry| seen.insert(entry.keys.clone())));
    }
    found
}

/// The fused operator: an encoder, a decoder of 300 queries and one of 900, and a call that only the general kernels
/// take, each with the variants that the dispatcher would choose.
fn problems_from_offsets() -> Vec<Problem> {
    let levels = [(100, 167), (50, 84), (25, 42), (13, 21)];
    let model = || Problem::builder().batch(2).heads(8).channels(32).levels(levels).points(4);
    let (points, boxes) = (Offsets::from_points(), Offsets::from_boxes());
    let nearest = boxes.one_for_all_levels().nearest();
    let mut problems = vec![model().queries(300).dtype(DType::Bf16).offsets(nearest)];
    for dtype in [DType::F32, DType::F16] {
        problems.push(model().queries(22_223).dtype(dtype).offsets(points));
        problems.push(model().queries(300).dtype(dtype).offsets(boxes.one_for_all_levels()));
        problems.push(model().queries(900).dtype(dtype).offsets(boxes));
    }
    problems.into_iter().map(|problem| problem.build().unwrap()).collect()
}

fn rare_problems(dtypes: &[DType]) -> Vec<Result<Problem, Error>> {
    let shapes = [
        (vec![(1, 31), (1, 2)], 5, 160),
        (vec![(1, 9)], 4, 32),
        (vec![(50, 84), (25, 42), (13, 1)], 4, 64),
    ];
    let mut problems = Vec::new();
    for &dtype in dtypes {
        for (levels, points, channels) in &shapes {
            for queries in [1, 900] {
                let builder = Problem::builder().heads(8).channels(*channels).queries(queries);
                let builder = builder.levels(levels.iter().copied()).points(*points).dtype(dtype);
                problems.push(builder.build());
            }
        }
    }
    problems
}

/// The compilations of a call; kernels of one compilation are one entry.
fn entries_of(variant: &'static Variant, call: &Call<'_>) -> Result<Vec<Entry>, String> {
    variant.check(call).map_err(|error| error.to_string())?;
    let configuration = variant.configure(call, &KnobChoices::default())?;
    let arch = call.device.arch();
    let mut rules = dispatch::TABLES.iter().flat_map(|table| table.rules);
    let is_chosen = rules.any(|rule| rule.variant.spec.id == variant.spec.id);
    let is_dispatched = is_chosen && arch == DeviceProps::h200().arch();
    // Older GPUs have no overlapping launches.
    let overlaps = call.device.compute_capability >= (9, 0);
    let overlapping: Vec<String> = configuration
        .pipeline
        .launches()
        .filter(|(_, geometry)| overlaps && geometry.overlaps)
        .map(|(step, _)| entry_name(variant.spec.id, step))
        .collect();
    let mut entries: Vec<(Vec<String>, Entry)> = Vec::new();
    for unit in configuration.units(variant, call) {
        let key = Key::new(&entry_name(variant.spec.id, unit.step), &arch, &unit);
        let defines = unit.defines;
        match entries.iter_mut().find(|(known, _)| *known == defines) {
            Some((_, entry)) => entry.keys.push(key),
            None => {
                let recipe = Recipe::new(variant, &arch, &defines);
                let (keys, arch, overlapping) = (vec![key], arch.clone(), overlapping.clone());
                let entry = Entry { keys, recipe, arch, overlapping, is_dispatched };
                entries.push((defines, entry));
            }
        }
    }
    Ok(entries.into_iter().map(|(_, entry)| entry).collect())
}

/// An encoder and a decoder with four levels of 32 channels: four points in every dtype and layout, eight points and
/// mixed dtypes in the first layout. A backward variant, whose several kernels depend little on the layout, has the
/// first layout with four points, and mixed dtypes. A rung, which has one dtype, has the seed documents' eight points.
fn problems(variant: &Variant) -> Vec<Result<Problem, Error>> {
    let spec = variant.spec;
    let mut problems = Vec::new();
    let forward = spec.direction == Direction::Forward;
    let layouts = if forward { spec.layouts } else { &spec.layouts[..1] };
    for &dtype in spec.dtypes {
        for (index, &layout) in layouts.iter().enumerate() {
            for queries in [22_223, 300] {
                let builder = Problem::builder()
                    .batch(2)
                    .heads(8)
                    .channels(32)
                    .queries(queries)
                    .levels([(100, 167), (50, 84), (25, 42), (13, 21)])
                    .points(4)
                    .layout(layout)
                    .dtype(dtype);
                if variant.spec.rung {
                    return vec![builder.points(8).build()];
                }
                problems.push(builder.clone().build());
                if index == 0 && forward {
                    problems.push(builder.clone().points(8).build());
                }
                if index == 0 && dtype != DType::F32 {
                    problems.push(builder.sampling_dtype(DType::F32).build());
                }
            }
        }
    }
    problems
}
