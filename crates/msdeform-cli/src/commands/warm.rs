//! `msdeform warm`

use std::time::Instant;

use anyhow::{bail, ensure};
use clap::Args;
use msdeform::{DType, Direction, Mode, Operator, Problem, ValueLayout};
use msdeform_cuda::DiskCache;
use msdeform_lab::models::{
    MODEL_SHAPES, ModelShape, Scope, USUAL, in_every_size, specialisations_of,
};
use msdeform_lab::warm::{Target, Warmed, warm};
use msdeform_lab::workload::Sizes;
use msdeform_lab::{DeviceId, Workload};
use serde::Serialize;

use crate::args::{fast_dtype, named, operator};
use crate::exit::{CheckFailed, Usage};
use crate::output::{grouped, progress, show};

/// Compile kernels ahead, so that no later process waits for the compiler
///
/// Fills the cache of compiled kernels with all that calls of known models need, for any image, batch and number of queries.
/// Layers that `patch()` replaces call the fused operator, others the plain one; both are compiled. For another model, give a
/// workload of its shape. Kernels that are in the cache already stay. On a machine without a GPU, such as one that builds a
/// container image, --arch names the GPU's architecture.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub struct WarmArgs {
    /// The GPU to compile for: cuda or cuda:N [default: cuda:0]
    #[arg(long, value_name = "DEVICE", conflicts_with = "arch")]
    device: Option<DeviceId>,
    /// An architecture instead of a GPU that is there, such as `sm_90`
    #[arg(long, value_name = "ARCH")]
    arch: Option<String>,
    /// Only these models, by a part of their name [default: all that `patch()` knows]
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    model: Vec<String>,
    /// Models with the shapes of workloads, built-in ones by name, or paths of workload files
    #[arg(long, value_name = "NAME|FILE", value_delimiter = ',')]
    workload: Vec<String>,
    /// Only the fused operator, which whole layers call [default: both operators]
    #[arg(long = "from-offsets")]
    fused: bool,
    /// Dtypes: f32, f16, bf16
    #[arg(long, value_name = "DTYPE", value_delimiter = ',', default_value = "f32,f16,bf16", value_parser = fast_dtype)]
    dtype: Vec<DType>,
    /// Only forward or only backward
    #[arg(long, value_name = "DIRECTION")]
    direction: Option<Direction>,
    /// Only gradients that are fast, or deterministic
    #[arg(long, value_name = "MODE")]
    mode: Option<Mode>,
    /// Kernels compiled side by side [default: all cores]
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// Print the summary as JSON
    #[arg(long)]
    json: bool,
}

const AFTER_HELP: &str = "MSDEFORM_CACHE_DIR names the cache; it holds 256 MB, of which the least used goes first. Stopped with \
Ctrl-C, what was compiled so far stays.";

#[derive(Serialize)]
struct Document {
    arch: String,
    gpu: Option<String>,
    nvrtc: String,
    cache: String,
    threads: usize,
    #[serde(flatten)]
    warmed: Warmed,
}

pub fn run(args: &WarmArgs) -> anyhow::Result<()> {
    let all_cores = || std::thread::available_parallelism().map_or(1, usize::from);
    let threads = args.threads.unwrap_or_else(all_cores);
    ensure!(threads > 0, Usage("--threads: at least one is needed".into()));
    let target = target(args)?;
    let wanted = specialisations_of(&target.gpus, in_every_size(problems(args)?), &scope(args));
    let why = "no kernel is compiled for these calls; change --direction or --dtype";
    ensure!(!wanted.is_empty(), Usage(why.into()));
    let bar = progress(wanted.len(), "compiling");
    let start = Instant::now();
    let say = |done: usize| {
        bar.set_position(done as u64);
        let left = start.elapsed().as_secs_f64() / done as f64 * (wanted.len() - done) as f64;
        bar.set_message(format!("about {left:.0} s left"));
        true
    };
    let warmed = warm(&target, &wanted, threads, &say)?;
    drop(bar);
    let (code, failed) = (target.code(), warmed.failed.len());
    let document = Document {
        nvrtc: code.nvrtc()?.version().to_string(),
        cache: code.cache().folder().map_or_else(String::new, |path| path.display().to_string()),
        arch: target.arch.clone(),
        gpu: target.name.clone(),
        threads,
        warmed,
    };
    show(args.json, &document, || summary(&document))?;
    ensure!(failed == 0, CheckFailed(format!("{failed} kernels did not compile")));
    Ok(())
}

