//! From the shapes and dtypes of a call's tensors to a [`Problem`].
//!
//! Frameworks hand over tensors whose shapes describe the call. A [`Signature`] collects what they say, and
//! [`Signature::problem`] checks that it fits together. All bindings use it, so that all refuse the same calls.

use std::fmt;

use crate::{DType, Error, Offsets, Operator, Problem, Role, ValueLayout};

/// Dtype and shape of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TensorSignature<'a> {
    /// Storage of its elements.
    pub dtype: DType,
    /// Sizes of its axes.
    pub shape: &'a [i64],
}

/// The levels of a call as lists with one entry per level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LevelLists<'a> {
    /// Height and width.
    pub sizes: &'a [[i64; 2]],
    /// The first pixel. Without this list the levels follow each other and are all pixels of the value tensor.
    pub starts: Option<&'a [i64]>,
    /// The number of points. Without this list all levels have the same number, which follows from the samples.
    pub points: Option<&'a [i64]>,
}

/// Height, width, first pixel and points of a level.
pub type LevelNumbers = [i64; 4];

impl LevelLists<'_> {
    /// The numbers of each level. Lists that are missing follow from the pixels of the value tensor in its layout, and from
    /// the shape of the locations or offsets.
    ///
    /// # Errors
    /// [`Error::LevelCount`] for a list with too few or too many entries, [`Error::LevelPixels`] and
    /// [`Error::UnevenSamples`] for levels that do not fit the tensors, [`Error::ShapeMismatch`] for locations or offsets
    /// without samples.
    pub fn complete(
        &self,
        (pixels, layout): (i64, ValueLayout),
        (role, positions): (Role, &[i64]),
    ) -> Result<Vec<LevelNumbers>, Error> {
        let levels = self.sizes.len();
        for (list, given) in [("level_start_index", self.starts), ("points", self.points)] {
            if let Some(found) = given.map(<[i64]>::len).filter(|&found| found != levels) {
                return Err(Error::LevelCount { list, levels, found });
            }
        }
        let shared =
            if self.points.is_none() { shared_points(levels, role, positions)? } else { 0 };
        let border = 2 * layout.border() as i64;
        let mut end = 0i64;
        let number = |(level, &[height, width]): (usize, &[i64; 2])| {
            let start = self.starts.map_or(end, |starts| starts[level]);
            let [rows, columns] = [height, width].map(|size| size.saturating_add(border));
            end = end.saturating_add(rows.saturating_mul(columns));
            [height, width, start, self.points.map_or(shared, |points| points[level])]
        };
        let numbers = self.sizes.iter().enumerate().map(number).collect();
        // If a level was forgotten, the others would be read from the wrong pixels. Levels without pixels are left to the
        // builder, which names them.
        let is_empty = self.sizes.as_flattened().iter().any(|&size| size <= 0);
        if self.starts.is_none() && end != pixels && !is_empty {
            let sizes = self.sizes.iter().map(|&[height, width]| (height, width)).collect();
            return Err(Error::LevelPixels { sizes, levels: end, pixels });
        }
        Ok(numbers)
    }
}

/// Points of each level if all have the same number.
fn shared_points(levels: usize, role: Role, positions: &[i64]) -> Result<i64, Error> {
    match *positions {
        [_, _, _, _, points, 2] => Ok(points),
        [_, _, _, samples, 2] => match i64::try_from(levels) {
            Ok(0) if samples == 0 => Ok(0),
            Ok(count) if count > 0 && samples % count == 0 => Ok(samples / count),
            _ => Err(Error::UnevenSamples { tensor: role.name(), samples, levels }),
        },
        _ => {
            let expected = with_any_points("batch", "heads", levels);
            Err(mismatch(role, positions, expected))
        }
    }
}

