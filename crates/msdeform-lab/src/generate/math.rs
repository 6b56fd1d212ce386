//! Elementary functions from IEEE basic operations alone.
//!
//! `f64::exp` and its like come from the platform's mathematical library and differ between
//! platforms in the last bit; sums, products, quotients and square roots do not. These are good to
//! about 1e-14, far below the rounding to any storage format. Reciprocals of the series are written
//! as quotients of constants: the compiler folds them, exactly as the machine would round them.

/// Natural logarithm of a positive normal number.
#[inline]
pub(super) fn ln(x: f64) -> f64 {
    const LN_2: f64 = std::f64::consts::LN_2;
    let bits = x.to_bits();
    let mut exponent = ((bits >> 52) as i64 - 1023) as f64;
    let mut mantissa = f64::from_bits((bits & 0x000F_FFFF_FFFF_FFFF) | 0x3FF0_0000_0000_0000);
    if mantissa > std::f64::consts::SQRT_2 {
        mantissa *= 0.5;
        exponent += 1.0;
    }
    // ln m = 2 atanh((m - 1) / (m + 1)), |argument| < 0.172
    let s = (mantissa - 1.0) / (mantissa + 1.0);
    let s2 = s * s;
    let mut sum = 1.0 / 19.0;
    for odd in [17.0, 15.0, 13.0, 11.0, 9.0, 7.0, 5.0, 3.0, 1.0] {
        sum = sum * s2 + 1.0 / odd;
    }
    exponent * LN_2 + 2.0 * s * sum
}

/// `e^x` for arguments whose result is a normal number.
#[inline]
pub(super) fn exp(x: f64) -> f64 {
    const LN_2_HIGH: f64 = 0.693_147_180_369_123_8;
    const LN_2_LOW: f64 = 1.908_214_929_270_587_7e-10;
    let power = (x * std::f64::consts::LOG2_E + 0.5).floor();
    let r = (x - power * LN_2_HIGH) - power * LN_2_LOW;
    let mut sum = 1.0;
    for divisor in [13.0, 12.0, 11.0, 10.0, 9.0, 8.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.0, 1.0] {
        sum = 1.0 + sum * r * (1.0 / divisor);
    }
    sum * f64::from_bits(((1023 + power as i64) as u64) << 52)
}

/// Sine and cosine of `2 pi turn` for `0 <= turn <= 1`.
#[inline]
pub(super) fn sin_cos_turn(turn: f64) -> (f64, f64) {
    let quarter = (turn * 4.0 + 0.5).floor();
    let r = (turn * 4.0 - quarter) * std::f64::consts::FRAC_PI_2;
    let r2 = r * r;
    let (mut sin, mut cos) = (1.0, 1.0);
    for k in [7.0, 6.0, 5.0, 4.0, 3.0, 2.0, 1.0] {
        sin = 1.0 - sin * r2 * (1.0 / (2.0 * k * (2.0 * k + 1.0)));
        cos = 1.0 - cos * r2 * (1.0 / (2.0 * k * (2.0 * k - 1.0)));
    }
    sin *= r;
    match quarter as u32 % 4 {
        0 => (sin, cos),
        1 => (cos, -sin),
        2 => (-sin, -cos),
        _ => (-cos, sin),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(found: f64, expected: f64, what: &str) {
        let error = (found - expected).abs();
        assert!(error <= 2e-14 * expected.abs().max(1.0), "{what}: {found} against {expected}");
    }

    #[test]
    fn they_agree_with_the_platform() {
        for i in 1..=10_000 {
            let x = f64::from(i) / 10_000.0;
            close(ln(x), x.ln(), "ln");
            close(ln(x * 1e-9), (x * 1e-9).ln(), "ln");
            let (sin, cos) = sin_cos_turn(x);
            close(sin, (std::f64::consts::TAU * x).sin(), "sin");
            close(cos, (std::f64::consts::TAU * x).cos(), "cos");
            let y = 14.0 * x - 7.0;
            close(exp(y) / y.exp(), 1.0, "exp");
        }
        assert_eq!(ln(1.0), 0.0);
        assert_eq!(exp(0.0), 1.0);
        assert_eq!(sin_cos_turn(0.0), (0.0, 1.0));
    }
}
