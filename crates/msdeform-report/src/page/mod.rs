//! Records as a page for people: one HTML file that needs nothing else, with pictures first and tables folded below, or
//! Markdown. Its texts are in the templates.

mod bars;
mod compare;
mod tables;

pub use compare::{Change, Comparison, Verdict, name_of};

use std::collections::BTreeSet;

use minijinja::context;
use minijinja::value::{Serde, Value};
use msdeform::{DType, Direction};
use msdeform_lab::analyze::flop;
use msdeform_lab::counters::Counted;
use msdeform_lab::digits::time;
use msdeform_lab::record::{Figure, Record, newest};
use msdeform_lab::{Ceilings, RecordError, Work};

use crate::ladder;
use crate::overview::{Row, overview, problem_of, with_floors};
use crate::render::render;
use crate::roofline::{self, Mark};
use crate::table::grouped;
use tables::Worst;

/// Everything that a report shows.
pub struct Page(Value);

pub fn html(page: &Page) -> Result<String, RecordError> {
    render("page.html", page.0.clone())
}

/// The same sections without pictures.
pub fn markdown(page: &Page) -> Result<String, RecordError> {
    render("page.txt", page.0.clone())
}

impl Page {
    /// What records of one device show, oldest first. `None` if they hold no measurement.
    pub fn of(
        records: &[Record],
        ceilings: Option<&Ceilings>,
        counted: &[Counted],
    ) -> Result<Option<Self>, RecordError> {
        let last = records.iter().rev().find(|record| !record.measurements.is_empty());
        let Some(last) = last else { return Ok(None) };
        let figures = newest(records);
        let rows = with_floors(overview(&figures), ceilings);
        let figures = without_repeats(figures, |f| (&f.workload, &f.dtype, &f.variant));
        let counted = without_repeats(counted.to_vec(), |Counted { label, .. }| {
            (&label.workload, &label.dtype, &label.variant)
        });
        // Hardware and software of the newest record.
        let mut environment = last.device.facts.clone();
        environment.insert("date".to_owned(), last.date.clone());
        let version = format!("{} ({})", last.environment.msdeform, last.environment.rustc);
        environment.insert("msdeform".to_owned(), version);
        let gains = bars::gains(&rows);
        let errors = bars::worst_errors(&figures);
        let groups = bars::groups(&figures, ceilings);
        // The ladder, where it was climbed on this device: without the border, as trained models draw locations.
        let mut all_groups = groups.iter().flat_map(|(_, groups)| groups);
        let (ladder_panels, panels) = bars::panels(&counted, &figures);
        Ok(Some(Self(context! {
            title => format!("msdeform on {}", last.device.name),
            subtitle => subtitle(records, figures.len()),
            headlines => Serde(bars::headlines(&gains, &errors)),
            ladder => Serde(all_groups.find(|group| group.is_ladder)),
            roofline => ceilings.map(|ceilings| roofline_of(&rows, ceilings)).transpose()?,
            times => Serde(tables::times(&rows)),
            every_error => Serde(Worst::of(figures.iter())),
            counters => Serde(tables::counters(&counted)),
            runs => tables::runs(records),
            gains => Serde(gains),
            errors => Serde(grouped(errors.into_iter().map(|worst| (worst.variant.clone(), worst)))),
            panels => Serde(panels),
            ladder_panels => Serde(ladder_panels),
            shares => bars::SHARES.to_vec(),
            groups => Serde(groups),
            environment => Serde(environment),
        })))
    }
}

/// How much was measured, when, and of which sources.
fn subtitle(records: &[Record], figures: usize) -> String {
    let commits: BTreeSet<String> = records.iter().flat_map(Record::commits).collect();
    let days = records.iter().filter_map(|record| record.date.get(..10));
    let day = days.max().unwrap_or_default();
    let commits = match commits.first() {
        Some(commit) if commits.len() == 1 => format!("commit {commit}"),
        _ => format!("{} commits", commits.len()),
    };
    format!("{figures} figures of {day}, {commits}")
}

/// Without settings that a rung of the ladder has by itself, where it was measured by its plain name too: the same
/// code under two names.
fn without_repeats<T>(
    mut items: Vec<T>,
    names: impl Fn(&T) -> (&String, &String, &String),
) -> Vec<T> {
    let variants: BTreeSet<String> = items.iter().map(|item| names(item).2.clone()).collect();
    items.retain(|item| {
        let (workload, dtype, variant) = names(item);
        let is_ladder = workload == ladder::WORKLOAD && dtype == ladder::DTYPE.name();
        let own = if is_ladder { ladder::own_name(variant) } else { variant.clone() };
        own == *variant || !variants.contains(&own)
    });
    items
}

/// The half-precision forward of each workload as it is usually called, against the bytes it gathers and those it cannot
/// avoid; empty without any.
fn roofline_of(rows: &[Row], ceilings: &Ceilings) -> Result<String, RecordError> {
    let is_shown = |row: &&Row| row.is_usual && row.direction == Direction::Forward.name();
    let best = rows.iter().filter(is_shown).filter_map(|row| row.best.get(DType::F16.name()));
    let mut marks: Vec<Mark> = Vec::new();
    for best in best {
        let Some(problem) = problem_of(best) else { continue };
        let work = Work::of(&problem, Direction::Forward);
        let flop = flop(&problem, &work, Direction::Forward);
        let Figure { workload, locations, layout, .. } = best;
        let mark = |bytes: u64, is_hollow| Mark {
            flop_per_byte: flop / bytes as f64,
            tflop_per_s: flop / best.median_us * 1e-6,
            title: format!("{workload} {locations} {layout}: {}", time(best.median_us)),
            // Once: both marks have the same height.
            label: if is_hollow { workload.clone() } else { String::new() },
            is_hollow,
        };
        marks.extend([mark(work.gathered_bytes, false), mark(work.compulsory_bytes, true)]);
    }
    if marks.is_empty() {
        return Ok(String::new());
    }
    let legend = "full: against the bytes gathered through L1, empty: against those that must come from DRAM";
    roofline::draw("Forward in f16", legend, ceilings, &marks, true)
}

#[cfg(test)]
mod tests;
