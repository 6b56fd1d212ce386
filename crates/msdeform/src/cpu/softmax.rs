//! The softmax of a row of logits.

use super::geometry::CHUNK;
use super::simd::Simd;

/// Turns logits into weights that sum to one, chunk by chunk: rows that end within one are padded with `-inf`. A row that
/// is all `-inf` becomes zeros, one with a NaN or `+inf` NaN.
#[inline(always)]
pub(crate) fn softmax<S: Simd>(row: &mut [[f32; CHUNK]]) {
    // Lane by lane, as vectors do it: the compiler may not reorder a plain sum.
    let mut lanes = [f32::NEG_INFINITY; CHUNK];
    for chunk in row.iter() {
        for (largest, &logit) in lanes.iter_mut().zip(chunk) {
            // A NaN is passed over here and comes back in the sum.
            *largest = if logit > *largest { logit } else { *largest };
        }
    }
    let largest = lanes.into_iter().fold(f32::NEG_INFINITY, |a, b| if b > a { b } else { a });
    if largest == f32::NEG_INFINITY {
        let is_nan = row.iter().flatten().any(|logit| logit.is_nan());
        row.fill([if is_nan { f32::NAN } else { 0.0 }; CHUNK]);
        return;
    }
    let mut sums = [0.0; CHUNK];
    for chunk in row.iter_mut() {
        for (sum, logit) in sums.iter_mut().zip(chunk) {
            *logit = exp::<S>(*logit - largest);
            *sum += *logit;
        }
    }
    let scale = 1.0 / sums.into_iter().sum::<f32>();
    for chunk in row.iter_mut() {
        for weight in chunk {
            *weight *= scale;
        }
    }
}

/// `e^x` for `x` up to 0 or NaN, to a few units of the last place; 0 below the normal numbers. Without branches or calls, so
/// that the compiler turns loops over it into vectors.
#[inline(always)]
fn exp<S: Simd>(x: f32) -> f32 {
    const LOWEST: f32 = -87.0;
    // Adding it rounds to an integer, which stands in the lowest bits of the sum.
    const ROUND: f32 = 12_582_912.0;
    // ln 2 in two parts, the first short enough for exact products.
    const LN2: (f32, f32) = (0.693_359_4, -2.121_944_4e-4);
    let fused = |a: f32, b: f32, c: f32| if S::FUSED { a.mul_add(b, c) } else { a * b + c };
    let clamped = if x < LOWEST { LOWEST } else { x };
    let shifted = fused(clamped, std::f32::consts::LOG2_E, ROUND);
    let power = shifted - ROUND;
    let rest = fused(power, -LN2.1, fused(power, -LN2.0, clamped));
    // Taylor up to the seventh power: |rest| <= ln 2 / 2, so that what is left out is below 1e-8.
    let mut sum = 1.0 / 5040.0;
    for coefficient in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        sum = fused(sum, rest, coefficient);
    }
    let two_to_the_power = f32::from_bits((shifted.to_bits() << 23).wrapping_add(0x3F80_0000));
    if x < LOWEST { 0.0 } else { sum * two_to_the_power }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::simd::scalar::Scalar;

    #[test]
    fn exp_is_exact_to_a_few_units_over_its_whole_range() {
        let mut x = 0.0f32;
        let mut worst = 0.0f64;
        while x > -87.0 {
            let expected = f64::from(x).exp();
            worst = worst.max((f64::from(exp::<Scalar>(x)) - expected).abs() / expected);
            x -= if cfg!(miri) { 0.73 } else { 0.000_37 + x.abs() * 1e-4 };
        }
        assert!(worst < 3e-7, "{worst}");
        assert_eq!(exp::<Scalar>(0.0), 1.0);
        assert_eq!(exp::<Scalar>(-88.0), 0.0);
        assert_eq!(exp::<Scalar>(f32::NEG_INFINITY), 0.0);
        assert!(exp::<Scalar>(f32::NAN).is_nan());
    }

    #[test]
    fn rows_sum_to_one_or_are_all_zero_or_all_nan() {
        let softmax = |row: Vec<f32>| {
            let mut chunks = vec![[f32::NEG_INFINITY; CHUNK]; row.len().div_ceil(CHUNK)];
            chunks.as_flattened_mut()[..row.len()].copy_from_slice(&row);
            softmax::<Scalar>(&mut chunks);
            chunks.as_flattened()[..row.len()].to_vec()
        };
        let row = softmax((0..19).map(|i| (i as f32 * 0.7).sin() * 30.0).collect());
        assert!((row.iter().sum::<f32>() - 1.0).abs() < 1e-6);
        let none = f32::NEG_INFINITY;
        assert_eq!(softmax(vec![none; 3]), [0.0; 3]);
        assert_eq!(softmax(vec![none, 3e38, none]), [0.0, 1.0, 0.0]);
        for bad in [vec![none, f32::NAN], vec![0.0, f32::NAN], vec![0.0, f32::INFINITY]] {
            assert!(softmax(bad.clone()).iter().all(|weight| weight.is_nan()), "{bad:?}");
        }
        assert_eq!(softmax(Vec::new()), [0.0; 0]);
    }
}
