//! `msdeform analyze`

use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use msdeform::Direction;
use msdeform_files::Existing;
use msdeform_lab::digits::{three_digits, time};
use msdeform_lab::{Analysis, Breadth, Ceilings, record};
use msdeform_report::roofline::roofline_svg;

use crate::args::{GridArgs, RecordsFolderArgs, standard_workloads};
use crate::exit::Usage;
use crate::output::{Table, aligned, cells, print, print_json, wrapped};

/// Say what a workload asks of a device, and what each technique could gain
///
/// Forward and backward: work, bytes, the time that each measured ceiling leaves and which one binds, how often the actual locations touch the same memory,
/// the ways to sum the gradient of the values, and a prediction next to the time of a record.
/// Needs the device's ceilings (`msdeform probe --record`), not the device.
#[derive(Debug, Args)]
pub struct AnalyzeArgs {
    /// Device whose ceilings are used, by its folder under records/ [default: a GPU's, if there is one]
    #[arg(long, value_name = "NAME")]
    ceilings: Option<String>,
    #[command(flatten)]
    grid: GridArgs,
    #[command(flatten)]
    folder: RecordsFolderArgs,
    /// Draw the roofline of the first case and direction into this file
    #[arg(long, value_name = "FILE.svg")]
    svg: Option<PathBuf>,
    /// Print a JSON list
    #[arg(long)]
    json: bool,
}

pub fn run(args: &AnalyzeArgs) -> anyhow::Result<()> {
    let folder = args.folder.folder();
    let ceilings = if folder.is_dir() { Ceilings::load_all(&folder)? } else { Vec::new() };
    let ceilings = choose(&ceilings, args.ceilings.as_deref())?;
    let figures = record::newest(&record::load_all(&folder).context("cannot read the records")?);
    let selection = args.grid.selection(standard_workloads(), Breadth::First)?;
    let mut analyses = Vec::new();
    for case in &selection.cases() {
        let found = Analysis::of(case, &selection.directions, ceilings, &figures)?;
        if !args.json {
            found.iter().try_for_each(|analysis| print(&text(analysis)))?;
        }
        analyses.extend(found);
    }
    if let (Some(path), Some(first)) = (&args.svg, analyses.first()) {
        let picture = roofline_svg(first, ceilings)?;
        msdeform_files::write(path, picture.as_bytes(), Existing::Replace)?;
        eprintln!("roofline: {}", path.display());
    }
    if args.json {
        print_json(&analyses)?;
    }
    Ok(())
}

fn choose<'a>(ceilings: &'a [Ceilings], name: Option<&str>) -> anyhow::Result<&'a Ceilings> {
    let known: Vec<&str> = ceilings.iter().map(|p| p.device.slug.as_str()).collect();
    let found = match name {
        Some(name) => ceilings.iter().find(|ceilings| ceilings.device.slug == name),
        None => {
            let gpu = ceilings.iter().find(|ceilings| ceilings.device.kind == "cuda");
            gpu.or_else(|| ceilings.first())
        }
    };
    found.ok_or_else(|| {
        let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
        let what =
            name.map_or_else(|| "ceilings".to_owned(), |name| format!("ceilings of `{name}`"));
        Usage(format!("no {what}; known: {known}. `msdeform probe --record` measures them")).into()
    })
}

fn text(analysis: &Analysis) -> String {
    let Analysis { work, .. } = analysis;
    let mut out = format!(
        "{} {}: {}, {} on {}\n\
         {} M samples, {} GFLOP, {} GB gathered{}, {} MB compulsory\n\
         FLOP per byte: {:.2} of L1 (gathered), {:.1} of L2 (not found in L1 by queries in tiles), {:.1} of DRAM \
         (compulsory)\n\n",
        analysis.workload,
        analysis.direction,
        analysis.problem,
        analysis.locations,
        analysis.device,
        three_digits(work.samples as f64 * 1e-6),
        three_digits(analysis.flop * 1e-9),
        three_digits(work.gathered_bytes as f64 * 1e-9),
        if analysis.direction == Direction::Backward.name() { " and updated" } else { "" },
        three_digits(work.compulsory_bytes as f64 * 1e-6),
        analysis.flop_per_gathered_byte,
        analysis.flop_per_l2_byte,
        analysis.flop_per_compulsory_byte,
    );
    out.push_str(&format!("{}\n\n{}\n\n", floors(analysis), footprints(analysis)));
    let fastest = analysis.routes.iter().min_by(|a, b| a.us.total_cmp(&b.us));
    let by = fastest.map_or_else(String::new, |route| format!(" by {}", route.technique));
    out.push_str(&format!("predicted {}{by}", time(analysis.predicted_us)));
    if let Some(measured) = &analysis.measured {
        out.push_str(&format!(
            ", measured {} ({}), {:.2}x",
            time(measured.median_us),
            measured.variant,
            measured.median_us / analysis.predicted_us
        ));
    }
    out.push_str(&format!("\n\n{}\n", verdicts(analysis)));
    out
}

fn floors(analysis: &Analysis) -> String {
    let rows = analysis.floors.iter().map(|floor| {
        let binds = analysis.binding.as_ref() == Some(&floor.ceiling);
        let note = match &floor.only_if {
            Some(how) => format!("; only {how}"),
            None if binds => "; this one binds".to_owned(),
            None => String::new(),
        };
        cells![floor.ceiling, time(floor.us), format!("{}{note}", floor.what)]
    });
    aligned(&Table::new("ceiling | >floor | what").with(rows))
}

fn footprints(analysis: &Analysis) -> String {
    let headings = "queries together | >found again in L1 | >KB of a head | >128-byte lines";
    let rows = analysis.footprints.iter().map(|footprint| {
        let hit_rate = format!("{:.1} %", 100.0 * footprint.hit_rate);
        let sizes = [footprint.group_bytes / 1024.0, footprint.group_lines].map(three_digits);
        cells![footprint.grouping, hit_rate, sizes[0], sizes[1]]
    });
    aligned(&Table::new(headings).with(rows))
}

fn verdicts(analysis: &Analysis) -> String {
    let rows = analysis.verdicts.iter().map(|verdict| {
        let measured = verdict.measured.as_ref().map_or_else(String::new, |measured| {
            format!("; measured: {} {}", measured.variant, time(measured.median_us))
        });
        cells![verdict.technique, verdict.verdict, format!("{}{measured}", verdict.why)]
    });
    wrapped(&Table::new("technique | gain | because").with(rows))
}
