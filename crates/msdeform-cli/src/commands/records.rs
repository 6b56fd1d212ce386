//! `msdeform records`

use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use clap::{Args, Subcommand};
use msdeform::{DType, Direction};
use msdeform_lab::digits::time;
use msdeform_lab::record::{self, Figure};
use msdeform_report::{python_runs, release, table};

use crate::args::{RecordArgs, RecordsFolderArgs};
use crate::exit::Usage;
use crate::output::{Table, aligned, cells, error_figure, show};

/// Show the figure of every measured combination
///
/// Figures come from the records that the documents of a checkout quote, one for each device, so that another machine can be compared with them.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct RecordsArgs {
    #[command(subcommand)]
    action: Option<Action>,
    #[command(flatten)]
    folder: RecordsFolderArgs,
    /// All records that are there, of this machine for example; the newest figure of each combination
    #[arg(long)]
    local: bool,
    /// Only one device, by its folder
    #[arg(long, value_name = "NAME")]
    device: Option<String>,
    /// Only one workload
    #[arg(long, value_name = "NAME")]
    workload: Option<String>,
    /// Only one format
    #[arg(long, value_name = "DTYPE")]
    dtype: Option<DType>,
    /// Only forward or only backward
    #[arg(long, value_name = "DIRECTION")]
    direction: Option<Direction>,
    /// Print a JSON list of objects
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum Action {
    Merge(MergeArgs),
}

/// Combine runs on one device into one record
///
/// The newest figure of each combination counts, and every row names the run that it is from: date, commit and command.
#[derive(Debug, Args)]
struct MergeArgs {
    /// Folders that `bench --record`, the main job or benches/record.py wrote
    #[arg(required = true, value_name = "RUN")]
    runs: Vec<PathBuf>,
    #[command(flatten)]
    record: RecordArgs,
    /// Print where the records are, as a JSON list
    #[arg(long)]
    json: bool,
}

/// Merges runs and writes what comes of them.
fn merge(args: &MergeArgs) -> anyhow::Result<()> {
    let why = "give --record: it names the folder of the merged record";
    let root = args.record.folder().ok_or_else(|| Usage(why.into()))?;
    let (python, timed): (Vec<PathBuf>, Vec<PathBuf>) =
        args.runs.iter().cloned().partition(|folder| folder.join(python_runs::FILE).is_file());
    let mut written = Vec::new();
    if !timed.is_empty() {
        let (_, folder) = release::write_merged(&timed, &root)?.ok_or_else(several_devices)?;
        written.push(folder);
    }
    if let Some(last) = python.last() {
        let merged = python_runs::load(&python)?.ok_or_else(several_devices)?;
        let (device, name) = (last.parent().and_then(Path::file_name), last.file_name());
        let (Some(device), Some(name)) = (device, name) else {
            bail!(Usage(format!("{} is not records/<device>/<run>; name it so", last.display())));
        };
        let folder = root.join(device).join(name);
        python_runs::write(&merged, &folder)?;
        written.push(folder);
    }
    let written: Vec<String> = written.iter().map(|path| path.display().to_string()).collect();
    show(args.json, &written, || written.join("\n"))
}

fn several_devices() -> Usage {
    Usage("the runs are of several devices; name those of one".into())
}

const CANNOT_READ: &str = "cannot read the records";

pub fn run(args: &RecordsArgs) -> anyhow::Result<()> {
    if let Some(Action::Merge(args)) = &args.action {
        return merge(args);
    }
    let folder = args.folder.folder();
    ensure!(
        folder.is_dir(),
        "no records: there is no folder {}; `msdeform --record` writes one, --dir names another",
        folder.display()
    );
    let load = if args.local { record::load_all } else { release::load_releases };
    let records = load(&folder).context(CANNOT_READ)?;
    let figures: Vec<Figure> = record::newest(&records)
        .into_iter()
        .filter(|figure| args.device.as_ref().is_none_or(|name| *name == figure.device))
        .filter(|figure| args.workload.as_ref().is_none_or(|name| *name == figure.workload))
        .filter(|figure| args.dtype.is_none_or(|dtype| dtype.name() == figure.dtype))
        .filter(|figure| args.direction.is_none_or(|way| way.name() == figure.direction))
        .collect();
    let all = if args.local { 0 } else { record::load_all(&folder).context(CANNOT_READ)?.len() };
    if all > records.len() {
        let hidden = all - records.len();
        eprintln!("note: no document quotes {hidden} records here; --local adds them");
    }
    show(args.json, &figures, || match figures.is_empty() {
        true => format!("no figures in {}", folder.display()),
        false => all_devices(&figures),
    })
}

fn all_devices(figures: &[Figure]) -> String {
    let headings = "workload | >N | locations | dtype | layout | variant | mode | timing | >median | >MAD | >rel L2 | commit";
    let mut text = String::new();
    let key = |figure: &Figure| (figure.device.clone(), figure.threads);
    let mut groups = table::grouped(figures.iter().map(|figure| (key(figure), figure)));
    groups.sort_by(|(one, _), (other, _)| one.cmp(other));
    for ((device, threads), of_group) in groups {
        let threads_text = threads.map_or_else(String::new, |count| format!(", {count} threads"));
        let rows = of_group.into_iter().map(|figure| {
            let Figure { workload, batch, locations, dtype, layout, variant, mode, .. } = figure;
            let (timing, error) = (figure.timing.name(), error_figure(figure.rel_l2));
            let commit: String = figure.commit.chars().take(9).collect();
            let commit = if figure.dirty { format!("{commit}+") } else { commit };
            let [median, mad] = [figure.median_us, figure.mad_us].map(time);
            let case = cells![workload, batch, locations, dtype, layout, variant, mode];
            [case, cells![timing, median, mad, error, commit]].concat()
        });
        let table = aligned(&Table::new(headings).with(rows));
        text.push_str(&format!("{device}{threads_text}\n{table}\n\n"));
    }
    text.truncate(text.trim_end().len());
    text
}
