//! A run of a node as shapes and numbers: the key of its plan, and the problem that it describes.

use std::ffi::CStr;

use msdeform::{DType, Offsets, Problem};

use crate::api::KernelInfo;
use crate::error::Error;

/// The shape of a tensor, without memory of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    rank: usize,
    sizes: [i64; Self::MAX_RANK],
}

impl Shape {
    /// That of `[N, Lq, M, L, P, 2]`.
    pub(crate) const MAX_RANK: usize = 6;

    /// The shape of no tensor.
    pub(crate) const NONE: Self = Self { rank: 0, sizes: [0; Self::MAX_RANK] };

    /// `read` writes the sizes of so many axes.
    pub(crate) fn read(
        tensor: &'static str,
        rank: usize,
        read: impl FnOnce(&mut [i64]) -> Result<(), Error>,
    ) -> Result<Self, Error> {
        if rank > Self::MAX_RANK {
            let mut found = vec![0; rank];
            read(&mut found)?;
            let expected = format!("at most {} axes", Self::MAX_RANK);
            return Err(Error::Shape { tensor, found, expected });
        }
        let mut shape = Self { rank, ..Self::NONE };
        read(&mut shape.sizes[..rank])?;
        Ok(shape)
    }

    pub(crate) fn sizes(&self) -> &[i64] {
        &self.sizes[..self.rank]
    }

    /// Elements of a tensor that is there, hence can be addressed.
    pub(crate) fn elements(&self, tensor: &'static str) -> Result<usize, Error> {
        let sizes = self.sizes().iter().map(|&size| usize::try_from(size).ok());
        let product =
            sizes.into_iter().try_fold(1usize, |product, size| product.checked_mul(size?));
        product.ok_or_else(|| self.wrong(tensor, "sizes from 0 up that fit into memory".to_owned()))
    }

    fn wrong(&self, tensor: &'static str, expected: String) -> Error {
        Error::Shape { tensor, found: self.sizes().to_vec(), expected }
    }
}

/// A tensor of integers.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Integers<'a> {
    Short(&'a [i32]),
    Long(&'a [i64]),
}

impl<'a> Integers<'a> {
    pub(crate) fn iter(self) -> impl Iterator<Item = i64> + 'a {
        let (short, long) = match self {
            Self::Short(short) => (short, &[][..]),
            Self::Long(long) => (&[][..], long),
        };
        short.iter().map(|&number| i64::from(number)).chain(long.iter().copied())
    }
}

/// What a node says beside its tensors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Attributes {
    /// Points of each level, where that was said.
    points: Option<Vec<usize>>,
    /// How samples follow from offsets, if they do.
    rule: Option<Rule>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Rule {
    anchors: bool,
    /// Bits of an `f32`.
    offset_scale: u32,
    softmax: bool,
    nearest: bool,
}

impl Attributes {
    /// Reads and checks them.
    pub(crate) fn read(info: &KernelInfo<'_>, is_from_offsets: bool) -> Result<Self, Error> {
        // Not by asking for a list: of another kind of attribute some runtimes make an empty one.
        if info.int(c"points").is_some() || info.float(c"points").is_some() {
            return Err(wrong("points", "is no list of integers", "give one for each level"));
        }
        let points = info.ints(c"points").map(|found| {
            let sizes = found.iter().map(|&count| usize::try_from(count));
            sizes.collect::<Result<Vec<usize>, _>>().map_err(|_| {
                let found = format!("is {found:?}");
                wrong("points", &found, "give a number from 0 up for each level")
            })
        });
        let points = points.transpose()?;
        let rule = || {
            let offset_scale = match info.float(c"offset_scale") {
                None if info.int(c"offset_scale").is_some() => {
                    return Err(wrong("offset_scale", "is an integer", "give a float"));
                }
                found => found.unwrap_or(0.5).to_bits(),
            };
            Ok(Rule {
                anchors: flag(info, "anchors", c"anchors", false)?,
                offset_scale,
                softmax: flag(info, "softmax", c"softmax", true)?,
                nearest: flag(info, "nearest", c"nearest", false)?,
            })
        };
        Ok(Self { points, rule: is_from_offsets.then(rule).transpose()? })
    }
}

fn wrong(name: &'static str, found: &str, expected: &str) -> Error {
    Error::Attribute { name, found: found.to_owned(), expected: expected.to_owned() }
}

fn flag(
    info: &KernelInfo<'_>,
    name: &'static str,
    c_name: &CStr,
    default: bool,
) -> Result<bool, Error> {
    match info.int(c_name) {
        Some(0) => Ok(false),
        Some(1) => Ok(true),
        Some(other) => Err(wrong(name, &format!("is {other}"), "give 0 or 1")),
        None if info.float(c_name).is_some() => {
            Err(wrong(name, "is a float", "give the integer 0 or 1"))
        }
        None => Ok(default),
    }
}

