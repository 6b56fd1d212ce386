//! Records as a page for people: one HTML file that needs nothing else, with pictures first and tables folded below, or
//! Markdown. Its texts are in the templates.

mod bars;
mod compare;
mod tables;

pub use compare::{Change, Comparison, Verdict, name_of};

use std::collections::{BTreeMap, BTreeSet};

use askama::Template;
use msdeform::{DType, Direction};
use msdeform_lab::analyze::flop;
use msdeform_lab::counters::Counted;
use msdeform_lab::digits::time;
use msdeform_lab::record::{Figure, Record, newest};
use msdeform_lab::{Ceilings, Work, workload};

use crate::filters;
use crate::ladder;
use crate::overview::{Row, overview, problem_of};
use crate::roofline::{Mark, Roofline};
use crate::table::grouped;
use bars::{Gain, Group, Groups, Panel, SHARES};
use tables::{Folded, Worst};

const STYLE: &str = include_str!("style.css");
const SCRIPT: &str = include_str!("tables.js");

/// Everything that a report shows.
#[derive(Template)]
#[template(path = "page.html")]
pub struct Page {
    title: String,
    /// How much was measured, when, and of which sources.
    subtitle: String,
    /// Figures with their units, and what they are.
    headlines: Vec<(String, String)>,
    /// Every workload as it is usually called, by direction.
    gains: Vec<(Direction, Groups<Gain>)>,
    /// The half-precision forward under the device's ceilings; empty without them.
    roofline: String,
    /// The largest errors of what calls get, by variant.
    errors: Groups<Worst>,
    panels: Vec<Panel>,
    ladder_panels: Vec<Panel>,
    times: Folded,
    every_error: Folded,
    counters: Folded,
    /// Every case with all its variants, by workload.
    groups: Groups<Group>,
    runs: Folded,
    /// Hardware and software of the newest record.
    environment: BTreeMap<String, String>,
}

/// The same sections without pictures.
#[derive(Template)]
#[template(path = "page.txt")]
struct Markdown<'a> {
    page: &'a Page,
}

pub fn html(page: &Page) -> String {
    page.to_string()
}

pub fn markdown(page: &Page) -> String {
    Markdown { page }.to_string()
}

impl Page {
    /// What records of one device show, oldest first. `None` if they hold no measurement.
    pub fn of(
        records: &[Record],
        ceilings: Option<&Ceilings>,
        counted: &[Counted],
    ) -> Option<Self> {
        let last = records.iter().rev().find(|record| !record.measurements.is_empty())?;
        let figures = newest(records);
        let rows = overview(&figures);
        let figures = without_repeats(figures, |f| (&f.workload, &f.dtype, &f.variant));
        let counted = without_repeats(counted.to_vec(), |Counted { label, .. }| {
            (&label.workload, &label.dtype, &label.variant)
        });
        let mut environment = last.device.facts.clone();
        environment.insert("date".to_owned(), last.date.clone());
        let version = format!("{} ({})", last.environment.msdeform, last.environment.rustc);
        environment.insert("msdeform".to_owned(), version);
        let gains = bars::gains(&rows, ceilings);
        let errors = bars::worst_errors(&figures);
        let (ladder_panels, panels) = bars::panels(&counted, &figures);
        Some(Self {
            title: format!("msdeform on {}", last.device.name),
            subtitle: subtitle(records, figures.len()),
            headlines: bars::headlines(&gains, &errors),
            gains,
            roofline: ceilings.map_or_else(String::new, |ceilings| roofline_of(&rows, ceilings)),
            errors: grouped(errors.into_iter().map(|worst| (worst.variant.clone(), worst))),
            panels,
            ladder_panels,
            times: tables::times(&rows, ceilings),
            every_error: tables::errors(&figures),
            counters: tables::counters(&counted),
            groups: bars::groups(&figures, ceilings),
            runs: tables::runs(records),
            environment,
        })
    }

    /// The ladder, where it was climbed on this device: without the border, as trained models draw locations.
    fn ladder(&self) -> Option<&Group> {
        self.groups.iter().flat_map(|(_, groups)| groups).find(|group| group.is_ladder)
    }
}

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

/// Whether a row has the first layout and the first locations of its workload.
fn is_usual(row: &Row) -> bool {
    workload::find(&row.workload).is_some_and(|found| {
        let (layout, locations) = (found.layouts.first(), found.locations.first());
        layout.is_some_and(|layout| layout.name() == row.layout)
            && locations.is_some_and(|locations| locations.name() == row.locations)
    })
}

/// The half-precision forward of each workload as it is usually called, against the bytes it gathers and those it cannot
/// avoid.
fn roofline_of(rows: &[Row], ceilings: &Ceilings) -> String {
    let best =
        rows.iter().filter(|row| is_usual(row)).filter_map(|row| row.best.get(DType::F16.name()));
    let mut marks: Vec<Mark> = Vec::new();
    for best in best.filter(|best| best.direction == Direction::Forward.name()) {
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
        return String::new();
    }
    let legend = "full: against the bytes gathered through L1, empty: against those that must come from DRAM";
    let (title, subtitle, marks) = ("Forward in f16", legend, &*marks);
    Roofline { is_in_page: true, title, subtitle, ceilings, marks }.to_string()
}

#[cfg(test)]
mod tests;
