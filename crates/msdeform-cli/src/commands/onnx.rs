//! `msdeform onnx`

#![allow(clippy::doc_markdown, reason = "these comments are help texts, which know no Markdown")]

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, ensure};
use clap::{Args, Subcommand};
use msdeform_files::Existing;
use msdeform_onnx::{Form, Left, Options, Report, Rewrite, Runtime, Target};

use crate::exit::{CheckFailed, Usage};
use crate::output::{Table, cells, error_figure, show, wrapped};

/// Protobuf messages are never larger.
const MOST_BYTES: u64 = 1 << 31;

fn read(model: &Path) -> anyhow::Result<Vec<u8>> {
    let is_large = || std::fs::metadata(model).is_ok_and(|data| data.len() > MOST_BYTES);
    let bytes = msdeform_files::read(model, MOST_BYTES);
    if bytes.is_err() && is_large() {
        let advice = "; write its weights into a file of their own: onnx.save(model, path, save_as_external_data=True)";
        return bytes.map_err(|error| anyhow::anyhow!("{error}{advice}"));
    }
    Ok(bytes?)
}

/// Find the attention in ONNX models, and rewrite it into another form
///
/// As standard operators around GridSample, which exporters of PyTorch write, or around Gather, or as one node: of TensorRT's plugin,
/// of mmdeploy's library, of msdeform's own.
#[derive(Debug, Args)]
pub struct OnnxArgs {
    #[command(subcommand)]
    command: OnnxCommand,
}

#[derive(Debug, Subcommand)]
enum OnnxCommand {
    Inspect(InspectArgs),
    Rewrite(RewriteArgs),
    Check(CheckArgs),
}