/// A run of a node. `locations` and `weights` are offsets and logits where samples follow from them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call<'a> {
    pub attributes: &'a Attributes,
    pub format: DType,
    pub sampling_format: DType,
    pub reference_format: DType,
    pub value: Shape,
    pub level_shapes: Shape,
    pub level_starts: Shape,
    pub references: Shape,
    pub locations: Shape,
    pub weights: Shape,
    pub shapes: Integers<'a>,
    pub starts: Integers<'a>,
}

/// What a plan was made for.
#[derive(Debug)]
pub(crate) struct Key {
    attributes: Attributes,
    formats: [DType; 3],
    tensors: [Shape; 6],
    levels: Vec<i64>,
}

impl Call<'_> {
    const fn formats(&self) -> [DType; 3] {
        [self.format, self.sampling_format, self.reference_format]
    }

    const fn tensors(&self) -> [Shape; 6] {
        [
            self.value,
            self.level_shapes,
            self.level_starts,
            self.references,
            self.locations,
            self.weights,
        ]
    }

    fn levels(&self) -> impl Iterator<Item = i64> + '_ {
        self.shapes.iter().chain(self.starts.iter())
    }

    pub(crate) fn key(&self) -> Key {
        Key {
            attributes: self.attributes.clone(),
            formats: self.formats(),
            tensors: self.tensors(),
            levels: self.levels().collect(),
        }
    }

    /// Whether a plan was made for this very call.
    pub(crate) fn has(&self, key: &Key) -> bool {
        key.tensors == self.tensors()
            && key.formats == self.formats()
            && key.levels.iter().copied().eq(self.levels())
            && key.attributes == *self.attributes
    }

    const fn names(&self) -> [&'static str; 2] {
        match self.attributes.rule {
            None => ["sampling_locations", "attention_weights"],
            Some(_) => ["sampling_offsets", "attention_logits"],
        }
    }

    /// Checks the shapes against each other and makes the problem of them.
    pub(crate) fn problem(&self) -> Result<Problem, Error> {
        let &[batch, pixels, heads, channels] = self.value.sizes() else {
            return Err(self.value.wrong("value", "[batch, pixels, heads, channels]".to_owned()));
        };
        let &[levels, 2] = self.level_shapes.sizes() else {
            let expected = "[levels, 2], a height and a width for each level";
            return Err(self.level_shapes.wrong("spatial_shapes", expected.to_owned()));
        };
        if self.level_starts.sizes() != [levels] {
            let expected = format!("[{levels}] like `spatial_shapes`");
            return Err(self.level_starts.wrong("level_start_index", expected));
        }
        let sampling = Sampling { batch, heads, levels, points: self.attributes.points.as_deref() };
        let names = self.names();
        let (queries, points) = sampling.read(names[0], &self.locations, true)?;
        let (weight_queries, weight_points) = sampling.read(names[1], &self.weights, false)?;
        if (queries, &points) != (weight_queries, &weight_points) {
            let expected = format!(
                "as many queries and points as `{}`, {:?}",
                names[0],
                self.locations.sizes()
            );
            return Err(self.weights.wrong(names[1], expected));
        }
        let mut shapes = self.shapes.iter();
        let pairs: Vec<(i64, i64)> =
            std::iter::from_fn(|| Some((shapes.next()?, shapes.next()?))).collect();
        let size = |size: i64| usize::try_from(size).unwrap_or(0);
        let mut builder = Problem::builder()
            .batch(size(batch))
            .heads(size(heads))
            .channels(size(channels))
            .queries(size(queries))
            .levels(pairs)
            .level_starts(self.starts.iter())
            .spatial(size(pixels))
            .points_per_level(points)
            .dtype(self.format)
            .sampling_dtype(self.sampling_format);
        if let Some(rule) = self.attributes.rule {
            let offsets = rule.offsets(&self.references, [batch, queries], levels)?;
            builder = builder.offsets(offsets).reference_dtype(self.reference_format);
        }
        Ok(builder.build()?)
    }
}

