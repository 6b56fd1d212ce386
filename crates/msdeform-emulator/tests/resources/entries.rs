//! Which kernels are compiled: every variant in representative specialisations for every architecture.

use std::collections::{BTreeMap, BTreeSet};

use msdeform::{DType, Direction, Error, Problem};
use msdeform_cuda::jit::Recipe;
use msdeform_cuda::variants::{Call, KnobChoices, Variant};
use msdeform_cuda::{DeviceProps, REGISTRY, entry_name};

use super::table::Key;

/// One compilation, with every kernel that comes out of it.
pub struct Entry {
    pub keys: Vec<Key>,
    pub recipe: Recipe,
}

/// The architectures, with what a block may ask of shared memory on each.
const ARCHITECTURES: [((u32, u32), usize); 5] =
    [((8, 0), 163), ((8, 9), 99), ((9, 0), 227), ((10, 0), 227), ((12, 0), 99)];

/// Every entry once, and how many were refused by their variants for which reason.
pub fn entries() -> (Vec<Entry>, BTreeMap<String, usize>) {
    let mut seen = BTreeSet::new();
    let mut found = Vec::new();
    let mut refused = BTreeMap::new();
    for variant in REGISTRY.iter().copied() {
        for (compute_capability, shared_kib) in ARCHITECTURES {
            let device = DeviceProps {
                compute_capability,
                shared_bytes_per_block: shared_kib << 10,
                ..DeviceProps::h200()
            };
            for problem in problems(variant).into_iter().flatten() {
                match entry(variant, &device, &problem) {
                    Ok(entry) if seen.insert(entry.keys.clone()) => found.push(entry),
                    Ok(_) => {}
                    Err(reason) => *refused.entry(reason).or_default() += 1,
                }
            }
        }
    }
    (found, refused)
}

fn entry(
    variant: &'static dyn Variant,
    device: &DeviceProps,
    problem: &Problem,
) -> Result<Entry, String> {
    let call = Call::in_direction(variant.spec().direction, problem, device);
    variant.check(&call).map_err(|error| error.to_string())?;
    let configuration = variant.configure(&call, &KnobChoices::default())?;
    let defines = configuration.defines(&call);
    let arch = device.arch();
    let recipe = Recipe::new(variant, &arch, &defines);
    let launches = configuration.pipeline.launches();
    let entries = launches.map(|(step, _)| entry_name(variant.spec().id, step));
    Ok(Entry { keys: entries.map(|entry| Key::new(&entry, &arch, &defines)).collect(), recipe })
}

/// An encoder and a decoder with four levels of 32 channels: four points in every format and layout,
/// eight points and mixed formats in the first layout. Of a backward variant, whose steps are several kernels
/// that hardly depend on the rest, the first layout and four points, and mixed formats. Of a rung, which has one
/// format, the seed documents' eight points.
fn problems(variant: &dyn Variant) -> Vec<Result<Problem, Error>> {
    let spec = variant.spec();
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
                if variant.spec().rung {
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
