//! Collects what describes a call, and checks it once.

use super::{Level, Problem};
use crate::{DType, Error, Offsets, ValueLayout};

#[derive(Clone, Debug)]
pub(super) enum Points {
    Same(usize),
    PerLevel(Vec<usize>),
}

/// Collects the parts of a [`Problem`]; [`ProblemBuilder::build`] checks them together.
#[derive(Clone, Debug)]
#[must_use]
pub struct ProblemBuilder {
    pub(super) batch: usize,
    pub(super) heads: usize,
    pub(super) channels: usize,
    pub(super) queries: Option<usize>,
    pub(super) levels: Option<Vec<(i128, i128)>>,
    pub(super) starts: Option<Vec<i128>>,
    pub(super) spatial: Option<usize>,
    pub(super) points: Points,
    pub(super) layout: ValueLayout,
    pub(super) dtype: DType,
    pub(super) output_dtype: Option<DType>,
    pub(super) sampling_dtype: Option<DType>,
    pub(super) offsets: Option<Offsets>,
    pub(super) reference_dtype: Option<DType>,
}

impl Default for ProblemBuilder {
    fn default() -> Self {
        Self {
            batch: 1,
            heads: 1,
            channels: 1,
            queries: None,
            levels: None,
            starts: None,
            spatial: None,
            points: Points::Same(1),
            layout: ValueLayout::Interleaved,
            dtype: DType::F32,
            output_dtype: None,
            sampling_dtype: None,
            offsets: None,
            reference_dtype: None,
        }
    }
}

impl ProblemBuilder {
    /// Images, `N`.
    pub fn batch(mut self, batch: usize) -> Self {
        self.batch = batch;
        self
    }

    /// Attention heads, `M`.
    pub fn heads(mut self, heads: usize) -> Self {
        self.heads = heads;
        self
    }

    /// Channels of one head, `D`.
    pub fn channels(mut self, channels: usize) -> Self {
        self.channels = channels;
        self
    }

    /// Queries of one image, `Lq`. Must be given: a call that computes nothing is one that says so.
    pub fn queries(mut self, queries: usize) -> Self {
        self.queries = Some(queries);
        self
    }

    /// Height and width of every level. Any integer type, so that the `i64` tensors of PyTorch can
    /// be passed on as they are; negative sizes are refused when building. Must be given.
    pub fn levels<T: Into<i128>>(mut self, sizes: impl IntoIterator<Item = (T, T)>) -> Self {
        self.levels = Some(sizes.into_iter().map(|(h, w)| (h.into(), w.into())).collect());
        self
    }

    /// First pixel of every level (`level_start_index`). Without it the levels follow each other.
    pub fn level_starts<T: Into<i128>>(mut self, starts: impl IntoIterator<Item = T>) -> Self {
        self.starts = Some(starts.into_iter().map(Into::into).collect());
        self
    }

    /// Lets the levels follow each other again and undoes [`ProblemBuilder::level_starts`] and [`ProblemBuilder::spatial`], as
    /// a change of layout or of levels needs it.
    pub fn packed(mut self) -> Self {
        self.starts = None;
        self.spatial = None;
        self
    }

    /// Pixels of the value tensor, `S`. Without it the last level ends the tensor.
    pub fn spatial(mut self, spatial: usize) -> Self {
        self.spatial = Some(spatial);
        self
    }

    /// The same number of points on every level.
    pub fn points(mut self, points: usize) -> Self {
        self.points = Points::Same(points);
        self
    }

    /// A number of points for each level.
    pub fn points_per_level(mut self, points: impl Into<Vec<usize>>) -> Self {
        self.points = Points::PerLevel(points.into());
        self
    }

    /// Memory order of the value tensor.
    pub fn layout(mut self, layout: ValueLayout) -> Self {
        self.layout = layout;
        self
    }

    /// Storage of the values and their gradient, and of everything that has no format of its own.
    pub fn dtype(mut self, dtype: DType) -> Self {
        self.dtype = dtype;
        self
    }

    /// Storage of the output and its gradient; the same as [`ProblemBuilder::dtype`] unless said.
    pub fn output_dtype(mut self, dtype: DType) -> Self {
        self.output_dtype = Some(dtype);
        self
    }

    /// Storage of locations and weights; the same as [`ProblemBuilder::dtype`] unless said.
    pub fn sampling_dtype(mut self, dtype: DType) -> Self {
        self.sampling_dtype = Some(dtype);
        self
    }

    /// Samples follow from offsets and logits, in the storage of [`ProblemBuilder::sampling_dtype`], by a rule.
    pub fn offsets(mut self, offsets: Offsets) -> Self {
        self.offsets = Some(offsets);
        self
    }

    /// Describes the plain operator again and undoes [`ProblemBuilder::offsets`].
    pub fn given_samples(mut self) -> Self {
        self.offsets = None;
        self.reference_dtype = None;
        self
    }

    /// Storage of the references; that of the offsets unless said.
    pub fn reference_dtype(mut self, dtype: DType) -> Self {
        self.reference_dtype = Some(dtype);
        self
    }