impl Rule {
    /// The rule for references of this shape.
    fn offsets(
        &self,
        shape: &Shape,
        [batch, queries]: [i64; 2],
        levels: i64,
    ) -> Result<Offsets, Error> {
        let wrong = || {
            let count = if self.anchors { "anchors".to_owned() } else { format!("{levels} or 1") };
            let expected = format!("[{batch} or 1, {queries} or 1, {count}, 2 or 4]");
            shape.wrong("reference_points", expected)
        };
        let &[found_batch, found_queries, count, components] = shape.sizes() else {
            return Err(wrong());
        };
        let fits = |found: i64, wanted: i64| found == wanted || found == 1;
        if !fits(found_batch, batch) || !fits(found_queries, queries) {
            return Err(wrong());
        }
        let rule = match components {
            2 => Offsets::from_points(),
            4 => Offsets::from_boxes(),
            _ => return Err(wrong()),
        };
        let rule = match usize::try_from(count) {
            Ok(anchors) if self.anchors => rule.anchors(anchors),
            _ if count == levels => rule,
            _ if count == 1 => rule.one_for_all_levels(),
            _ => return Err(wrong()),
        };
        let rule = rule.offset_scale(f32::from_bits(self.offset_scale));
        let rule = if self.softmax { rule } else { rule.raw_weights() };
        Ok(if self.nearest { rule.nearest() } else { rule })
    }
}

/// What the shapes of locations and weights must agree with.
struct Sampling<'a> {
    batch: i64,
    heads: i64,
    levels: i64,
    points: Option<&'a [usize]>,
}

