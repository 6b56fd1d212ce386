//! Whole models before and after the patch as a picture for the Python package's README.

use serde::Serialize;

use super::PASSES;
use crate::chart::{Bar, Chart, Layout, Line};

/// How much faster a pass got.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Speed {
    /// So many times as fast: the ratio of the medians.
    Times(f64),
    /// The difference is within the noise of the measurement.
    Noise,
}

impl Speed {
    /// Compares passes that were timed in turns, so that samples with the same index are neighbours.
    ///
    /// The ratio of the medians is what a reader computes from the two times in a table. The ratios of neighbours decide
    /// whether there is a difference. The passes do not differ if an interval that holds the median of those ratios with
    /// 90 % confidence covers 1, or lies on the other side of 1 than the ratio of the medians. Without samples, only the
    /// ratio of the medians is used. `None` if a median is no time.
    pub(super) fn of(medians: [f64; 2], samples: [&[f64]; 2]) -> Option<Self> {
        let [before, after] = medians;
        let ratio = before / after;
        if !(ratio.is_finite() && ratio > 0.0) {
            return None;
        }
        let [before, after] = samples;
        let mut ratios: Vec<f64> = before.iter().zip(after).map(|(b, a)| b / a).collect();
        if ratios.is_empty() {
            return Some(Self::Times(ratio));
        }
        ratios.sort_by(f64::total_cmp);
        let is_clear = confident_ranks(ratios.len()).is_some_and(|(low, high)| {
            (ratio > 1.0 && ratios[low] > 1.0) || (ratio < 1.0 && ratios[high] < 1.0)
        });
        Some(if is_clear { Self::Times(ratio) } else { Self::Noise })
    }
}

/// Places of the sorted samples between which their median lies with a confidence of 90 %, for any distribution: the
/// number of samples below the median is binomial. `None` if there are too few samples.
fn confident_ranks(samples: usize) -> Option<(usize, usize)> {
    const OUTSIDE: f64 = 0.05;
    let mut chance = 0.5_f64.powi(i32::try_from(samples).ok()?);
    let (mut below, mut low) = (0.0, None);
    for rank in 0..samples / 2 {
        below += chance;
        if below > OUTSIDE {
            break;
        }
        low = Some(rank);
        chance *= (samples - rank) as f64 / (rank + 1) as f64;
    }
    low.map(|low| (low, samples - 1 - low))
}

/// One model as people call it: how much faster inference and training are, where they were measured.
pub(super) type ModelSpeed = (String, [Option<Speed>; 2]);

const LAYOUT: Layout = Layout { width: 848.0, names: 216.0, panels: [234.0, 314.0], scale: 228.0 };

/// The time that is left of each pass, over the time before.
pub(super) fn picture(models: &[ModelSpeed], what: &str) -> Chart {
    // A model that got slower has more than what it had, and the longest bar.
    let left = |speed: Speed| match speed {
        Speed::Times(ratio) => 1.0 / ratio,
        Speed::Noise => 1.0,
    };
    let all = models.iter().flat_map(|(_, speedups)| speedups).copied().flatten();
    let scale = LAYOUT.scale / all.map(left).fold(1.0, f64::max);
    let bar = |speedup: Option<Speed>| {
        let Some(speedup) = speedup else { return Bar::text("-") };
        let label = match speedup {
            Speed::Times(ratio) => format!("{ratio:.2}\u{d7}"),
            Speed::Noise => "noise".to_owned(),
        };
        let parts = vec![(scale, false), (scale * left(speedup), true)];
        Bar { length: scale * left(speedup).max(1.0), parts, label, is_cut: false }
    };
    let lines = models.iter().map(|(name, speedups)| Line {
        name: name.clone(),
        is_bold: false,
        bars: speedups.iter().copied().map(bar).collect(),
    });
    Chart {
        layout: LAYOUT,
        lines: lines.collect(),
        panels: PASSES.to_vec(),
        legend: Vec::new(),
        title: format!("Time of whole models with msdeform, of their time without: {what}"),
        caption: format!("{what}; grey: before"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ratio_agrees_with_the_two_times_and_noise_is_called_noise() {
        let speed = |before: &[f64], after: &[f64]| {
            let median = |samples: &[f64]| {
                let mut sorted = samples.to_vec();
                sorted.sort_by(f64::total_cmp);
                f64::midpoint(sorted[(sorted.len() - 1) / 2], sorted[sorted.len() / 2])
            };
            Speed::of([median(before), median(after)], [before, after]).unwrap()
        };
        // Every neighbour is faster: the ratio of the medians, 100 / 51.
        let six = [99.0, 100.0, 100.0, 101.0, 100.0, 100.0];
        let after = [50.0, 52.0, 51.0, 51.0, 60.0, 40.0];
        assert_eq!(speed(&six, &after), Speed::Times(100.0 / 51.0));
        assert_eq!(speed(&after, &six), Speed::Times(51.0 / 100.0), "slower is said as plainly");
        // One of six is not: that happens by chance too often, with a probability of 7 / 64 on either side.
        let after = [50.0, 52.0, 51.0, 51.0, 110.0, 40.0];
        assert_eq!(speed(&six, &after), Speed::Noise);
        // 31.7 -> 35.8 ms, though the median of the ratios of neighbours was 1.06.
        let before = [30.0, 40.0, 31.0, 32.4, 31.0, 36.0];
        let after = [28.0, 37.0, 36.0, 45.0, 29.0, 35.6];
        assert_eq!(speed(&before, &after), Speed::Noise);
        // Neighbours agree, medians of an unsteady machine do not.
        let drift = [10.0, 11.0, 12.0, 30.0, 31.0, 32.0];
        let faster: Vec<f64> = drift.iter().map(|sample| sample / 1.01).collect();
        assert_eq!(Speed::of([21.0, 22.0], [&drift, &faster]), Some(Speed::Noise));
        // Four are too few, none at all is an old record.
        assert_eq!(speed(&six[..4], &[1.0; 4]), Speed::Noise);
        assert_eq!(Speed::of([3.0, 2.0], [&[], &[]]), Some(Speed::Times(1.5)));
        assert_eq!(Speed::of([3.0, 0.0], [&[], &[]]), None);
        assert_eq!(Speed::of([f64::NAN, 1.0], [&[], &[]]), None);
    }

    #[test]
    fn the_interval_of_a_median_is_that_of_the_sign_test() {
        // One of 2^5 orders has all samples on one side; nine samples may have one on the other, twenty five.
        let expected =
            [(4, None), (5, Some((0, 4))), (7, Some((0, 6))), (8, Some((1, 6))), (9, Some((1, 7)))];
        for (samples, ranks) in expected {
            assert_eq!(confident_ranks(samples), ranks, "{samples}");
        }
        assert_eq!(confident_ranks(20), Some((5, 14)));
        assert_eq!(confident_ranks(0), None);
    }
}
