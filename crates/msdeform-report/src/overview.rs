//! The short table: one row per workload and direction, the best exact figure of each dtype.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use msdeform::{DType, Direction, Problem};
use msdeform_lab::record::Figure;
use msdeform_lab::workload::{self, Label, Sizes, TRAINING};
use msdeform_lab::{Ceilings, Floors};
use serde::Serialize;

/// One line of the short table: figures that differ in their dtype, their variant and how they were timed alone.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// The workload, with the layout where that is not its usual one.
    pub(crate) name: String,
    /// Whether it has the first layout and the first locations of its workload.
    pub(crate) is_usual: bool,
    pub workload: String,
    pub batch: usize,
    pub queries: usize,
    pub locations: String,
    pub layout: String,
    pub direction: String,
    /// Best figure within the accuracy contract, by dtype.
    pub best: BTreeMap<String, Figure>,
    /// Of these, where the device's ceilings are known.
    pub(crate) floors: BTreeMap<String, Floors>,
}

/// Groups the figures of one device. Figures without a verified error within the contract of their
/// format do not compete: a fast wrong answer is no figure.
pub fn overview(figures: &[Figure]) -> Vec<Row> {
    let mut rows: BTreeMap<_, Row> = BTreeMap::new();
    for figure in figures.iter().filter(|figure| is_exact(figure) && is_in_default_mode(figure)) {
        let Figure { workload, batch, queries, locations, layout, direction, .. } = figure.clone();
        // Formats within a row, the rest sorted as the workloads are listed, forward first.
        let place = (workload::table_position(&workload), workload.clone(), locations.clone());
        let key = (place, layout.clone(), direction_position(&direction), batch, queries);
        let row = rows.entry(key).or_insert_with(|| {
            let found = workload::find(&workload);
            let is_first =
                |layout: &str| found?.layouts.first().map(|first| first.name() == layout);
            let has_layout = is_first(&layout);
            let first = found.and_then(|found| found.locations.first());
            let is_usual =
                has_layout == Some(true) && first.is_some_and(|first| first.name() == locations);
            let name = match has_layout {
                Some(false) => format!("{workload}, {layout}"),
                _ => workload.clone(),
            };
            let (best, floors) = (BTreeMap::new(), BTreeMap::new());
            Row {
                name,
                is_usual,
                workload,
                batch,
                queries,
                locations,
                layout,
                direction,
                best,
                floors,
            }
        });
        let best = row.best.entry(figure.dtype.clone()).or_insert_with(|| figure.clone());
        if stands_before(figure, best) {
            *best = figure.clone();
        }
    }
    rows.into_values().collect()
}

/// Forward, backward, training; directions of later versions come last.
fn direction_position(direction: &str) -> usize {
    let known = Direction::ALL.map(Direction::name).into_iter().chain([TRAINING]);
    known.take_while(|name| *name != direction).count()
}

/// Times of a GPU's deterministic mode are not compared with those of the default mode.
fn is_in_default_mode(figure: &Figure) -> bool {
    !figure.mode.starts_with("deterministic_")
}

/// A table shows the variant that a user gets: the dispatched one of the newest record. Old records do not have the
/// dispatched variant; of these the fastest is shown.
fn stands_before(figure: &Figure, other: &Figure) -> bool {
    let rank = |figure: &Figure| figure.dispatched.then(|| figure.date.clone());
    match rank(figure).cmp(&rank(other)) {
        Ordering::Equal => figure.median_us < other.median_us,
        order => order == Ordering::Greater,
    }
}

/// Whether the device was timed with what a label names because a call gets that.
pub(crate) fn is_called(label: &Label, figures: &[Figure]) -> bool {
    figures.iter().any(|figure| {
        figure.dispatched
            && (&figure.workload, &figure.variant) == (&label.workload, &label.variant)
            && (&figure.locations, &figure.layout) == (&label.locations, &label.layout)
            && figure.dtype == label.dtype
    })
}

fn is_exact(figure: &Figure) -> bool {
    figure.rel_l2 <= bound_of(&figure.dtype)
}

/// What the accuracy contract allows in a dtype; nothing in one that this version does not know.
pub(crate) fn bound_of(dtype: &str) -> f64 {
    dtype.parse::<DType>().map_or(0.0, DType::rel_l2_bound)
}

/// The figures of one device that were measured with the most threads: a table shows the machine at its best.
pub(crate) fn with_most_threads(mut figures: Vec<Figure>) -> Vec<Figure> {
    let most = figures.iter().map(|figure| figure.threads).max().flatten();
    figures.retain(|figure| figure.threads == most);
    figures
}

/// The rows with the floors of their figures.
pub(crate) fn with_floors(mut rows: Vec<Row>, ceilings: Option<&Ceilings>) -> Vec<Row> {
    for row in &mut rows {
        let floors = |best: &Figure| Some((best.dtype.clone(), floors_of(best, ceilings?)?));
        row.floors = row.best.values().filter_map(floors).collect();
    }
    rows
}

/// The call that was timed, where its workload is built in.
pub(crate) fn problem_of(figure: &Figure) -> Option<Problem> {
    let sizes = Sizes { batch: Some(figure.batch), queries: Some(figure.queries) };
    let (dtype, layout) = (figure.dtype.parse().ok()?, figure.layout.parse().ok()?);
    workload::find(&figure.workload)?.problem(dtype, layout, sizes).ok()
}

