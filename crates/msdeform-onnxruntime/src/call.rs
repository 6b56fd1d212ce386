//! A run of a node as shapes and numbers: the key of its plan, and the problem that it describes.

use std::ffi::CStr;

use msdeform::{DType, LevelLists, OffsetOptions, OffsetRule, Problem, Signature, TensorSignature};

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
            return Err(msdeform::Error::ShapeMismatch { tensor, found, expected }.into());
        }
        let mut shape = Self { rank, sizes: [0; Self::MAX_RANK] };
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
        msdeform::Error::ShapeMismatch { tensor, found: self.sizes().to_vec(), expected }.into()
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

/// The attributes of a node.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Attributes {
    /// Points of each level, if the node has that attribute.
    points: Option<Vec<i64>>,
    /// How samples follow from offsets; `None` for the plain operator.
    rule: Option<OffsetOptions>,
}

impl Attributes {
    /// Reads and checks them.
    pub(crate) fn read(info: &KernelInfo<'_>, has_rule: bool) -> Result<Self, Error> {
        // Not by asking for a list: of another kind of attribute some runtimes make an empty one.
        if info.int(c"points").is_some() || info.float(c"points").is_some() {
            return Err(wrong("points", "is no list of integers", "give one for each level"));
        }
        let points = info.ints(c"points");
        if let Some(found) = points.as_ref().filter(|found| found.iter().any(|&count| count < 0)) {
            let found = format!("is {found:?}");
            return Err(wrong("points", &found, "give a number from 0 up for each level"));
        }
        let rule = || {
            let default = OffsetOptions::default();
            let scale = match info.float(c"offset_scale") {
                None if info.int(c"offset_scale").is_some() => {
                    return Err(wrong("offset_scale", "is an integer", "give a float"));
                }
                found => found.unwrap_or(default.scale),
            };
            Ok(OffsetOptions {
                anchors: flag(info, c"anchors", default.anchors)?,
                scale,
                softmax: flag(info, c"softmax", default.softmax)?,
                nearest: flag(info, c"nearest", default.nearest)?,
            })
        };
        Ok(Self { points, rule: has_rule.then(rule).transpose()? })
    }
}

fn wrong(name: &'static str, found: &str, expected: &str) -> Error {
    Error::Attribute { name, found: found.to_owned(), expected: expected.to_owned() }
}

fn flag(info: &KernelInfo<'_>, c_name: &'static CStr, default: bool) -> Result<bool, Error> {
    let name = c_name.to_str().unwrap_or_default();
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

/// A run of a node.
#[derive(Clone, Debug)]
pub(crate) struct Call<'a> {
    pub attributes: &'a Attributes,
    /// The inputs of the operator, in its order, with the dtypes that the plan reads.
    pub tensors: Vec<(DType, Shape)>,
    pub level_shapes: Shape,
    pub level_starts: Shape,
    pub shapes: Integers<'a>,
    pub starts: Integers<'a>,
}

/// What a plan was made for.
#[derive(Debug)]
pub(crate) struct Key {
    attributes: Attributes,
    tensors: Vec<(DType, Shape)>,
    lists: [Shape; 2],
    levels: Vec<i64>,
}

