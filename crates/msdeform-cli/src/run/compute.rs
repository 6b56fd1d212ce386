//! The computation: the chosen variants on the chosen device, or the reference.

use std::time::Instant;

use anyhow::{Result, ensure};
use msdeform::{DType, Direction, Operator, Problem, Role, VariantSpec};
use msdeform_devices::device::Device;
use msdeform_devices::oracle::{Oracle, TensorCheck, reference_of};
use msdeform_devices::{Buffer, HostTensors, memory};

use super::decode::Call;
use super::sizes::Described;
use super::write::Product;
use crate::exit::Usage;

/// The id of the `f64` reference among variants. Only the reference computes `f64`.
pub const REFERENCE: &str = "reference";

/// What is wanted.
#[derive(Debug)]
pub struct Request<'a> {
    pub variants: &'a [String],
    pub backward: bool,
    pub check: bool,
}

impl Request<'_> {
    /// Memory that a call takes on top of its files, at most.
    pub fn memory_bytes(&self, problem: &Problem) -> u128 {
        let outputs = memory::of_outputs(problem, self.backward);
        // Results are kept where they are computed, read from there, put into bytes and those into files.
        let device = memory::of_inputs(problem) + 4 * outputs;
        let by_reference =
            problem.dtype() == DType::F64 || self.variants.iter().any(|id| id == REFERENCE);
        if self.check || by_reference {
            device + memory::of_reference(problem, self.backward)
        } else {
            device
        }
    }
}

/// One direction, done.
#[derive(Debug)]
pub struct Pass {
    pub direction: Direction,
    pub variant: &'static str,
    pub time_us: f64,
    pub outputs: HostTensors,
    /// Empty without --check.
    pub checks: Vec<TensorCheck>,
}

/// Everything that was computed.
#[derive(Debug)]
pub struct Computation {
    /// The name of the device.
    pub device: String,
    pub threads: Option<usize>,
    pub passes: Vec<Pass>,
}

impl Computation {
    /// The tensors that a run writes.
    pub fn tensor_names(operator: &Operator, backward: bool) -> Vec<&'static str> {
        let directions = Direction::ALL.iter().filter(|d| backward || **d == Direction::Forward);
        directions.flat_map(|direction| operator.written(*direction)).map(Role::name).collect()
    }

    /// The comparisons with the reference.
    pub fn checks(&self) -> impl Iterator<Item = &TensorCheck> {
        self.passes.iter().flat_map(|pass| &pass.checks)
    }

    /// The tensors to write, with the shapes of those they belong to.
    pub fn into_products(self, described: &Described) -> Vec<Product> {
        let product = |(role, data)| {
            let shape = match described.shape_of_gradient(role) {
                // As many as there are queries, also where the same ones serve several.
                Some(_) if role == Role::GradReferences => {
                    described.problem.references_shape().to_vec()
                }
                Some(shape) => shape.to_vec(),
                None => described.problem.output_shape().to_vec(),
            };
            Product { name: role.name(), shape, data }
        };
        self.passes.into_iter().flat_map(|pass| pass.outputs).map(product).collect()
    }
}

/// Computes what is wanted of a call.
pub fn compute(device: &dyn Device, call: &Call, request: &Request<'_>) -> Result<Computation> {
    let problem = &call.described.problem;
    let directions = if request.backward { &Direction::ALL[..] } else { &[Direction::Forward] };
    let choices = choose(device, problem, directions, request.variants)?;
    let by_reference = choices.iter().any(|choice| matches!(choice, Implementation::Reference));
    ensure!(
        !(request.check && by_reference),
        Usage(format!(
            "--check compares with the reference, and the reference computes this call{}",
            if problem.dtype() == DType::F64 { " (nothing else computes f64)" } else { "" }
        ))
    );

    let mut passes = Vec::new();
    for (&direction, choice) in directions.iter().zip(choices) {
        let (outputs, time_us) = match choice {
            Implementation::Variant(spec) => run_variant(device, spec, problem, &call.inputs)?,
            Implementation::Reference => run_reference(problem, &call.inputs, direction),
        };
        let checks = match choice {
            Implementation::Variant(spec) if request.check => {
                Oracle::new(problem, &call.inputs, &[spec]).check(&outputs, spec, problem)
            }
            _ => Vec::new(),
        };
        passes.push(Pass { direction, variant: choice.id(), time_us, outputs, checks });
    }
    Ok(Computation { device: device.name().to_owned(), threads: device.threads(), passes })
}

#[derive(Clone, Copy)]
enum Implementation {
    Variant(&'static VariantSpec),
    Reference,
}

impl Implementation {
    const fn id(self) -> &'static str {
        match self {
            Self::Variant(spec) => spec.id,
            Self::Reference => REFERENCE,
        }
    }
}

/// For each direction the named variant, or the choice of dispatch.
fn choose(
    device: &dyn Device,
    problem: &Problem,
    directions: &[Direction],
    named: &[String],
) -> Result<Vec<Implementation>> {
    let known = device.variants();
    let mut chosen = vec![None; directions.len()];
    for id in named.iter().filter(|id| *id != REFERENCE) {
        let spec = known.iter().copied().find(|spec| spec.id == id).ok_or_else(|| {
            let ids: Vec<&str> = known.iter().map(|spec| spec.id).chain([REFERENCE]).collect();
            let ids = ids.join(", ");
            Usage(format!("device {} has no variant `{id}`; it has: {ids}", device.id()))
        })?;
        let slot = directions.iter().position(|&direction| direction == spec.direction);
        let slot = slot.ok_or_else(|| {
            let direction = spec.direction;
            Usage(format!("variant `{id}` computes the {direction}; add --backward"))
        })?;
        ensure!(chosen[slot].is_none(), Usage(format!("two variants for the {}", spec.direction)));
        device.supports(spec, problem)?;
        chosen[slot] = Some(Implementation::Variant(spec));
    }
    let reference = named.iter().any(|id| id == REFERENCE) || problem.dtype() == DType::F64;
    directions
        .iter()
        .zip(chosen)
        .map(|(&direction, chosen)| match chosen {
            Some(choice) => Ok(choice),
            None if reference => Ok(Implementation::Reference),
            None => Ok(Implementation::Variant(device.dispatch(problem, direction)?)),
        })
        .collect()
}

fn run_variant(
    device: &dyn Device,
    spec: &VariantSpec,
    problem: &Problem,
    inputs: &HostTensors,
) -> Result<(HostTensors, f64)> {
    let mut prepared = device.prepare(spec, problem, inputs)?;
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