fn target(args: &WarmArgs) -> anyhow::Result<Target> {
    if let Some(arch) = &args.arch {
        return Ok(Target::of_architecture(arch, DiskCache::of_user())?);
    }
    match args.device.unwrap_or(DeviceId::Cuda(0)) {
        DeviceId::Cuda(ordinal) => Ok(Target::of_gpu(ordinal)?),
        DeviceId::Cpu => bail!(Usage(
            "--device cpu: nothing is compiled at run time for a CPU; name a GPU, or give --arch"
                .into()
        )),
    }
}

fn scope(args: &WarmArgs) -> Scope {
    let all = Scope::default();
    Scope {
        dtypes: args.dtype.clone(),
        directions: args.direction.map_or(all.directions, |direction| vec![direction]),
        modes: args.mode.map_or(all.modes, |mode| vec![mode]),
        ..all
    }
}

/// Calls of the chosen models and workloads.
fn problems(args: &WarmArgs) -> anyhow::Result<Vec<Problem>> {
    let operators = if args.fused { vec![operator(true)] } else { Operator::ALL.to_vec() };
    let mut problems = Vec::new();
    let of_shape = |shape: &ModelShape<'_>| {
        operators.iter().flat_map(|of| shape.problems(of)).collect::<Vec<_>>()
    };
    for workload in named(&args.workload)? {
        for dtype in DType::FAST {
            // Its own sizes, in addition to all sizes of a model of its shape.
            let (layout, sizes) = (ValueLayout::Interleaved, Sizes::default());
            for operator in &operators {
                problems.push(workload.problem_of(operator, dtype, layout, sizes)?);
            }
        }
        let (points, rules) = (workload.points_per_level(), [workload.references.rule()]);
        let Workload { heads, channels, .. } = workload;
        let (points, queries) = (&points[..], &[workload.standard_queries()][..]);
        let (encoder, decoder) = (&rules[..], &rules[..]);
        let shape = ModelShape { heads, channels, points, queries, encoder, decoder, ..USUAL };
        problems.extend(of_shape(&shape));
    }
    let all_models = args.model.is_empty() && args.workload.is_empty();
    for name in &args.model {
        let is_known = MODEL_SHAPES.iter().any(|shape| is_named(shape.models, name));
        let known = MODEL_SHAPES.iter().map(|shape| shape.models).collect::<Vec<_>>().join("; ");
        ensure!(is_known, Usage(format!("unknown model `{name}`; known: {known}")));
    }
    let is_meant =
        |models: &str| all_models || args.model.iter().any(|name| is_named(models, name));
    let models = MODEL_SHAPES.iter().filter(|shape| is_meant(shape.models));
    problems.extend(models.flat_map(of_shape));
    Ok(problems)
}

/// Whether one of these models has this in its name, however it is spelt: `rtdetr` is in `RT-DETR`.
fn is_named(models: &str, part: &str) -> bool {
    let plain = |name: &str| -> String {
        name.chars().filter(|c| c.is_alphanumeric()).flat_map(char::to_lowercase).collect()
    };
    let part = plain(part);
    !part.is_empty() && models.split(", ").any(|model| plain(model).contains(&part))
}

fn summary(document: &Document) -> String {
    let Document { arch, gpu, nvrtc, cache, threads, warmed } = document;
    let gpu = gpu.as_ref().map_or_else(String::new, |gpu| format!(" ({gpu})"));
    let mut text = format!(
        "{} kernels for {arch}{gpu}: {} compiled by NVRTC {nvrtc}, {} found, {} failed; {:.1} s on {threads} threads\n\
         {:.1} MB in {cache}",
        grouped(warmed.kernels),
        grouped(warmed.compiled),
        grouped(warmed.found),
        grouped(warmed.failed.len()),
        warmed.seconds,
        warmed.bytes as f64 / 1e6,
    );
    for failed in &warmed.failed {
        text.push_str(&format!("\n{} {}: {}", failed.variant, failed.unit, failed.error));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_are_known_by_any_part_of_their_name() {
        let models = "RT-DETR, D-FINE nano";
        for part in ["rtdetr", "RT-DETR", "d-fine", "Nano", "fine_n"] {
            assert!(is_named(models, part), "{part}");
        }
        for part in ["", "-", "dino", "RT-DETR, D-FINE"] {
            assert!(!is_named(models, part), "{part}");
        }
    }
}
