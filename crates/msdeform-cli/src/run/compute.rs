//! The computation: the chosen variants on the chosen device, or the reference.

use std::time::Instant;

use anyhow::{Result, ensure};
use msdeform::{DType, Direction, Problem, VariantSpec};
use msdeform_lab::device::Device;
use msdeform_lab::oracle::{Oracle, TensorCheck, reference_of};
use msdeform_lab::{Buffer, HostTensors, memory};
use serde::Serialize;

use super::RunArgs;
use crate::exit::Usage;

/// The id of the `f64` reference among variants. Only the reference computes `f64`.
const REFERENCE: &str = "reference";

/// Whether `--variant` or the dtype asks for the reference.
fn wants_reference(args: &RunArgs, problem: &Problem) -> bool {
    problem.dtype() == DType::F64 || args.variant.iter().any(|id| id == REFERENCE)
}

/// Memory that a call takes on top of its files, at most.
pub fn memory_bytes(args: &RunArgs, problem: &Problem) -> u128 {
    let outputs = memory::of_outputs(problem, args.backward);
    // Results are kept where they are computed, read from there, put into bytes and those into files.
    let device = memory::of_inputs(problem) + 4 * outputs;
    if args.check || wants_reference(args, problem) {
        device + memory::of_reference(problem, args.backward)
    } else {
        device
    }
}

/// One direction, done.
#[derive(Debug, Serialize)]
pub struct Pass {
    pub direction: &'static str,
    pub variant: &'static str,
    pub time_us: f64,
    #[serde(skip)]
    pub outputs: HostTensors,
    /// Empty without --check.
    pub checks: Vec<TensorCheck>,
}

/// Computes what is wanted of a call.
pub fn compute(
    device: &dyn Device,
    problem: &Problem,
    inputs: &HostTensors,
    args: &RunArgs,
) -> Result<Vec<Pass>> {
    let choices = choose(device, problem, args)?;
    let by_reference = choices.iter().any(|(_, choice)| choice.is_none());
    ensure!(
        !(args.check && by_reference),
        Usage(format!(
            "--check compares with the reference, and the reference computes this call{}",
            if problem.dtype() == DType::F64 { " (nothing else computes f64)" } else { "" }
        ))
    );
    let pass = |(direction, choice): (Direction, Option<&'static VariantSpec>)| {
        let (outputs, time_us) = match choice {
            Some(spec) => run_variant(device, spec, problem, inputs)?,
            None => run_reference(problem, inputs, direction),
        };
        let checks = match choice {
            Some(spec) if args.check => {
                Oracle::new(problem, inputs, &[spec]).check(&outputs, spec, problem)
            }
            _ => Vec::new(),
        };
        let variant = choice.map_or(REFERENCE, |spec| spec.id);
        Ok(Pass { direction: direction.name(), variant, time_us, outputs, checks })
    };
    choices.into_iter().map(pass).collect()
}

/// For each direction the named variant, or the choice of dispatch; `None` for the reference.
fn choose(
    device: &dyn Device,
    problem: &Problem,
    args: &RunArgs,
) -> Result<Vec<(Direction, Option<&'static VariantSpec>)>> {
    let known = device.variants();
    let mut chosen = Vec::new();
    for id in args.variant.iter().filter(|id| *id != REFERENCE) {
        let spec = known.iter().copied().find(|spec| spec.id == id).ok_or_else(|| {
            let ids: Vec<&str> = known.iter().map(|spec| spec.id).chain([REFERENCE]).collect();
            let ids = ids.join(", ");
            Usage(format!("device {} has no variant `{id}`; it has: {ids}", device.id()))
        })?;
        let direction = spec.direction;
        ensure!(
            args.backward || direction == Direction::Forward,
            Usage(format!("variant `{id}` computes the {direction}; add --backward"))
        );
        let is_second = chosen.iter().any(|other: &&VariantSpec| other.direction == direction);
        ensure!(!is_second, Usage(format!("two variants for the {direction}")));
        device.supports(spec, problem)?;
        chosen.push(spec);
    }
    let choice = |direction| {
        let named = chosen.iter().copied().find(|spec| spec.direction == direction);
        Ok((
            direction,
            match named {
                None if wants_reference(args, problem) => None,
                None => Some(device.dispatch(problem, direction)?),
                named => named,
            },
        ))
    };
    args.directions().map(choice).collect()
}

fn run_variant(
    device: &dyn Device,
    spec: &VariantSpec,
    problem: &Problem,
    inputs: &HostTensors,
) -> Result<(HostTensors, f64)> {
    let mut prepared = device.prepare(&[spec], problem, inputs)?;
    prepared.poison()?;
    let start = Instant::now();
    prepared.run()?;
    let time_us = start.elapsed().as_secs_f64() * 1e6;
    Ok((prepared.read()?, time_us))
}

fn run_reference(
    problem: &Problem,
    inputs: &HostTensors,
    direction: Direction,
) -> (HostTensors, f64) {
    let start = Instant::now();
    let exact = reference_of(problem, inputs, direction).into_iter();
    let outputs =
        exact.map(|(role, exact)| (role, Buffer::from_numbers(problem.format_of(role), &exact)));
    (outputs.collect(), start.elapsed().as_secs_f64() * 1e6)
}
