//! Addresses, options and levels as Python passes them.

use std::borrow::Cow;

use msdeform::{DType, Gradients, OffsetOptions};
use msdeform_torch::call::{Described, Framework, Inputs, LEVEL_NUMBERS, Place};
use msdeform_torch::error::{CallError, Kind};
use pyo3::create_exception;
use pyo3::exceptions::{PyRuntimeError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};

create_exception!(
    msdeform,
    Unavailable,
    PyRuntimeError,
    "No GPU of this machine can be used, for want of a driver, a compiler or a GPU that is new enough: nothing went wrong on one."
);

/// The exception of an error.
#[allow(clippy::needless_pass_by_value, reason = "what `map_err` calls")]
pub fn exception(error: CallError) -> PyErr {
    of_kind(error.kind(), error.to_string())
}

/// The exception of a kind.
pub fn of_kind(kind: Kind, message: String) -> PyErr {
    match kind {
        Kind::Type => PyTypeError::new_err(message),
        Kind::Value => PyValueError::new_err(message),
        Kind::Unavailable => Unavailable::new_err(message),
        Kind::Runtime => PyRuntimeError::new_err(message),
    }
}

/// Memory that Python keeps alive: address, dtype, shape, strides in elements.
#[derive(FromPyObject)]
struct Operand(u64, usize, Vec<i64>, Vec<i64>);

/// The inputs of an operator in order, and its options if it has some.
#[derive(FromPyObject)]
pub struct Operands(Vec<Operand>, Option<Options>);

/// What addresses are of: memory of the CPU, with threads to compute with, or of a GPU, with its number and a stream.
#[derive(Clone, Copy, FromPyObject)]
pub struct AddressPlace(i64, Option<usize>);

struct Addresses<'py>(Python<'py>, AddressPlace);

impl Framework for Addresses<'_> {
    type Error = PyErr;
    type Memory = ();

    fn error(error: CallError) -> PyErr {
        exception(error)
    }

    fn threads(&self) -> PyResult<i64> {
        Ok(self.1.0)
    }

    fn stream(&self, _: i32) -> PyResult<usize> {
        Ok(self.1.1.unwrap_or_default())
    }

    fn workspace(&self, _: i32, _: usize) -> PyResult<((), u64)> {
        Err(PyRuntimeError::new_err("a call by addresses has no workspace"))
    }

    fn detached<T: Send>(&self, run: impl FnOnce() -> T + Send) -> T {
        self.0.detach(run)
    }
}

/// Computes `output` from memory that no framework describes, such as that of arrays. The caller keeps all memory alive.
#[pyfunction]
pub fn forward(
    py: Python<'_>,
    levels: &Bound<'_, PyAny>,
    place: AddressPlace,
    inputs: Operands,
    output: u64,
) -> PyResult<()> {
    let ordinal = i32::try_from(place.0).unwrap_or(-1);
    let device = if place.1.is_some() { Place::Gpu(ordinal) } else { Place::Cpu };
    let Operands(operands, options) = inputs;
    let described = |Operand(address, code, shape, strides): Operand| {
        let dtype = *DType::ALL.get(code).ok_or_else(|| exception(CallError::DtypeCode(code)))?;
        let (shape, strides) = (Cow::Owned(shape), Cow::Owned(strides));
        Ok(Described { address, dtype, place: device, shape, strides })
    };
    let tensors = operands.into_iter().map(described).collect::<PyResult<_>>()?;
    let inputs = Inputs { tensors, rule: options.map(OffsetOptions::from) };
    let levels = level_numbers(levels)?;
    // SAFETY: the Python half passes addresses, shapes and strides of memory that it holds until this returns, and allocates the
    // output for exactly this call.
    unsafe { inputs.forward(&Addresses(py, place), &levels, (Gradients::NONE, false), output) }
}

/// The options of the fused operator in the order of its schema: scale, anchors, softmax, nearest.
#[derive(Clone, Copy, FromPyObject)]
pub struct Options(f32, bool, bool, bool);

impl From<Options> for OffsetOptions {
    fn from(Options(scale, anchors, softmax, nearest): Options) -> Self {
        Self { anchors, scale, softmax, nearest }
    }
}

/// The levels as a list (from PyTorch's dispatcher) or a tuple of integers.
#[pyfunction]
pub fn level_numbers(levels: &Bound<'_, PyAny>) -> PyResult<Vec<i64>> {
    /// The arguments that height, width, start and points of a level come from.
    const SOURCES: [&str; LEVEL_NUMBERS] =
        ["spatial_shapes", "spatial_shapes", "level_start_index", "points"];
    let number = |(at, number): (usize, Bound<'_, PyAny>)| {
        number.extract::<i64>().map_err(|_| {
            let source = SOURCES[at % LEVEL_NUMBERS];
            let message = format!("`{source}` leads to {number}, expected a 64-bit integer");
            PyValueError::new_err(message)
        })
    };
    match levels.cast::<PyList>() {
        Ok(list) => list.iter().enumerate().map(number).collect(),
        Err(_) => levels.cast::<PyTuple>()?.iter().enumerate().map(number).collect(),
    }
}
