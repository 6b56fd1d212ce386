//! One validated description of a call.

mod builder;

use std::fmt;

use crate::{DType, Offsets, Role, ValueLayout};
use builder::Points;

pub use builder::ProblemBuilder;

/// One level of the feature pyramid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Level {
    /// Rows of pixels, without a border.
    pub height: usize,
    /// Columns of pixels, without a border.
    pub width: usize,
    /// Offset of the level's first pixel (of its border, if it has one) in the value tensor.
    pub start: usize,
}

impl Level {
    /// Pixels from one row to the next in memory.
    pub const fn row_pitch(&self, layout: ValueLayout) -> usize {
        self.width + 2 * layout.border()
    }

    /// Pixels the level takes in memory, border included.
    pub const fn footprint(&self, layout: ValueLayout) -> usize {
        (self.height + 2 * layout.border()) * self.row_pitch(layout)
    }

    /// Offset of the pixel at row 0, column 0 in the value tensor.
    pub const fn origin(&self, layout: ValueLayout) -> usize {
        self.start + layout.border() * (self.row_pitch(layout) + 1)
    }
}

/// The shape of a tensor. It is a slice of sizes, without memory of its own on the heap.
#[derive(Clone, Copy)]
pub struct Shape {
    sizes: [usize; Self::MOST_AXES],
    axes: usize,
}

impl Shape {
    pub(crate) const MOST_AXES: usize = 5;

    pub(crate) const fn new<const AXES: usize>(from: [usize; AXES]) -> Self {
        const { assert!(AXES <= Self::MOST_AXES) };
        let mut sizes = [1; Self::MOST_AXES];
        let mut axis = 0;
        while axis < AXES {
            sizes[axis] = from[axis];
            axis += 1;
        }
        Self { sizes, axes: AXES }
    }
}

impl fmt::Debug for Shape {
    /// As the slice: `[2, 300, 256]`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl std::ops::Deref for Shape {
    type Target = [usize];

    fn deref(&self) -> &[usize] {
        &self.sizes[..self.axes]
    }
}

/// A validated description of one call of the operator: what [`crate::forward`],
/// [`crate::backward`] and every plan are built from.
///
/// ```
/// use msdeform::{DType, Problem};
///
/// let problem = Problem::builder()
///     .heads(8)
///     .channels(32)
///     .queries(300)
///     .levels([(100, 167), (50, 84), (25, 42), (13, 21)])
///     .points(4)
///     .dtype(DType::F32)
///     .build()?;
/// assert_eq!(problem.spatial(), 22_223);
/// assert_eq!(problem.output_shape(), [1, 300, 256]);
/// # Ok::<(), msdeform::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Problem {
    batch: usize,
    heads: usize,
    channels: usize,
    queries: usize,
    levels: Vec<Level>,
    /// Points of each level.
    points: Vec<usize>,
    /// Prefix sums of `points`: samples of level `l` are `offsets[l]..offsets[l + 1]`.
    point_offsets: Vec<usize>,
    spatial: usize,
    layout: ValueLayout,
    dtype: DType,
    output_dtype: DType,
    sampling_dtype: DType,
    offsets: Option<Offsets>,
    reference_dtype: DType,
}

impl Problem {
    /// Starts a description: one batch, one head, one channel, one point on every level, `f32`. Queries and levels must
    /// be given, and may be given as none.
    pub fn builder() -> ProblemBuilder {
        ProblemBuilder::default()
    }

    /// Starts a description with everything that this one says, to change a part of it.
    pub fn to_builder(&self) -> ProblemBuilder {
        ProblemBuilder {
            batch: self.batch,
            heads: self.heads,
            channels: self.channels,
            queries: Some(self.queries),
            levels: Some(self.levels.iter().map(|l| (l.height as i128, l.width as i128)).collect()),
            starts: Some(self.levels.iter().map(|l| l.start as i128).collect()),
            spatial: Some(self.spatial),
            points: Points::PerLevel(self.points.clone()),
            layout: self.layout,
            dtype: self.dtype,
            // If it is that of the values, it follows them.
            output_dtype: Some(self.output_dtype).filter(|output| *output != self.dtype),
            sampling_dtype: Some(self.sampling_dtype),
            offsets: self.offsets,
            reference_dtype: Some(self.reference_dtype),
        }
    }