/// The floors of a forward call that the device's ceilings imply.
pub(crate) fn floors_of(figure: &Figure, ceilings: &Ceilings) -> Option<Floors> {
    if figure.direction != Direction::Forward.name() {
        return None;
    }
    Floors::of(&problem_of(figure)?, ceilings)
}

#[cfg(test)]
mod tests {
    use msdeform_lab::device::Timing;
    use msdeform_lab::fixtures::record_of;
    use msdeform_lab::record::{Record, newest};

    use super::*;

    /// Every dispatched figure with the fastest exact variant that the same run timed on the same case by the same clock.
    /// Tiny calls are judged by graph replay, where they have one.
    fn dispatch_losses(record: &Record) -> Vec<(Figure, Figure)> {
        let figures = newest(std::slice::from_ref(record));
        let case = |figure: &Figure| {
            let (variant, timing) = (String::new(), Timing::Events);
            (Figure { variant, timing, ..figure.clone() }.key(), figure.date.clone())
        };
        let cases: Vec<_> = figures.iter().map(|figure| (case(figure), figure)).collect();
        let chosen = cases.iter().filter(|(_, figure)| figure.dispatched && is_exact(figure));
        let losses = chosen.filter_map(|(case, chosen)| {
            let rivals =
                || cases.iter().filter(|(other, _)| other == case).map(|(_, other)| *other);
            let by_graph = rivals().any(|other| other.timing == Timing::Graph);
            if by_graph && chosen.timing != Timing::Graph {
                return None;
            }
            let exact = rivals().filter(|other| other.timing == chosen.timing && is_exact(other));
            let fastest = exact.min_by(|a, b| a.median_us.total_cmp(&b.median_us))?;
            Some((Figure::clone(chosen), fastest.clone()))
        });
        losses.collect()
    }

    #[test]
    fn a_table_shows_what_is_dispatched_and_a_loss_is_found() {
        let mut record = record_of("2026-01-01T00:00:00Z", 900.0);
        let mut faster = record.measurements[0].clone();
        faster.label.variant = "fwd_other".to_owned();
        faster.dispatched = false;
        faster.statistics.median_us = 600.0;
        let mut inexact = faster.clone();
        inexact.label.variant = "fwd_wrong".to_owned();
        inexact.statistics.median_us = 1.0;
        inexact.rel_l2 = f64::NAN;
        record.measurements.extend([faster, inexact]);
        let rows = overview(&newest(std::slice::from_ref(&record)));
        assert_eq!(rows[0].best["f32"].variant, "fwd_test");
        let losses = dispatch_losses(&record);
        let [(chosen, fastest)] = &losses[..] else { panic!("one loss") };
        assert_eq!(fastest.variant, "fwd_other");
        assert!((chosen.median_us / fastest.median_us - 1.5).abs() < 1e-12);
    }

    #[test]
    fn a_training_step_has_its_own_row_and_the_deterministic_mode_none() {
        let mut record = record_of("2026-01-01T00:00:00Z", 900.0);
        for (direction, mode) in
            [(TRAINING, "warm_l2"), ("backward", "warm_l2"), ("backward", "deterministic_warm_l2")]
        {
            let mut other = record.measurements[0].clone();
            other.label.direction = direction.to_owned();
            mode.clone_into(&mut other.mode);
            other.statistics.median_us = if mode == "warm_l2" { 2000.0 } else { 1.0 };
            record.measurements.push(other);
        }
        let rows = overview(&newest(std::slice::from_ref(&record)));
        let directions: Vec<&str> = rows.iter().map(|row| row.direction.as_str()).collect();
        assert_eq!(directions, ["forward", "backward", TRAINING]);
        assert!((rows[1].best["f32"].median_us - 2000.0).abs() < 1e-12);
    }

    #[test]
    fn a_figure_without_a_verified_error_is_in_no_overview() {
        let mut record = record_of("2026-01-01T00:00:00Z", 3.0);
        let rows = |record: &Record| overview(&newest(std::slice::from_ref(record)));
        assert_eq!(rows(&record).len(), 1);
        for bad in [f64::NAN, 1e-3] {
            record.measurements[0].rel_l2 = bad;
            assert!(rows(&record).is_empty(), "{bad}");
        }
    }

    #[test]
    fn dispatch_is_within_five_percent_of_the_best_variant() {
        let records = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../records");
        let records = crate::release::load_releases(&records).unwrap();
        let on_gpu = records.iter().rev().find(|record| record.device.kind == "cuda");
        let losses = on_gpu.map_or_else(Vec::new, dispatch_losses);
        assert!(!losses.is_empty(), "no record of a GPU says what was dispatched");
        let newest = losses.iter().map(|(chosen, _)| chosen.date.clone()).max();
        let of_newest = |(chosen, _): &&(Figure, Figure)| Some(&chosen.date) == newest.as_ref();
        for (chosen, fastest) in losses.iter().filter(of_newest) {
            assert!(
                chosen.median_us / fastest.median_us <= 1.05,
                "{} {} {} {}: {} takes {} us, {} {} us",
                chosen.workload,
                chosen.locations,
                chosen.dtype,
                chosen.direction,
                chosen.variant,
                chosen.median_us,
                fastest.variant,
                fastest.median_us
            );
        }
    }
}
