//! Tensors from bytes.

use anyhow::{Result, ensure};
use half::{bf16, f16};
use msdeform::{DType, Element};
use msdeform_devices::{Buffer, HostTensors};

use super::formats::{Tensor, Tensors, names};
use super::sizes::{self, Described};

/// A call with all of its inputs in memory.
#[derive(Debug)]
pub struct Call {
    pub described: Described,
    /// `grad_output` is empty where no backward was asked for.
    pub inputs: HostTensors,
}

impl Call {
    /// Decodes the tensors of a call; `grad_output` only where a backward needs it.
    pub fn load(described: Described, tensors: &Tensors<'_>, backward: bool) -> Result<Self> {
        let problem = &described.problem;
        let (dtype, sampling) = (problem.dtype(), problem.sampling_dtype());
        let value =
            floats(tensors.get(names::VALUE)?, described.value_dtype, dtype, problem.value_len())?;
        let locations = floats(
            tensors.get(names::SAMPLING_LOCATIONS)?,
            described.locations_dtype,
            sampling,
            problem.locations_len(),
        )?;
        let weights = floats(
            tensors.get(names::ATTENTION_WEIGHTS)?,
            described.weights_dtype,
            sampling,
            problem.weights_len(),
        )?;
        let grad_output = if backward {
            let tensor = tensors.get(names::GRAD_OUTPUT)?;
            sizes::check_grad_output(tensor, problem)?;
            floats(tensor, dtype, dtype, problem.output_len())?
        } else {
            Buffer::poisoned(dtype, 0)
        };
        Ok(Self { described, inputs: HostTensors { value, locations, weights, grad_output } })
    }
}

/// The elements of a tensor, widened where the call is computed in a wider format.
fn floats(tensor: &Tensor<'_>, stored: DType, target: DType, count: usize) -> Result<Buffer> {
    let expected = count.saturating_mul(stored.size_bytes());
    ensure!(
        tensor.bytes.len() == expected,
        "{}: {} bytes, expected {expected} ({count} elements of {stored})",
        tensor.label(),
        tensor.bytes.len()
    );
    let bytes = tensor.bytes;
    Ok(match stored {
        DType::F32 => widen(bytes.as_chunks().0.iter().map(|&x| f32::from_le_bytes(x)), target),
        DType::F16 => widen(bytes.as_chunks().0.iter().map(|&x| f16::from_le_bytes(x)), target),
        DType::Bf16 => widen(bytes.as_chunks().0.iter().map(|&x| bf16::from_le_bytes(x)), target),
        DType::F64 => widen(bytes.as_chunks().0.iter().map(|&x| f64::from_le_bytes(x)), target),
    })
}

/// Exact: `target` is never narrower than the stored format.
fn widen<T: Element>(elements: impl Iterator<Item = T>, target: DType) -> Buffer {
    match target {
        DType::F32 => Buffer::F32(elements.map(T::to_f32).collect()),
        DType::F64 => Buffer::F64(elements.map(T::to_f64).collect()),
        DType::F16 => Buffer::F16(elements.map(|x| f16::from_f32(x.to_f32())).collect()),
        DType::Bf16 => Buffer::Bf16(elements.map(|x| bf16::from_f32(x.to_f32())).collect()),
    }
}
