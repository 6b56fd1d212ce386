//! What else of a model may have to be compiled: the kernels of its calls with other sizes.

use std::collections::BTreeSet;

use msdeform::{
    BackwardCall, OutputStrides, Problem, ProblemBuilder, RowStrides, SourceStrides, ValueStrides,
};

use crate::dispatch;
use crate::driver::DeviceProps;
use crate::tuning::{self, Tuning};
use crate::variants::{Call, KnobChoices, Unit, Variant};

/// A kernel that may have to be compiled.
pub(super) type Wanted = (&'static Variant, Unit);

/// A call that may outlive the plan it was made for.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct OwnedCall {
    problem: Problem,
    strides: ValueStrides,
    query_raster_width: u32,
    sources: SourceStrides,
    backward: Option<BackwardCall>,
}

/// Every size where some rule of a variant changes its mind lies between two of these, in one of these batches: what is
/// chosen goes by rows, samples and blocks, and by ratios of these.
const BATCHES: [usize; 13] = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 128];
const MOST_QUERIES: usize = 20_000;

/// Pixels in all levels of the images that a decoder may ask: of 200 pixels a side, of 600 and of 1600.
const IMAGES: [usize; 3] = [800, 7_000, 50_000];

/// From one number of queries to the next.
fn more(queries: usize) -> usize {
    queries + queries.div_ceil(6)
}

/// The kernels that a variant needs for a call. None if the call cannot be configured: its plan fails with the reason.
pub(super) fn kernels(
    variant: &'static Variant,
    knobs: &KnobChoices,
    call: &Call<'_>,
) -> Vec<Wanted> {
    let configured = variant.configure(call, knobs);
    let units =
        configured.map_or_else(|_| Vec::new(), |configured| configured.units(variant, call));
    units.into_iter().map(|unit| (variant, unit)).collect()
}

impl OwnedCall {
    /// With the same tensors, or those of a backward call of the same forward call.
    pub(super) fn new(call: &Call<'_>, backward: Option<BackwardCall>) -> Self {
        let Call { strides, query_raster_width, sources, .. } = *call;
        Self { problem: call.problem.clone(), strides, query_raster_width, sources, backward }
    }

    fn call<'a>(&'a self, device: &'a DeviceProps) -> Call<'a> {
        let Self { problem, strides, query_raster_width, sources, backward } = self;
        Call {
            problem,
            strides: *strides,
            device,
            query_raster_width: *query_raster_width,
            sources: *sources,
            backward: *backward,
        }
    }

    /// The kernels that compute it: those that were measured to be the best, or the dispatcher's.
    pub(super) fn kernels(&self, device: &DeviceProps, tuning: &Tuning) -> Vec<Wanted> {
        let call = self.call(device);
        if call.is_empty() {
            return Vec::new();
        }
        let tuned = tuning::choose(tuning, &call).map(|chosen| (chosen.variant, chosen.knobs));
        let builtin = || Some((dispatch::builtin(&call).ok()?, KnobChoices::default()));
        let chosen = tuned.or_else(builtin);
        chosen.map_or_else(Vec::new, |(variant, knobs)| kernels(variant, &knobs, &call))
    }

    /// The kernels of calls of the same model with every batch and number of queries or, of an encoder, image size. Those of
    /// sizes like this one's come first: they are likely to be next.
    pub(super) fn kernels_of_other_sizes(
        &self,
        device: &DeviceProps,
        tuning: &Tuning,
    ) -> Vec<Wanted> {
        let mut seen = BTreeSet::new();
        let mut found = Vec::new();
        let mut sizes: Vec<Problem> = other_sizes(&self.problem).collect();
        sizes.sort_by(|one, other| {
            let distance = |problem| distance(&self.problem, problem);
            distance(one).total_cmp(&distance(other))
        });
        for problem in sizes {
            for (variant, unit) in self.with(problem).kernels(device, tuning) {
                if seen.insert((variant.spec.id, unit.clone())) {
                    found.push((variant, unit));
                }
            }
        }
        found
    }

    /// The same for all sizes of a model, to see whether it is known.
    pub(super) fn model(&self) -> Option<Self> {
        let smallest = with_pixels(&self.problem, 1).batch(1);
        let smallest =
            if asks_once_per_pixel(&self.problem) { smallest } else { smallest.queries(1) };
        Some(self.with(smallest.build().ok()?))
    }

