//! What the tests share: the operator in candle's own operations, inputs, and how results are compared.

#![allow(dead_code, unused_macros, reason = "every test binary uses a part of it")]

mod composed;
pub mod suite;

use candle_core::{DType, Device, Result, Tensor};
#[allow(unused_imports, reason = "as above")]
pub use composed::composed;

/// Numbers between -1 and 1 from a seed, the same everywhere.
fn numbers(seed: u64, count: usize) -> Vec<f64> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..count)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 11) as f64 / (1u64 << 52) as f64 - 1.0
        })
        .collect()
}

/// A tensor of such numbers, scaled and moved.
pub fn random(seed: u64, shape: &[usize], scale: f64, at: f64, dtype: DType) -> Result<Tensor> {
    let numbers = numbers(seed, shape.iter().product());
    let numbers: Vec<f64> = numbers.into_iter().map(|x| x * scale + at).collect();
    Tensor::from_vec(numbers, shape, &Device::Cpu)?.to_dtype(dtype)
}

/// Every element, exactly.
pub fn elements(tensor: &Tensor) -> Vec<f64> {
    tensor.to_dtype(DType::F64).unwrap().flatten_all().unwrap().to_vec1().unwrap()
}

/// The relative L2 error; infinite where anything is no number.
fn error(found: &[f64], expected: &[f64]) -> f64 {
    assert_eq!(found.len(), expected.len());
    let norm = |numbers: &mut dyn Iterator<Item = f64>| numbers.map(|x| x * x).sum::<f64>().sqrt();
    let difference = norm(&mut found.iter().zip(expected).map(|(a, b)| a - b));
    let relative = difference / norm(&mut expected.iter().copied()).max(f64::MIN_POSITIVE);
    if relative.is_nan() { f64::INFINITY } else { relative }
}

/// Fails where the error is above a bound, or where nothing was computed.
#[track_caller]
pub fn assert_close(what: &str, found: &[f64], expected: &[f64], bound: f64) {
    assert!(expected.iter().any(|&x| x != 0.0), "{what}: nothing to compare with");
    let error = error(found, expected);
    assert!(error <= bound, "{what}: error {error:.2e}, at most {bound:.0e}");
}
