//! Tensors from bytes.

use anyhow::{Result, ensure};
use msdeform::{DType, Problem, Role};
use msdeform_devices::{Buffer, HostTensors};

use super::formats::{Tensor, Tensors, names};
use super::sizes::{self, Described, Stated};

/// A call with all of its inputs in memory.
#[derive(Debug)]
pub struct Call {
    pub described: Described,
    /// `grad_output` only with --backward.
    pub inputs: HostTensors,
}

impl Call {
    /// Decodes the tensors of a call; `grad_output` only where a backward needs it.
    pub fn load(described: Described, tensors: &Tensors<'_>, backward: bool) -> Result<Self> {
        let problem = &described.problem;
        let mut inputs = Vec::new();
        for Stated { role, dtype, shape } in &described.tensors {
            let tensor = tensors.get(role.name())?;
            // References are fewer where the same ones serve several.
            let count = match role {
                Role::References => shape.iter().fold(1, |all: usize, n| all.saturating_mul(*n)),
                _ => problem.len_of(*role),
            };
            let buffer = floats(tensor, *dtype, problem.format_of(*role), count)?;
            inputs.push((*role, expanded(buffer, *role, shape, problem)));
        }
        if backward {
            let (tensor, dtype) = (tensors.get(names::GRAD_OUTPUT)?, problem.output_dtype());
            sizes::check_grad_output(tensor, problem)?;
            let buffer = floats(tensor, dtype, dtype, problem.output_len())?;
            inputs.push((Role::GradOutput, buffer));
        }
        Ok(Self { described, inputs: inputs.into_iter().collect() })
    }
}

/// References may be the same for all images or queries; devices want them one by one.
fn expanded(buffer: Buffer, role: Role, shape: &[usize], problem: &Problem) -> Buffer {
    let (Role::References, [images, rows, ..]) = (role, shape) else { return buffer };
    let (batch, queries) = (problem.batch(), problem.queries());
    if (*images, *rows) == (batch, queries) {
        return buffer;
    }
    // A file of a few bytes can declare any number of images and queries without references. Nothing is expanded for them.
    if problem.references_len() == 0 {
        return buffer.gather(0, std::iter::empty());
    }
    let [_, _, references, components] = problem.references_shape();
    let picked = (0..batch).flat_map(|image| {
        let first = if *images == 1 { 0 } else { image * rows };
        (0..queries).map(move |query| first + if *rows == 1 { 0 } else { query })
    });
    buffer.gather(references * components, picked)
}

/// The elements of a tensor, in the dtype in which the call is computed: that of the file, or a wider one.
fn floats(tensor: &Tensor<'_>, stored: DType, target: DType, count: usize) -> Result<Buffer> {
    let expected = count.saturating_mul(stored.size_bytes());
    ensure!(
        tensor.bytes.len() == expected,
        "{}: {} bytes, expected {expected} ({count} elements of {stored})",
        tensor.label(),
        tensor.bytes.len()
    );
    Ok(Buffer::from_le_bytes(stored, tensor.bytes).converted(target))
}
