//! Random numbers by position instead of by sequence.
//!
//! The `i`-th number of a stream is a function of `(seed, stream, i)` alone, so tensors are filled in
//! parallel, in parts, or in another memory layout, and come out the same. The function is the
//! output mix of `SplitMix64` over a Weyl sequence: integer arithmetic, hence the same everywhere.

const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;

const fn mix(mut bits: u64) -> u64 {
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    bits ^ (bits >> 31)
}

/// One of the independent sequences of a seed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stream {
    key: u64,
}

impl Stream {
    /// The stream `id` of a seed; every tensor has its own id.
    pub(crate) const fn new(seed: u64, id: u64) -> Self {
        Self { key: mix(mix(seed.wrapping_add(GOLDEN)) ^ id.wrapping_mul(GOLDEN)) }
    }

    #[inline]
    pub(crate) const fn bits(self, index: u64) -> u64 {
        mix(self.key.wrapping_add(index.wrapping_mul(GOLDEN)))
    }

    /// Two numbers in `[0, 1)`, multiples of 2^-32.
    #[inline]
    pub(crate) fn uniform_pair(self, index: u64) -> (f64, f64) {
        const SCALE: f64 = 1.0 / 4_294_967_296.0;
        let bits = self.bits(index);
        ((bits >> 32) as f64 * SCALE, (bits & 0xFFFF_FFFF) as f64 * SCALE)
    }

    /// Two independent standard normal numbers (Box and Muller), at most 6.7 away from zero.
    #[inline]
    pub(crate) fn normal_pair(self, index: u64) -> (f64, f64) {
        let (u, turn) = self.uniform_pair(index);
        // 1 - u is in (0, 1], and exact.
        let radius = (-2.0 * super::math::ln(1.0 - u)).sqrt();
        let (sin, cos) = super::math::sin_cos_turn(turn);
        (radius * cos, radius * sin)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn normals_have_the_moments_and_the_tails_of_normals() {
        let stream = Stream::new(1, 2);
        let numbers: Vec<f64> =
            (0..200_000).flat_map(|i| <[f64; 2]>::from(stream.normal_pair(i))).collect();
        let count = numbers.len() as f64;
        let moment = |power: i32| numbers.iter().map(|x| x.powi(power)).sum::<f64>() / count;
        assert!(moment(1).abs() < 0.01, "mean {}", moment(1));
        assert!((moment(2) - 1.0).abs() < 0.01, "variance {}", moment(2));
        assert!(moment(3).abs() < 0.03, "skewness {}", moment(3));
        assert!((moment(4) - 3.0).abs() < 0.06, "kurtosis {}", moment(4));
        let beyond_two = numbers.iter().filter(|x| x.abs() > 2.0).count() as f64 / count;
        assert!((beyond_two - 0.0455).abs() < 0.002, "{beyond_two}");
    }

    #[test]
    fn neighbours_are_uncorrelated() {
        let stream = Stream::new(3, 4);
        let pairs: Vec<(f64, f64)> = (0..100_000).map(|i| stream.uniform_pair(i)).collect();
        let product = |lag: usize| {
            let sum: f64 =
                pairs.iter().zip(&pairs[lag..]).map(|(a, b)| (a.0 - 0.5) * (b.1 - 0.5)).sum();
            sum / pairs.len() as f64 * 12.0
        };
        for lag in 0..4 {
            assert!(product(lag).abs() < 0.015, "lag {lag}: {}", product(lag));
        }
    }
}