impl Sampling<'_> {
    /// Queries, and points of each level. Samples are one axis, or two: levels and points.
    fn read(
        &self,
        tensor: &'static str,
        shape: &Shape,
        is_pairs: bool,
    ) -> Result<(i64, Vec<usize>), Error> {
        let Self { batch, heads, levels, points } = *self;
        let level_count = usize::try_from(levels).unwrap_or(0);
        if let Some(points) = points.filter(|points| points.len() != level_count) {
            return Err(msdeform::Error::LevelCount {
                list: "points",
                levels: level_count,
                found: points.len(),
            }
            .into());
        }
        let sizes = match shape.sizes().split_last() {
            Some((2, sizes)) if is_pairs => Some(sizes),
            _ if is_pairs => None,
            _ => Some(shape.sizes()),
        };
        let count = |count: i64| usize::try_from(count).ok();
        let found = match sizes {
            Some(&[n, queries, m, samples]) if n == batch && m == heads => {
                let samples = count(samples);
                let shared = || match (samples, level_count) {
                    (Some(0), 0) => Some(Vec::new()),
                    (Some(samples), levels) if levels > 0 && samples % levels == 0 => {
                        Some(vec![samples / levels; levels])
                    }
                    _ => None,
                };
                let said = points.map(<[usize]>::to_vec);
                let points = said.map_or_else(shared, |points| {
                    let total =
                        points.iter().try_fold(0usize, |total, &count| total.checked_add(count));
                    (total == samples).then_some(points)
                });
                points.map(|points| (queries, points))
            }
            Some(&[n, queries, m, l, p]) if n == batch && m == heads && l == levels => {
                let found = count(p).map(|p| vec![p; level_count]);
                found
                    .filter(|found| points.is_none_or(|points| points == found.as_slice()))
                    .map(|points| (queries, points))
            }
            _ => None,
        };
        found.ok_or_else(|| {
            let pair = if is_pairs { ", 2" } else { "" };
            let expected = match points {
                Some(points) => {
                    let samples = points.iter().fold(0usize, |total, &count| total.saturating_add(count));
                    format!(
                        "[{batch}, queries, {heads}, {samples}{pair}], {points:?} points on the levels as the attribute \
                         `points` says"
                    )
                }
                None => format!(
                    "[{batch}, queries, {heads}, {levels}, points{pair}], or [{batch}, queries, {heads}, samples{pair}] with as \
                     many samples on each level unless the attribute `points` says otherwise"
                ),
            };
            shape.wrong(tensor, expected)
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a step that fails is a failed test")]

    use super::*;

    fn shape(sizes: &[i64]) -> Shape {
        Shape::read("x", sizes.len(), |to| {
            to.copy_from_slice(sizes);
            Ok(())
        })
        .unwrap()
    }

    fn plain() -> Attributes {
        Attributes { points: None, rule: None }
    }

    fn from_offsets() -> Attributes {
        let offset_scale = 0.5f32.to_bits();
        let rule = Rule { anchors: false, offset_scale, softmax: true, nearest: false };
        Attributes { rule: Some(rule), ..plain() }
    }

    /// Two levels, three points each, 7 queries.
    fn call(attributes: &Attributes) -> Call<'_> {
        Call {
            attributes,
            format: DType::F32,
            sampling_format: DType::F32,
            reference_format: DType::F32,
            value: shape(&[2, 20, 4, 8]),
            level_shapes: shape(&[2, 2]),
            level_starts: shape(&[2]),
            references: shape(&[2, 7, 2, 2]),
            locations: shape(&[2, 7, 4, 2, 3, 2]),
            weights: shape(&[2, 7, 4, 2, 3]),
            shapes: Integers::Long(&[4, 4, 2, 2]),
            starts: Integers::Long(&[0, 16]),
        }
    }

    #[test]
    fn samples_may_be_one_axis_or_two() {
        let attributes = plain();
        let split = call(&attributes);
        let flat =
            Call { locations: shape(&[2, 7, 4, 6, 2]), weights: shape(&[2, 7, 4, 6]), ..split };
        assert_eq!(split.problem().unwrap(), flat.problem().unwrap());
        assert_eq!(flat.problem().unwrap().points(), [3, 3]);
        let attributes = Attributes { points: Some(vec![5, 1]), rule: None };
        let uneven = Call { attributes: &attributes, ..flat };
        assert_eq!(uneven.problem().unwrap().points(), [5, 1]);
        let error = Call { attributes: &attributes, ..split }.problem().unwrap_err().to_string();
        assert!(error.contains("[5, 1] points"), "{error}");
    }

    #[test]
    fn a_key_is_known_again_and_nothing_else_is() {
        let (attributes, others) = (plain(), from_offsets());
        let first = call(&attributes);
        let key = first.key();
        assert!(first.has(&key));
        assert!(Call { shapes: Integers::Short(&[4, 4, 2, 2]), ..first }.has(&key));
        for other in [
            Call { shapes: Integers::Long(&[4, 4, 1, 4]), ..first },
            Call { starts: Integers::Long(&[4, 0]), ..first },
            Call { value: shape(&[1, 20, 4, 8]), ..first },
            Call { locations: shape(&[2, 7, 4, 6, 2]), ..first },
            Call { sampling_format: DType::F16, ..first },
            Call { attributes: &others, ..first },
        ] {
            assert!(!other.has(&key), "{other:?}");
        }
    }

    #[test]
    fn what_does_not_fit_is_named_with_what_would() {
        let (given, offsets) = (plain(), from_offsets());
        let (given, offsets) = (call(&given), call(&offsets));
        let cases: [(Call<'_>, &[&str]); 12] = [
            (
                Call { value: shape(&[2, 20, 32]), ..given },
                &["`value`", "[2, 20, 32]", "[batch, pixels, heads, channels]"],
            ),
            (Call { level_shapes: shape(&[4]), ..given }, &["`spatial_shapes`", "[levels, 2]"]),
            (Call { level_starts: shape(&[3]), ..given }, &["`level_start_index`", "[3]", "[2]"]),
            (
                Call { locations: shape(&[2, 7, 4, 2, 3]), ..given },
                &["`sampling_locations`", "[2, queries, 4, 2, points, 2]"],
            ),
            (
                Call { locations: shape(&[1, 7, 4, 2, 3, 2]), ..given },
                &["`sampling_locations`", "[1, 7, 4, 2, 3, 2]"],
            ),
            (
                Call { weights: shape(&[2, 7, 4, 2, 2]), ..given },
                &["`attention_weights`", "`sampling_locations`"],
            ),
            (
                Call { weights: shape(&[2, 6, 4, 2, 3]), ..offsets },
                &["`attention_logits`", "queries"],
            ),
            (
                Call { locations: shape(&[2, 7, 4, 5, 2]), ..offsets },
                &["`sampling_offsets`", "attribute `points`"],
            ),
            (
                Call { references: shape(&[2, 7, 3, 2]), ..offsets },
                &["`reference_points`", "[2 or 1, 7 or 1, 2 or 1, 2 or 4]"],
            ),
            (
                Call { references: shape(&[2, 5, 2, 2]), ..offsets },
                &["`reference_points`", "7 or 1"],
            ),
            (Call { shapes: Integers::Long(&[4, 4, -2, 2]), ..given }, &["level 1", "at least 1"]),
            (
                Call { starts: Integers::Long(&[0, 15]), ..given },
                &["overlap", "`level_start_index`"],
            ),
        ];
        for (call, words) in cases {
            let error = call.problem().unwrap_err().to_string();
            assert!(words.iter().all(|word| error.contains(word)), "{error}");
        }
    }

    #[test]
    fn references_say_what_the_rule_is() {
        let attributes = from_offsets();
        let call = call(&attributes);
        for (references, shape_of) in [
            ([2, 7, 2, 2], [2, 7, 2, 2]),
            ([1, 1, 1, 4], [2, 7, 1, 4]),
            ([2, 1, 2, 4], [2, 7, 2, 4]),
        ] {
            let problem = Call { references: shape(&references), ..call }.problem().unwrap();
            assert_eq!(problem.references_shape(), shape_of);
        }
    }
}