    /// Images, `N`.
    pub const fn batch(&self) -> usize {
        self.batch
    }

    /// Attention heads, `M`.
    pub const fn heads(&self) -> usize {
        self.heads
    }

    /// Channels of one head, `D`.
    pub const fn channels(&self) -> usize {
        self.channels
    }

    /// Queries of one image, `Lq`.
    pub const fn queries(&self) -> usize {
        self.queries
    }

    /// The levels of the pyramid, in the order of the sampling locations.
    pub fn levels(&self) -> &[Level] {
        &self.levels
    }

    /// Points of each level, `P`.
    pub fn points(&self) -> &[usize] {
        &self.points
    }

    /// The samples of level `level` within the [`Problem::samples`] of a query and head.
    pub fn level_samples(&self, level: usize) -> std::ops::Range<usize> {
        self.point_offsets[level]..self.point_offsets[level + 1]
    }

    /// Samples that one query takes in one head: the points of all levels.
    pub fn samples(&self) -> usize {
        self.point_offsets.last().copied().unwrap_or(0)
    }

    /// The common number of points, if all levels have the same.
    pub fn uniform_points(&self) -> Option<usize> {
        let first = self.points.first().copied()?;
        self.points.iter().all(|&points| points == first).then_some(first)
    }

    /// Pixels of the value tensor, `S`, borders and gaps between levels included.
    pub const fn spatial(&self) -> usize {
        self.spatial
    }

    /// Memory order of the value tensor.
    pub const fn layout(&self) -> ValueLayout {
        self.layout
    }

    /// Storage of the values and their gradient.
    pub const fn dtype(&self) -> DType {
        self.dtype
    }

    /// Storage of the output and its gradient. With values of half precision, `f32` keeps the precision of the sums.
    pub const fn output_dtype(&self) -> DType {
        self.output_dtype
    }

    /// Storage of locations, weights and their gradients. Autocast produces `f32` here with
    /// values of half precision.
    pub const fn sampling_dtype(&self) -> DType {
        self.sampling_dtype
    }

    /// How samples follow from offsets and logits; `None` for the plain operator.
    pub const fn offsets(&self) -> Option<&Offsets> {
        self.offsets.as_ref()
    }

    /// Storage of the references that offsets start from. Models keep them in `f32` with half precision.
    pub const fn reference_dtype(&self) -> DType {
        self.reference_dtype
    }

    /// Shape of the value tensor in its layout.
    pub const fn value_shape(&self) -> [usize; 4] {
        if self.layout.is_head_major() {
            [self.batch, self.heads, self.spatial, self.channels]
        } else {
            [self.batch, self.spatial, self.heads, self.channels]
        }
    }

    /// Shape of the sampling locations: `[N, Lq, M, samples, 2]`, `samples` being `[L, P]` flattened.
    pub fn locations_shape(&self) -> [usize; 5] {
        [self.batch, self.queries, self.heads, self.samples(), 2]
    }

    /// Shape of the attention weights: `[N, Lq, M, samples]`.
    pub fn weights_shape(&self) -> [usize; 4] {
        [self.batch, self.queries, self.heads, self.samples()]
    }

    /// Shape of the references: `[N, Lq, references, 2 or 4]`; empty where locations are given.
    pub fn references_shape(&self) -> [usize; 4] {
        let (references, components) = match &self.offsets {
            Some(offsets) => (offsets.references(self.levels.len()), offsets.kind().components()),
            None => (0, 0),
        };
        [self.batch, self.queries, references, components]
    }

    /// Shape of the output: `[N, Lq, M * D]`.
    pub const fn output_shape(&self) -> [usize; 3] {
        [self.batch, self.queries, self.heads * self.channels]
    }

