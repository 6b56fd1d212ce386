//! `cargo xtask readme`: the tables and pictures of README.md, docs/PERFORMANCE.md, docs/LADDER.md, docs/story.md,
//! docs/onnx-runtime.md, the Python package's README and the kernels' pages, from the records that the manifest names.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use clap::Args;
use msdeform::DType;
use msdeform_bench::counters::{Counted, CounterFile, counters_markdown};
use msdeform_bench::record::Figure;
use msdeform_bench::tune::{TuneRecord, gaps_markdown};
use msdeform_bench::{Ceilings, record};
use msdeform_report::peers::{self, Against, Scheme};
use msdeform_report::release::{self, Manifest};
use msdeform_report::{ladder, readme};

use crate::steps::Report;
use crate::{onnx_record, python_record, tree};

/// Options of `readme`.
#[derive(Args)]
pub struct ReadmeArgs {
    /// Change nothing; fail if the tables are not what the records say
    #[arg(long)]
    check: bool,
}

/// The case of the README's picture: the encoder that the operator was made for, in the dtype that every peer takes.
const PICTURED: (&str, DType) = ("ddetr_enc", DType::F32);

/// People read it to the end.
const MOST_LINES_OF_README: usize = 150;

/// A file with tables, or a picture.
struct Page {
    path: PathBuf,
    found: String,
    made: String,
}

/// Writes or checks the tables.
pub fn run(args: &ReadmeArgs) -> Result<ExitCode> {
    if args.check {
        println!("all tables agree with {}", check()?.note);
        return Ok(ExitCode::SUCCESS);
    }
    write()
}

/// Writes the tables.
pub fn write() -> Result<ExitCode> {
    let (pages, records) = pages()?;
    let stale: Vec<&Page> = pages.iter().filter(|page| page.found != page.made).collect();
    for page in &stale {
        std::fs::write(&page.path, &page.made)?;
        println!("{}: written", relative(&page.path));
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
            page.found == page.made,
            "{path} is not what the records say; run `cargo xtask readme`"
        );
    }
    let lines = std::fs::read_to_string(tree::root().join("README.md"))?.lines().count();
    ensure!(
        lines <= MOST_LINES_OF_README,
        "README.md has {lines} lines, the most is {MOST_LINES_OF_README}"
    );
    Ok(Report::check(format!("{records} records, {} files", pages.len())))
}

