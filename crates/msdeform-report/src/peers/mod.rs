//! Other implementations compared with ours: `records/<device>/peers.csv`, which `bindings/python/benches/peers.py` writes.

mod picture;
mod tables;

use std::path::{Path, PathBuf};

use msdeform::{DType, Direction};

pub use crate::bars::Scheme;
pub use picture::picture;
pub use tables::{every_peer, lead, lead_table, memory_table, short_table};

use msdeform_bench::record::Figure;
use msdeform_devices::device::Timing;
use msdeform_devices::workload;

/// What is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Quantity {
    /// A forward call.
    Forward,
    /// A backward call: three gradients.
    Backward,
    /// One of each: the two medians, added, here and there.
    Training,
}

impl Quantity {
    /// In the order of tables.
    const ALL: [Self; 3] = [Self::Forward, Self::Backward, Self::Training];

    /// As tables call it.
    const fn name(self) -> &'static str {
        match self {
            Self::Forward => "forward",
            Self::Backward => "backward",
            Self::Training => "training",
        }
    }
}

/// The median time of one direction, and whether every error is known and within the bound of the dtype.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Timed {
    us: f64,
    is_exact: bool,
}

/// One peer on one case.
#[derive(Clone, Debug)]
pub struct PeerRow {
    /// As `peers.csv` calls it.
    peer: String,
    workload: String,
    locations: String,
    dtype: DType,
    /// The clock that its times are of.
    clock: Timing,
    /// Forward and backward.
    directions: [Timed; 2],
    /// Memory that a backward allocates above its inputs, gradients included, where it was measured.
    memory_mib: Option<f64>,
}

impl PeerRow {
    fn time(&self, quantity: Quantity) -> Timed {
        let [forward, backward] = self.directions;
        match quantity {
            Quantity::Forward => forward,
            Quantity::Backward => backward,
            Quantity::Training => Timed {
                us: forward.us + backward.us,
                is_exact: forward.is_exact && backward.is_exact,
            },
        }
    }
}

/// What cannot be read of `peers.csv`.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PeerError {
    /// The file.
    #[error(transparent)]
    File(#[from] msdeform_files::FileError),
    /// The file was edited after a command wrote it.
    #[error("{} is not as benches/peers.py wrote it: {source}", path.display())]
    Edited {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: msdeform_files::BrokenSeal,
    },
    /// A line of it.
    #[error("line {line} of {}: {what}", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// Which line.
        line: usize,
        /// What is wrong with it.
        what: String,
    },
}

const FILE: &str = "peers.csv";
/// What the file calls our own rows, measured in the same process as the peers of their run.
const OURS: &str = "msdeform";
const LIMIT_BYTES: u64 = 1 << 20;
const COLUMNS: &str = "peer,workload,locations,dtype,forward_us,backward_us,forward_graph_us,backward_graph_us,\
    forward_runs,backward_runs,error_output,error_value,error_locations,error_locations_away,error_weights,\
    backward_memory_mib,run";

/// The peers that were measured on a device; none where the file is not there.
///
/// # Errors
/// [`PeerError`] naming the file.
pub fn load(records: &Path, slug: &str) -> Result<Vec<PeerRow>, PeerError> {
    let path = records.join(slug).join(FILE);
    if !path.is_file() {
        return Ok(Vec::new());
    }
    let text = msdeform_files::read_text(&path, LIMIT_BYTES)?;
    msdeform_files::check_seal(&text)
        .map_err(|source| PeerError::Edited { path: path.clone(), source })?;
    parse(&text, &path)
}

/// Reads the text of the file; `path` is for messages.
fn parse(text: &str, path: &Path) -> Result<Vec<PeerRow>, PeerError> {
    let wrong = |line, what| PeerError::Line { path: path.to_owned(), line, what };
    let lines = text.lines().enumerate().map(|(index, line)| (index + 1, line));
    let mut lines = lines.filter(|(_, line)| !line.starts_with('#') && !line.is_empty());
    match lines.next() {
        Some((_, COLUMNS)) => {}
        Some((line, _)) => return Err(wrong(line, format!("expected {COLUMNS}"))),
        None => return Ok(Vec::new()),
    }
    lines.map(|(line, text)| row(text).map_err(|what| wrong(line, what))).collect()
}