impl Call<'_> {
    fn levels(&self) -> impl Iterator<Item = i64> + '_ {
        self.shapes.iter().chain(self.starts.iter())
    }

    pub(crate) fn key(&self) -> Key {
        Key {
            attributes: self.attributes.clone(),
            tensors: self.tensors.clone(),
            lists: [self.level_shapes, self.level_starts],
            levels: self.levels().collect(),
        }
    }

    /// Whether a plan with this key computes the call.
    pub(crate) fn has(&self, key: &Key) -> bool {
        key.tensors == self.tensors
            && key.lists == [self.level_shapes, self.level_starts]
            && key.attributes == *self.attributes
            && key.levels.iter().copied().eq(self.levels())
    }

    /// The problem that the shapes and the levels describe.
    pub(crate) fn problem(&self) -> Result<Problem, Error> {
        let &[levels, 2] = self.level_shapes.sizes() else {
            let expected = "[levels, 2], a height and a width for each level";
            return Err(self.level_shapes.wrong("spatial_shapes", expected.to_owned()));
        };
        if self.level_starts.sizes() != [levels] {
            let expected = format!("[{levels}] like `spatial_shapes`");
            return Err(self.level_starts.wrong("level_start_index", expected));
        }
        let mut shapes = self.shapes.iter();
        let sizes: Vec<[i64; 2]> =
            std::iter::from_fn(|| Some([shapes.next()?, shapes.next()?])).collect();
        let starts: Vec<i64> = self.starts.iter().collect();
        let Attributes { points, rule } = self.attributes;
        let tensors = self.tensors.iter();
        let tensors: Vec<TensorSignature<'_>> = tensors
            .map(|(dtype, shape)| TensorSignature { dtype: *dtype, shape: shape.sizes() })
            .collect();
        let signature = Signature {
            rule: rule.map(OffsetRule::OfReferences),
            expands_references: true,
            ..Signature::new(
                &tensors,
                LevelLists { sizes: &sizes, starts: Some(&starts), points: points.as_deref() },
            )
        };
        signature.problem().map_err(|error| match (error, points) {
            (msdeform::Error::ShapeMismatch { tensor, found, expected }, Some(points)) => {
                let expected = format!("{expected}; the attribute `points` says {points:?}");
                Error::Problem(msdeform::Error::ShapeMismatch { tensor, found, expected })
            }
            (error, _) => error.into(),
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

    fn fused(points: Option<Vec<i64>>) -> Attributes {
        Attributes { points, rule: Some(OffsetOptions::default()) }
    }

    /// Two levels, three points each, 7 queries.
    fn call(attributes: &Attributes) -> Call<'_> {
        let shapes: [&[i64]; 4] =
            [&[2, 20, 4, 8], &[2, 7, 2, 2], &[2, 7, 4, 2, 3, 2], &[2, 7, 4, 2, 3]];
        Call {
            attributes,
            tensors: shapes.map(|sizes| (DType::F32, shape(sizes))).to_vec(),
            level_shapes: shape(&[2, 2]),
            level_starts: shape(&[2]),
            shapes: Integers::Long(&[4, 4, 2, 2]),
            starts: Integers::Long(&[0, 16]),
        }
    }

    #[test]
    fn a_key_is_known_again_and_nothing_else_is() {
        let (attributes, others) = (fused(None), fused(Some(vec![3, 3])));
        let first = call(&attributes);
        let key = first.key();
        assert!(first.has(&key));
        assert!(Call { shapes: Integers::Short(&[4, 4, 2, 2]), ..first.clone() }.has(&key));
        let changes: [fn(&mut Call<'_>); 5] = [
            |call| call.shapes = Integers::Long(&[4, 4, 1, 4]),
            |call| call.starts = Integers::Long(&[4, 0]),
            |call| call.tensors[0].1 = shape(&[1, 20, 4, 8]),
            |call| call.tensors[2].1 = shape(&[2, 7, 4, 6, 2]),
            |call| call.tensors[2].0 = DType::F16,
        ];
        for change in changes {
            let mut other = first.clone();
            change(&mut other);
            assert!(!other.has(&key), "{other:?}");
        }
        assert!(!Call { attributes: &others, ..first }.has(&key));
    }

    /// The signature's own tests have the shapes of the other tensors.
    #[test]
    fn lists_and_points_that_do_not_fit_are_named_with_what_would() {
        /// The attribute `points`, what is changed, and parts of the error.
        type Case = (Option<Vec<i64>>, fn(&mut Call<'_>), &'static [&'static str]);
        let cases: [Case; 5] = [
            (None, |call| call.level_shapes = shape(&[4]), &["`spatial_shapes`", "[levels, 2]"]),
            (
                None,
                |call| call.level_starts = shape(&[3]),
                &["`level_start_index`", "[3]", "[2] like `spatial_shapes`"],
            ),
            (Some(vec![5, 1]), |_| (), &["`sampling_offsets`", "`points` says [5, 1]"]),
            (
                None,
                |call| call.tensors[2].1 = shape(&[2, 7, 4, 5, 2]),
                &["`sampling_offsets`", "attribute `points`"],
            ),
            (
                None,
                |call| call.tensors[1].1 = shape(&[2, 5, 3, 2]),
                &["`reference_points`", "[2 or 1, 7 or 1, 2 or 1, 2 or 4]"],
            ),
        ];
        for (points, change, words) in cases {
            let attributes = fused(points);
            let mut call = call(&attributes);
            assert!(attributes.points.is_some() || call.problem().is_ok());
            change(&mut call);
            let error = call.problem().unwrap_err().to_string();
            assert!(words.iter().all(|word| error.contains(word)), "{error}");
        }
        let attributes = fused(Some(vec![5, 1]));
        let mut uneven = call(&attributes);
        uneven.tensors[2].1 = shape(&[2, 7, 4, 6, 2]);
        uneven.tensors[3].1 = shape(&[2, 7, 4, 6]);
        assert_eq!(uneven.problem().unwrap().points(), [5, 1]);
    }
}
