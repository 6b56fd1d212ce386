//! `msdeform run`: the operator on the user's own tensors.
//!
//! Read everything, describe the call, compute, check, write: in this order, so that a call
//! that cannot run is refused before the work, and nothing is written that failed its check.

#![allow(clippy::doc_markdown, reason = "these comments are help texts, which know no Markdown")]

mod call;
mod compute;
mod files;
pub mod from_bytes;
mod npy;
mod report;
mod sizes;
mod write;

use std::path::PathBuf;

use anyhow::{Result, ensure};
use clap::Args;
use msdeform::{Direction, Role};
use msdeform_lab::memory;

use crate::args::{DeviceArgs, ModeArgs};
use crate::exit::{CheckFailed, EXIT_CODES};
use crate::output::{print, print_json};

use call::Call;
use files::Input;
use report::{NotFinite, Report, Written};
use sizes::SizeArgs;
use write::Target;

/// Run the operator on your own tensors
///
/// INPUT is a .safetensors file, or a folder with one .npy or raw .bin file per tensor: value,
/// spatial_shapes, sampling_locations, attention_weights; level_start_index if the levels do not
/// follow each other; grad_output for --backward. With sampling_offsets, attention_logits and reference_points instead of
/// locations and weights, the fused operator runs. Results are written in the same kind of file.
#[derive(Debug, Args)]
#[command(after_help = EXIT_CODES)]
pub struct RunArgs {
    /// A .safetensors file, or a folder of .npy or .bin files
    pub input: PathBuf,
    /// Where results go: a .safetensors file or a folder, like the input [default: next to it]
    #[arg(long, short, value_name = "PATH")]
    pub output: Option<PathBuf>,
    /// Replace results that exist
    #[arg(long)]
    pub force: bool,
    /// Also compute the gradients of all inputs for grad_output
    #[arg(long)]
    pub backward: bool,
    /// Compare with the f64 reference before writing; a failed check writes nothing
    #[arg(long)]
    pub check: bool,
    /// Where to compute.
    #[command(flatten)]
    pub device: DeviceArgs,
    /// What gradients promise.
    #[command(flatten)]
    pub mode: ModeArgs,
    /// Which variant computes; once per direction, `reference` for the f64 reference
    /// [default: the best]
    #[arg(long, value_name = "ID")]
    pub variant: Vec<String>,
    /// Print the report as JSON
    #[arg(long)]
    pub json: bool,
    /// Sizes that the files do not state.
    #[command(flatten)]
    pub sizes: SizeArgs,
}

impl RunArgs {
    fn directions(&self) -> impl Iterator<Item = Direction> {
        Direction::ALL.into_iter().filter(|way| self.backward || *way == Direction::Forward)
    }
}

pub fn run(args: &RunArgs) -> Result<()> {
    let input = Input::read(&args.input)?;
    let target = Target::new(&input, args.output.as_deref(), args.force)?;
    let tensors = input.tensors()?;
    let call = Call::describe(&tensors, &args.sizes)?;
    let problem = &call.problem;
    let results: Vec<Role> =
        args.directions().flat_map(|direction| problem.operator().written(direction)).collect();
    target.ensure_free(&results)?;
    memory::ensure_room(problem, compute::memory_bytes(args, problem))?;
    let inputs = call.inputs(&tensors, args.backward)?;

    let device = args.device.open_with(args.mode.options().with_all_gradients())?;
    let mut passes = compute::compute(device.as_ref(), problem, &inputs, args)?;
    let outputs = passes.iter_mut().flat_map(|pass| std::mem::take(&mut pass.outputs));
    let products: Vec<write::Product> =
        outputs.map(|(role, data)| (role, call.shape_of_result(role), data)).collect();
    let passed = passes.iter().flat_map(|pass| &pass.checks).all(|check| check.pass);
    let file = |role: &Role| target.file(role.name()).display().to_string();
    let written = results.iter().filter(|_| passed);
    let report = Report {
        problem: problem.to_string(),
        device: device.name().to_owned(),
        threads: device.threads(),
        not_finite: inputs.iter().filter_map(|(role, x)| NotFinite::of(role.name(), x)).collect(),
        passes,
        written: written.map(|role| Written { tensor: role.name(), file: file(role) }).collect(),
        passed,
        has_idle_gradient: !args.backward && tensors.find(Role::GradOutput.name()).is_some(),
    };
    if passed {
        target.write(&products)?;
    }
    if target.is_standard_output() {
        eprintln!("{report}");
    } else if args.json {
        print_json(&report)?;
    } else {
        print(&report.to_string())?;
    }
    let input = args.input.display();
    ensure!(passed, CheckFailed(format!("{input}: the check failed; nothing was written")));
    Ok(())
}