/// Every file with tables, as it is and as the records say it should be, and the number of records.
fn pages() -> Result<(Vec<Page>, usize)> {
    let folder = tree::root().join("records");
    let manifest = Manifest::load(&folder)?.unwrap_or_default();
    let records = release::load_releases(&folder)?;
    let ceilings = Ceilings::load_all(&folder)?;
    let gpu = records.iter().rev().find(|record| record.device.kind == "cuda");
    let gpu = gpu.context("the manifest names no record of a GPU")?;
    let slug = &gpu.device.slug;
    let counted = CounterFile::of_runs(&[folder.join(slug).join(&manifest.releases[slug].record)])?;
    let figures = record::newest(std::slice::from_ref(gpu));
    let rungs = ladder::rows(std::slice::from_ref(gpu), &counted);
    let cases = peers::against(&figures, &peers::load(&folder, slug)?);

    // The GPU's first: it is the one that the Python package's README quotes.
    let mut python: Vec<String> = Vec::new();
    let mut releases: Vec<_> = manifest.releases.iter().collect();
    releases.sort_by_key(|(name, _)| *name != slug);
    for (name, release) in releases {
        python.extend(release.python.iter().map(|folder| format!("{name}/{folder}")));
    }

    let mut pages = pictures(&cases, &gpu.device.name)?;
    if !python.is_empty() {
        for scheme in Scheme::ALL {
            let file = format!("bindings/python/docs/models-{}.svg", scheme.name());
            pages.push(picture(&file, python_record::picture(&folder, &python, scheme)?));
        }
    }
    for scheme in Scheme::ALL {
        let (name, device) = (scheme.name(), gpu.device.name.as_str());
        let times = ladder::times_picture(&rungs, device, scheme);
        pages.push(picture(&format!("docs/story-times-{name}.svg"), times));
        let limits = ladder::limits_picture(&rungs, device, scheme);
        pages.push(picture(&format!("docs/story-limits-{name}.svg"), limits));
    }
    let mut add = |path: &str, splice: &dyn Fn(String) -> Result<String>| -> Result<()> {
        let path = tree::root().join(path);
        let found = std::fs::read_to_string(&path).with_context(|| relative(&path))?;
        let made = splice(found.clone()).with_context(|| relative(&path))?;
        pages.push(Page { path, found, made });
        Ok(())
    };
    add("README.md", &|text| {
        let table = || format!("\n{}\n{}\n", peers::short_table(&cases), peers::lead(&cases));
        Ok(readme::replace_between(text, "peers", table)?)
    })?;
    let tuned = tuning_tables(&folder)?;
    add("docs/PERFORMANCE.md", &|text| {
        let text = readme::splice(&text, &records, &ceilings)?;
        let table = || format!("\n{}\n{}", peers::lead_table(&cases), peers::every_peer(&cases));
        let text = readme::replace_between(text, "peers", table)?;
        let table = || format!("\n{}", peers::memory_table(&cases));
        let text = readme::replace_between(text, "memory", table)?;
        let text = readme::replace_between(text, "tuning", || tuned.clone())?;
        let table = || format!("\n{}", counters_markdown(&of_calls(&counted, &figures)));
        Ok(readme::replace_between(text, "counters", table)?)
    })?;
    add("docs/LADDER.md", &|text| {
        let table = || format!("\n{}", ladder::markdown(&rungs, "kernels/"));
        Ok(readme::replace_between(text, "ladder", table)?)
    })?;
    add("docs/onnx-runtime.md", &|text| {
        let table = onnx_record::tables(&folder)?;
        Ok(readme::replace_between(text, "onnxruntime", || table.clone())?)
    })?;
    add("docs/story.md", &|text| {
        let mut text = text;
        for (id, _) in ladder::STOPS {
            ensure!(text.contains(&format!("<!-- {id}:begin -->")), "the stop {id} is missing");
            let figures = || format!("\n{}", ladder::stop_markdown(&rungs, id));
            text = readme::replace_between(text, id, figures)?;
        }
        Ok(text)
    })?;
    add("bindings/python/README.md", &|text| python_record::splice(&text, &folder, &python))?;
    add("bindings/python/docs/figures.md", &|text| {
        python_record::splice_figures(&text, &folder, &python)
    })?;
    for spec in ladder::variants() {
        add(&format!("docs/kernels/{}.md", spec.id), &|text| {
            let table = || format!("\n{}", ladder::page_markdown(&rungs, spec.id));
            Ok(readme::replace_between(text, "measured", table)?)
        })?;
    }
    Ok((pages, records.len()))
}

/// The README's picture, for light pages and for dark ones.
fn pictures(cases: &[Against], device: &str) -> Result<Vec<Page>> {
    let is_pictured = |case: &&Against| {
        (case.workload.as_str(), case.dtype) == PICTURED && case.locations == "local"
    };
    let case = cases.iter().find(is_pictured).context("the pictured case was not timed")?;
    let page = |scheme: Scheme| {
        let file = format!("docs/peers-{}.svg", scheme.name());
        picture(&file, peers::picture(case, device, scheme))
    };
    Ok(Scheme::ALL.map(page).into())
}

fn picture(file: &str, made: String) -> Page {
    let path = tree::root().join(file);
    // A picture that is not there is one that is out of date.
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    Page { path, found, made }
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

/// The counters of what a call gets.
fn of_calls(counted: &[Counted], figures: &[Figure]) -> Vec<Counted> {
    let is_called = |Counted { label, .. }: &&Counted| {
        figures.iter().any(|figure| {
            figure.dispatched
                && figure.variant == label.variant
                && figure.workload == label.workload
                && figure.locations == label.locations
                && (&figure.dtype, &figure.layout) == (&label.dtype, &label.layout)
        })
    };
    counted.iter().filter(is_called).cloned().collect()
}
