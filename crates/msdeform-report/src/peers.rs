//! Other implementations compared with ours: `records/<device>/peers.csv`, which `bindings/python/benches/peers.py` writes.

mod picture;

pub(crate) use picture::picture;

use std::path::Path;

use anyhow::{Context, Result, anyhow, ensure};
use msdeform::{DType, Direction};
use msdeform_lab::device::Timing;
use msdeform_lab::record::Figure;
use msdeform_lab::workload::{self, Tag};
use serde::{Deserialize, Serialize};

use crate::table::grouped;

/// What is compared: a forward call, a backward call with three gradients, and one of each, whose medians are added.
const CALLS: [&str; 3] = ["forward", "backward", "training"];
const CALLS_AT: [usize; 3] = [0, BACKWARD, TRAINING];
const BACKWARD: usize = 1;
const TRAINING: usize = 2;

/// A workload, its locations and the dtype.
type Case = (String, String, DType);

/// A median time, and whether every error is known and within the bound of the dtype.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
struct Timed {
    us: f64,
    is_exact: bool,
}

/// One peer on one case.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct PeerRow {
    /// As `peers.csv` calls it.
    pub(crate) peer: String,
    #[serde(skip)]
    case: Case,
    /// The clock that its times are of.
    clock: Timing,
    /// Of each of [`CALLS`].
    times: [Timed; 3],
    /// Memory that a backward allocates above its inputs, gradients included, where it was measured.
    pub(crate) memory_mib: Option<f64>,
}

const FILE: &str = "peers.csv";
/// What the file calls our own rows, measured in the same process as the peers of their run.
const OURS: &str = "msdeform";
const LIMIT_BYTES: u64 = 1 << 20;

/// A line of the file. An empty cell was not measured, NaN is within no bound.
#[derive(Deserialize)]
struct Line {
    peer: String,
    workload: String,
    locations: String,
    dtype: String,
    forward_us: Option<f64>,
    backward_us: Option<f64>,
    forward_graph_us: Option<f64>,
    backward_graph_us: Option<f64>,
    error_output: Option<f64>,
    error_value: Option<f64>,
    error_locations_away: Option<f64>,
    error_weights: Option<f64>,
    backward_memory_mib: Option<f64>,
    run: String,
}

/// The peers that were measured on a device; none where the file is not there.
pub(crate) fn load(records: &Path, slug: &str) -> Result<Vec<PeerRow>> {
    let path = records.join(slug).join(FILE);
    if !path.is_file() {
        return Ok(Vec::new());
    }
    let text = msdeform_files::read_text(&path, LIMIT_BYTES)?;
    msdeform_files::check_seal(&text)
        .with_context(|| format!("{} is not as benches/peers.py wrote it", path.display()))?;
    parse(&text).with_context(|| path.display().to_string())
}

fn parse(text: &str) -> Result<Vec<PeerRow>> {
    let mut reader = csv::ReaderBuilder::new().comment(Some(b'#')).from_reader(text.as_bytes());
    let rows = reader.deserialize::<Line>().map(|line| {
        let line = line?;
        let what = format!("{} on {} in {}", line.peer, line.workload, line.dtype);
        row(line).context(what)
    });
    rows.collect()
}

fn row(line: Line) -> Result<PeerRow> {
    ensure!(!line.run.is_empty(), "the run is missing");
    let dtype: DType = line.dtype.parse().map_err(|_| anyhow!("`{}` is no dtype", line.dtype))?;
    let exact = |errors: &[Option<f64>]| {
        errors.iter().all(|error| error.is_some_and(|error| error <= dtype.rel_l2_bound()))
    };
    let number = |cell: Option<f64>| cell.filter(|number| number.is_finite());
    let by_graph = number(line.forward_graph_us).zip(number(line.backward_graph_us));
    let clock = if by_graph.is_some() { Timing::Graph } else { Timing::Events };
    let times = by_graph.or(number(line.forward_us).zip(number(line.backward_us)));
    let times = times.filter(|(forward, backward)| *forward > 0.0 && *backward > 0.0);
    let (forward_us, backward_us) = times.context("a time is missing")?;
    let forward = Timed { us: forward_us, is_exact: exact(&[line.error_output]) };
    let of_gradients = [line.error_value, line.error_locations_away, line.error_weights];
    let backward = Timed { us: backward_us, is_exact: exact(&of_gradients) };
    let is_exact = forward.is_exact && backward.is_exact;
    let training = Timed { us: forward_us + backward_us, is_exact };
    let memory_mib = number(line.backward_memory_mib);
    let case = (line.workload, line.locations, dtype);
    let times = [forward, backward, training];
    Ok(PeerRow { peer: line.peer, case, clock, times, memory_mib })
}

