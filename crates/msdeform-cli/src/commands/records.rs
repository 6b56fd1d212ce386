//! `msdeform records`

use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use msdeform::{DType, Direction};
use msdeform_bench::digits::time;
use msdeform_bench::record::{self, Figure};
use msdeform_report::release;

use crate::output::{Columns, error_figure, print, print_json};

/// Show the figure of every measured combination
///
/// Figures come from the records that the documents of a checkout quote, one for each device, so that another machine can be set beside them.
#[derive(Debug, Args)]
pub struct RecordsArgs {
    /// Folder of the records [default: records/ of the checkout around the current folder, or else
    /// ./msdeform-records]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
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

/// Prints the figures.
pub fn run(args: &RecordsArgs) -> anyhow::Result<()> {
    let folder = args.dir.clone().unwrap_or_else(record::default_folder);
    anyhow::ensure!(
        folder.is_dir(),
        "no records: there is no folder {}; `msdeform` writes one, --dir names another",
        folder.display()
    );
    let load = if args.local { record::load_all } else { release::load_releases };
    let records = load(&folder).context("cannot read the records")?;
    let figures: Vec<Figure> = record::newest(&records)
        .into_iter()
        .filter(|figure| args.device.as_ref().is_none_or(|name| *name == figure.device))
        .filter(|figure| args.workload.as_ref().is_none_or(|name| *name == figure.workload))
        .filter(|figure| args.dtype.is_none_or(|dtype| dtype.name() == figure.dtype))
        .filter(|figure| args.direction.is_none_or(|way| way.name() == figure.direction))
        .collect();
    if !args.local {
        note_local(&folder, records.len())?;
    }
    if args.json {
        return print_json(&figures);
    }
    if figures.is_empty() {
        return print(&format!("no figures in {}", folder.display()));
    }
    print(&table(&figures))
}

/// A hint on standard error, so that nobody wonders where the record of a minute ago is.
fn note_local(folder: &std::path::Path, shown: usize) -> anyhow::Result<()> {
    let all = record::load_all(folder).context("cannot read the records")?.len();
    if all > shown {
        eprintln!("note: no document quotes {} records here; --local adds them", all - shown);
    }
    Ok(())
}

fn table(figures: &[Figure]) -> String {
    let headings = "workload | >N | locations | dtype | layout | variant | mode | timing | >median | >MAD | >rel L2 | commit";
    let mut text = String::new();
    let mut groups: Vec<(&str, Option<usize>)> =
        figures.iter().map(|figure| (figure.device.as_str(), figure.threads)).collect();
    groups.sort_unstable();
    groups.dedup();
    for (device, threads) in groups {
        let threads_text = threads.map_or_else(String::new, |count| format!(", {count} threads"));
        text.push_str(&format!("{device}{threads_text}\n"));
        let mut columns = Columns::new(headings);
        for figure in figures.iter().filter(|f| f.device == device && f.threads == threads) {
            let commit: String = figure.commit.chars().take(9).collect();
            columns.row(&[
                figure.workload.clone(),
                figure.batch.to_string(),
                figure.locations.clone(),
                figure.dtype.clone(),
                figure.layout.clone(),
                figure.variant.clone(),
                figure.mode.clone(),
                figure.timing.name().to_owned(),
                time(figure.median_us),
                time(figure.mad_us),
                error_figure(figure.rel_l2),
                if figure.dirty { format!("{commit}+") } else { commit },
            ]);
        }
        text.push_str(&format!("{columns}\n\n"));
    }
    text.truncate(text.trim_end().len());
    text
}