/// Shapes of locations or offsets where the number of points is theirs to say.
fn with_any_points(batch: impl fmt::Display, heads: impl fmt::Display, levels: usize) -> String {
    let first = format!("[{batch}, queries, {heads}");
    format!("{first}, {levels}, points, 2] or {first}, samples, 2]")
}

/// How samples follow from offsets, for references of any shape: their shape decides between points and boxes, and
/// whether each level has a reference.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OffsetOptions {
    /// Whether all references serve all levels, and the points of a level take them in turn.
    pub anchors: bool,
    /// See [`Offsets::offset_scale`].
    pub scale: f32,
    /// Whether the weights are the softmax of the logits.
    pub softmax: bool,
    /// Whether the nearest pixel is taken instead of interpolating.
    pub nearest: bool,
}

impl Default for OffsetOptions {
    fn default() -> Self {
        Self { anchors: false, scale: Offsets::from_boxes().scale(), softmax: true, nearest: false }
    }
}

impl OffsetOptions {
    /// The rule for `references` references of a query, each of `components` numbers. `None` if no rule takes them.
    fn rule(&self, references: i64, components: i64, levels: usize) -> Option<Offsets> {
        let rule = match components {
            2 => Offsets::from_points(),
            4 => Offsets::from_boxes(),
            _ => return None,
        };
        let rule = match usize::try_from(references).ok()? {
            count if self.anchors => rule.anchors(count),
            count if count == levels => rule,
            1 => rule.one_for_all_levels(),
            _ => return None,
        };
        let rule = rule.offset_scale(self.scale);
        let rule = if self.softmax { rule } else { rule.raw_weights() };
        Some(if self.nearest { rule.nearest() } else { rule })
    }
}

/// The rule of a fused call.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum OffsetRule {
    /// This rule; the references must fit it.
    Exact(Offsets),
    /// The rule that fits the references.
    OfReferences(OffsetOptions),
}

/// What the tensors of a call say about it.
///
/// ```
/// use msdeform::{DType, LevelLists, Signature, TensorSignature};
///
/// let f32 = |shape| TensorSignature { dtype: DType::F32, shape };
/// let tensors = [f32(&[1, 1280, 8, 32]), f32(&[1, 300, 8, 2, 4, 2]), f32(&[1, 300, 8, 2, 4])];
/// let levels = LevelLists { sizes: &[[32, 32], [16, 16]], starts: None, points: None };
/// let problem = Signature::new(&tensors, levels).problem()?;
/// assert_eq!(problem.output_shape(), [1, 300, 256]);
/// # Ok::<(), msdeform::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Signature<'a> {
    /// The inputs of the operator, in its order.
    pub tensors: &'a [TensorSignature<'a>],
    /// The levels.
    pub levels: LevelLists<'a>,
    /// How samples follow from offsets; `None` for the plain operator.
    pub rule: Option<OffsetRule>,
    /// Memory order of the value tensor.
    pub layout: ValueLayout,
    /// Whether references of one image, or of one query, serve all of them.
    pub expands_references: bool,
}

