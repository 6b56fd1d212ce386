//! The operators in plain `f64`: the oracle that everything else is compared with.
//!
//! The code follows the definition, one sample at a time, and shares nothing with the fast paths: it takes the sizes from the
//! [`Problem`] and does its own index arithmetic.
//!
//! Definition, for image `n`, query `q`, head `m`, level `l` of `H x W` pixels and point `p`:
//!
//! ```text
//! x = location.x * W - 0.5          y = location.y * H - 0.5
//! the sample counts iff -1 < x < W and -1 < y < H (a NaN or infinite location never does)
//! output[n, q, m, :] += weight * (bilinear interpolation of value at (x, y), zero outside)
//! ```
//!
//! # Gradients on cell borders
//! The interpolation is only piecewise smooth in the location. At an integer coordinate the
//! derivative of the cell to the right and below is used (the cell is `floor(x)`), and a sample that
//! does not count has zero gradients, its attention weight's included.
//!
//! # Nearest pixels
//! Where a rule for [`Offsets`] says so, a sample is the pixel at `trunc(location * size + 0.5)`, the last one of its row
//! or column beyond the border, and every sample counts whose location is a number. The location has no gradient.

mod fused;

pub use fused::Samples;

use crate::{Direction, Offsets, Problem, Role, ValueLayout};

/// The three gradients of a backward pass of the plain operator.
struct Gradients {
    /// In the layout of the value tensor; zero in borders and gaps.
    value: Vec<f64>,
    locations: Vec<f64>,
    weights: Vec<f64>,
}

/// Every tensor that a call writes, of the problem's operator. `tensor` gives what the call reads.
///
/// # Panics
/// If a slice is shorter than the problem says; [`CpuPlan`](crate::CpuPlan) checks that and never panics.
pub fn compute<'a>(
    problem: &Problem,
    direction: Direction,
    tensor: impl Fn(Role) -> &'a [f64],
) -> Vec<(Role, Vec<f64>)> {
    let value = tensor(Role::Value);
    let Samples { locations, weights } = samples_of(problem, &tensor);
    if direction == Direction::Forward {
        return vec![(Role::Output, forward(problem, value, &locations, &weights))];
    }
    let grads = backward(problem, value, &locations, &weights, tensor(Role::GradOutput));
    if problem.offsets().is_some() {
        return fused::gradients(problem, grads, &weights, tensor);
    }
    vec![
        (Role::GradValue, grads.value),
        (Role::GradLocations, grads.locations),
        (Role::GradWeights, grads.weights),
    ]
}

/// The samples of a call: as `tensor` gives them, or computed from offsets and logits.
///
/// # Panics
/// As [`compute`].
pub fn samples_of<'a>(problem: &Problem, tensor: impl Fn(Role) -> &'a [f64]) -> Samples {
    if problem.offsets().is_some() {
        return fused::samples(problem, tensor);
    }
    Samples { locations: tensor(Role::Locations).to_vec(), weights: tensor(Role::Weights).to_vec() }
}

/// The output of the plain operator, `[N, Lq, M * D]`.
///
/// # Panics
/// As [`compute`].
pub fn forward(problem: &Problem, value: &[f64], locations: &[f64], weights: &[f64]) -> Vec<f64> {
    let channels = problem.channels();
    let mut output = vec![0.0; problem.output_len()];
    for_each_sample(problem, locations, |sample| {
        let weight = weights[sample.index];
        let row = &mut output[sample.row * channels..][..channels];
        for corner in sample.corners.iter().flatten() {
            for (c, sum) in row.iter_mut().enumerate() {
                *sum += weight * corner.share * value[corner.offset + c];
            }
        }
    });
    output
}

/// The gradients of `sum(output * grad_output)` with respect to value, locations and weights.
fn backward(
    problem: &Problem,
    value: &[f64],
    locations: &[f64],
    weights: &[f64],
    grad_output: &[f64],
) -> Gradients {
    let channels = problem.channels();
    let mut grads = Gradients {
        value: vec![0.0; problem.value_len()],
        locations: vec![0.0; problem.locations_len()],
        weights: vec![0.0; problem.weights_len()],
    };
    for_each_sample(problem, locations, |sample| {
        let weight = weights[sample.index];
        let row = &grad_output[sample.row * channels..][..channels];
        for corner in sample.corners.iter().flatten() {
            let mut dot = 0.0;
            for (c, upstream) in row.iter().enumerate() {
                dot += upstream * value[corner.offset + c];
                grads.value[corner.offset + c] += weight * corner.share * upstream;
            }
            grads.weights[sample.index] += corner.share * dot;
            // location -> pixel scales by the level's size.
            grads.locations[2 * sample.index] += weight * dot * corner.share_dx * sample.width;
            grads.locations[2 * sample.index + 1] += weight * dot * corner.share_dy * sample.height;
        }
    });
    grads
}

