//! Order statistics of timings.

use serde::{Deserialize, Serialize};

/// Order statistics of a list of samples; robust against the odd interrupted run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Statistics {
    pub runs: usize,
    /// Half of the samples are below.
    pub median_us: f64,
    /// Median absolute deviation from the median: the spread.
    pub mad_us: f64,
    /// A tenth of the samples are below.
    pub p10_us: f64,
    /// Nine tenths of the samples are below.
    pub p90_us: f64,
    pub min_us: f64,
}

impl Statistics {
    /// `None` if there are no samples or one of them is not a number.
    pub fn of(samples_us: &[f64]) -> Option<Self> {
        if samples_us.is_empty() || samples_us.iter().any(|sample| !sample.is_finite()) {
            return None;
        }
        let mut sorted = samples_us.to_vec();
        sorted.sort_by(f64::total_cmp);
        let median_us = quantile(&sorted, 0.5);
        let mut deviations: Vec<f64> = sorted.iter().map(|x| (x - median_us).abs()).collect();
        deviations.sort_by(f64::total_cmp);
        Some(Self {
            runs: sorted.len(),
            median_us,
            mad_us: quantile(&deviations, 0.5),
            p10_us: quantile(&sorted, 0.1),
            p90_us: quantile(&sorted, 0.9),
            min_us: sorted[0],
        })
    }
}

/// Linear interpolation between the two nearest ranks of a sorted, non-empty list.
fn quantile(sorted: &[f64], fraction: f64) -> f64 {
    let place = fraction * (sorted.len() - 1) as f64;
    let below = sorted[place.floor() as usize];
    let above = sorted[place.ceil() as usize];
    below + (above - below) * place.fract()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn known_lists_have_known_statistics() {
        let odd = Statistics::of(&[5.0, 1.0, 3.0]).unwrap();
        assert_eq!((odd.median_us, odd.mad_us, odd.min_us, odd.runs), (3.0, 2.0, 1.0, 3));
        let even = Statistics::of(&[1.0, 2.0, 3.0, 10.0]).unwrap();
        assert_eq!((even.median_us, even.mad_us), (2.5, 1.0));
        let tenths: Vec<f64> = (0..=10).map(f64::from).collect();
        let spread = Statistics::of(&tenths).unwrap();
        assert_eq!((spread.p10_us, spread.p90_us), (1.0, 9.0));
    }

    #[test]
    fn nothing_and_nan_have_no_statistics() {
        assert_eq!(Statistics::of(&[]), None);
        assert_eq!(Statistics::of(&[1.0, f64::NAN]), None);
        assert_eq!(Statistics::of(&[f64::INFINITY]), None);
    }

    proptest! {
        #[test]
        fn order_of_samples_does_not_matter_and_quantiles_are_ordered(
            samples in prop::collection::vec(0.0f64..1e6, 1..50)
        ) {
            let statistics = Statistics::of(&samples).unwrap();
            let mut reversed = samples.clone();
            reversed.reverse();
            prop_assert_eq!(Statistics::of(&reversed).unwrap(), statistics);
            prop_assert!(statistics.min_us <= statistics.p10_us);
            prop_assert!(statistics.p10_us <= statistics.median_us);
            prop_assert!(statistics.median_us <= statistics.p90_us);
            prop_assert!(statistics.mad_us >= 0.0);
        }
    }
}