    /// Elements of the value tensor.
    pub fn value_len(&self) -> usize {
        self.len_of(Role::Value)
    }

    /// Elements of the sampling locations.
    pub fn locations_len(&self) -> usize {
        self.len_of(Role::Locations)
    }

    /// Elements of the attention weights: the samples of the whole call.
    pub fn weights_len(&self) -> usize {
        self.len_of(Role::Weights)
    }

    /// Elements of the references.
    pub fn references_len(&self) -> usize {
        self.len_of(Role::References)
    }

    /// Elements of the output.
    pub fn output_len(&self) -> usize {
        self.len_of(Role::Output)
    }

    /// Elements from one pixel of a head to the next in the value tensor.
    pub const fn pixel_stride(&self) -> usize {
        if self.layout.is_head_major() { self.channels } else { self.heads * self.channels }
    }

    /// Offset of pixel 0 of a head in the value tensor.
    pub const fn head_offset(&self, batch: usize, head: usize) -> usize {
        if self.layout.is_head_major() {
            (batch * self.heads + head) * self.spatial * self.channels
        } else {
            (batch * self.spatial * self.heads + head) * self.channels
        }
    }
}

impl fmt::Display for Problem {
    /// One line for tables and messages: `N=2 M=8 D=32 Lq=300 (100x167 50x84) P=4 f16 interleaved`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { batch, heads, channels, queries, layout, dtype, sampling_dtype, .. } = self;
        write!(f, "N={batch} M={heads} D={channels} Lq={queries} (")?;
        for (index, level) in self.levels.iter().enumerate() {
            let space = if index == 0 { "" } else { " " };
            write!(f, "{space}{}x{}", level.height, level.width)?;
        }
        match self.uniform_points() {
            Some(points) => write!(f, ") P={points} {dtype}")?,
            None => write!(f, ") P={:?} {dtype}", self.points)?,
        }
        if sampling_dtype != dtype {
            write!(f, "+{sampling_dtype}")?;
        }
        write!(f, " {layout}")?;
        if self.output_dtype != *dtype {
            write!(f, ", {} output", self.output_dtype)?;
        }
        let Some(offsets) = &self.offsets else { return Ok(()) };
        write!(f, ", from offsets ({offsets}")?;
        if self.reference_dtype != *sampling_dtype {
            write!(f, ", {} references", self.reference_dtype)?;
        }
        f.write_str(")")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn four_levels() -> ProblemBuilder {
        let levels = [(92, 160), (46, 80), (23, 40), (12, 20)];
        Problem::builder().heads(8).channels(32).queries(1).levels(levels)
    }

    #[test]
    fn the_seed_pyramid_has_the_documented_sizes_with_and_without_a_border() {
        let plain = four_levels().layout(ValueLayout::HeadMajor).build().unwrap();
        assert_eq!(plain.spatial(), 19_560);
        let padded = four_levels().layout(ValueLayout::HeadMajorPadded).build().unwrap();
        assert_eq!(padded.spatial(), 20_522);
        assert_eq!(padded.levels()[1].start, 94 * 162);
        assert_eq!(padded.levels()[0].origin(padded.layout()), 163);
    }

    #[test]
    fn sizes_from_zero_up_are_valid() {
        for builder in [
            four_levels().batch(0),
            four_levels().queries(0),
            four_levels().heads(0).queries(3),
            four_levels().channels(0).queries(3),
            four_levels().points(0).queries(3),
            Problem::builder().queries(5).levels::<i64>([]),
            Problem::builder().queries(0).levels([(1, 1)]).channels(33),
        ] {
            builder.build().unwrap();
        }
    }

    #[test]
    fn queries_and_levels_that_were_forgotten_are_asked_for() {
        let queries =
            "a problem needs its queries: call `.queries(count)`, with 0 if there are none";
        let levels = "a problem needs its levels: call `.levels([(height, width), ...])`, with an empty list if there are none";
        for (builder, words) in [
            (Problem::builder().levels([(2, 2)]), queries),
            (Problem::builder().queries(3), levels),
            (Problem::builder(), levels),
        ] {
            assert_eq!(builder.build().unwrap_err().to_string(), words);
        }
    }

