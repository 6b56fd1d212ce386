//! The inputs of a [`Case`], drawn in sequence from its seed.
//!
//! A line that a random run printed must make the same numbers for ever, like the seed of a workload. So both ways to draw
//! stay: workloads by position, in parallel, and cases one number after the other.

use msdeform::{Offsets, Role};

use super::{HostTensors, Pixel, offset_unit, pixels};
use crate::case::{Case, Samples, Values, Weights, place_in};
use crate::{Buffer, Random};

/// Draws what a case reads.
pub(crate) fn draw(case: &Case) -> HostTensors {
    let mut random = Random::new(case.seed);
    let problem = &case.problem;
    let stored = |role: Role, numbers: &[f64]| {
        (role, Buffer::from_numbers(problem.format_of(role), numbers))
    };
    let mut tensors = vec![stored(Role::Value, &values(case, &mut random))];
    let (locations, weights) = samples(case, &mut random);
    match problem.offsets() {
        None => {
            tensors.push(stored(Role::Locations, &locations));
            tensors.push(stored(Role::Weights, &weights));
        }
        Some(rule) => {
            let references = stored(Role::References, &references(case, &mut random));
            let offsets = offsets(case, rule, &locations, &references.1.to_f64());
            tensors.extend([references, stored(Role::Offsets, &offsets)]);
            tensors.push(stored(Role::Logits, &logits(case, rule, &weights)));
        }
    }
    if case.wants.is_some() {
        tensors.push(stored(Role::GradOutput, &upstream(case, &mut random)));
    }
    tensors.into_iter().collect()
}

/// Pixels that no level owns are NaN, borders are zero.
fn values(case: &Case, random: &mut Random) -> Vec<f64> {
    let (problem, kind) = (&case.problem, case.numbers.values);
    let pixels = pixels(problem);
    let owned = pixels.iter().filter(|pixel| matches!(pixel, Pixel::Owned(_))).count();
    let rows = problem.batch() * problem.heads() * owned;
    let nan_row = (kind == Values::OneNan && rows > 0).then(|| random.below(rows));
    let mut numbers = vec![f64::NAN; problem.value_len()];
    let image = problem.value_len() / problem.batch().max(1);
    let mut row = 0;
    for n in 0..problem.batch() {
        // Images that are the same memory hold the same numbers.
        if n > 0 && case.value_memory.one_image {
            numbers.copy_within(0..image, n * image);
            continue;
        }
        for m in 0..problem.heads() {
            for (at, pixel) in pixels.iter().enumerate() {
                let first = problem.head_offset(n, m) + at * problem.pixel_stride();
                let numbers = &mut numbers[first..first + problem.channels()];
                match pixel {
                    Pixel::Unowned => {}
                    Pixel::Border => numbers.fill(0.0),
                    Pixel::Owned(_) => {
                        if nan_row != Some(row) {
                            numbers.fill_with(|| kind.draw(random));
                        }
                        row += 1;
                    }
                }
            }
        }
    }
    numbers
}

fn samples(case: &Case, random: &mut Random) -> (Vec<f64>, Vec<f64>) {
    let problem = &case.problem;
    let kind = case.numbers.samples;
    let mut locations = Vec::with_capacity(problem.locations_len());
    let mut all_weights = Vec::with_capacity(problem.weights_len());
    for _ in 0..problem.batch() * problem.queries() {
        let near = (random.between(0.0, 1.0), random.between(0.0, 1.0));
        for _ in 0..problem.heads() {
            let mut weights = case.numbers.weights.draw(problem.samples(), random);
            for (l, level) in problem.levels().iter().enumerate() {
                for s in problem.level_samples(l) {
                    let x = kind.draw(level.width, near.0, random);
                    let y = kind.draw(level.height, near.1, random);
                    locations.extend([x, y]);
                    // It contributes nothing, for any weight.
                    if kind == Samples::NonFinite && !(x.is_finite() && y.is_finite()) {
                        weights[s] = f64::NAN;
                    }
                }
            }
            all_weights.extend(weights);
        }
    }
    (locations, all_weights)
}

fn references(case: &Case, random: &mut Random) -> Vec<f64> {
    let (batch, len) = (case.problem.batch(), case.problem.references_len());
    let is_shared = case.source_strides(Role::References)[0] == 0;
    let drawn = if is_shared { len / batch.max(1) } else { len };
    let drawn: Vec<f64> = (0..drawn).map(|_| random.between(0.15, 0.85)).collect();
    (0..len).map(|index| drawn[index % drawn.len()]).collect()
}