/// One of the four pixels around a sample.
struct Corner {
    /// Offset of its first channel in the value tensor.
    offset: usize,
    /// Its bilinear weight, and that weight's derivatives by the pixel coordinates.
    share: f64,
    share_dx: f64,
    share_dy: f64,
}

/// A sample that counts.
struct Sample {
    /// Position in the weights; its location is at twice that.
    index: usize,
    /// Row of `D` channels of the output: `(n * Lq + q) * M + m`.
    row: usize,
    height: f64,
    width: f64,
    /// `None` for corners outside of the level.
    corners: [Option<Corner>; 4],
}

fn for_each_sample(problem: &Problem, locations: &[f64], mut visit: impl FnMut(&Sample)) {
    // A problem may have any number of images and heads without samples. Counting them could take days.
    if problem.weights_len() == 0 {
        return;
    }
    let (heads, samples) = (problem.heads(), problem.samples());
    for n in 0..problem.batch() {
        for q in 0..problem.queries() {
            for m in 0..heads {
                let row = (n * problem.queries() + q) * heads + m;
                for l in 0..problem.levels().len() {
                    for s in problem.level_samples(l) {
                        let index = row * samples + s;
                        let location = (locations[2 * index], locations[2 * index + 1]);
                        if let Some(sample) = sample_at(problem, n, m, l, location, index, row) {
                            visit(&sample);
                        }
                    }
                }
            }
        }
    }
}

fn sample_at(
    problem: &Problem,
    n: usize,
    m: usize,
    l: usize,
    (location_x, location_y): (f64, f64),
    index: usize,
    row: usize,
) -> Option<Sample> {
    let level = problem.levels()[l];
    let (height, width) = (level.height as f64, level.width as f64);
    if problem.offsets().is_some_and(Offsets::is_nearest) {
        if location_x.is_nan() || location_y.is_nan() {
            return None;
        }
        let pixel = |location: f64, size: f64| {
            (location * size + 0.5).trunc().clamp(0.0, size - 1.0) as usize
        };
        let (line, column) = (pixel(location_y, height), pixel(location_x, width));
        let offset = pixel_offset(problem, n, m, l, line, column);
        let nearest = Corner { offset, share: 1.0, share_dx: 0.0, share_dy: 0.0 };
        let corners = [Some(nearest), None, None, None];
        return Some(Sample { index, row, height, width, corners });
    }
    let x = location_x * width - 0.5;
    let y = location_y * height - 0.5;
    // Written so that NaN fails.
    if !(x > -1.0 && x < width && y > -1.0 && y < height) {
        return None;
    }
    let (left, top) = (x.floor(), y.floor());
    let (fx, fy) = (x - left, y - top);
    let corner = |dx: f64, dy: f64| {
        let (column, line) = (left + dx, top + dy);
        let inside = column >= 0.0 && column < width && line >= 0.0 && line < height;
        let (share_x, slope_x) = if dx == 0.0 { (1.0 - fx, -1.0) } else { (fx, 1.0) };
        let (share_y, slope_y) = if dy == 0.0 { (1.0 - fy, -1.0) } else { (fy, 1.0) };
        inside.then(|| Corner {
            offset: pixel_offset(problem, n, m, l, line as usize, column as usize),
            share: share_x * share_y,
            share_dx: slope_x * share_y,
            share_dy: share_x * slope_y,
        })
    };
    let corners = [corner(0.0, 0.0), corner(1.0, 0.0), corner(0.0, 1.0), corner(1.0, 1.0)];
    Some(Sample { index, row, height, width, corners })
}

/// Offset of channel 0 of a pixel in the value tensor, spelled out for each layout.
fn pixel_offset(
    problem: &Problem,
    n: usize,
    m: usize,
    l: usize,
    line: usize,
    column: usize,
) -> usize {
    let level = problem.levels()[l];
    let (heads, channels, spatial) = (problem.heads(), problem.channels(), problem.spatial());
    let packed = level.start + line * level.width + column;
    let bordered = level.start + (line + 1) * (level.width + 2) + (column + 1);
    match problem.layout() {
        ValueLayout::Interleaved => ((n * spatial + packed) * heads + m) * channels,
        ValueLayout::HeadMajor => ((n * heads + m) * spatial + packed) * channels,
        ValueLayout::HeadMajorPadded => ((n * heads + m) * spatial + bordered) * channels,
    }
}
