//! Numbers with their significant digits, for people and for files.

/// A time with three significant digits and its unit.
pub fn time(time_us: f64) -> String {
    let (number, unit) = match time_us {
        t if t < 1e3 => (t, "us"),
        t if t < 1e6 => (t / 1e3, "ms"),
        t => (t / 1e6, "s"),
    };
    format!("{} {unit}", three_digits(number))
}

pub fn three_digits(number: f64) -> String {
    match number.abs() {
        n if n < 9.995 => format!("{number:.2}"),
        n if n < 99.95 => format!("{number:.1}"),
        _ => format!("{number:.0}"),
    }
}

/// Rounds to so many significant digits, in the decimals that people would write.
pub fn significant(number: f64, digits: usize) -> f64 {
    format!("{number:.*e}", digits - 1).parse().unwrap_or(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_three_digits_and_a_unit() {
        for (time_us, text) in [
            (4.25, "4.25 us"),
            (99.96, "100 us"),
            (812.4, "812 us"),
            (12_340.0, "12.3 ms"),
            (1_500_000.0, "1.50 s"),
        ] {
            assert_eq!(time(time_us), text);
        }
    }

    #[test]
    fn nan_and_infinity_stay() {
        assert!(significant(f64::NAN, 3).is_nan());
        assert_eq!(significant(f64::INFINITY, 3), f64::INFINITY);
        assert_eq!(significant(0.0, 3), 0.0);
    }
}
