//! Tensors, options and levels as Python passes them.

use msdeform::OffsetOptions;
use msdeform_torch::call::{Described, Inputs, LEVEL_NUMBERS};
use msdeform_torch::error::CallError;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};

/// A tensor: address, dtype, shape, strides in elements.
#[derive(FromPyObject)]
pub struct Operand<'py>(u64, i64, Bound<'py, PyTuple>, Bound<'py, PyTuple>);

/// The inputs of an operator in order, and its options if it has some.
#[derive(FromPyObject)]
pub struct Operands<'py>(Vec<Operand<'py>>, Option<Options>);

impl<'py> Operands<'py> {
    /// As the plans take them; refused if they are not as many as the operator has.
    pub fn described(&self) -> PyResult<Inputs<'_, Operand<'py>>> {
        let inputs = Inputs { tensors: &self.0, rule: self.1.map(OffsetOptions::from) };
        let (found, expected) = (self.0.len(), inputs.operator().inputs.len());
        if found == expected {
            return Ok(inputs);
        }
        let message = format!("found {found} tensors, but the operator reads {expected}");
        Err(PyValueError::new_err(message))
    }
}

impl Described for Operand<'_> {
    fn code(&self) -> i64 {
        self.1
    }

    fn rank(&self) -> usize {
        self.2.len()
    }

    fn write_shape(&self, numbers: &mut Vec<i64>) -> Result<(), CallError> {
        for size in self.2.iter_borrowed() {
            numbers.push(size.extract().map_err(|_| CallError::Size(size.to_string()))?);
        }
        Ok(())
    }

    fn stride(&self, axis: usize) -> Result<i64, CallError> {
        let Ok(stride) = self.3.get_borrowed_item(axis) else { return Ok(0) };
        stride.extract().map_err(|_| CallError::Size(stride.to_string()))
    }

    fn address(&self) -> Result<u64, CallError> {
        Ok(self.0)
    }
}

/// The options of the fused operator in the order of its schema: scale, anchors, softmax, nearest.
#[derive(Clone, Copy, FromPyObject)]
pub struct Options(f32, bool, bool, bool);

impl From<Options> for OffsetOptions {
    fn from(Options(scale, anchors, softmax, nearest): Options) -> Self {
        Self { anchors, scale, softmax, nearest }
    }
}

/// The levels as a list (from PyTorch's dispatcher) or a tuple (from the NumPy path) of integers.
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
