//! The tensors of a case: as stored, with poison around and between what belongs to them.

use half::{bf16, f16};
use msdeform::{DType, Offsets, Problem, ReferenceKind, Role, reference};
use msdeform_cuda::{OutputStrides, ValueStrides};

use crate::Random;
use crate::case::{Case, Wants};
use crate::numbers::{Locations, Values, Weights};

/// Everything a call reads, exactly as the reference sees it and as it lies in memory.
#[derive(Clone, Debug, Default)]
pub struct Inputs {
    /// The values, `[N, S, M, D]` or head-major.
    pub value: Input,
    /// The locations.
    pub locations: Input,
    /// The weights.
    pub weights: Input,
    /// The gradient of the output; empty in a forward call.
    pub upstream: Input,
    /// What locations and weights follow from, in calls from offsets; those are then what follows.
    pub source: Option<SourceInputs>,
}

/// What locations and weights follow from.
#[derive(Clone, Debug, Default)]
pub struct SourceInputs {
    /// The references.
    pub references: Input,
    /// The offsets.
    pub offsets: Input,
    /// The logits.
    pub logits: Input,
}

/// A tensor that is read.
#[derive(Clone, Debug, Default)]
pub struct Input {
    /// The stored numbers, packed, in the order that the reference reads them.
    pub numbers: Vec<f64>,
    /// The bytes from its first element to its last; what belongs to nobody is poison.
    pub bytes: Vec<u8>,
}

/// A byte of which every float format makes NaN.
pub const POISON: u8 = 0xFF;

impl Inputs {
    /// Draws the numbers of a case.
    #[must_use]
    pub fn new(case: &Case) -> Self {
        let mut random = Random::new(case.seed);
        let problem = &case.problem;
        let value = values(problem, case.value_strides(), case.numbers.values, &mut random);
        let (mut locations, mut weights) = samples(case, &mut random);
        let source = problem.offsets().map(|rule| {
            let source = source(case, rule, &locations, &weights, &mut random);
            let numbers = |input: &Input| input.numbers.clone();
            let (references, offsets, logits) =
                (numbers(&source.references), numbers(&source.offsets), numbers(&source.logits));
            let found = reference::samples(problem, &references, &offsets, &logits);
            (locations, weights) = (found.locations, found.weights);
            source
        });
        let upstream = match case.wants {
            Wants::Output => Input::default(),
            Wants::Gradients(_) => {
                upstream(problem, case.upstream_strides(), case.numbers.upstream, &mut random)
            }
        };
        // What follows from offsets is stored nowhere.
        let stored = if source.is_some() { DType::F64 } else { problem.sampling_dtype() };
        let (locations, weights) = (packed(&locations, stored), packed(&weights, stored));
        Self { value, locations, weights, upstream, source }
    }

    /// The same with NaN in the borders of levels: for who must not read them.
    #[must_use]
    pub fn with_poisoned_borders(&self, case: &Case) -> Self {
        let mut inputs = self.clone();
        let (problem, strides) = (&case.problem, case.value_strides());
        let size = problem.dtype().size_bytes();
        let pixels = pixels(problem);
        let borders = pixels.iter().enumerate().filter(|(_, pixel)| **pixel == Pixel::Border);
        for (pixel, _) in borders {
            for n in 0..problem.batch() as i64 {
                for m in 0..problem.heads() as i64 {
                    let first = n * strides.batch + m * strides.head + pixel as i64 * strides.pixel;
                    let bytes = &mut inputs.value.bytes[first as usize * size..];
                    bytes[..problem.channels() * size].fill(POISON);
                }
            }
        }
        inputs
    }

    /// The tensor of this role, if it is read.
    #[must_use]
    pub fn of(&self, role: Role) -> Option<&Input> {
        let source = self.source.as_ref();
        match role {
            Role::References => source.map(|source| &source.references),
            Role::Offsets => source.map(|source| &source.offsets),
            Role::Logits => source.map(|source| &source.logits),
            Role::Value => Some(&self.value),
            Role::Locations => Some(&self.locations),
            Role::Weights => Some(&self.weights),
            Role::GradOutput => Some(&self.upstream),
            _ => None,
        }
    }
}

fn packed(numbers: &[f64], dtype: DType) -> Input {
    let size = dtype.size_bytes();
    let mut input = Input::default();
    for &number in numbers {
        let (stored, bytes) = store(number, dtype);
        input.numbers.push(stored);
        input.bytes.extend_from_slice(&bytes[..size]);
    }
    input
}

