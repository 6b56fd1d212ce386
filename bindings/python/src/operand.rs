//! Tensors and levels as Python hands them over.

use msdeform::OffsetOptions;
use msdeform_torch::call::{Described, Inputs, LEVEL_NUMBERS};
use msdeform_torch::error::CallError;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};

/// A tensor: address, dtype, shape, strides in elements.
#[derive(FromPyObject)]
pub struct Operand<'py>(u64, i64, Bound<'py, PyTuple>, Bound<'py, PyTuple>);

/// What an operator reads: its tensors in order and, if samples follow from offsets, how.
#[derive(FromPyObject)]
pub struct Operands<'py>(Vec<Operand<'py>>, Option<RuleGiven>);

impl Operands<'_> {
    /// Runs something with them; refused if they are not as many as the operator has.
    pub fn with<T>(&self, run: impl FnOnce(Inputs<'_>) -> PyResult<T>) -> PyResult<T> {
        let tensors: Vec<&dyn Described> = self.0.iter().map(|operand| operand as _).collect();
        let inputs = Inputs { tensors: &tensors, rule: self.1.map(OffsetOptions::from) };
        let expected = inputs.operator().inputs.len();
        if tensors.len() != expected {
            let found = tensors.len();
            let message = format!("the operator reads {expected} tensors, found {found}");
            return Err(PyValueError::new_err(message));
        }
        run(inputs)
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

/// How samples follow from offsets: anchors, scale, softmax, nearest.
#[derive(Clone, Copy, FromPyObject, IntoPyObject)]
pub struct RuleGiven(bool, f32, bool, bool);

impl From<RuleGiven> for OffsetOptions {
    fn from(RuleGiven(anchors, scale, softmax, nearest): RuleGiven) -> Self {
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
            let message = format!("`{source}` leads to {number}, which is no 64-bit integer");
            PyValueError::new_err(message)
        })
    };
    match levels.cast::<PyList>() {
        Ok(list) => list.iter().enumerate().map(number).collect(),
        Err(_) => levels.cast::<PyTuple>()?.iter().enumerate().map(number).collect(),
    }
}
