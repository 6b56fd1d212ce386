//! Tensors for a scene: as stored, as bytes, and exactly as the reference sees them.

use half::{bf16, f16};
use msdeform::{DType, Problem, reference};
use msdeform_cuda::variants::Call;
use msdeform_cuda::{OutputStrides, ValueStrides};

use super::scenes::{Locations, Scene, Upstream};

/// Everything one launch reads, and what must come out.
pub struct Inputs {
    pub value: Vec<u8>,
    pub locations: Vec<u8>,
    pub weights: Vec<u8>,
    /// Only a backward call's.
    pub grad_output: Vec<u8>,
    /// What must come out, in the order that the call's outputs have.
    pub expected: Vec<Expected>,
}

/// One tensor that a call writes.
pub struct Expected {
    pub tensor: &'static str,
    pub dtype: DType,
    /// The reference's numbers for the inputs as stored.
    pub numbers: Vec<f64>,
    /// Which of them are compared; all if empty.
    pub compared: Vec<bool>,
}

/// The same numbers on every machine.
struct Random(u64);

impl Random {
    /// Uniform in [0, 1).
    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((z ^ z >> 31) >> 11) as f64 / (1u64 << 53) as f64
    }

    fn between(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * self.next()
    }
}

impl Inputs {
    pub fn new(scene: &Scene, call: &Call<'_>) -> Self {
        let problem = call.problem;
        let mut random = Random(scene.name.len() as u64 * 1000 + problem.samples() as u64);
        let (value, value_bytes) = values(problem, call.strides, &mut random);
        let (locations, weights) = samples(scene, problem, &mut random);
        let (locations, locations_bytes) = store_all(&locations, problem.sampling_dtype());
        let (weights, weights_bytes) = store_all(&weights, problem.sampling_dtype());
        let mut inputs = Self {
            value: value_bytes,
            locations: locations_bytes,
            weights: weights_bytes,
            grad_output: Vec::new(),
            expected: Vec::new(),
        };
        let (dtype, sampling) = (problem.dtype(), problem.sampling_dtype());
        let mut expect = |tensor, dtype, numbers, compared| {
            inputs.expected.push(Expected { tensor, dtype, numbers, compared });
        };
        let Some(backward) = call.backward else {
            let output = reference::forward(problem, &value, &locations, &weights);
            expect("output", dtype, output, Vec::new());
            return inputs;
        };
        let (upstream, upstream_bytes) =
            upstream(scene, problem, backward.grad_output, &mut random);
        let found = reference::backward(problem, &value, &locations, &weights, &upstream);
        if backward.gradients.value {
            expect("grad_value", dtype, found.value, Vec::new());
        }
        if backward.gradients.locations {
            let compared = same_cell(problem, &locations);
            expect("grad_locations", sampling, found.locations, compared);
        }
        if backward.gradients.weights {
            expect("grad_weights", sampling, found.weights, Vec::new());
        }
        inputs.grad_output = upstream_bytes;
        inputs
    }
}

/// Packed numbers for the reference and strided bytes for the kernel; what belongs to nobody is NaN.
fn upstream(
    scene: &Scene,
    problem: &Problem,
    strides: OutputStrides,
    random: &mut Random,
) -> (Vec<f64>, Vec<u8>) {
    let size = problem.dtype().size_bytes();
    let mut numbers: Vec<Option<f64>> = vec![None; strides.extent(problem)];
    let mut bytes = vec![0xFF; numbers.len() * size];
    let mut packed = Vec::with_capacity(problem.output_len());
    for n in 0..problem.batch() {
        for q in 0..problem.queries() {
            let is_nan = scene.upstream == Upstream::OneNan && q == 1;
            for m in 0..problem.heads() {
                for c in 0..problem.channels() {
                    let offset = n as i64 * strides.batch
                        + q as i64 * strides.query
                        + m as i64 * strides.head
                        + c as i64 * strides.channel;
                    let at = offset as usize;
                    packed.push(*numbers[at].get_or_insert_with(|| {
                        let number = if is_nan { f64::NAN } else { random.between(-1.0, 1.0) };
                        let (stored, storage) = store(number, problem.dtype());
                        bytes[at * size..][..size].copy_from_slice(&storage[..size]);
                        stored
                    }));
                }
            }
        }
    }
    (packed, bytes)
}

