//! `msdeform run`: the operator on the user's own tensors.
//!
//! Read everything, describe the call, compute, check, write: in this order, so that a call
//! that cannot run is refused before the work, and nothing is written that failed its check.

#![allow(clippy::doc_markdown, reason = "these comments are help texts, which know no Markdown")]

mod compute;
mod decode;
mod formats;
pub mod from_bytes;
mod offsets;
#[cfg(test)]
mod properties;
mod report;
mod sizes;
mod write;

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use msdeform_devices::memory;

use crate::args::{DeviceArgs, ModeArgs};
use crate::exit::{CheckFailed, EXIT_CODES};
use crate::output::{print, print_json};

use compute::{Computation, Request};
use decode::Call;
use formats::{Input, names};
use report::Report;
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

/// Runs the command.
pub fn run(args: &RunArgs) -> Result<()> {
    let input = Input::read(&args.input)?;
    let target = Target::new(&input, args.output.as_deref(), args.force)?;
    let tensors = input.tensors()?;
    let operator = offsets::operator(&tensors, &args.sizes.offsets)?;
    target.ensure_free(&Computation::tensor_names(operator, args.backward))?;
    let described = sizes::describe(&tensors, &args.sizes, operator)?;
    let request = Request { variants: &args.variant, backward: args.backward, check: args.check };
    memory::ensure_room(&described.problem, request.memory_bytes(&described.problem))?;
    let call = Call::load(described, &tensors, args.backward)?;
    let idle_gradient = !args.backward && tensors.find(names::GRAD_OUTPUT).is_some();

    let device = args.device.open_with(args.mode.options().with_all_gradients())?;
    let computation = compute::compute(device.as_ref(), &call, &request)?;
    let passed = computation.checks().all(|check| check.pass);
    let report = Report::new(&call, &computation, &target, passed, idle_gradient);
    if passed {
        target.write(&computation.into_products(&call.described))?;
    }
    if target.is_standard_output() {
        eprintln!("{report}");
    } else if args.json {
        print_json(&report)?;
    } else {
        print(&report.to_string())?;
    }
    if passed {
        Ok(())
    } else {
        let input = args.input.display();
        Err(CheckFailed(format!("{input}: the check failed; nothing was written")).into())
    }
}
