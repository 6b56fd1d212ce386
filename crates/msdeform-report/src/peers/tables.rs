//! Ours and the peers as tables for documents.

use std::fmt::Write;

use msdeform::DType;
use msdeform_bench::digits::three_digits;

use super::{Against, PeerRow, Quantity};

/// The cases of the README: trained models draw their locations so.
pub(super) const LOCATIONS: &str = "local";

/// A line for each workload: ours, the best exact peer and the ratio, forward / backward, in f32 and f16; the memory of a
/// backward in f32, ours and the leanest exact peer's.
#[must_use]
pub fn short_table(cases: &[Against]) -> String {
    let mut out = String::from(
        "| us, forward / backward | f32 | best exact peer | faster | f16 | best exact peer | faster | f32 backward, MiB | \
         leanest exact peer |\n\
         |---|--:|--:|--:|--:|--:|--:|--:|--:|\n",
    );
    for case in of_format(cases, DType::F32) {
        let half = of_format(cases, DType::F16).find(|other| other.workload == case.workload);
        let cells = [Some(case), half].map(|case| case.map_or_else(|| "- | - | -".into(), cells));
        let memory = [case.ours_memory_mib, case.least_memory().map(|(_, mib)| mib)].map(mebibytes);
        // Writing to a String cannot fail.
        let _ =
            writeln!(out, "| {} | {} | {} |", case.workload, cells.join(" | "), memory.join(" | "));
    }
    out
}

fn mebibytes(size: Option<f64>) -> String {
    size.map_or_else(|| "-".to_owned(), |mib| format!("{mib:.0}"))
}

fn of_format(cases: &[Against], dtype: DType) -> impl Iterator<Item = &Against> {
    cases.iter().filter(move |case| case.locations == LOCATIONS && case.dtype == dtype)
}

/// Ours, the best and the ratio.
fn cells(case: &Against) -> String {
    let both = |cell: &dyn Fn(Quantity) -> String| {
        format!("{} / {}", cell(Quantity::Forward), cell(Quantity::Backward))
    };
    let best = |quantity| case.best_exact(quantity).map(|(_, us)| us);
    let missing = || "-".to_owned();
    [
        both(&|quantity| three_digits(case.ours_us(quantity))),
        both(&|quantity| best(quantity).map_or_else(missing, three_digits)),
        both(&|quantity| {
            best(quantity).map_or_else(missing, |us| format!("{:.1}x", us / case.ours_us(quantity)))
        }),
    ]
    .join(" | ")
}

/// A line for each case, a column for each peer; what is not exact stands in brackets.
#[must_use]
pub fn every_peer(cases: &[Against]) -> String {
    let names = names(cases, |_| true);
    let rule = "--:|".repeat(names.len() + 1);
    let mut out = format!(
        "| workload | locations | format | msdeform | {} |\n|---|---|---|{rule}\n",
        names.join(" | ")
    );
    for case in cases {
        let [forward, backward] =
            [Quantity::Forward, Quantity::Backward].map(|quantity| case.ours_us(quantity));
        let ours = format!("{} / {}", three_digits(forward), three_digits(backward));
        let _ = write!(out, "| {} | {} | {} | {ours} |", case.workload, case.locations, case.dtype);
        for name in &names {
            let found = case.peers.iter().find(|peer| peer.peer == *name);
            let cell = found.map_or_else(
                || "-".to_owned(),
                |peer| {
                    let [forward, backward] = peer.directions.map(|timed| {
                        let us = three_digits(timed.us);
                        if timed.is_exact { us } else { format!("({us})") }
                    });
                    format!("{forward} / {backward}")
                },
            );
            let _ = write!(out, " {cell} |");
        }
        out.push('\n');
    }
    out
}

/// Peers in the order in which the cases have them.
fn names(cases: &[Against], is_shown: impl Fn(&PeerRow) -> bool) -> Vec<&str> {
    let mut names: Vec<&str> = Vec::new();
    for peer in cases.iter().flat_map(|case| &case.peers).filter(|peer| is_shown(peer)) {
        if !names.contains(&peer.peer.as_str()) {
            names.push(&peer.peer);
        }
    }
    names
}

/// What a backward allocates above its inputs: a line for each case where ours was measured, a column for each peer that
/// was.
#[must_use]
pub fn memory_table(cases: &[Against]) -> String {
    let names = names(cases, |peer| peer.memory_mib.is_some());
    let mut out = format!(
        "| MiB, backward | locations | format | msdeform | {} | ours / least |\n|---|---|---|{}\n",
        names.join(" | "),
        "--:|".repeat(names.len() + 2)
    );
    for case in cases.iter().filter(|case| case.ours_memory_mib.is_some()) {
        let mut cells = vec![case.ours_memory_mib];
        cells.extend(names.iter().map(|name| {
            case.peers.iter().find(|peer| peer.peer == *name).and_then(|peer| peer.memory_mib)
        }));
        let cells: Vec<String> = cells.into_iter().map(mebibytes).collect();
        let ratio = case.ours_memory_mib.zip(case.least_memory());
        let ratio = ratio
            .map_or_else(|| "-".to_owned(), |(ours, (_, least))| format!("{:.1}x", ours / least));
        let _ = writeln!(
            out,
            "| {} | {} | {} | {} | {ratio} |",
            case.workload,
            case.locations,
            case.dtype,
            cells.join(" | ")
        );
    }
    out
}