/// List every attention of a model: its form, its sizes, what it costs
#[derive(Debug, Args)]
struct InspectArgs {
    /// The model
    #[arg(value_name = "MODEL.onnx")]
    model: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Write a model with every attention in one form
///
/// Each attention that is found was compared with the f64 reference on random inputs, and the new model is searched again
/// before it is written. What cannot be shown to be the attention stays as it is, and is listed with the reason.
#[derive(Debug, Args)]
struct RewriteArgs {
    /// The model
    #[arg(value_name = "MODEL.onnx")]
    model: PathBuf,
    /// The form: tensorrt, mmdeploy, msdeform, or standard operators alone as gridsample or gather
    #[arg(long, value_name = "FORM")]
    to: Option<Form>,
    /// The runtime to choose the form for: tensorrt, openvino, ort-web, coreml, ncnn, ort
    #[arg(long = "for", value_name = "RUNTIME", conflicts_with = "to")]
    runtime: Option<Runtime>,
    /// List the tensors that have more than this number of axes afterwards; the nodes of gridsample and gather have 4 at most
    #[arg(long, value_name = "AXES")]
    rank: Option<usize>,
    /// The new model [default: MODEL.FORM.onnx in the folder of the old one, or MODEL.RUNTIME.onnx]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Replace the output if it exists; the model itself is never replaced
    #[arg(long)]
    force: bool,
    /// Print what was done as JSON
    #[arg(long)]
    json: bool,
}

/// Run every attention of a model in the runtimes that are installed, and compare it with the f64 reference
///
/// Each attention becomes a small model of its own, as GridSample and as gathers, with f32 and with f16 inputs. The table has the
/// largest errors and the times. A runtime that is not installed has a row that says how to install it. This command calls Python
/// (python -m msdeform.onnx check), because the runtimes are Python packages.
#[derive(Debug, Args)]
struct CheckArgs {
    /// The model
    #[arg(value_name = "MODEL.onnx")]
    model: PathBuf,
    /// A runtime: onnxruntime, openvino, openvino-f32, onnxruntime-web, mnn, ncnn, tract; may be given several times [default: all]
    #[arg(long, value_name = "NAME")]
    runtime: Vec<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub fn run(args: &OnnxArgs) -> anyhow::Result<()> {
    match &args.command {
        OnnxCommand::Inspect(args) => inspect(args),
        OnnxCommand::Rewrite(args) => rewrite(args),
        OnnxCommand::Check(args) => check(args),
    }
}

fn inspect(InspectArgs { model, json }: &InspectArgs) -> anyhow::Result<()> {
    let bytes = read(model)?;
    let report = msdeform_onnx::inspect(&bytes, Options::default());
    let report = report.with_context(|| model.display().to_string())?;
    show(*json, &report, || table(&report))
}

fn table(report: &Report) -> String {
    let headings =
        "node | form | >N | >Lq | >M | >D | levels | points | >MFLOP | >MB gathered | >error";
    let number = |size: Option<usize>| size.map_or_else(|| "?".to_owned(), |size| size.to_string());
    let list = |items: Option<Vec<String>>| items.map_or("?".to_owned(), |items| items.join(" "));
    // Where images or queries are open, the figures are those of a query.
    let millions = |all: Option<u64>, of_query: Option<u64>| match (all, of_query) {
        (Some(all), _) => format!("{:.2}", all as f64 * 1e-6),
        (None, Some(one)) => format!("{:.4}/query", one as f64 * 1e-6),
        (None, None) => "?".to_owned(),
    };
    let table = Table::new(headings).with(report.sites.iter().map(|site| {
        let levels = site.levels.iter().flatten().map(|[h, w]| format!("{h}x{w}"));
        let points = site.points.iter().flatten().map(ToString::to_string);
        let levels = list(site.levels.is_some().then(|| levels.collect()));
        let points = list(site.points.is_some().then(|| points.collect()));
        let flops = millions(site.flops, site.flops_per_query);
        let bytes = millions(site.gathered_bytes, site.gathered_bytes_per_query);
        let error = site.max_error.map_or_else(String::new, error_figure);
        let (heads, channels) = (number(site.heads), number(site.channels));
        let sizes = cells![site.name, site.form, site.batch, site.queries, heads, channels];
        [sizes, cells![levels, points, flops, bytes, error]].concat()
    }));
    let is_empty = report.sites.is_empty();
    let found = if is_empty { "no attention found".to_owned() } else { wrapped(&table) };
    let lines = std::iter::once(found).chain(notes(&report.left, report.hidden));
    lines.collect::<Vec<_>>().join("\n")
}

fn notes(left: &[Left], hidden: usize) -> Vec<String> {
    let mut notes: Vec<String> =
        left.iter().map(|Left { node, reason }| format!("left alone: {node}: {reason}")).collect();
    if hidden > 0 {
        notes.push(format!("not looked at: {hidden} nodes in subgraphs or functions"));
    }
    notes
}

fn rewrite(args: &RewriteArgs) -> anyhow::Result<()> {
    let (name, mut target): (&str, Target) = match (args.to, args.runtime) {
        (Some(form), _) => (form.name(), form.into()),
        (None, Some(runtime)) => (runtime.name(), runtime.into()),
        (None, None) => {
            return Err(Usage("give a form with --to or a runtime with --for".into()).into());
        }
    };
    if let Some(most) = args.rank {
        target = target.with_most_axes(most);
    }
    let of_name = || args.model.with_extension(format!("{name}.onnx"));
    let output = args.output.clone().unwrap_or_else(of_name);
    let bytes = read(&args.model)?;
    let message = "is the model itself; give another name with --output";
    ensure!(!is_same(&args.model, &output), Usage(format!("{}: {message}", output.display())));
    let result = msdeform_onnx::rewrite(&bytes, target, Options::default());
    let result = result.with_context(|| args.model.display().to_string())?;
    ensure!(
        result.external_files.is_empty() || is_same(folder(&args.model), folder(&output)),
        Usage(format!(
            "the model keeps its weights in {}; write the new model into the same folder",
            result.external_files.join(", ")
        ))
    );
    for file in &result.external_files {
        let path = folder(&args.model).join(file);
        ensure!(
            path.exists(),
            "{}: its weights are missing: expected {}; nothing was written",
            args.model.display(),
            path.display()
        );
    }
    let is_there = !result.rewritten.is_empty() || !result.kept.is_empty();
    if is_there {
        let existing = if args.force { Existing::Replace } else { Existing::Keep };
        msdeform_files::write(&output, result.model.as_ref().unwrap_or(&bytes), existing)?;
    }
    show(args.json, &result, || summary(&result, &output, is_there))?;
    ensure!(is_there, CheckFailed(format!("no attention could be written as {}", result.to)));
    Ok(())
}

fn summary(result: &Rewrite, output: &Path, is_there: bool) -> String {
    let mut lines = Vec::new();
    if let (Some(runtime), Some(reason)) = (result.runtime, result.reason) {
        lines.push(format!("{} for {runtime}: {reason}.", result.to));
    }
    for site in &result.rewritten {
        let check = match (site.max_error, &site.not_checked) {
            (Some(error), _) => format!(", within {} of the reference", error_figure(error)),
            (None, Some(reason)) => format!(", not run: {reason}"),
            (None, None) => String::new(),
        };
        lines.push(format!("{}: {} -> {}{check}", site.name, site.from, site.to));
    }
    lines.extend(result.kept.iter().map(|name| format!("{name}: {} already", result.to)));
    lines.extend(notes(&result.left, result.hidden));
    if let [first, ..] = &result.more_axes[..] {
        let count = result.more_axes.len();
        lines.push(format!("more axes than --rank allows: {count} tensors around the new nodes, the first is {first}"));
    }
    if is_there {
        let (removed, added) = (result.removed_nodes, result.added_nodes);
        lines.push(format!("{}: {removed} nodes removed, {added} added", output.display()));
    }
    lines.join("\n")
}

/// The Python interpreter of the wheel's command sets this, so that its own packages are checked.
const PYTHON: &str = "MSDEFORM_PYTHON";
/// `python -m` would end as after a difference if the package is missing.
const PROGRAM: &str = "import sys
try:
    from msdeform.onnx._check import main
except ImportError as error:
    print(f'error: {error}; install the package: pip install msdeform onnxruntime', file=sys.stderr)
    sys.exit(3)
sys.exit(main(sys.argv[1:]))
";

fn check(args: &CheckArgs) -> anyhow::Result<()> {
    // A file that cannot be read or is no model needs no Python to be told.
    let bytes = read(&args.model)?;
    let found = msdeform_onnx::inspect(&bytes, Options::default());
    found.with_context(|| args.model.display().to_string())?;
    let python = std::env::var_os(PYTHON).unwrap_or_else(|| "python3".into());
    let mut command = Command::new(&python);
    command.args(["-c", PROGRAM]).arg(&args.model);
    args.runtime.iter().for_each(|name| {
        command.args(["--runtime", name]);
    });
    if args.json {
        command.arg("--json");
    }
    let status = command.status().with_context(|| {
        format!(
            "cannot start {}; the check needs Python: pip install msdeform onnxruntime",
            python.display()
        )
    })?;
    match status.code() {
        Some(0) => Ok(()),
        Some(1) => Err(CheckFailed("a runtime differs from the f64 reference".into()).into()),
        Some(2) => Err(Usage("the check did not start".into()).into()),
        // Python has said why.
        _ => anyhow::bail!("nothing was checked"),
    }
}

fn folder(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    }
}

/// Whether both paths lead to the same file or folder.
fn is_same(one: &Path, other: &Path) -> bool {
    one == other
        || matches!((one.canonicalize(), other.canonicalize()), (Ok(one), Ok(other)) if one == other)
}
