//! Ours and the peers as tables for documents.

use msdeform::DType;
use msdeform_lab::digits::three_digits;
use msdeform_lab::workload::{self, Tag};

use super::{Against, BACKWARD, FORWARD, PeerRow};
use crate::table::{Table, cells, distinct, or_dash};

/// The cases of the README: trained models draw their locations so.
const LOCATIONS: &str = "local";
const CALLS: [usize; 2] = [FORWARD, BACKWARD];

fn local(cases: &[Against], dtype: DType) -> impl Iterator<Item = &Against> {
    cases.iter().filter(move |case| case.locations == LOCATIONS && case.dtype == dtype)
}

fn times(ratio: f64) -> String {
    format!("{ratio:.1}x")
}

fn mebibytes(size: Option<f64>) -> String {
    or_dash(size, |mib| format!("{mib:.0}"))
}

/// Both calls in one cell.
fn both(cell: impl Fn(usize) -> Option<String>) -> String {
    CALLS.map(|call| or_dash(cell(call), |text| text)).join(" / ")
}

/// A line for each workload: ours, the best exact peer and the ratio, forward / backward, in f32 and f16; the memory of a
/// backward in f32, ours and the leanest exact peer's.
pub(crate) fn short_table(cases: &[Against]) -> String {
    let columns = "us, forward / backward | >f32 | >best exact peer | >faster | >f16 | >best exact peer | >faster | \
                   >f32 backward, MiB | >leanest exact peer";
    let rows = local(cases, DType::F32).map(|case| {
        let half = local(cases, DType::F16).find(|other| other.workload == case.workload);
        let mut row = cells![&case.workload];
        for case in [Some(case), half] {
            let ours = |call| Some(case?.ours_us[call]);
            let best = |call| Some(case?.best_exact(call)?.1);
            row.push(or_dash(case, |_| both(|call| ours(call).map(three_digits))).into());
            row.push(or_dash(case, |_| both(|call| best(call).map(three_digits))).into());
            row.push(or_dash(case, |_| both(|call| Some(times(best(call)? / ours(call)?)))).into());
        }
        let leanest = case.least_memory().map(|(_, mib)| mib);
        row.extend(cells![mebibytes(case.ours_memory_mib), mebibytes(leanest)]);
        row
    });
    Table::new(columns).with(rows).markdown()
}

/// A line for each case, a column for each peer; what is not exact is in brackets.
pub(crate) fn every_peer(cases: &[Against]) -> String {
    let names = names(cases, |_| true);
    let columns = format!("workload | locations | dtype | >msdeform | >{}", names.join(" | >"));
    let rows = cases.iter().map(|case| {
        let ours = both(|call| Some(three_digits(case.ours_us[call])));
        let mut row = cells![&case.workload, &case.locations, case.dtype, ours];
        row.extend(names.iter().map(|name| {
            let peer = case.peers.iter().find(|peer| peer.peer == *name);
            let time = |peer: &PeerRow| {
                both(|call| {
                    let timed = peer.times[call];
                    let us = three_digits(timed.us);
                    Some(if timed.is_exact { us } else { format!("({us})") })
                })
            };
            or_dash(peer, time).into()
        }));
        row
    });
    Table::new(&columns).with(rows).markdown()
}

/// Peers in the order in which the cases have them.
fn names(cases: &[Against], is_shown: impl Fn(&PeerRow) -> bool) -> Vec<&str> {
    let shown = cases.iter().flat_map(|case| &case.peers).filter(|peer| is_shown(peer));
    distinct(shown.map(|peer| peer.peer.as_str()))
}

/// What a backward allocates above its inputs: a line for each case where ours was measured, a column for each peer that
/// was.
pub(crate) fn memory_table(cases: &[Against]) -> String {
    let names = names(cases, |peer| peer.memory_mib.is_some());
    let columns = format!(
        "MiB, backward | locations | dtype | >msdeform | >{} | >ours / least",
        names.join(" | >")
    );
    let rows = cases.iter().filter(|case| case.ours_memory_mib.is_some()).map(|case| {
        let ours = mebibytes(case.ours_memory_mib);
        let mut row = cells![&case.workload, &case.locations, case.dtype, ours];
        let of = |name: &&str| case.peers.iter().find(|peer| peer.peer == *name)?.memory_mib;
        row.extend(names.iter().map(|name| mebibytes(of(name)).into()));
        row.push(or_dash(memory_ratio(case), times).into());
        row
    });
    Table::new(&columns).with(rows).markdown()
}

/// What ours allocates over what the leanest exact peer does.
fn memory_ratio(case: &Against) -> Option<f64> {
    Some(case.ours_memory_mib? / case.least_memory()?.1)
}

/// The range of ratios as text.
fn range<'a>(
    cases: impl IntoIterator<Item = &'a Against>,
    ratio: impl Fn(&'a Against) -> Option<f64>,
) -> String {
    let ratios: Vec<f64> = cases.into_iter().filter_map(ratio).collect();
    let least = ratios.iter().copied().reduce(f64::min);
    let most = ratios.iter().copied().reduce(f64::max);
    or_dash(least.zip(most), |(least, most)| format!("{least:.1}x to {most:.1}x"))
}

fn speedup(case: &Against, call: usize) -> Option<f64> {
    Some(case.best_exact(call)?.1 / case.ours_us[call])
}

/// The ranges of all cases in a sentence.
pub(crate) fn lead(cases: &[Against]) -> String {
    let all = || cases.iter().filter(|case| case.locations == LOCATIONS);
    let [forward, backward] = CALLS.map(|call| range(all(), |case| speedup(case, call)));
    let memory = range(all(), memory_ratio);
    format!(
        "Against the best exact peer, our forward is {forward} as fast and our backward {backward}. Our backward allocates \
         {memory} the memory of the leanest exact peer."
    )
}

/// The same ranges for each kind of workload and dtype.
pub(crate) fn lead_table(cases: &[Against]) -> String {
    let columns =
        "workloads | dtype | >forward, speed-up | >backward, speed-up | >backward, memory";
    let kinds = [(Tag::Encoder, "encoders"), (Tag::Decoder, "decoders")];
    let rows = kinds.into_iter().flat_map(|(tag, kind)| DType::ALL.map(|dtype| (tag, kind, dtype)));
    let rows = rows.filter_map(|(tag, kind, dtype)| {
        let is_tagged =
            |case: &&Against| workload::find(&case.workload).is_some_and(|found| found.has(tag));
        let own: Vec<&Against> = local(cases, dtype).filter(is_tagged).collect();
        let of = |call| range(own.iter().copied(), |case| speedup(case, call));
        let memory = range(own.iter().copied(), memory_ratio);
        (!own.is_empty()).then(|| cells![kind, dtype, of(FORWARD), of(BACKWARD), memory])
    });
    format!(
        "Ranges against the best exact peer, and of memory against the leanest:\n\n{}",
        Table::new(columns).with(rows).markdown()
    )
}