/// Pixels that no level owns are NaN, borders are zero.
fn values(problem: &Problem, strides: ValueStrides, kind: Values, random: &mut Random) -> Input {
    let pixels = pixels(problem);
    let owned = pixels.iter().filter(|pixel| **pixel == Pixel::Owned).count();
    let rows = problem.batch() * problem.heads() * owned;
    let nan_row = (kind == Values::OneNan && rows > 0).then(|| random.below(rows));
    let size = problem.dtype().size_bytes();
    let mut input = Input {
        numbers: vec![f64::NAN; problem.value_len()],
        bytes: vec![POISON; strides.extent(problem) * size],
    };
    let mut row = 0;
    for n in 0..problem.batch() {
        for m in 0..problem.heads() {
            for (pixel, kind_of_pixel) in pixels.iter().enumerate() {
                if *kind_of_pixel == Pixel::Nobodys {
                    continue;
                }
                let is_owned = *kind_of_pixel == Pixel::Owned;
                let is_nan = is_owned && nan_row == Some(row);
                row += usize::from(is_owned);
                let first = problem.head_offset(n, m) + pixel * problem.pixel_stride();
                let at = n as i64 * strides.batch
                    + m as i64 * strides.head
                    + pixel as i64 * strides.pixel;
                for c in 0..problem.channels() {
                    let at = (at as usize + c) * size;
                    let shared = &input.bytes[at..at + size];
                    // Images that are the same memory hold the same numbers.
                    let is_written = strides.batch == 0 && n > 0;
                    let number = match (is_written, is_nan, is_owned) {
                        (true, ..) => load(shared, problem.dtype()),
                        (_, true, _) => f64::NAN,
                        (_, _, true) => kind.draw(random),
                        _ => 0.0,
                    };
                    let (stored, bytes) = store(number, problem.dtype());
                    input.numbers[first + c] = stored;
                    input.bytes[at..at + size].copy_from_slice(&bytes[..size]);
                }
            }
        }
    }
    input
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Pixel {
    Owned,
    Border,
    Nobodys,
}

fn pixels(problem: &Problem) -> Vec<Pixel> {
    let layout = problem.layout();
    let mut pixels = vec![Pixel::Nobodys; problem.spatial()];
    for level in problem.levels() {
        pixels[level.start..][..level.footprint(layout)].fill(Pixel::Border);
        for line in 0..level.height {
            let first = level.origin(layout) + line * level.row_pitch(layout);
            pixels[first..][..level.width].fill(Pixel::Owned);
        }
    }
    pixels
}

fn samples(case: &Case, random: &mut Random) -> (Vec<f64>, Vec<f64>) {
    let problem = &case.problem;
    let kind = case.numbers.locations;
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
                    // It contributes nothing, whatever its weight.
                    if kind == Locations::NonFinite && !(x.is_finite() && y.is_finite()) {
                        weights[s] = f64::NAN;
                    }
                }
            }
            all_weights.extend(weights);
        }
    }
    (locations, all_weights)
}

/// Random references, and the offsets and logits that lead from there to samples, as far as their format goes.
fn source(
    case: &Case,
    rule: &Offsets,
    locations: &[f64],
    weights: &[f64],
    random: &mut Random,
) -> SourceInputs {
    let problem = &case.problem;
    let [_, _, per_query, components] = problem.references_shape();
    let images = if case.source_strides(Role::References)[0] == 0 { 1 } else { problem.batch() };
    let numbers = problem.queries() * per_query * components;
    let drawn: Vec<f64> = (0..images * numbers).map(|_| random.between(0.15, 0.85)).collect();
    let whole: Vec<f64> = (0..problem.batch() * numbers).map(|i| drawn[i % drawn.len()]).collect();
    let references = strided(case, Role::References, &whole);
    let mut offsets = vec![0.0; problem.locations_len()];
    for row in 0..problem.batch() * problem.queries() * problem.heads() {
        for (l, level) in problem.levels().iter().enumerate() {
            for (point, sample) in problem.level_samples(l).enumerate() {
                let first = row / problem.heads() * per_query + rule.reference(l, point);
                let reference = &references.numbers[first * components..][..components];
                let index = 2 * (row * problem.samples() + sample);
                for (axis, size) in [level.width, level.height].into_iter().enumerate() {
                    let distance = locations[index + axis] - reference[axis];
                    let unit = match rule.kind() {
                        ReferenceKind::Point => 1.0 / size as f64,
                        ReferenceKind::Box => {
                            let scale = f64::from(rule.scale()) / problem.points()[l] as f64;
                            reference[2 + axis] * scale
                        }
                    };
                    offsets[index + axis] = distance / unit;
                }
            }
        }
    }
    // One NaN would be the whole row's: those that samples without a place have are another matter there.
    let logit = |&weight: &f64| match case.numbers.weights {
        _ if !rule.has_softmax() => weight,
        _ if weight.is_nan() => 0.0,
        Weights::Signed => 8.0 * weight,
        _ => weight.abs().ln(),
    };
    let logits: Vec<f64> = weights.iter().map(logit).collect();
    let (offsets, logits) =
        (strided(case, Role::Offsets, &offsets), strided(case, Role::Logits, &logits));
    SourceInputs { references, offsets, logits }
}