impl<'a> Signature<'a> {
    /// The signature of a call with given locations and weights, and interleaved values.
    pub const fn new(tensors: &'a [TensorSignature<'a>], levels: LevelLists<'a>) -> Self {
        let layout = ValueLayout::Interleaved;
        Self { tensors, levels, rule: None, layout, expands_references: false }
    }

    /// The operator that is called.
    pub const fn operator(&self) -> &'static Operator {
        Operator::by_rule(self.rule.is_some())
    }

    /// Checks that everything fits together and returns the problem that it describes. Samples may be one axis, or two
    /// (levels and points) where all levels have the same number of points.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`] and [`Error::SamplingDtypes`] for tensors that do not fit each other,
    /// [`Error::LevelPixels`] and [`Error::UnevenSamples`] for levels that do not fit them, and the errors of
    /// [`ProblemBuilder::build`](crate::ProblemBuilder::build).
    pub fn problem(&self) -> Result<Problem, Error> {
        let [.., positions, shares] = *self.operator().inputs else {
            return Err(missing(Role::Value));
        };
        let value = self.tensor(Role::Value)?;
        let &[batch, first, second, channels] = value.shape else {
            let expected = match self.layout {
                ValueLayout::Interleaved => "[batch, pixels, heads, channels]",
                _ => "[batch, heads, pixels, channels]",
            };
            return Err(mismatch(Role::Value, value.shape, expected));
        };
        let (pixels, heads) =
            if self.layout.is_head_major() { (second, first) } else { (first, second) };
        let of_positions = self.tensor(positions)?;
        let levels = self.levels.complete((pixels, self.layout), (positions, of_positions.shape));
        let levels = levels.map_err(|error| match error {
            Error::ShapeMismatch { .. } => {
                let expected = with_any_points(batch, heads, self.levels.sizes.len());
                mismatch(positions, of_positions.shape, expected)
            }
            other => other,
        })?;
        let points = points_of(&levels)?;
        let samples = Samples { batch, heads, points: &points };
        let queries = samples.queries_of_positions(&self.levels, positions, of_positions.shape)?;
        let of_shares = self.tensor(shares)?;
        if samples.queries(of_shares.shape) != Some(queries) {
            let expected = samples.expected(queries, "");
            let expected = format!("{expected}, as many queries and points as `{positions}`");
            return Err(mismatch(shares, of_shares.shape, expected));
        }
        if of_positions.dtype != of_shares.dtype {
            return Err(Error::SamplingDtypes {
                first: positions.name(),
                first_dtype: of_positions.dtype,
                second: shares.name(),
                second_dtype: of_shares.dtype,
            });
        }
        let mut builder = Problem::builder()
            .batch(size("batch", batch)?)
            .heads(size("heads", heads)?)
            .channels(size("channels", channels)?)
            .queries(size("queries", queries)?)
            .levels(levels.iter().map(|&[height, width, ..]| (height, width)))
            .level_starts(levels.iter().map(|&[_, _, start, _]| start))
            .spatial(size("pixels", pixels)?)
            .points_per_level(points)
            .layout(self.layout)
            .dtype(value.dtype)
            .sampling_dtype(of_positions.dtype);
        if let Some(rule) = self.rule {
            let references = self.tensor(Role::References)?;
            let rule = self.offsets(rule, references.shape, batch, queries)?;
            builder = builder.offsets(rule).reference_dtype(references.dtype);
        }
        builder.build()
    }

    fn tensor(&self, role: Role) -> Result<TensorSignature<'a>, Error> {
        let place = self.operator().inputs.iter().position(|&input| input == role);
        let found = place.and_then(|place| self.tensors.get(place));
        found.copied().ok_or_else(|| missing(role))
    }

    /// The rule for references of this shape.
    fn offsets(
        &self,
        rule: OffsetRule,
        shape: &[i64],
        batch: i64,
        queries: i64,
    ) -> Result<Offsets, Error> {
        let levels = self.levels.sizes.len();
        let fits = |found: i64, size: i64| found == size || (found == 1 && self.expands_references);
        let found = match *shape {
            [images, rows, count, components] if fits(images, batch) && fits(rows, queries) => {
                match rule {
                    OffsetRule::OfReferences(options) => options.rule(count, components, levels),
                    OffsetRule::Exact(rule) => {
                        let expected = [rule.references(levels), rule.kind().components()];
                        let found = [count, components].map(usize::try_from);
                        (found == expected.map(Ok)).then_some(rule)
                    }
                }
            }
            _ => None,
        };
        found.ok_or_else(|| {
            let or_one = |size: i64, is_free: bool| match size {
                size if is_free && size != 1 => format!("{size} or 1"),
                size => size.to_string(),
            };
            let (count, components) = match rule {
                OffsetRule::OfReferences(OffsetOptions { anchors: true, .. }) => {
                    ("anchors".to_owned(), "2 or 4".to_owned())
                }
                OffsetRule::OfReferences(_) => (or_one(levels as i64, true), "2 or 4".to_owned()),
                OffsetRule::Exact(rule) => {
                    (rule.references(levels).to_string(), rule.kind().components().to_string())
                }
            };
            let [images, rows] = [batch, queries].map(|size| or_one(size, self.expands_references));
            let expected = format!("[{images}, {rows}, {count}, {components}]");
            mismatch(Role::References, shape, expected)
        })
    }
}

