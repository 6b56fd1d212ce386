//! A run of a node as shapes and numbers: the key of its plan, and the problem that it describes.

use std::ffi::CStr;
use std::sync::Arc;

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

/// A run of a node: what its plan is made for.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Call {
    pub attributes: Arc<Attributes>,
    /// The inputs of the operator, in its order, with the dtypes that the plan reads.
    pub tensors: Vec<(DType, Shape)>,
    pub level_shapes: Shape,
    pub level_starts: Shape,
    /// The elements of shapes and starts.
    pub shapes: Vec<i64>,
    pub starts: Vec<i64>,
}

impl Call {
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
        let (sizes, _) = self.shapes.as_chunks::<2>();
        let Attributes { points, rule } = &*self.attributes;
        let tensors = self.tensors.iter();
        let tensors: Vec<TensorSignature<'_>> = tensors
            .map(|(dtype, shape)| TensorSignature { dtype: *dtype, shape: shape.sizes() })
            .collect();
        let signature = Signature {
            rule: rule.map(OffsetRule::OfReferences),
            expands_references: true,
            ..Signature::new(
                &tensors,
                LevelLists { sizes, starts: Some(&self.starts), points: points.as_deref() },
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

    /// Two levels, three points each, 7 queries.
    fn call(points: Option<Vec<i64>>) -> Call {
        let shapes: [&[i64]; 4] =
            [&[2, 20, 4, 8], &[2, 7, 2, 2], &[2, 7, 4, 2, 3, 2], &[2, 7, 4, 2, 3]];
        Call {
            attributes: Arc::new(Attributes { points, rule: Some(OffsetOptions::default()) }),
            tensors: shapes.map(|sizes| (DType::F32, shape(sizes))).to_vec(),
            level_shapes: shape(&[2, 2]),
            level_starts: shape(&[2]),
            shapes: vec![4, 4, 2, 2],
            starts: vec![0, 16],
        }
    }

    /// The signature's own tests have the shapes of the other tensors.
    #[test]
    fn lists_and_points_that_do_not_fit_are_named_with_what_would() {
        /// The attribute `points`, what is changed, and parts of the error.
        type Case = (Option<Vec<i64>>, fn(&mut Call), &'static [&'static str]);
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
                &["`sampling_offsets`", "give `points=[...]`"],
            ),
            (
                None,
                |call| call.tensors[1].1 = shape(&[2, 5, 3, 2]),
                &["`reference_points`", "[2 or 1, 7 or 1, 2 or 1, 2 or 4]"],
            ),
        ];
        for (points, change, words) in cases {
            let mut call = call(points);
            assert!(call.attributes.points.is_some() || call.problem().is_ok());
            change(&mut call);
            let error = call.problem().unwrap_err().to_string();
            assert!(words.iter().all(|word| error.contains(word)), "{error}");
        }
        let mut uneven = call(Some(vec![5, 1]));
        uneven.tensors[2].1 = shape(&[2, 7, 4, 6, 2]);
        uneven.tensors[3].1 = shape(&[2, 7, 4, 6]);
        assert_eq!(uneven.problem().unwrap().points(), [5, 1]);
    }
}