/// The offsets that lead from references to locations.
fn offsets(case: &Case, rule: &Offsets, locations: &[f64], references: &[f64]) -> Vec<f64> {
    let problem = &case.problem;
    let [_, _, per_query, components] = problem.references_shape();
    let mut offsets = vec![0.0; problem.locations_len()];
    for row in 0..problem.batch() * problem.queries() * problem.heads() {
        for (l, level) in problem.levels().iter().enumerate() {
            for (point, sample) in problem.level_samples(l).enumerate() {
                let first = row / problem.heads() * per_query + rule.reference(l, point);
                let reference = &references[first * components..][..components];
                let index = 2 * (row * problem.samples() + sample);
                for (axis, size) in [level.width, level.height].into_iter().enumerate() {
                    let side = reference.get(2 + axis).copied().unwrap_or_default();
                    let unit = offset_unit(rule, size, side, problem.points()[l]);
                    offsets[index + axis] = (locations[index + axis] - reference[axis]) / unit;
                }
            }
        }
    }
    offsets
}

fn logits(case: &Case, rule: &Offsets, weights: &[f64]) -> Vec<f64> {
    let logit = |&weight: &f64| match case.numbers.weights {
        _ if !rule.has_softmax() => weight,
        // One NaN would make the whole row NaN, which is another case.
        _ if weight.is_nan() => 0.0,
        Weights::Signed => 8.0 * weight,
        _ => weight.abs().ln(),
    };
    weights.iter().map(logit).collect()
}

fn upstream(case: &Case, random: &mut Random) -> Vec<f64> {
    let (problem, kind) = (&case.problem, case.numbers.upstream);
    let rows = problem.batch() * problem.queries() * problem.heads();
    let nan_row = (kind == Values::OneNan && rows > 0).then(|| random.below(rows));
    // Elements that are the same memory hold the same number.
    let mut drawn: Vec<Option<f64>> = vec![None; case.upstream_strides().extent(problem)];
    let axes = case.axes(Role::GradOutput);
    let number = |index: usize| {
        let is_nan = nan_row == Some(index / problem.channels());
        *drawn[place_in(&axes, index)]
            .get_or_insert_with(|| if is_nan { f64::NAN } else { kind.draw(random) })
    };
    (0..problem.output_len()).map(number).collect()
}

#[cfg(test)]
mod tests {
    use msdeform::Problem;

    use super::*;

    /// Lines that random runs printed would stand for other numbers if these bytes changed.
    #[test]
    fn the_bytes_of_a_line_stay_the_same() {
        let lines = [
            "batch=2 heads=2 channels=5 queries=3 levels=3x4@2,2x2@15 spatial=20 points=3,2 dtype=f16 sampling=f32 gradients=value+weights mode=fast upstream_memory=sliced locations=mixed values=one_nan weights=peaked upstream=large seed=7",
            "batch=3 heads=2 channels=8 queries=4 levels=5x4@0 spatial=42 points=4 dtype=bf16 layout=head_major_padded value_memory=1,1,3,1 locations=non_finite values=small weights=signed seed=8",
            "batch=2 heads=3 channels=4 queries=5 levels=4x4@0,2x2@16 spatial=20 points=2,2 dtype=f32 from=boxes,anchors:2 references=f32 gradients=value+locations+references mode=fast source_memory=shared_references locations=local values=unit weights=softmax upstream=one_nan seed=9",
        ];
        let digest = |line: &&str| {
            let case: Case = line.parse().unwrap();
            let mut hasher = blake3::Hasher::new();
            for (_, buffer) in case.inputs().iter() {
                hasher.update(buffer.bytes());
            }
            hasher.finalize().to_hex()[..16].to_owned()
        };
        let digests: Vec<String> = lines.iter().map(digest).collect();
        insta::assert_snapshot!(digests.join("\n"));
    }

    #[test]
    fn images_that_are_the_same_memory_hold_the_same_numbers() {
        let builder = Problem::builder().batch(2).queries(1).channels(2).levels([(2, 3)]).points(1);
        let mut case = Case::plain(builder.build().unwrap(), None);
        case.value_memory.one_image = true;
        let value = draw(&case)[Role::Value].to_f64();
        assert_eq!(value[..12], value[12..]);
    }
}