fn row(text: &str) -> Result<PeerRow, String> {
    let cells: Vec<&str> = text.split(',').collect();
    let [peer, workload, locations, dtype, rest @ .., run] = &cells[..] else {
        return Err("too few columns".to_owned());
    };
    if run.is_empty() {
        return Err("the run is missing".to_owned());
    }
    let numbers = rest
        .iter()
        .map(|cell| match *cell {
            "" => Ok(f64::NAN),
            cell => cell.parse::<f64>().map_err(|_| format!("`{cell}` is no number")),
        })
        .collect::<Result<Vec<f64>, String>>()?;
    let [
        forward,
        backward,
        forward_graph,
        backward_graph,
        _,
        _,
        output,
        value,
        _,
        away,
        weights,
        memory,
    ] = numbers[..]
    else {
        return Err(format!("{} columns", cells.len()));
    };
    let dtype: DType = dtype.parse().map_err(|_| format!("`{dtype}` is no format"))?;
    // NaN is within no bound.
    let exact = |errors: &[f64]| errors.iter().all(|error| *error <= dtype.rel_l2_bound());
    let by_graph = forward_graph.is_finite() && backward_graph.is_finite();
    let times = if by_graph { [forward_graph, backward_graph] } else { [forward, backward] };
    if !times.iter().all(|time| time.is_finite() && *time > 0.0) {
        return Err("a time is missing".to_owned());
    }
    Ok(PeerRow {
        peer: (*peer).to_owned(),
        workload: (*workload).to_owned(),
        locations: (*locations).to_owned(),
        dtype,
        clock: if by_graph { Timing::Graph } else { Timing::Events },
        directions: [
            Timed { us: times[0], is_exact: exact(&[output]) },
            Timed { us: times[1], is_exact: exact(&[value, away, weights]) },
        ],
        memory_mib: memory.is_finite().then_some(memory),
    })
}

/// Ours and the peers on one case, by one clock.
#[derive(Clone, Debug)]
pub struct Against {
    /// Name of the workload.
    pub workload: String,
    /// How locations are drawn.
    pub locations: String,
    /// The dtype.
    pub dtype: DType,
    /// What a call of ours takes, forward and backward.
    ours: [f64; 2],
    /// Memory that our backward allocates above its inputs, where it was measured.
    ours_memory_mib: Option<f64>,
    /// As the file lists them.
    peers: Vec<PeerRow>,
}

impl Against {
    /// What ours takes.
    fn ours_us(&self, quantity: Quantity) -> f64 {
        match quantity {
            Quantity::Forward => self.ours[0],
            Quantity::Backward => self.ours[1],
            Quantity::Training => self.ours[0] + self.ours[1],
        }
    }

    /// The fastest peer that computes the same: its name and time.
    fn best_exact(&self, quantity: Quantity) -> Option<(&str, f64)> {
        let exact = self.peers.iter().filter(|peer| peer.time(quantity).is_exact);
        let times = exact.map(|peer| (peer.peer.as_str(), peer.time(quantity).us));
        times.min_by(|a, b| a.1.total_cmp(&b.1))
    }

    /// The least memory that an exact backward of a peer allocates: its name and MiB.
    fn least_memory(&self) -> Option<(&str, f64)> {
        let exact = self.peers.iter().filter(|peer| peer.time(Quantity::Backward).is_exact);
        let sizes = exact.filter_map(|peer| Some((peer.peer.as_str(), peer.memory_mib?)));
        sizes.min_by(|a, b| a.1.total_cmp(&b.1))
    }
}

/// Every case of the peers that ours was timed on by the same clock, as workloads are listed.
///
/// Our times are those of the process in which the peers ran, where the file has them, and the release record's otherwise.
#[must_use]
pub fn against(figures: &[Figure], rows: &[PeerRow]) -> Vec<Against> {
    let (ours, peers): (Vec<_>, Vec<_>) = rows.iter().partition(|row| row.peer == OURS);
    let mut cases: Vec<Against> = Vec::new();
    for peer in peers {
        let is_case = |case: &&mut Against| {
            (&case.workload, &case.locations, case.dtype)
                == (&peer.workload, &peer.locations, peer.dtype)
                && case.peers[0].clock == peer.clock
        };
        if let Some(case) = cases.iter_mut().find(is_case) {
            case.peers.push(peer.clone());
            continue;
        }
        let beside = ours.iter().find(|row| is_same_case(row, peer));
        let times = match beside.filter(|row| row.clock == peer.clock) {
            Some(row) if row.time(Quantity::Training).is_exact => {
                row.directions.map(|timed| Some(timed.us))
            }
            _ => Direction::ALL.map(|direction| recorded(figures, peer, direction)),
        };
        if let [Some(forward), Some(backward)] = times {
            cases.push(Against {
                workload: peer.workload.clone(),
                locations: peer.locations.clone(),
                dtype: peer.dtype,
                ours: [forward, backward],
                ours_memory_mib: beside.and_then(|row| row.memory_mib),
                peers: vec![peer.clone()],
            });
        }
    }
    cases.sort_by_key(|case| {
        let format = DType::ALL.iter().position(|dtype| *dtype == case.dtype);
        (workload::table_position(&case.workload), case.locations.clone(), format)
    });
    cases
}

fn is_same_case(one: &PeerRow, other: &PeerRow) -> bool {
    (&one.workload, &one.locations, one.dtype) == (&other.workload, &other.locations, other.dtype)
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
