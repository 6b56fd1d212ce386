//! Other implementations compared with ours: `records/<device>/peers.csv`, which `bindings/python/benches/peers.py` writes.

mod picture;
mod tables;

pub(crate) use picture::picture;
pub(crate) use tables::Tables;

use std::fmt::{self, Display, Formatter};
use std::path::Path;

use anyhow::{Context, Result, anyhow, ensure};
use msdeform::{DType, Direction};
use msdeform_lab::device::Timing;
use msdeform_lab::digits::three_digits;
use msdeform_lab::record::Figure;
use msdeform_lab::workload;
use serde::Deserialize;

use crate::table::grouped;

/// What is compared: a forward call, a backward call with three gradients, and one of each, whose medians are added.
const CALLS: [&str; 3] = ["forward", "backward", "training"];
const FORWARD: usize = 0;
const BACKWARD: usize = 1;
const TRAINING: usize = 2;

/// A median time, and whether every error is known and within the bound of the dtype.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Timed {
    us: f64,
    is_exact: bool,
}

impl Display for Timed {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let us = three_digits(self.us);
        if self.is_exact { f.write_str(&us) } else { write!(f, "({us})") }
    }
}

/// One peer on one case.
#[derive(Clone, Debug)]
pub(crate) struct PeerRow {
    /// As `peers.csv` calls it.
    peer: String,
    workload: String,
    locations: String,
    dtype: DType,
    /// The clock that its times are of.
    clock: Timing,
    /// Of each of [`CALLS`].
    times: [Timed; 3],
    /// Memory that a backward allocates above its inputs, gradients included, where it was measured.
    memory_mib: Option<f64>,
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
    let Line { peer, workload, locations, .. } = line;
    let times = [forward, backward, training];
    Ok(PeerRow { peer, workload, locations, dtype, clock, times, memory_mib })
}

/// Ours and the peers on one case, by one clock.
#[derive(Clone, Debug)]
pub(crate) struct Against {
    pub(crate) workload: String,
    pub(crate) locations: String,
    pub(crate) dtype: DType,
    /// What each of [`CALLS`] takes.
    ours_us: [f64; 3],
    /// Memory that our backward allocates above its inputs, where it was measured.
    ours_memory_mib: Option<f64>,
    /// As the file lists them.
    peers: Vec<PeerRow>,
}

impl Against {
    fn peer(&self, name: &str) -> Option<&PeerRow> {
        self.peers.iter().find(|peer| peer.peer == name)
    }

    /// The least value of the peers that compute a call as exactly: a peer's name and its value.
    fn best_of(&self, call: usize, value: impl Fn(&PeerRow) -> Option<f64>) -> Option<(&str, f64)> {
        let exact = self.peers.iter().filter(|peer| peer.times[call].is_exact);
        let values = exact.filter_map(|peer| Some((peer.peer.as_str(), value(peer)?)));
        values.min_by(|a, b| a.1.total_cmp(&b.1))
    }

    /// The fastest peer that computes the same: its name and time.
    fn best_exact(&self, call: usize) -> Option<(&str, f64)> {
        self.best_of(call, |peer| Some(peer.times[call].us))
    }

    /// The least memory that an exact backward of a peer allocates: its name and MiB.
    fn least_memory(&self) -> Option<(&str, f64)> {
        self.best_of(BACKWARD, |peer| peer.memory_mib)
    }
}

/// Every case of the peers that ours was timed on by the same clock, as workloads are listed.
///
/// Our times are those of the process in which the peers ran, where the file has them, and the release record's otherwise.
pub(crate) fn against(figures: &[Figure], rows: &[PeerRow]) -> Vec<Against> {
    let case_of = |row: &PeerRow| (row.workload.clone(), row.locations.clone(), row.dtype);
    let (ours, peers): (Vec<_>, Vec<_>) = rows.iter().partition(|row| row.peer == OURS);
    let by_case = grouped(peers.into_iter().map(|row| ((case_of(row), row.clock), row.clone())));
    let cases = by_case.into_iter().filter_map(|((case, clock), peers)| {
        let ours = ours.iter().find(|row| case_of(row) == case);
        let ours_us = match ours.filter(|row| row.clock == clock && row.times[TRAINING].is_exact) {
            Some(row) => row.times.map(|timed| timed.us),
            None => {
                let [forward, backward] =
                    Direction::ALL.map(|direction| recorded(figures, &peers[0], direction));
                [forward?, backward?, forward? + backward?]
            }
        };
        let ours_memory_mib = ours.and_then(|row| row.memory_mib);
        let (workload, locations, dtype) = case;
        Some(Against { workload, locations, dtype, ours_us, ours_memory_mib, peers })
    });
    let mut cases: Vec<Against> = cases.collect();
    cases.sort_by_key(|case| {
        let format = DType::ALL.iter().position(|dtype| *dtype == case.dtype);
        (workload::table_position(&case.workload), case.locations.clone(), format)
    });
    cases
}

/// The newest recorded time of ours on the case of a peer, by the peer's clock.
fn recorded(figures: &[Figure], peer: &PeerRow, direction: Direction) -> Option<f64> {
    let standard = workload::find(&peer.workload)?;
    let is_same = |figure: &&Figure| {
        (&figure.workload, &figure.locations) == (&peer.workload, &peer.locations)
            && (figure.dtype.as_str(), figure.direction.as_str())
                == (peer.dtype.name(), direction.name())
            && (figure.layout.as_str(), figure.mode.as_str()) == ("interleaved", "warm_l2")
            && (figure.batch, figure.queries) == (standard.batch, standard.standard_queries())
            && figure.timing == peer.clock
            && figure.dispatched
            && figure.rel_l2 <= peer.dtype.rel_l2_bound()
    };
    let newest = figures.iter().filter(is_same).max_by(|a, b| a.date.cmp(&b.date))?;
    Some(newest.median_us)
}

#[cfg(test)]
mod tests;