/// A tensor of references, offsets or logits as it lies in memory.
fn strided(case: &Case, role: Role, numbers: &[f64]) -> Input {
    let (problem, dtype) = (&case.problem, case.problem.format_of(role));
    let size = dtype.size_bytes();
    let [image, query] = case.source_strides(role);
    let rows = problem.batch() * problem.queries();
    let row = numbers.len() / rows.max(1);
    let at = |index: usize| index / problem.queries() * image + index % problem.queries() * query;
    let extent = (0..rows).map(|index| at(index) + row).max().unwrap_or(0);
    let mut input = Input { numbers: Vec::new(), bytes: vec![POISON; extent * size] };
    for index in 0..rows {
        for c in 0..row {
            let (stored, bytes) = store(numbers[index * row + c], dtype);
            input.numbers.push(stored);
            input.bytes[(at(index) + c) * size..][..size].copy_from_slice(&bytes[..size]);
        }
    }
    input
}

fn upstream(problem: &Problem, strides: OutputStrides, kind: Values, random: &mut Random) -> Input {
    let dtype = problem.format_of(Role::GradOutput);
    let size = dtype.size_bytes();
    let rows = problem.batch() * problem.queries() * problem.heads();
    let nan_row = (kind == Values::OneNan && rows > 0).then(|| random.below(rows));
    let extent = strides.extent(problem);
    let mut drawn: Vec<Option<f64>> = vec![None; extent];
    let mut input = Input { numbers: Vec::new(), bytes: vec![POISON; extent * size] };
    for row in 0..rows {
        let (n, q, m) = (
            row / problem.heads() / problem.queries(),
            row / problem.heads() % problem.queries(),
            row % problem.heads(),
        );
        for c in 0..problem.channels() {
            let at = n as i64 * strides.batch
                + q as i64 * strides.query
                + m as i64 * strides.head
                + c as i64 * strides.channel;
            let at = at as usize;
            let number = *drawn[at].get_or_insert_with(|| {
                let number = if nan_row == Some(row) { f64::NAN } else { kind.draw(random) };
                let (stored, bytes) = store(number, dtype);
                input.bytes[at * size..][..size].copy_from_slice(&bytes[..size]);
                stored
            });
            input.numbers.push(number);
        }
    }
    input
}

/// The number that a format holds, and its bytes, of which there are `size_bytes`.
fn store(number: f64, dtype: DType) -> (f64, [u8; 8]) {
    let mut bytes = [0; 8];
    match dtype {
        DType::F16 => bytes[..2].copy_from_slice(&f16::from_f64(number).to_le_bytes()),
        DType::Bf16 => bytes[..2].copy_from_slice(&bf16::from_f64(number).to_le_bytes()),
        DType::F32 => bytes[..4].copy_from_slice(&(number as f32).to_le_bytes()),
        DType::F64 => bytes = number.to_le_bytes(),
    }
    (load(&bytes, dtype), bytes)
}

fn load(bytes: &[u8], dtype: DType) -> f64 {
    let mut whole = [0; 8];
    let size = dtype.size_bytes();
    whole[..size].copy_from_slice(&bytes[..size]);
    let [a, b, c, d, ..] = whole;
    match dtype {
        DType::F16 => f16::from_le_bytes([a, b]).to_f64(),
        DType::Bf16 => bf16::from_le_bytes([a, b]).to_f64(),
        DType::F32 => f64::from(f32::from_le_bytes([a, b, c, d])),
        DType::F64 => f64::from_le_bytes(whole),
    }
}

/// The numbers in the bytes of a tensor.
pub(crate) fn load_all(bytes: &[u8], dtype: DType) -> Vec<f64> {
    bytes.chunks_exact(dtype.size_bytes()).map(|bytes| load(bytes, dtype)).collect()
}
