//! The command line. Help texts live here; `--help` is a golden test.

#![allow(clippy::doc_markdown, reason = "these comments are help texts, which know no Markdown")]

use std::path::PathBuf;

use anyhow::ensure;
use clap::{Args, Parser};
use msdeform::{
    ATTENTION, DType, DeviceKind, Direction, FROM_OFFSETS, Mode, Operator, ValueLayout,
};
use msdeform_cuda::tuning::Tuning;
use msdeform_lab::device::{Bandwidth, DeviceOptions};
use msdeform_lab::digits::three_digits;
use msdeform_lab::workload::{self, Sizes, Tag};
use msdeform_lab::{
    Breadth, Device, DeviceId, Locations, STANDARD_SEED, Selection, Workload, WorkloadError,
};
use msdeform_report::{ladder, ledger};

use crate::commands::{Command, main_job};
use crate::exit::{EXIT_CODES, Usage};

/// Multi-scale deformable attention: verify it, time it, run it.
///
/// Without a command: finds what this machine has, verifies and times the built-in workloads and prints
/// one table. With --record it keeps the results.
#[derive(Debug, Parser)]
#[command(
    name = "msdeform",
    version = env!("MSDEFORM_VERSION"),
    after_help = EXIT_CODES,
    args_conflicts_with_subcommands = true,
    max_term_width = 100
)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Option<Command>,
    #[command(flatten)]
    pub main: main_job::MainArgs,
}

#[derive(Debug, Args)]
pub struct DeviceArgs {
    /// Where to run: cpu, cuda or cuda:N [default: cuda:0 where there is a GPU, else cpu]
    #[arg(long, value_name = "DEVICE")]
    pub device: Option<DeviceId>,
    /// Worker threads on a CPU [default: all cores]
    #[arg(long, value_name = "N")]
    pub threads: Option<usize>,
}

impl DeviceArgs {
    pub fn open(&self) -> anyhow::Result<Box<dyn Device>> {
        self.open_with(DeviceOptions::default())
    }

    pub fn open_with(&self, options: DeviceOptions) -> anyhow::Result<Box<dyn Device>> {
        let id = self.device.unwrap_or_else(DeviceId::preferred);
        let options = DeviceOptions { threads: self.threads, ..options };
        let device = msdeform_lab::device::open(id, options, msdeform_cuda_lab::REGISTRY)?;
        if let Some(ignored) = device.tuning().ignored() {
            eprintln!("note: {ignored}");
        }
        Ok(device)
    }
}

#[derive(Debug, Args)]
pub struct ModeArgs {
    /// Gradients on a GPU: fast, or deterministic (bitwise reproducible; on a CPU they always are)
    #[arg(long, value_name = "MODE", default_value_t = Mode::Fast)]
    pub mode: Mode,
}

impl ModeArgs {
    pub fn options(&self) -> DeviceOptions {
        DeviceOptions { mode: self.mode, ..Default::default() }
    }
}

#[derive(Debug, Args)]
pub struct GridArgs {
    /// Built-in workloads by name, or paths of workload files
    #[arg(long, value_name = "NAME|FILE", value_delimiter = ',')]
    pub workload: Vec<String>,
    /// Variants by id, with knobs as ID:NAME=VALUE where wanted [default: every one that fits; those of the ladder only to verify]
    #[arg(long, value_name = "ID", value_delimiter = ',')]
    pub variant: Vec<String>,
    /// Only forward or only backward
    #[arg(long, value_name = "DIRECTION")]
    pub direction: Option<Direction>,
    /// Dtypes: f32, f16, bf16
    #[arg(long, value_name = "DTYPE", value_delimiter = ',', default_value = "f32,f16,bf16", value_parser = fast_dtype)]
    pub dtype: Vec<DType>,
    /// Layouts: interleaved, head_major, head_major_padded
    #[arg(long, value_name = "LAYOUT", value_delimiter = ',')]
    pub layout: Vec<ValueLayout>,
    /// Sampling locations: local (as trained models do), uniform, outside, hostile, one_place
    #[arg(long, value_name = "KIND", value_delimiter = ',')]
    pub locations: Vec<Locations>,
    /// Run the fused operator, with the references of the workload's model
    #[arg(long = "from-offsets")]
    pub fused: bool,
    /// Images, instead of the workload's
    #[arg(long, value_name = "N")]
    pub batch: Option<usize>,
    /// Queries of an image, instead of the workload's
    #[arg(long, value_name = "LQ")]
    pub queries: Option<usize>,
    /// The ladder: every forward variant and setting on the seed documents' workload in f16, with and
    /// without a border, uniform and local
    #[arg(long, conflicts_with_all = ["workload", "dtype", "direction", "fused"])]
    pub ladder: bool,
}

