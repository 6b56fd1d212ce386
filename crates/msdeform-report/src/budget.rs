//! What of a measurement a record on disk keeps: the tree holds records for years, and three digits say what a clock can.

use msdeform_lab::digits::significant;
use msdeform_lab::{Measurement, Record};

/// Samples of a measurement that a record keeps, evenly spaced in the order taken. Its quantiles are those of all.
const MOST_SAMPLES: usize = 100;

/// The record as it is written: times with two decimals, errors with three digits, few samples.
pub(crate) fn within_budget(record: &Record) -> Record {
    let mut kept = record.clone();
    kept.measurements.iter_mut().for_each(thin);
    for check in kept.verification.checked.iter_mut().flat_map(|checked| &mut checked.tensors) {
        let comparison = &mut check.comparison;
        for error in [&mut comparison.max_abs, &mut comparison.max_rel, &mut comparison.rel_l2] {
            *error = significant(*error, 3);
        }
    }
    kept
}

fn thin(measurement: &mut Measurement) {
    let samples_us = &mut measurement.samples_us;
    let count = samples_us.len();
    if count > MOST_SAMPLES {
        *samples_us = (0..MOST_SAMPLES).map(|at| samples_us[at * count / MOST_SAMPLES]).collect();
    }
    samples_us.iter_mut().for_each(|sample| *sample = two_decimals(*sample));
    let of = &mut measurement.statistics;
    for time in [&mut of.median_us, &mut of.mad_us, &mut of.p10_us, &mut of.p90_us, &mut of.min_us]
    {
        *time = two_decimals(*time);
    }
    measurement.us_after_preparation = measurement.us_after_preparation.map(two_decimals);
    measurement.rel_l2 = significant(measurement.rel_l2, 3);
}

fn two_decimals(number: f64) -> f64 {
    (number * 100.0).round() / 100.0
}

#[cfg(test)]
mod tests {
    use msdeform_lab::fixtures::record_of;

    use super::*;

    #[test]
    fn a_record_keeps_few_samples_evenly_and_the_quantiles_of_all() {
        let mut record = record_of("2026-01-01T00:00:00Z", 12.345_678);
        let measurement = &mut record.measurements[0];
        measurement.samples_us = (0..250).map(f64::from).collect();
        measurement.rel_l2 = 2.836_163_6e-6;
        let kept = within_budget(&record).measurements.remove(0);
        assert_eq!(kept.samples_us.len(), MOST_SAMPLES);
        assert_eq!(kept.samples_us[..4], [0.0, 2.0, 5.0, 7.0]);
        assert_eq!((kept.statistics.median_us, kept.statistics.runs), (12.35, 3));
        assert!((kept.rel_l2 - 2.84e-6).abs() < 1e-18);
    }

    #[test]
    fn what_is_no_number_stays_so() {
        assert!(two_decimals(f64::NAN).is_nan());
        assert_eq!(two_decimals(f64::INFINITY), f64::INFINITY);
    }
}
