//! Kernels for plugins of `TensorRT`, which `msdeform.tensorrt` describes.

use msdeform::{DType, LevelLists, OffsetOptions, OffsetRule, Signature, TensorSignature};
use msdeform_cuda::driver_version;
use msdeform_cuda::nvrtc::Nvrtc;
use msdeform_cuda::tensorrt::{EmbeddedKernel, Integers, Number};
use msdeform_torch::error::CallError;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::operand::{Options, exception};

/// The inputs of an operator in order, each a dtype and a shape, and its options if it has some.
#[derive(FromPyObject)]
pub struct Tensors(Vec<(usize, Vec<i64>)>, Option<Options>);

/// How many levels there are, and the points of each if they differ.
#[derive(FromPyObject)]
pub struct LevelPoints(usize, Option<Vec<i64>>);

/// Name and PTX, threads of a block, rows of a block, shared memory of a block, and the names of its integers.
type Kernel = (String, String, u32, u32, u32, Vec<&'static str>);

/// The kernel of a node. Only what the kernel is compiled for counts in the shapes; the level sizes are not known.
#[pyfunction]
pub fn tensorrt_kernel(
    py: Python<'_>,
    inputs: Tensors,
    levels: LevelPoints,
    integer_bytes: usize,
) -> PyResult<Kernel> {
    let integers = match integer_bytes {
        4 => Integers::I32,
        8 => Integers::I64,
        other => {
            return Err(PyValueError::new_err(format!(
                "no kernel reads integers of {other} bytes"
            )));
        }
    };
    let Tensors(tensors, options) = inputs;
    let tensor = |(code, shape): &(usize, Vec<i64>)| {
        let dtype = *DType::ALL.get(*code).ok_or_else(|| exception(CallError::DtypeCode(*code)))?;
        Ok((dtype, shape.clone()))
    };
    let tensors = tensors.iter().map(tensor).collect::<PyResult<Vec<(DType, Vec<i64>)>>>()?;
    let signatures: Vec<TensorSignature<'_>> =
        tensors.iter().map(|(dtype, shape)| TensorSignature { dtype: *dtype, shape }).collect();
    // Any sizes will do: each level has a pixel of its own.
    let LevelPoints(count, points) = levels;
    let starts: Vec<i64> = (0..count as i64).collect();
    let sizes = vec![[1, 1]; count];
    let levels = LevelLists { sizes: &sizes, starts: Some(&starts), points: points.as_deref() };
    let rule = options.map(|options| OffsetRule::OfReferences(OffsetOptions::from(options)));
    let signature =
        Signature { rule, expands_references: true, ..Signature::new(&signatures, levels) };
    let problem = signature.problem().map_err(|error| exception(error.into()))?;
    let compiled = py.detach(|| {
        let kernel = EmbeddedKernel::new(&problem, integers)?;
        // The driver compiles PTX of its own version and of older ones.
        let nvrtc = Nvrtc::find(driver_version().ok())?;
        kernel.ptx(&nvrtc).map(|ptx| (kernel, ptx))
    });
    let (kernel, ptx) = compiled.map_err(|error| exception(CallError::Cuda(error)))?;
    let numbers = kernel.numbers.iter().map(|number| Number::name(*number)).collect();
    let EmbeddedKernel { name, threads, rows_per_block, shared_bytes, .. } = kernel;
    Ok((name, ptx, threads, rows_per_block, shared_bytes, numbers))
}