/// The operator that --from-offsets chooses.
pub const fn operator(fused: bool) -> &'static Operator {
    if fused { &FROM_OFFSETS } else { &ATTENTION }
}

/// A dtype that devices compute, which excludes `f64`.
pub fn fast_dtype(name: &str) -> Result<DType, String> {
    match name.parse::<DType>() {
        Ok(dtype) if DType::FAST.contains(&dtype) => Ok(dtype),
        Ok(dtype) => Err(format!("no device computes {dtype}; known: f32, f16, bf16")),
        Err(_) => Err(format!("unknown dtype `{name}`; known: f32, f16, bf16")),
    }
}

/// Refuses seconds that are negative, not a number or past `most`.
pub fn ensure_duration(seconds: f64, most: f64) -> anyhow::Result<()> {
    let why = || Usage(format!("--seconds {seconds} is not a duration; give 0 or more"));
    ensure!((0.0..=most).contains(&seconds), why());
    Ok(())
}

/// Built-in workloads by name, and workload files by their paths.
pub fn named(names: &[String]) -> Result<Vec<Workload>, WorkloadError> {
    names.iter().map(|name| Workload::named(name)).collect()
}

impl GridArgs {
    /// The part of the grid that the options select; `defaults` if no workload is named. All of it includes the rungs of
    /// the ladder.
    pub fn selection(
        &self,
        defaults: impl Iterator<Item = &'static Workload>,
        breadth: Breadth,
    ) -> anyhow::Result<Selection> {
        let mut selection = Selection {
            workloads: named(&self.workload)?,
            locations: self.locations.clone(),
            layouts: self.layout.clone(),
            breadth,
            dtypes: self.dtype.clone(),
            directions: workload::directions(self.direction),
            variants: self.variant.clone(),
            rungs: breadth == Breadth::All,
            operator: operator(self.fused),
            sizes: Sizes { batch: self.batch, queries: self.queries },
            seed: STANDARD_SEED,
        };
        if self.ladder {
            selection.workloads = vec![Workload::named(ladder::WORKLOAD)?];
            selection.dtypes = vec![ladder::DTYPE];
            selection.directions = vec![Direction::Forward];
            (selection.breadth, selection.rungs) = (Breadth::All, true);
            if self.variant.is_empty() {
                selection.variants = ladder::names();
            }
            if self.layout.is_empty() {
                selection.layouts = ladder::LAYOUTS.to_vec();
            }
            if self.locations.is_empty() {
                selection.locations = ladder::LOCATIONS.to_vec();
            }
        } else if self.workload.is_empty() {
            selection.workloads = defaults.cloned().collect();
        }
        Ok(selection)
    }

    /// Whether the options select only some cases of the variants.
    pub fn is_narrowed(&self) -> bool {
        !(self.workload.is_empty() && self.layout.is_empty() && self.locations.is_empty())
            || self.batch.is_some()
            || self.queries.is_some()
    }

    /// Refuses a ladder on a CPU: its rungs are kernels of a GPU.
    pub fn check_device(&self, device: &dyn Device) -> anyhow::Result<()> {
        ensure!(
            !self.ladder || matches!(device.id(), DeviceId::Cuda(_)),
            Usage("the ladder needs a GPU; use --device cuda:0".into())
        );
        Ok(())
    }
}

/// The workloads that are timed unless others are named.
pub fn standard_workloads() -> impl Iterator<Item = &'static Workload> {
    workload::by_tag(Tag::Standard)
}

#[derive(Debug, Args)]
pub struct ProbeArgs {
    /// Do not measure what the device's memory can do (about a second)
    #[arg(long)]
    pub no_probe: bool,
}

impl ProbeArgs {
    pub fn probe(&self, device: &dyn Device) -> anyhow::Result<Option<Bandwidth>> {
        Ok(if self.no_probe { None } else { Some(device.probe_bandwidth()?) })
    }
}

/// One line that names the device, what compiles for it, and what its memory can do.
pub fn heading(device: &dyn Device, bandwidth: Option<&Bandwidth>) -> String {
    let threads = threads_of(device.threads());
    let memory = bandwidth.map_or_else(String::new, |bandwidth| {
        format!("; memory copy {} GB/s", three_digits(bandwidth.copy_gb_per_s))
    });
    let tuning = match device.tuning() {
        Tuning::Loaded { path, .. } => {
            format!("; tuned: {} from {}", device.tuning().summary(), path.display())
        }
        _ => String::new(),
    };
    let software = device.software().map_or_else(String::new, |software| format!("; {software}"));
    let version = env!("CARGO_PKG_VERSION");
    format!("msdeform {version} on {}{threads}{software}{memory}{tuning}\n", device.name())
}