    /// The same call in another size.
    fn with(&self, resized: Problem) -> Self {
        let problem = &self.problem;
        let is_packed = self.strides == ValueStrides::packed(problem);
        let strides = if is_packed { ValueStrides::packed(&resized) } else { self.strides };
        // What follows itself image by image does so in every size; what all images share stays shared.
        let rows = |RowStrides { image, query }: RowStrides| {
            let follows = image == query * problem.queries() as i64;
            let image = if follows { query * resized.queries() as i64 } else { image };
            RowStrides { image, query }
        };
        let SourceStrides { references, offsets, logits } = self.sources;
        let sources = SourceStrides {
            references: rows(references),
            offsets: rows(offsets),
            logits: rows(logits),
        };
        let backward = self.backward.map(|backward| {
            let is_packed = backward.grad_output == OutputStrides::packed(problem);
            let packed = OutputStrides::packed(&resized);
            let grad_output = if is_packed { packed } else { backward.grad_output };
            BackwardCall { grad_output, ..backward }
        });
        let query_raster_width = self.query_raster_width;
        Self { problem: resized, strides, query_raster_width, sources, backward }
    }
}

/// How much larger or smaller, in octaves: of images, queries and pixels.
fn distance(one: &Problem, other: &Problem) -> f64 {
    let octaves = |one: usize, other: usize| (one.max(1) as f64 / other.max(1) as f64).log2().abs();
    let sizes = |problem: &Problem| [problem.batch(), problem.queries(), pixels_of(problem)];
    sizes(one).into_iter().zip(sizes(other)).map(|(one, other)| octaves(one, other)).sum()
}

/// Problems of the same model in so many sizes that they lead to everything that may be compiled for it: batches and
/// numbers of queries with, of an encoder, as many pixels, and of a decoder images of several sizes.
pub fn other_sizes(problem: &Problem) -> impl Iterator<Item = Problem> {
    let queries = std::iter::successors(Some(1), |&queries| Some(more(queries)));
    let queries = queries.take_while(|&queries| queries <= MOST_QUERIES);
    let sizes = queries.flat_map(|queries| BATCHES.map(|batch| (batch, queries)));
    sizes.flat_map(|(batch, queries)| resized(problem, batch, queries))
}

/// An encoder asks once per pixel; its image then has as many as there are queries. A decoder may ask any image.
fn resized(problem: &Problem, batch: usize, queries: usize) -> Vec<Problem> {
    let builders = if asks_once_per_pixel(problem) {
        vec![with_pixels(problem, queries)]
    } else {
        let images = IMAGES.iter().map(|&pixels| with_pixels(problem, pixels).queries(queries));
        images.chain([problem.to_builder().queries(queries)]).collect()
    };
    builders.into_iter().filter_map(|builder| builder.batch(batch).build().ok()).collect()
}

fn pixels_of(problem: &Problem) -> usize {
    problem.levels().iter().map(|level| level.height * level.width).sum()
}

fn asks_once_per_pixel(problem: &Problem) -> bool {
    problem.queries() == pixels_of(problem)
}

/// The same model with an image of about so many pixels in all levels, and a query for each.
fn with_pixels(problem: &Problem, pixels: usize) -> ProblemBuilder {
    let scale = (pixels as f64 / pixels_of(problem).max(1) as f64).sqrt();
    // A thin level stays thin, and no other becomes one: that is another kernel.
    let scaled = |size: usize| match size {
        0 | 1 => size as i64,
        _ => ((size as f64 * scale).round() as i64).max(2),
    };
    let levels = problem.levels().iter();
    let levels = levels.map(|level| (scaled(level.height), scaled(level.width)));
    let levels: Vec<(i64, i64)> = levels.collect();
    let pixels = levels.iter().map(|(height, width)| (height * width) as usize).sum();
    problem.to_builder().packed().levels(levels).queries(pixels)
}

#[cfg(test)]
mod tests {
    use msdeform::{DType, Direction, Mode, Offsets};

    use super::*;

    /// The same numbers in every run, below a bound.
    struct Numbers(u64);

    impl Numbers {
        fn below(&mut self, bound: usize) -> usize {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (self.0 >> 33) as usize % bound
        }
    }

    fn devices() -> [DeviceProps; 2] {
        let ada = DeviceProps {
            compute_capability: (8, 9),
            multiprocessors: 128,
            shared_bytes_per_block: 99 << 10,
            ..DeviceProps::h200()
        };
        [DeviceProps::h200(), ada]
    }

    /// Models as they are called, with an image of their own.
    fn problems() -> Vec<ProblemBuilder> {
        let levels = [(64, 80), (32, 40), (16, 20), (8, 10)];
        let (points, boxes) = (Offsets::from_points(), Offsets::from_boxes());
        let mut problems = Vec::new();
        for dtype in DType::FAST {
            let model = || Problem::builder().channels(32).heads(8).dtype(dtype).queries(300);
            let detr = model().levels(levels).points(4);
            let rtdetr = model().levels(levels[1..].to_vec()).points(4);
            let lw = model().levels([(40, 40)]).points(2).heads(16).channels(16);
            problems.extend([detr.clone().sampling_dtype(DType::F32), rtdetr.clone(), lw.clone()]);
            problems.extend([
                detr.clone().queries(6800).offsets(points),
                rtdetr.offsets(boxes.one_for_all_levels()),
                lw.offsets(boxes),
                detr.queries(6800),
            ]);
        }
        problems
    }

