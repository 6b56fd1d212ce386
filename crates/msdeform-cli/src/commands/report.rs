//! `msdeform report`

use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use clap::Args;
use msdeform_files::Existing;
use msdeform_lab::counters::CounterFile;
use msdeform_lab::digits::time;
use msdeform_lab::{Ceilings, Record, record};
use msdeform_report::page::{self, Change, Comparison, Page, Verdict, name_of};
use msdeform_report::release;

use crate::args::RecordsFolderArgs;
use crate::exit::{CheckFailed, Usage};
use crate::output::{Table, aligned, cells, show};

/// Make a page of records, or compare two
///
/// One HTML file that needs no network: times compared with the baseline and the ceilings of the device, the ladder, the roofline, errors, counters. Without names it shows the record
/// of a device that documents quote, or all of a device that none is quoted of. --compare lists what changed between two records and fails on a regression.
#[derive(Debug, Args)]
pub struct ReportArgs {
    /// Folders of records [default: what documents quote]
    #[arg(value_name = "RECORD")]
    records: Vec<PathBuf>,
    /// Device whose records are shown, by its folder [default: a GPU, if there is one]
    #[arg(long, value_name = "NAME")]
    device: Option<String>,
    /// The page
    #[arg(long, short, value_name = "FILE", default_value = "msdeform-report.html")]
    output: PathBuf,
    /// Also as Markdown
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,
    /// Compare two records instead, by their folders
    #[arg(long, num_args = 2, value_names = ["BEFORE", "AFTER"], conflicts_with_all = ["records", "markdown"])]
    compare: Vec<PathBuf>,
    /// Percent of change that a comparison ignores, on top of noise
    #[arg(long, value_name = "PERCENT", default_value_t = 3.0)]
    threshold: f64,
    /// Print a comparison as JSON
    #[arg(long, requires = "compare")]
    json: bool,
    #[command(flatten)]
    folder: RecordsFolderArgs,
}

pub fn run(args: &ReportArgs) -> anyhow::Result<()> {
    if let [before, after] = args.compare.as_slice() {
        return compare(args, &load_one(before)?, &load_one(after)?);
    }
    let root = args.folder.folder();
    let named = !args.records.is_empty();
    let mut records = if named {
        args.records.iter().map(|path| load_one(path)).collect::<anyhow::Result<Vec<_>>>()?
    } else {
        record::load_all(&root).context("cannot read the records")?
    };
    records.sort_by(|a, b| a.date.cmp(&b.date));
    let slug = device(&records, args.device.as_deref())?;
    if !named {
        let mut quoted = release::load_releases(&root).context("cannot read the records")?;
        quoted.retain(|record| record.device.slug == slug);
        records = if quoted.is_empty() { records } else { quoted };
    }
    records.retain(|record| record.device.slug == slug);
    let ceilings = if root.is_dir() { Ceilings::load_all(&root)? } else { Vec::new() };
    let ceilings = ceilings.iter().find(|ceilings| ceilings.device.slug == slug);
    let counted = if named {
        CounterFile::of_runs(&args.records)?
    } else {
        CounterFile::of_device(&root, &slug)?
    };
    let page = Page::of(&records, ceilings, &counted)?
        .ok_or_else(|| Usage(format!("the records of {slug} hold no measurement")))?;
    write(&args.output, &page::html(&page)?)?;
    if let Some(path) = &args.markdown {
        write(path, &page::markdown(&page)?)?;
    }
    Ok(())
}

fn load_one(path: &Path) -> anyhow::Result<Record> {
    record::load_one(path).with_context(|| format!("{} is no record", path.display()))
}

fn device(records: &[Record], named: Option<&str>) -> anyhow::Result<String> {
    let found = match named {
        Some(name) => records.iter().rev().find(|record| record.device.slug == name),
        None => {
            let gpu = records.iter().rev().find(|record| record.device.kind == "cuda");
            gpu.or_else(|| records.last())
        }
    };
    found.map(|record| record.device.slug.clone()).ok_or_else(|| {
        let mut known: Vec<&str> = records.iter().map(|r| r.device.slug.as_str()).collect();
        known.sort_unstable();
        known.dedup();
        let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
        Usage(format!("no records of that device; known: {known}")).into()
    })
}

fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    msdeform_files::write(path, text.as_bytes(), Existing::Replace)?;
    eprintln!("wrote {}", path.display());
    Ok(())
}

fn compare(args: &ReportArgs, before: &Record, after: &Record) -> anyhow::Result<()> {
    let threshold = args.threshold;
    let is_percentage = threshold.is_finite() && threshold >= 0.0;
    ensure!(is_percentage, Usage(format!("--threshold {threshold} is no percentage")));
    let comparison = Comparison::of(before, after, threshold / 100.0);
    show(args.json, &comparison, || text(&comparison))?;
    let is_empty = comparison.changes.is_empty();
    ensure!(!is_empty, Usage("the records measured nothing in common".into()));
    let slower = comparison.regressions().count();
    ensure!(slower == 0, CheckFailed(format!("{slower} combinations became slower")));
    Ok(())
}

fn text(comparison: &Comparison) -> String {
    // What changed last, the worst of it at the very end: that is where people look.
    let rank = |change: &Change| match change.verdict {
        Verdict::Same => (0, ""),
        Verdict::Faster => (1, "faster"),
        Verdict::Slower => (2, "SLOWER"),
    };
    let mut changes: Vec<&Change> = comparison.changes.iter().collect();
    changes.sort_by(|a, b| rank(a).cmp(&rank(b)).then(a.ratio.total_cmp(&b.ratio)));
    let headings = "combination | >before | >after | >change | >noise | ";
    let rows = changes.into_iter().map(|change| {
        let [before, after] = [change.before.median_us, change.after.median_us].map(time);
        let ratio = format!("{:+.1} %", 100.0 * (change.ratio - 1.0));
        let noise = format!("{:.1} %", 100.0 * change.noise);
        cells![name_of(&change.after), before, after, ratio, noise, rank(change).1]
    });
    format!(
        "{}\n\n{} compared: {} faster, {} slower beyond {:.1} % and noise; {} only before, {} only after",
        aligned(&Table::new(headings).with(rows)),
        comparison.changes.len(),
        comparison.improvements().count(),
        comparison.regressions().count(),
        100.0 * comparison.threshold,
        comparison.only_before,
        comparison.only_after
    )
}