/// Ours and the peers on one case, by one clock. A best peer is the best of those that compute a call as exactly.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Against {
    pub(crate) workload: String,
    pub(crate) locations: String,
    pub(crate) dtype: &'static str,
    /// Encoders or decoders.
    kind: Option<&'static str>,
    /// What each of [`CALLS`] takes.
    ours_us: [f64; 3],
    best_us: [Option<f64>; 3],
    /// The time of the best peer over ours.
    speedups: [Option<f64>; 3],
    /// Memory that a backward allocates above its inputs, where it was measured; and ours over that of the leanest peer.
    ours_memory_mib: Option<f64>,
    least_memory_mib: Option<f64>,
    memory_ratio: Option<f64>,
    /// As the file lists them.
    pub(crate) peers: Vec<PeerRow>,
}

impl Against {
    fn of(
        case: Case,
        ours_us: [f64; 3],
        ours_memory_mib: Option<f64>,
        peers: Vec<PeerRow>,
    ) -> Self {
        let least = |call: usize, value: fn(&PeerRow, usize) -> Option<f64>| {
            let exact = peers.iter().filter(|peer| peer.times[call].is_exact);
            exact.filter_map(|peer| value(peer, call)).min_by(f64::total_cmp)
        };
        let best_us = CALLS_AT.map(|call| least(call, |peer, call| Some(peer.times[call].us)));
        let least_memory_mib = least(BACKWARD, |peer, _| peer.memory_mib);
        let (workload, locations, dtype) = case;
        let has = |tag| workload::find(&workload).is_some_and(|found| found.has(tag));
        let kinds = [(Tag::Encoder, "encoders"), (Tag::Decoder, "decoders")];
        Self {
            kind: kinds.into_iter().find_map(|(tag, kind)| has(tag).then_some(kind)),
            workload,
            locations,
            dtype: dtype.name(),
            ours_us,
            best_us,
            speedups: CALLS_AT.map(|call| Some(best_us[call]? / ours_us[call])),
            ours_memory_mib,
            least_memory_mib,
            memory_ratio: ours_memory_mib.zip(least_memory_mib).map(|(ours, least)| ours / least),
            peers,
        }
    }
}

/// Every case of the peers that ours was timed on by the same clock, as workloads are listed.
///
/// Our times are those of the process in which the peers ran, where the file has them, and the release record's otherwise.
pub(crate) fn against(figures: &[Figure], rows: &[PeerRow]) -> Vec<Against> {
    let (ours, peers): (Vec<_>, Vec<_>) = rows.iter().partition(|row| row.peer == OURS);
    let cases = peers.into_iter().map(|row| ((row.case.clone(), row.clock), row.clone()));
    let mut by_case = grouped(cases);
    by_case.sort_by_key(|(((workload, locations, dtype), _), _)| {
        let place = DType::ALL.iter().position(|known| known == dtype);
        (workload::table_position(workload), locations.clone(), place)
    });
    let cases = by_case.into_iter().filter_map(|((case, clock), peers)| {
        let ours = ours.iter().find(|row| row.case == case);
        let ours_us = match ours.filter(|row| row.clock == clock && row.times[TRAINING].is_exact) {
            Some(row) => row.times.map(|timed| timed.us),
            None => {
                let [forward, backward] =
                    Direction::ALL.map(|direction| recorded(figures, &peers[0], direction));
                [forward?, backward?, forward? + backward?]
            }
        };
        Some(Against::of(case, ours_us, ours.and_then(|row| row.memory_mib), peers))
    });
    cases.collect()
}

/// The newest recorded time of ours on the case of a peer, by the peer's clock.
fn recorded(figures: &[Figure], peer: &PeerRow, direction: Direction) -> Option<f64> {
    let (workload, locations, dtype) = &peer.case;
    let standard = workload::find(workload)?;
    let is_same = |figure: &&Figure| {
        (&figure.workload, &figure.locations) == (workload, locations)
            && (figure.dtype.as_str(), figure.direction.as_str())
                == (dtype.name(), direction.name())
            && (figure.layout.as_str(), figure.mode.as_str()) == ("interleaved", "warm_l2")
            && (figure.batch, figure.queries) == (standard.batch, standard.standard_queries())
            && figure.timing == peer.clock
            && figure.dispatched
            && figure.rel_l2 <= dtype.rel_l2_bound()
    };
    let newest = figures.iter().filter(is_same).max_by(|a, b| a.date.cmp(&b.date))?;
    Some(newest.median_us)
}

#[cfg(test)]
mod tests;
