//! A call as Python describes it: a few numbers that serve as the key of its plan.
//!
//! Everything that a plan depends on goes into the key, shapes included. A key that is known was
//! checked when its plan was made, so a repeated call compares numbers and checks nothing again.

use msdeform::{DType, Problem};
use msdeform_cuda::ValueStrides;
use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};

use crate::error::CallError;

/// A tensor as Python hands it over: address, format, shape.
#[derive(FromPyObject)]
pub struct Operand<'py>(pub usize, i64, Bound<'py, PyTuple>);

/// The numbers that identify a call.
///
/// `[place, value dtype, locations dtype, weights dtype, three value strides, three ranks, shapes of
/// value, locations and weights, levels]`; the place is a thread count or the number of a GPU, a level
/// is height, width, start and points.
#[derive(Debug, Default)]
pub struct Key(Vec<i64>);

const DTYPES_AT: usize = 1;
const STRIDES_AT: usize = 4;
const RANKS_AT: usize = 7;
const SHAPES_AT: usize = 10;

/// Numbers of one level in a key.
const LEVEL_NUMBERS: usize = 4;

impl Key {
    /// Writes the key of a call over the last one, keeping its memory.
    pub fn encode(
        &mut self,
        place: i64,
        strides: ValueStrides,
        operands: [&Operand<'_>; 3],
        levels: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        self.0.clear();
        self.0.push(place);
        self.0.extend(operands.iter().map(|operand| operand.1));
        self.0.extend([strides.batch, strides.head, strides.pixel]);
        for operand in operands {
            self.0.push(operand.2.len() as i64);
        }
        for operand in operands {
            for size in operand.2.iter_borrowed() {
                self.0.push(size.extract()?);
            }
        }
        // Lists come from PyTorch's dispatcher, tuples from the NumPy path; both without an iterator.
        if let Ok(list) = levels.cast::<PyList>() {
            for number in list.iter() {
                self.0.push(number.extract()?);
            }
        } else {
            for number in levels.cast::<PyTuple>()?.iter_borrowed() {
                self.0.push(number.extract()?);
            }
        }
        Ok(())
    }

    /// The numbers, to look a plan up.
    pub fn numbers(&self) -> &[i64] {
        &self.0
    }

    /// Threads, or the number of the GPU.
    pub fn place(&self) -> i64 {
        self.0[0]
    }

    /// Strides of the value tensor.
    pub fn strides(&self) -> ValueStrides {
        let strides = &self.0[STRIDES_AT..RANKS_AT];
        ValueStrides { batch: strides[0], head: strides[1], pixel: strides[2] }
    }

    /// Checks what the numbers say and makes the problem of it.
    pub fn problem(&self) -> Result<Problem, CallError> {
        let ranks = &self.0[RANKS_AT..SHAPES_AT];
        let mut rest = &self.0[SHAPES_AT..];
        let mut next = |rank: i64| {
            let (shape, after) = rest.split_at(usize::try_from(rank).unwrap_or(0).min(rest.len()));
            rest = after;
            shape
        };
        let (value, locations, weights) = (next(ranks[0]), next(ranks[1]), next(ranks[2]));
        let levels = rest;
        if !levels.len().is_multiple_of(LEVEL_NUMBERS) {
            return Err(CallError::LevelNumbers(levels.len()));
        }
        let &[batch, spatial, heads, channels] = value else {
            let expected = "[batch, pixels, heads, channels]".to_owned();
            return Err(CallError::Shape { tensor: "value", found: value.to_vec(), expected });
        };
        let sampling = Sampling { batch, heads, levels };
        let queries = sampling.check("sampling_locations", locations, true)?;
        let weight_queries = sampling.check("attention_weights", weights, false)?;
        if queries != weight_queries {
            let expected = format!("{queries} queries like `sampling_locations`");
            let found = weights.to_vec();
            return Err(CallError::Shape { tensor: "attention_weights", found, expected });
        }
        let dtypes = &self.0[DTYPES_AT..STRIDES_AT];
        let (dtype, locations, weights) = (dtype(dtypes[0])?, dtype(dtypes[1])?, dtype(dtypes[2])?);
        if locations != weights {
            return Err(CallError::SamplingDtypes { locations, weights });
        }
        let points: Vec<usize> = levels
            .chunks_exact(LEVEL_NUMBERS)
            .map(|level| size("points", level[3]))
            .collect::<Result<_, _>>()?;
        Ok(Problem::builder()
            .batch(size("batch", batch)?)
            .heads(size("heads", heads)?)
            .channels(size("channels", channels)?)
            .queries(size("queries", queries)?)
            .levels(levels.chunks_exact(LEVEL_NUMBERS).map(|level| (level[0], level[1])))
            .level_starts(levels.chunks_exact(LEVEL_NUMBERS).map(|level| level[2]))
            .spatial(size("pixels", spatial)?)
            .points_per_level(points)
            .dtype(dtype)
            .sampling_dtype(locations)
            .build()?)
    }
}

/// What the shapes of locations and weights must agree with.
struct Sampling<'a> {
    batch: i64,
    heads: i64,
    levels: &'a [i64],
}

impl Sampling<'_> {
    /// Returns the number of queries. The samples of a head may be one axis, or two (levels, points)
    /// where all levels have the same number of points.
    fn check(&self, tensor: &'static str, shape: &[i64], pairs: bool) -> Result<i64, CallError> {
        let Self { batch, heads, levels } = self;
        let points = || levels.chunks_exact(LEVEL_NUMBERS).map(|level| level[3]);
        let level_count = (levels.len() / LEVEL_NUMBERS) as i64;
        let samples: i64 = points().fold(0, i64::saturating_add);
        let first = points().next().unwrap_or(0);
        let uniform = points().all(|count| count == first);
        let (sizes, pair) = match shape.split_last() {
            Some((&2, rest)) if pairs => (rest, true),
            _ => (shape, false),
        };
        if pair == pairs && sizes.len() >= 4 && sizes[0] == *batch && sizes[2] == *heads {
            match sizes[3..] {
                [found] if found == samples => return Ok(sizes[1]),
                // Without levels nobody can know the points: any number of none.
                [found_levels, found_points]
                    if found_levels == level_count
                        && uniform
                        && (found_points == first || level_count == 0) =>
                {
                    return Ok(sizes[1]);
                }
                _ => {}
            }
        }
        let pair = if pairs { ", 2" } else { "" };
        let mut expected = format!("[{batch}, queries, {heads}, {samples}{pair}]");
        if uniform {
            expected =
                format!("[{batch}, queries, {heads}, {level_count}, {first}{pair}] or {expected}");
        }
        Err(CallError::Shape { tensor, found: shape.to_vec(), expected })
    }
}

fn size(name: &str, value: i64) -> Result<usize, CallError> {
    usize::try_from(value).map_err(|_| {
        msdeform::Error::Negative { name: name.to_owned(), value: i128::from(value) }.into()
    })
}

/// The codes that the Python half sends, in the order of [`DTYPE_NAMES`].
fn dtype(code: i64) -> Result<DType, CallError> {
    let index = usize::try_from(code).ok();
    index.and_then(|index| DTYPES.get(index)).copied().ok_or(CallError::DtypeCode(code))
}

/// Formats by code.
pub const DTYPES: [DType; 4] = [DType::F32, DType::F16, DType::Bf16, DType::F64];