/// What the shapes of the tensors with samples must agree with.
struct Samples<'a> {
    batch: i64,
    heads: i64,
    /// Of each level.
    points: &'a [usize],
}

impl Samples<'_> {
    /// The queries of locations or offsets.
    fn queries_of_positions(
        &self,
        levels: &LevelLists<'_>,
        role: Role,
        shape: &[i64],
    ) -> Result<i64, Error> {
        let queries = match shape {
            [sizes @ .., 2] => self.queries(sizes),
            _ => None,
        };
        queries.ok_or_else(|| {
            let expected = match levels.points {
                Some(_) => self.expected("queries", ", 2"),
                None => with_any_points(self.batch, self.heads, self.points.len()),
            };
            mismatch(role, shape, expected)
        })
    }

    /// The queries of a tensor that has these samples; locations and offsets come without their last axis.
    fn queries(&self, sizes: &[i64]) -> Option<i64> {
        let &[batch, queries, heads, ref samples @ ..] = sizes else { return None };
        let fits = match *samples {
            [samples] => usize::try_from(samples).ok() == total(self.points),
            // Without levels any number of points is the number of each.
            [levels, count] => {
                usize::try_from(levels) == Ok(self.points.len())
                    && self.points.iter().all(|&points| usize::try_from(count) == Ok(points))
            }
            _ => false,
        };
        (fits && batch == self.batch && heads == self.heads).then_some(queries)
    }

    /// The shapes that fit.
    fn expected(&self, queries: impl fmt::Display, pair: &str) -> String {
        let Self { batch, heads, points } = self;
        let samples = total(points).unwrap_or(usize::MAX);
        let flat = format!("[{batch}, {queries}, {heads}, {samples}{pair}]");
        let first = points.first().copied().unwrap_or(0);
        if points.iter().any(|&points| points != first) {
            return flat;
        }
        let levels = points.len();
        format!("[{batch}, {queries}, {heads}, {levels}, {first}{pair}] or {flat}")
    }
}

fn points_of(levels: &[LevelNumbers]) -> Result<Vec<usize>, Error> {
    let each = levels.iter().enumerate();
    each.map(|(level, &[.., points])| {
        usize::try_from(points).map_err(|_| Error::Negative {
            name: format!("points[{level}]"),
            value: i128::from(points),
        })
    })
    .collect()
}

/// Samples of a query and head.
fn total(points: &[usize]) -> Option<usize> {
    points.iter().try_fold(0usize, |total, &count| total.checked_add(count))
}

fn missing(role: Role) -> Error {
    Error::Tensors { tensor: role.name(), reason: "missing; the call reads it" }
}

fn mismatch(role: Role, found: &[i64], expected: impl Into<String>) -> Error {
    Error::ShapeMismatch { tensor: role.name(), found: found.to_vec(), expected: expected.into() }
}

