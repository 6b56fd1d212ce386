//! What changed between two records, with noise taken into account.

use std::collections::BTreeMap;

use msdeform::Direction;
use serde::Serialize;

use msdeform_lab::record::{Figure, Record, newest};

/// Half a normal distribution lies within 0.6745 standard deviations: the median absolute deviation
/// times this is the standard deviation.
const SIGMA_PER_MAD: f64 = 1.4826;

/// A change smaller than this many standard deviations of both together is noise.
const SIGMAS: f64 = 3.0;

/// What a change is, beyond noise and threshold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    Faster,
    Same,
    Slower,
}

/// One combination that both records measured.
#[derive(Clone, Debug, Serialize)]
pub struct Change {
    pub before: Figure,
    pub after: Figure,
    /// Time after over time before.
    pub ratio: f64,
    /// Relative change that noise alone explains.
    pub noise: f64,
    pub verdict: Verdict,
}

#[derive(Clone, Debug, Serialize)]
pub struct Comparison {
    /// Relative change below which nothing is called a change.
    pub threshold: f64,
    pub changes: Vec<Change>,
    pub only_before: usize,
    pub only_after: usize,
}

impl Comparison {
    /// Compares two records. `threshold` is relative: 0.03 is three percent.
    pub fn of(before: &Record, after: &Record, threshold: f64) -> Self {
        let figures = |record: &Record| newest(std::slice::from_ref(record));
        let (before, after) = (figures(before), figures(after));
        let new: BTreeMap<_, &Figure> = after.iter().map(|new| (comparable(new), new)).collect();
        let changed = |old| Some(change(old, new.get(&comparable(old))?, threshold));
        let changes: Vec<Change> = before.iter().filter_map(changed).collect();
        let [only_before, only_after] = [&before, &after].map(|all| all.len() - changes.len());
        Self { threshold, changes, only_before, only_after }
    }

    pub fn regressions(&self) -> impl Iterator<Item = &Change> {
        self.changes.iter().filter(|change| change.verdict == Verdict::Slower)
    }

    pub fn improvements(&self) -> impl Iterator<Item = &Change> {
        self.changes.iter().filter(|change| change.verdict == Verdict::Faster)
    }
}

/// What the same thing measured the same way has in common; the device may be another one.
fn comparable(figure: &Figure) -> impl Ord + use<> {
    Figure { device: String::new(), ..figure.clone() }.key()
}

fn change(before: &Figure, after: &Figure, threshold: f64) -> Change {
    let spread = |figure: &Figure| SIGMA_PER_MAD * figure.mad_us / figure.median_us;
    let noise = SIGMAS * spread(before).hypot(spread(after));
    let ratio = after.median_us / before.median_us;
    let limit = threshold.max(noise);
    // In this order a time that is no number counts as a loss.
    let verdict = if ratio < 1.0 / (1.0 + limit) {
        Verdict::Faster
    } else if ratio <= 1.0 + limit {
        Verdict::Same
    } else {
        Verdict::Slower
    };
    Change { before: before.clone(), after: after.clone(), ratio, noise, verdict }
}

/// `ddetr_enc N=2 local f16 fwd_tile_gather (events, warm_l2)`; the direction unless it is forward.
pub fn name_of(figure: &Figure) -> String {
    let Figure { workload, batch, locations, dtype, direction, variant, layout, .. } = figure;
    let layout = if layout == "interleaved" { String::new() } else { format!(" {layout}") };
    let is_forward = direction == Direction::Forward.name();
    let way = if is_forward { String::new() } else { format!(" {direction}") };
    let clock = format!("({}, {})", figure.timing.name(), figure.mode);
    format!("{workload} N={batch} {locations}{layout} {dtype}{way} {variant} {clock}")
}

#[cfg(test)]
mod tests {
    use msdeform_lab::fixtures::record_of;

    use super::*;

    fn verdict(after_us: f64, mad_us: f64) -> Verdict {
        let mut before = record_of("2026-01-01T00:00:00Z", 100.0);
        let mut after = record_of("2026-01-02T00:00:00Z", 100.0);
        after.measurements[0].statistics.median_us = after_us;
        before.measurements[0].statistics.mad_us = mad_us;
        after.measurements[0].statistics.mad_us = mad_us;
        let comparison = Comparison::of(&before, &after, 0.03);
        assert_eq!((comparison.only_before, comparison.only_after), (0, 0));
        comparison.changes[0].verdict
    }

    #[test]
    fn a_change_counts_beyond_both_the_threshold_and_the_noise() {
        assert_eq!(verdict(102.0, 0.1), Verdict::Same, "below the threshold");
        assert_eq!(verdict(110.0, 0.1), Verdict::Slower);
        assert_eq!(verdict(90.0, 0.1), Verdict::Faster);
        assert_eq!(verdict(110.0, 5.0), Verdict::Same, "noise of 31 %");
        assert_eq!(verdict(f64::NAN, 0.1), Verdict::Slower, "no number is no improvement");
    }

    #[test]
    fn what_only_one_record_has_is_counted_and_not_compared() {
        let before = record_of("2026-01-01T00:00:00Z", 100.0);
        let mut after = record_of("2026-01-02T00:00:00Z", 100.0);
        after.measurements[0].label.variant = "fwd_other".to_owned();
        let comparison = Comparison::of(&before, &after, 0.03);
        assert!(comparison.changes.is_empty());
        assert_eq!((comparison.only_before, comparison.only_after), (1, 1));
    }
}