/// Threads of a CPU, after what they compute.
pub fn threads_of(count: Option<usize>) -> String {
    count.map_or_else(String::new, |count| {
        format!(", {count} thread{}", if count == 1 { "" } else { "s" })
    })
}

/// Every command that keeps results has this option.
#[derive(Debug, Args)]
pub struct RecordArgs {
    /// Keep the results as a record below DIR. Without =DIR: below records/ of the checkout around the current folder, or
    /// else ./msdeform-records [default: keep nothing]
    #[arg(long, value_name = "DIR", num_args = 0..=1, require_equals = true)]
    record: Option<Option<PathBuf>>,
}

impl RecordArgs {
    pub fn folder(&self) -> Option<PathBuf> {
        self.record.clone().map(or_default_folder)
    }
}

#[derive(Debug, Args)]
pub struct LedgerArgs {
    /// Note the results in the GPU's ledger below DIR, which a test compares with the kernels' sources. Without =DIR: as for
    /// records. The fused operator has its own section
    #[arg(long, value_name = "DIR", num_args = 0..=1, require_equals = true)]
    ledger: Option<Option<PathBuf>>,
}

impl LedgerArgs {
    pub fn is_wanted(&self) -> bool {
        self.ledger.is_some()
    }

    /// The GPU's ledger, if it is updated.
    pub fn path(&self, device: &dyn Device) -> anyhow::Result<Option<PathBuf>> {
        let Some(folder) = self.ledger.clone().map(or_default_folder) else { return Ok(None) };
        let is_gpu = device.id().kind() == DeviceKind::Cuda;
        ensure!(is_gpu, Usage("--ledger needs a GPU; give --device cuda:N".into()));
        Ok(Some(ledger::path(&folder, device)))
    }
}

#[derive(Debug, Args)]
pub struct RecordsFolderArgs {
    /// Folder of the records [default: records/ of the checkout around the current folder, or else
    /// ./msdeform-records]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

impl RecordsFolderArgs {
    pub fn folder(&self) -> PathBuf {
        or_default_folder(self.dir.clone())
    }
}

fn or_default_folder(named: Option<PathBuf>) -> PathBuf {
    named.unwrap_or_else(msdeform_lab::record::default_folder)
}

#[cfg(test)]
mod tests {
    use clap::error::ErrorKind;

    use super::*;

    /// What documents tell people to type, as words.
    fn commands(document: &str) -> Vec<Vec<&str>> {
        let spans = document.split('`').flat_map(str::lines).map(str::trim);
        let typed = spans.filter_map(|span| {
            let words = span.strip_prefix("msdeform ");
            words.or_else(|| span.strip_prefix("cargo run --release -- "))
        });
        // A name alone is prose, what follows `#` a comment, and what follows `>` and `|` the shell's.
        let typed = typed.map(|words| {
            let ends = [" #", " > ", " | "].map(|end| words.find(end).unwrap_or(words.len()));
            &words[..ends.into_iter().min().unwrap_or(words.len())]
        });
        typed.map(|words| words.split_whitespace().collect()).collect()
    }

    #[test]
    fn every_command_in_the_documents_is_one() {
        for (name, document, least) in [
            ("README.md", include_str!("../../../README.md"), 3),
            ("docs/PERFORMANCE.md", include_str!("../../../docs/PERFORMANCE.md"), 3),
            ("METHODOLOGY.md", include_str!("../../../METHODOLOGY.md"), 9),
            ("docs/LADDER.md", include_str!("../../../docs/LADDER.md"), 4),
            ("docs/tuning.md", include_str!("../../../docs/tuning.md"), 3),
            ("docs/records.md", include_str!("../../../docs/records.md"), 1),
            ("docs/onnx-rewrite.md", include_str!("../../../docs/onnx-rewrite.md"), 4),
            ("docs/first-call.md", include_str!("../../../docs/first-call.md"), 4),
            ("docs/run.md", include_str!("../../../docs/run.md"), 2),
            ("docs/cli.md", include_str!("../../../docs/cli.md"), 7),
            ("docs/story.md", include_str!("../../../docs/story.md"), 2),
        ] {
            let document = document.replace("\\\n", " ");
            let found = commands(&document);
            assert!(found.len() >= least, "{name} has only {} commands", found.len());
            for words in found {
                let parsed = Cli::try_parse_from(std::iter::once("msdeform").chain(words.clone()));
                // `counters --join` in prose leaves its folder out.
                let is_prose = words.last() == Some(&"--join");
                // clap reports the version as an error.
                let is_version =
                    parsed.as_ref().is_err_and(|e| e.kind() == ErrorKind::DisplayVersion);
                let is_known = parsed.is_ok() || is_prose || is_version;
                assert!(is_known, "{name}: {words:?}: {}", parsed.unwrap_err());
            }
        }
    }
}