/// For each coordinate of a location, whether both coordinates of its sample fall into the same cell in
/// `f32` and in `f64`, so that the derivatives are of the same cell: they are exact, or away from
/// borders.
fn same_cell(problem: &Problem, locations: &[f64]) -> Vec<bool> {
    const DISTANCE: f64 = 0.01;
    let mut sizes = Vec::new();
    for (index, level) in problem.levels().iter().enumerate() {
        sizes.extend(
            problem.level_samples(index).map(|_| (level.width as f64, level.height as f64)),
        );
    }
    let agrees = |location: f64, size: f64| {
        let pixel = location * size - 0.5;
        let is_exact = f64::from(pixel as f32) == pixel;
        is_exact || !pixel.is_finite() || (pixel - pixel.round()).abs() > DISTANCE
    };
    let pairs = locations.chunks_exact(2).enumerate();
    pairs
        .flat_map(|(index, at)| {
            let (width, height) = sizes[index % sizes.len()];
            let both = agrees(at[0], width) && agrees(at[1], height);
            [both, both]
        })
        .collect()
}

/// Packed numbers for the reference and strided bytes for the kernel. What belongs to no pixel is NaN,
/// borders are zero.
fn values(problem: &Problem, strides: ValueStrides, random: &mut Random) -> (Vec<f64>, Vec<u8>) {
    let layout = problem.layout();
    let border = layout.border();
    let mut pixels = vec![Pixel::Nobodys; problem.spatial()];
    for level in problem.levels() {
        let pitch = level.row_pitch(layout);
        for at in 0..level.footprint(layout) {
            let (line, column) = (at / pitch, at % pitch);
            let inside = (border..border + level.height).contains(&line)
                && (border..border + level.width).contains(&column);
            pixels[level.start + at] = if inside { Pixel::Inside } else { Pixel::Border };
        }
    }
    let size = problem.dtype().size_bytes();
    let mut packed = vec![f64::NAN; problem.value_len()];
    let mut bytes = vec![0xFF; strides.extent(problem) * size];
    for n in 0..problem.batch() {
        for m in 0..problem.heads() {
            for (pixel, kind) in pixels.iter().enumerate() {
                for c in 0..problem.channels() {
                    let number = match kind {
                        Pixel::Nobodys => continue,
                        Pixel::Border => 0.0,
                        Pixel::Inside => random.between(-1.0, 1.0),
                    };
                    let (stored, storage) = store(number, problem.dtype());
                    packed[problem.head_offset(n, m) + pixel * problem.pixel_stride() + c] = stored;
                    let offset = n as i64 * strides.batch
                        + m as i64 * strides.head
                        + pixel as i64 * strides.pixel;
                    bytes[(offset as usize + c) * size..][..size].copy_from_slice(&storage[..size]);
                }
            }
        }
    }
    (packed, bytes)
}

#[derive(Clone, Copy)]
enum Pixel {
    Inside,
    Border,
    Nobodys,
}

fn samples(scene: &Scene, problem: &Problem, random: &mut Random) -> (Vec<f64>, Vec<f64>) {
    let mut locations = Vec::with_capacity(problem.locations_len());
    let mut weights = Vec::with_capacity(problem.weights_len());
    for row in 0..problem.batch() * problem.queries() * problem.heads() {
        for (l, level) in problem.levels().iter().enumerate() {
            for s in problem.level_samples(l) {
                let x = location(scene.locations, level.width as f64, row + s, random);
                let y = location(scene.locations, level.height as f64, row / 3 + 2 * s, random);
                locations.extend([x, y]);
                // A location that is not finite contributes nothing, whatever its weight.
                let counts_never = !(x.is_finite() && y.is_finite());
                weights.push(match (counts_never, scene.zero_weights) {
                    (true, _) => f64::NAN,
                    (false, true) => 0.0,
                    (false, false) => random.between(-0.2, 1.0),
                });
            }
        }
    }
    (locations, weights)
}