    #[test]
    #[cfg_attr(miri, ignore = "asks the dispatcher a hundred thousand times")]
    fn no_size_of_a_model_needs_a_kernel_that_its_sizes_do_not_have() {
        let (tuning, mut numbers, mut asked) = (Tuning::OFF, Numbers(2026), 0);
        for device in devices() {
            for problem in problems() {
                let problem = problem.build().unwrap();
                for (direction, mode) in [
                    (Direction::Forward, Mode::Fast),
                    (Direction::Backward, Mode::Fast),
                    (Direction::Backward, Mode::Deterministic),
                ] {
                    let mut call = Call::in_direction(direction, &problem, &device);
                    call.backward = call.backward.map(|call| BackwardCall { mode, ..call });
                    let owned = OwnedCall::new(&call, call.backward);
                    let all = owned.kernels_of_other_sizes(&device, &tuning);
                    let names = |found: &[Wanted]| -> BTreeSet<(&str, Unit)> {
                        let name = |(variant, unit): &Wanted| (variant.spec.id, unit.clone());
                        found.iter().map(name).collect()
                    };
                    let known = names(&all);
                    assert!(known.len() <= 40, "{} kernels of {problem}", known.len());
                    for _ in 0..200 {
                        let (batch, queries) = (1 + numbers.below(32), 1 + numbers.below(4000));
                        let resized = resized(&problem, batch, queries).pop().unwrap();
                        let resized = owned.with(resized);
                        let needed = names(&resized.kernels(&device, &tuning));
                        let missing: Vec<_> = needed.difference(&known).collect();
                        assert!(missing.is_empty(), "{}: {missing:?}", resized.problem);
                        asked += needed.len();
                    }
                }
            }
        }
        assert!(asked > 40_000, "{asked}");
    }

    #[test]
    #[cfg_attr(miri, ignore = "asks the dispatcher a hundred thousand times")]
    fn no_image_of_a_decoder_needs_a_kernel_that_its_sizes_do_not_have() {
        let (tuning, mut numbers, mut asked) = (Tuning::OFF, Numbers(2027), 0);
        for device in devices() {
            let problems = problems().into_iter().map(|problem| problem.build().unwrap());
            for problem in problems.filter(|problem| !asks_once_per_pixel(problem)) {
                for direction in Direction::ALL {
                    let call = Call::in_direction(direction, &problem, &device);
                    let owned = OwnedCall::new(&call, call.backward);
                    let all = owned.kernels_of_other_sizes(&device, &tuning);
                    let known = |(variant, unit): &Wanted| {
                        all.iter().any(|(one, of)| one.spec.id == variant.spec.id && of == unit)
                    };
                    for _ in 0..400 {
                        let pixels = 400 + numbers.below(40_000);
                        let image = with_pixels(&problem, pixels).queries(1 + numbers.below(1300));
                        let image = image.batch(1 + numbers.below(8)).build().unwrap();
                        if asks_once_per_pixel(&image) {
                            continue; // By chance: taken for an encoder.
                        }
                        let other = owned.with(image);
                        assert_eq!(owned.model(), other.model(), "{}", other.problem);
                        let needed = other.kernels(&device, &tuning);
                        for kernel in &needed {
                            assert!(known(kernel), "{}: {}", other.problem, kernel.1.name());
                        }
                        asked += needed.len();
                    }
                }
            }
        }
        assert!(asked > 20_000, "{asked}");
    }

    #[test]
    fn a_model_is_the_same_in_every_size_and_no_other_one() {
        let device = DeviceProps::h200();
        let of = |builder: ProblemBuilder| {
            let problem = builder.build().unwrap();
            OwnedCall::new(&Call::new(&problem, &device), None).model().unwrap()
        };
        let decoder = Problem::builder().levels([(9, 12), (4, 6)]).points(4).queries(300);
        assert_eq!(of(decoder.clone()), of(decoder.clone().batch(7).queries(18)));
        assert_eq!(of(decoder.clone()), of(decoder.clone().levels([(90, 80), (45, 40)])));
        assert_ne!(of(decoder.clone()), of(decoder.clone().heads(3)));
        assert_ne!(of(decoder.clone()), of(decoder.clone().dtype(DType::F16)));
        let encoder = |height, width| {
            let levels = [(2 * height, 2 * width), (height, width)];
            decoder.clone().levels(levels).queries((5 * height * width) as usize)
        };
        assert_eq!(of(encoder(8, 12)), of(encoder(16, 20)));
    }
}