    /// Checks everything and returns the description.
    ///
    /// # Errors
    /// No queries or no levels given, lists of different lengths, levels without pixels, that overlap or pass the end of the value
    /// tensor, negative numbers, no anchors, and tensors too large to address.
    pub fn build(self) -> Result<Problem, Error> {
        let missing = |what: &str, call: &str, none: &str| {
            refused(format!(
                "a problem needs its {what}: call `{call}`, with {none} if there are none"
            ))
        };
        let sizes = self
            .levels
            .ok_or_else(|| missing("levels", ".levels([(height, width), ...])", "an empty list"))?;
        let queries = self.queries.ok_or_else(|| missing("queries", ".queries(count)", "0"))?;
        let points = match self.points {
            Points::Same(points) => vec![points; sizes.len()],
            Points::PerLevel(points) => points,
        };
        check_level_count("points", sizes.len(), points.len())?;
        let levels = place_levels(&sizes, self.starts.as_deref(), self.layout)?;
        let end = check_overlap(&levels, self.layout)?;
        let spatial = self.spatial.unwrap_or(end);
        for (index, level) in levels.iter().enumerate() {
            let end = level.start + level.footprint(self.layout);
            if end > spatial {
                let border = if self.layout.border() > 0 {
                    "; the layout has a border of one pixel around every level"
                } else {
                    ""
                };
                return Err(refused(format!(
                    "level {index} ends at pixel {end}, but `value` has only {spatial} pixels; check `spatial_shapes` and \
                     `level_start_index`{border}"
                )));
            }
        }
        let mut point_offsets = vec![0usize; points.len() + 1];
        for (index, &count) in points.iter().enumerate() {
            point_offsets[index + 1] = point_offsets[index]
                .checked_add(count)
                .ok_or(Error::TooLarge { tensor: "sampling_locations" })?;
        }
        if let Some(offsets) = &self.offsets {
            offsets.check()?;
        }
        let sampling_dtype = self.sampling_dtype.unwrap_or(self.dtype);
        let problem = Problem {
            batch: self.batch,
            heads: self.heads,
            channels: self.channels,
            queries,
            levels,
            points,
            point_offsets,
            spatial,
            layout: self.layout,
            dtype: self.dtype,
            output_dtype: self.output_dtype.unwrap_or(self.dtype),
            sampling_dtype,
            offsets: self.offsets,
            reference_dtype: self.reference_dtype.unwrap_or(sampling_dtype),
        };
        check_addressable(&problem)?;
        Ok(problem)
    }
}

const fn refused(reason: String) -> Error {
    Error::Description { reason }
}

fn check_level_count(list: &'static str, levels: usize, found: usize) -> Result<(), Error> {
    if levels == found { Ok(()) } else { Err(Error::LevelCount { list, levels, found }) }
}

/// Turns sizes and optional starts into levels, following each other where no start was given.
fn place_levels(
    sizes: &[(i128, i128)],
    starts: Option<&[i128]>,
    layout: ValueLayout,
) -> Result<Vec<Level>, Error> {
    const TOO_LARGE: Error = Error::TooLarge { tensor: "value" };
    if let Some(starts) = starts {
        check_level_count("level_start_index", sizes.len(), starts.len())?;
    }
    let mut next_start = 0usize;
    let mut levels = Vec::with_capacity(sizes.len());
    for (index, &(height, width)) in sizes.iter().enumerate() {
        if height < 1 || width < 1 {
            return Err(refused(format!(
                "level {index} is {height} x {width}; height and width must be at least 1"
            )));
        }
        let start = match starts {
            None => next_start,
            Some(starts) if starts[index] < 0 => {
                return Err(Error::Negative {
                    name: format!("level_start_index[{index}]"),
                    value: starts[index],
                });
            }
            Some(starts) => usize::try_from(starts[index]).map_err(|_| TOO_LARGE)?,
        };
        let with_border = |size: i128| {
            let size = usize::try_from(size).ok()?;
            size.checked_add(2 * layout.border()).map(|padded| (size, padded))
        };
        let (height, padded_height) = with_border(height).ok_or(TOO_LARGE)?;
        let (width, padded_width) = with_border(width).ok_or(TOO_LARGE)?;
        let footprint = padded_height.checked_mul(padded_width).ok_or(TOO_LARGE)?;
        next_start = start.checked_add(footprint).ok_or(TOO_LARGE)?;
        levels.push(Level { height, width, start });
    }
    Ok(levels)
}

/// Refuses levels that share pixels; returns one past the last pixel of any level.
fn check_overlap(levels: &[Level], layout: ValueLayout) -> Result<usize, Error> {
    let mut order: Vec<usize> = (0..levels.len()).collect();
    order.sort_by_key(|&index| levels[index].start);
    for pair in order.windows(2) {
        let (first, second) = (levels[pair[0]], levels[pair[1]]);
        let first_end = first.start + first.footprint(layout);
        if second.start < first_end {
            return Err(refused(format!(
                "levels {0} and {1} overlap: level {0} takes pixels {2}..{first_end}, level {1} starts at {3}; check \
                 `level_start_index`",
                pair[0], pair[1], first.start, second.start
            )));
        }
    }
    Ok(levels.iter().map(|level| level.start + level.footprint(layout)).max().unwrap_or(0))
}

/// Every tensor, counted in bytes of its widest format (`f64`), must fit the address space: all
/// later index arithmetic relies on it and need not check again.
fn check_addressable(problem: &Problem) -> Result<(), Error> {
    let limit = isize::MAX.unsigned_abs() / DType::F64.size_bytes();
    // Zero sizes are skipped: an intermediate product must fit even where the whole is empty.
    let fits = |tensor: &'static str, sizes: &[usize]| {
        sizes
            .iter()
            .filter(|&&size| size > 0)
            .try_fold(1usize, |product, &size| product.checked_mul(size))
            .filter(|&product| product <= limit)
            .map(|_| ())
            .ok_or(Error::TooLarge { tensor })
    };
    fits("value", &problem.value_shape())?;
    fits("sampling_locations", &problem.locations_shape())?;
    fits("reference_points", &problem.references_shape())?;
    fits("output", &[problem.batch, problem.queries, problem.heads, problem.channels])
}