/// One coordinate; `turn` walks through the special ones.
fn location(kind: Locations, size: f64, turn: usize, random: &mut Random) -> f64 {
    match kind {
        Locations::Around => random.between(-1.2 / size, 1.0 + 1.2 / size),
        Locations::Outside => {
            let far = random.between(3.0, 50.0);
            if turn.is_multiple_of(2) { far } else { -far }
        }
        Locations::OnePlace => 0.3125,
        Locations::Special => {
            // The pixel coordinate is location * size - 0.5.
            let special = [
                0.5 / size,          // the first pixel's centre
                (size - 0.5) / size, // the last one's
                -0.5 / size,         // -1: just not counting
                (size + 0.5) / size, // size: just not counting
                0.0,                 // half a pixel before the first centre
                1.0,                 // half a pixel past the last one
                f64::NAN,
                f64::INFINITY,
                f64::NEG_INFINITY,
                1e30,
                -1e30,
                -0.499 / size,         // almost -1
                (size + 0.499) / size, // almost size
            ];
            match turn % (special.len() + 2) {
                index if index < special.len() => special[index],
                _ => random.next(),
            }
        }
    }
}

fn store_all(numbers: &[f64], dtype: DType) -> (Vec<f64>, Vec<u8>) {
    let size = dtype.size_bytes();
    let mut stored = Vec::with_capacity(numbers.len());
    let mut bytes = Vec::with_capacity(numbers.len() * size);
    for &number in numbers {
        let (number, storage) = store(number, dtype);
        stored.push(number);
        bytes.extend_from_slice(&storage[..size]);
    }
    (stored, bytes)
}

/// The number that the format holds, and its bytes, of which there are `size_bytes`.
fn store(number: f64, dtype: DType) -> (f64, [u8; 8]) {
    let mut storage = [0; 8];
    let stored = match dtype {
        DType::F16 => {
            let half = f16::from_f64(number);
            storage[..2].copy_from_slice(&half.to_le_bytes());
            half.to_f64()
        }
        DType::Bf16 => {
            let bfloat = bf16::from_f64(number);
            storage[..2].copy_from_slice(&bfloat.to_le_bytes());
            bfloat.to_f64()
        }
        DType::F32 => {
            let float = number as f32;
            storage[..4].copy_from_slice(&float.to_le_bytes());
            f64::from(float)
        }
        DType::F64 => {
            storage = number.to_le_bytes();
            number
        }
    };
    (stored, storage)
}

/// The numbers in the bytes of an output.
fn load_all(bytes: &[u8], dtype: DType) -> Vec<f64> {
    let chunks = bytes.chunks_exact(dtype.size_bytes());
    match dtype {
        DType::F16 => chunks.map(|b| f16::from_le_bytes([b[0], b[1]]).to_f64()).collect(),
        DType::Bf16 => chunks.map(|b| bf16::from_le_bytes([b[0], b[1]]).to_f64()).collect(),
        DType::F32 => {
            chunks.map(|b| f64::from(f32::from_le_bytes(b.try_into().unwrap()))).collect()
        }
        DType::F64 => chunks.map(|b| f64::from_le_bytes(b.try_into().unwrap())).collect(),
    }
}

impl Expected {
    /// Relative L2 error. NaN unless the tensor has a NaN exactly where the reference has one, and
    /// infinite where zero was expected and something else found.
    pub fn relative_l2(&self, bytes: &[u8]) -> f64 {
        let found = load_all(bytes, self.dtype);
        assert_eq!(found.len(), self.numbers.len());
        let (mut error, mut norm) = (0.0, 0.0);
        for (index, (f, e)) in found.iter().zip(&self.numbers).enumerate() {
            let is_compared = self.compared.get(index).is_none_or(|&compared| compared);
            if is_compared && !(f.is_nan() && e.is_nan()) {
                error += (f - e) * (f - e);
                norm += e * e;
            }
        }
        if error == 0.0 { 0.0 } else { (error / norm).sqrt() }
    }
}
