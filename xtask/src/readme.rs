//! `cargo xtask readme`: the tables of README.md, the Python package's, docs/LADDER.md and the kernels' pages from
//! the committed records.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use clap::Args;
use msdeform_bench::counters::{CounterFile, Profiled, counters_markdown};
use msdeform_bench::record::Figure;
use msdeform_bench::tune::{TuneRecord, gaps_markdown};
use msdeform_bench::{Profile, Record, ladder, readme, record};

use crate::python_record;
use crate::steps::Report;
use crate::tree;

/// Options of `readme`.
#[derive(Args)]
pub struct ReadmeArgs {
    /// Change nothing; fail if the tables are not what the records say
    #[arg(long)]
    check: bool,
}

/// A file with tables.
struct Page {
    path: PathBuf,
    found: String,
    spliced: String,
}

/// Writes or checks the tables.
pub fn run(args: &ReadmeArgs) -> Result<ExitCode> {
    if args.check {
        println!("all tables agree with {}", check()?.note);
        return Ok(ExitCode::SUCCESS);
    }
    let (pages, records) = pages()?;
    let stale: Vec<&Page> = pages.iter().filter(|page| page.found != page.spliced).collect();
    for page in &stale {
        std::fs::write(&page.path, &page.spliced)?;
        println!("{}: tables written", relative(&page.path));
    }
    println!("{} files, {} of them changed, from {records} records", pages.len(), stale.len());
    Ok(ExitCode::SUCCESS)
}

/// Fails when a table and the records disagree.
pub fn check() -> Result<Report> {
    let (pages, records) = pages()?;
    for page in &pages {
        let path = relative(&page.path);
        ensure!(
            page.found == page.spliced,
            "{path} is not what the records say; run `cargo xtask readme`"
        );
    }
    Ok(Report::check(format!("{records} records, {} files", pages.len())))
}

/// Every file with tables, as it is and as the records say it should be, and the number of records.
fn pages() -> Result<(Vec<Page>, usize)> {
    let folder = tree::root().join("records");
    let records = record::load_committed(&folder)?;
    let profiles = Profile::load_all(&folder)?;
    let rungs = ladder_rows(&records, &folder)?;

    let tuning = tuning_tables(&folder)?;
    let counters = counter_table(&records, &folder)?;

    let mut pages = Vec::new();
    let mut add = |path: PathBuf, splice: &dyn Fn(String) -> Result<String>| -> Result<()> {
        let found = std::fs::read_to_string(&path).with_context(|| relative(&path))?;
        let spliced = splice(found.clone()).with_context(|| relative(&path))?;
        pages.push(Page { path, found, spliced });
        Ok(())
    };
    add(tree::root().join("README.md"), &|text| {
        let text = readme::splice(&text, &records, &profiles)?;
        let table = || format!("\n{}", ladder::readme_markdown(&rungs, "docs/kernels/"));
        let text = readme::replace_between(text, "ladder", table)?;
        let text = readme::replace_between(text, "tuning", || tuning.clone())?;
        Ok(readme::replace_between(text, "counters", || counters.clone())?)
    })?;
    add(tree::root().join("docs/LADDER.md"), &|text| {
        let table = || format!("\n{}", ladder::markdown(&rungs, "kernels/"));
        Ok(readme::replace_between(text, "ladder", table)?)
    })?;
    add(tree::root().join("bindings/python/README.md"), &|text| {
        python_record::splice(&text, &folder)
    })?;
    for spec in ladder::variants() {
        add(tree::root().join(format!("docs/kernels/{}.md", spec.id)), &|text| {
            let table = || format!("\n{}", ladder::page_markdown(&rungs, spec.id));
            Ok(readme::replace_between(text, "measured", table)?)
        })?;
    }
    Ok((pages, records.len()))
}

/// The ladder of the GPU that was measured last.
fn ladder_rows(records: &[Record], folder: &Path) -> Result<Vec<ladder::Row>> {
    let records = ladder::newest_gpu(records);
    let profiled = match records.last() {
        Some(record) => CounterFile::of_device(folder, &record.device.slug)?,
        None => Vec::new(),
    };
    Ok(ladder::rows(&records, &profiled))
}

fn relative(path: &Path) -> String {
    path.strip_prefix(tree::root()).unwrap_or(path).display().to_string()
}

/// What tuning gains on each GPU where it was measured.
fn tuning_tables(folder: &Path) -> Result<String> {
    let gpus = TuneRecord::load_all(folder)?.into_iter().filter(|r| r.device.kind == "cuda");
    let tables: Vec<String> = gpus
        .map(|record| format!("{}. {}", record.device.name, gaps_markdown(&record).trim_end()))
        .collect();
    Ok(match tables.is_empty() {
        true => "\nNothing has been tuned yet.\n".to_owned(),
        false => format!("\n{}\n", tables.join("\n\n")),
    })
}

/// The counters of what a call gets on the GPU that was measured last.
fn counter_table(records: &[Record], folder: &Path) -> Result<String> {
    let gpu = records.iter().rev().find(|record| record.device.kind == "cuda");
    let Some(gpu) = gpu else { return Ok("\nNo GPU has been measured yet.\n".to_owned()) };
    let figures = record::newest(records);
    let mut profiled = CounterFile::of_device(folder, &gpu.device.slug)?;
    profiled.retain(|Profiled { label, .. }| {
        let is_same = |figure: &&Figure| {
            figure.variant == label.variant
                && figure.workload == label.workload
                && figure.locations == label.locations
                && (&figure.dtype, &figure.layout) == (&label.dtype, &label.layout)
        };
        figures.iter().any(|figure| figure.dispatched && is_same(&figure))
    });
    Ok(format!("\n{}", counters_markdown(&profiled)))
}