fn size(name: &str, value: i64) -> Result<usize, Error> {
    let negative = |_| Error::Negative { name: name.to_owned(), value: i128::from(value) };
    usize::try_from(value).map_err(negative)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two levels of three points, 7 queries: value, references, positions, shares.
    const SHAPES: [&[i64]; 4] =
        [&[2, 20, 4, 8], &[2, 7, 2, 2], &[2, 7, 4, 2, 3, 2], &[2, 7, 4, 2, 3]];
    const LEVELS: LevelLists<'static> =
        LevelLists { sizes: &[[4, 4], [2, 2]], starts: None, points: None };
    const OF_REFERENCES: OffsetRule = OffsetRule::OfReferences(OffsetOptions {
        anchors: false,
        scale: 0.5,
        softmax: true,
        nearest: false,
    });

    fn check(
        shapes: [&[i64]; 4],
        change: impl FnOnce(&mut Signature<'_>),
    ) -> Result<Problem, Error> {
        let tensors = shapes.map(|shape| TensorSignature { dtype: DType::F32, shape });
        let mut signature = Signature::new(&tensors, LEVELS);
        signature.rule = Some(OF_REFERENCES);
        change(&mut signature);
        let given = [tensors[0], tensors[2], tensors[3]];
        match signature.rule {
            Some(_) => signature.problem(),
            None => Signature { tensors: &given, ..signature }.problem(),
        }
    }

    /// With one of the shapes changed.
    fn with(place: usize, shape: &[i64]) -> [&[i64]; 4] {
        let mut shapes: [&[i64]; 4] = SHAPES;
        shapes[place] = shape;
        shapes
    }

    fn given(signature: &mut Signature<'_>) {
        signature.rule = None;
    }

    #[test]
    fn samples_may_be_one_axis_or_two() {
        let split = check(SHAPES, given).unwrap();
        let flat = [SHAPES[0], SHAPES[1], &[2, 7, 4, 6, 2], &[2, 7, 4, 6]];
        assert_eq!(check(flat, given).unwrap(), split);
        assert_eq!((split.points(), split.queries()), (&[3, 3][..], 7));
        let uneven = |signature: &mut Signature<'_>| {
            signature.rule = None;
            signature.levels.points = Some(&[5, 1]);
        };
        assert_eq!(check(flat, uneven).unwrap().points(), [5, 1]);
        let error = check(SHAPES, uneven).unwrap_err().to_string();
        assert!(error.ends_with("expected [2, queries, 4, 6, 2]"), "{error}");
    }

    #[test]
    fn references_decide_the_rule() {
        let expands = |signature: &mut Signature<'_>| signature.expands_references = true;
        for (references, expected) in [
            (&[2, 7, 2, 2], [2, 7, 2, 2]),
            (&[1, 1, 1, 4], [2, 7, 1, 4]),
            (&[2, 1, 2, 4], [2, 7, 2, 4]),
        ] {
            let problem = check(with(1, references), expands).unwrap();
            assert_eq!(problem.references_shape(), expected);
        }
        let anchors = |signature: &mut Signature<'_>| {
            let options = OffsetOptions { anchors: true, ..OffsetOptions::default() };
            signature.rule = Some(OffsetRule::OfReferences(options));
        };
        let problem = check(with(1, &[2, 7, 5, 2]), anchors).unwrap();
        assert_eq!(problem.offsets(), Some(&Offsets::from_points().anchors(5)));
        let exact = |signature: &mut Signature<'_>| {
            signature.rule = Some(OffsetRule::Exact(Offsets::from_points().one_for_all_levels()));
        };
        let error = check(SHAPES, exact).unwrap_err().to_string();
        assert!(error.ends_with("expected [2, 7, 1, 2]"), "{error}");
    }

    #[test]
    fn values_are_read_in_their_layout() {
        let head_major = |signature: &mut Signature<'_>| {
            signature.layout = ValueLayout::HeadMajorPadded;
            signature.rule = None;
        };
        let problem = check(with(0, &[2, 4, 52, 8]), head_major).unwrap();
        assert_eq!((problem.heads(), problem.spatial()), (4, 52));
        let error = check(with(0, &[2, 4, 20, 8]), head_major).unwrap_err();
        assert!(matches!(error, Error::LevelPixels { levels: 52, pixels: 20, .. }), "{error}");
    }

    #[test]
    fn every_misfit_names_its_tensor_and_what_fits() {
        let cases: [(usize, &[i64], &str); 13] = [
            (
                0,
                &[2, 20, 32],
                "`value` has shape [2, 20, 32], expected [batch, pixels, heads, channels]",
            ),
            (
                0,
                &[2, 21, 4, 8],
                "`value` has 21 pixels, but the levels of `spatial_shapes` [(4, 4), (2, 2)] have 20",
            ),
            (0, &[2, 20, -4, 8], "`sampling_offsets` has shape"),
            (
                2,
                &[2, 7, 4, 2, 3],
                "`sampling_offsets` has shape [2, 7, 4, 2, 3], expected [2, queries, 4, 2, points, 2]",
            ),
            (
                2,
                &[2, 7, 4, 3, 3, 2],
                "expected [2, queries, 4, 2, points, 2] or [2, queries, 4, samples, 2]",
            ),
            (2, &[1, 7, 4, 2, 3, 2], "`sampling_offsets` has shape [1, 7, 4, 2, 3, 2]"),
            (
                2,
                &[2, 7, 4, 5, 2],
                "`sampling_offsets`: 5 samples are not the same number of points on each of 2 levels",
            ),
            (
                3,
                &[2, 7, 4, 2, 2],
                "`attention_logits` has shape [2, 7, 4, 2, 2], expected [2, 7, 4, 2, 3] or [2, 7, 4, 6], as many queries and points as `sampling_offsets`",
            ),
            (3, &[2, 6, 4, 2, 3], "as many queries"),
            (
                1,
                &[2, 7, 3, 2],
                "`reference_points` has shape [2, 7, 3, 2], expected [2, 7, 2 or 1, 2 or 4]",
            ),
            (1, &[2, 7, 2, 3], "expected [2, 7, 2 or 1, 2 or 4]"),
            (1, &[1, 7, 2, 2], "expected [2, 7, "),
            (1, &[2, 7], "expected [2, 7, "),
        ];
        for (place, shape, expected) in cases {
            let error = check(with(place, shape), |_| ()).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn lists_are_checked_against_the_levels() {
        type Change = fn(&mut Signature<'_>);
        let cases: [(Change, &str); 5] = [
            (|it| it.levels.starts = Some(&[0]), "`level_start_index` has 1 entries for 2 levels"),
            (|it| it.levels.starts = Some(&[0, 15]), "overlap"),
            (|it| it.levels.points = Some(&[3]), "`points` has 1 entries for 2 levels"),
            (|it| it.levels.points = Some(&[3, -3]), "`points[1]` is -3"),
            (|it| it.levels.sizes = &[[4, 4], [-2, 2]], "level 1 is -2 x 2"),
        ];
        for (change, expected) in cases {
            let error = check(SHAPES, change).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn positions_and_shares_have_one_dtype_and_tensors_must_be_there() {
        let mut tensors = [SHAPES[0], SHAPES[2], SHAPES[3]]
            .map(|shape| TensorSignature { dtype: DType::F16, shape });
        tensors[1].dtype = DType::F32;
        let error = Signature::new(&tensors, LEVELS).problem().unwrap_err().to_string();
        let expected =
            "`sampling_locations` is f32 and `attention_weights` is f16; give both the same dtype";
        assert_eq!(error, expected);
        let error = Signature::new(&tensors[..2], LEVELS).problem().unwrap_err().to_string();
        assert!(error.starts_with("`attention_weights` is missing"), "{error}");
    }

    #[test]
    fn a_call_without_levels_has_any_number_of_points() {
        let none = LevelLists { sizes: &[], starts: None, points: None };
        let shapes: [&[i64]; 3] = [&[2, 0, 4, 8], &[2, 7, 4, 0, 3, 2], &[2, 7, 4, 0, 3]];
        let tensors = shapes.map(|shape| TensorSignature { dtype: DType::F32, shape });
        assert_eq!(Signature::new(&tensors, none).problem().unwrap().samples(), 0);
    }
}