    #[test]
    fn a_changed_description_keeps_the_rest() {
        let problem = four_levels().queries(7).points_per_level([1, 2, 3, 4]).build().unwrap();
        assert_eq!(problem.to_builder().build().unwrap(), problem);
        let padded = problem.to_builder().layout(ValueLayout::HeadMajorPadded).packed().build();
        assert_eq!(padded.unwrap().spatial(), 20_522);
    }

    #[test]
    fn every_bad_description_has_its_own_error() {
        let builder = || Problem::builder().queries(1);
        let too_large = |tensor: &str| format!("`{tensor}` would have more elements than");
        let [value, locations] = ["value", "sampling_locations"].map(too_large);
        for (builder, words) in [
            (four_levels().points_per_level([4, 4]), "`points` has 2 entries for 4 levels"),
            (
                four_levels().level_starts([0, 14720]),
                "`level_start_index` has 2 entries for 4 levels; give one per level",
            ),
            (builder().levels([(4, 4), (0, 4)]), "level 1 is 0 x 4; height and width must be"),
            (builder().levels([(4i64, -4i64)]), "level 0 is 4 x -4; height and width must be"),
            (builder().levels([(2, 2)]).level_starts([-1]), "`level_start_index[0]` is -1;"),
            (
                builder().levels([(4, 4), (2, 2)]).level_starts([2, 0]),
                "levels 1 and 0 overlap: level 1 takes pixels 0..4, level 0 starts at 2; check",
            ),
            (
                builder().levels([(4, 4)]).spatial(15),
                "level 0 ends at pixel 16, but `value` has only 15 pixels; check",
            ),
            (builder().levels([(1i64 << 40, 1i64 << 40)]), &value),
            (four_levels().batch(usize::MAX), &value),
            (four_levels().queries(usize::MAX / 4), &locations),
            (four_levels().queries(usize::MAX / 8).points(0), "` would have more elements than"),
            (four_levels().points(usize::MAX / 2), "` would have more elements than"),
        ] {
            let error = builder.clone().build().unwrap_err().to_string();
            assert!(error.contains(words), "{builder:?} gave {error:?}");
        }
    }

    #[test]
    fn a_level_past_the_end_names_the_layout_only_if_it_takes_more_pixels() {
        let said = |layout: ValueLayout| {
            let builder = Problem::builder().queries(1).levels([(4, 4)]).spatial(15);
            builder.layout(layout).build().unwrap_err().to_string()
        };
        let plain = said(ValueLayout::Interleaved);
        assert!(plain.ends_with("check `spatial_shapes` and `level_start_index`"), "{plain}");
        let padded = said(ValueLayout::HeadMajorPadded);
        assert!(padded.ends_with("a border of one pixel around every level"), "{padded}");
    }

    #[test]
    fn levels_may_come_in_any_order_and_leave_gaps() {
        let problem = Problem::builder()
            .queries(1)
            .levels([(2, 2), (4, 4)])
            .level_starts([20, 1])
            .spatial(30)
            .build()
            .unwrap();
        assert_eq!(problem.spatial(), 30);
        assert_eq!(problem.value_len(), 30);
    }

    #[test]
    fn one_line_says_it_all() {
        let plain = four_levels().queries(3).points(8).dtype(DType::F16).sampling_dtype(DType::F32);
        let words = "N=1 M=8 D=32 Lq=3 (92x160 46x80 23x40 12x20) P=8 f16+f32 interleaved";
        assert_eq!(plain.clone().build().unwrap().to_string(), words);
        let rule = Offsets::from_boxes().one_for_all_levels();
        let fused = plain.offsets(rule).sampling_dtype(DType::F16).reference_dtype(DType::F32);
        let words = fused.build().unwrap().to_string();
        assert!(
            words.ends_with("from offsets (boxes per query, softmax, f32 references)"),
            "{words}"
        );
    }
}
