//! Tensors and levels as Python hands them over.

use msdeform::OffsetOptions;
use msdeform_torch::call::{Described, LEVEL_NUMBERS};
use msdeform_torch::error::CallError;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};

/// A tensor: address, format, shape.
#[derive(FromPyObject)]
pub struct Operand<'py>(pub usize, i64, Bound<'py, PyTuple>);

impl Operand<'_> {
    pub const fn address(&self) -> u64 {
        self.0 as u64
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
