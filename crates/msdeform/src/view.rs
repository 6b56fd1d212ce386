//! Borrowed tensors: a typed slice, a shape, strides.

use std::ffi::c_void;
use std::ptr::NonNull;

use half::{bf16, f16};

use crate::{DType, Element, Error, Problem, Role, Shape};

/// What a slice says about itself, whether it may be written or not.
macro_rules! described {
    ($slice:ident: $($variant:ident)*) => {
        impl $slice<'_> {
            /// Format of the elements.
            #[must_use]
            pub const fn dtype(&self) -> DType {
                match self { $(Self::$variant(_) => DType::$variant),* }
            }
            /// Number of elements.
            #[must_use]
            pub const fn len(&self) -> usize {
                match self { $(Self::$variant(slice) => slice.len()),* }
            }
            /// Whether there are none.
            #[must_use]
            pub const fn is_empty(&self) -> bool {
                self.len() == 0
            }
        }
    };
}

macro_rules! slices {
    ($($variant:ident $type:ty),*) => {
        /// A borrowed slice of any element type.
        #[derive(Clone, Copy, Debug)]
        #[allow(missing_docs, reason = "one variant per DType, named like it")]
        pub enum Slice<'a> { $($variant(&'a [$type])),* }

        /// A mutably borrowed slice of any element type.
        #[derive(Debug)]
        #[allow(missing_docs, reason = "one variant per DType, named like it")]
        pub enum SliceMut<'a> { $($variant(&'a mut [$type])),* }

        described!(Slice: $($variant)*);
        described!(SliceMut: $($variant)*);

        impl Slice<'_> {
            /// Every element, exactly.
            #[must_use]
            pub fn to_f64(&self) -> Vec<f64> {
                match self { $(Self::$variant(slice) => slice.iter().map(|x| x.to_f64()).collect()),* }
            }
        }

        impl<'a> Slice<'a> {
            /// `len` elements at an address, which is ignored if `len` is 0.
            ///
            /// # Safety
            /// Unless `len` is 0, the address is aligned for `dtype` and leads to `len` elements that live for `'a`. No code
            /// writes to them meanwhile.
            #[must_use]
            pub unsafe fn from_raw_parts(dtype: DType, data: *const c_void, len: usize) -> Self {
                // SAFETY: passed on from the caller; a dangling pointer leads to no elements. Every bit pattern is a number.
                match dtype { $(DType::$variant => Self::$variant(unsafe {
                    let none: *const $type = NonNull::dangling().as_ptr();
                    std::slice::from_raw_parts(if len == 0 { none } else { data.cast() }, len)
                })),* }
            }
        }

        impl<'a> SliceMut<'a> {
            /// `len` elements at an address, which is ignored if `len` is 0.
            ///
            /// # Safety
            /// As [`Slice::from_raw_parts`], and no other code reads or writes the elements meanwhile.
            #[must_use]
            pub unsafe fn from_raw_parts(dtype: DType, data: *mut c_void, len: usize) -> Self {
                // SAFETY: as of `Slice::from_raw_parts`.
                match dtype { $(DType::$variant => Self::$variant(unsafe {
                    let none = NonNull::dangling().as_ptr();
                    std::slice::from_raw_parts_mut(if len == 0 { none } else { data.cast() }, len)
                })),* }
            }
        }

        impl SliceMut<'_> {
            /// The same elements, borrowed again.
            pub fn reborrow(&mut self) -> SliceMut<'_> {
                match self { $(Self::$variant(slice) => SliceMut::$variant(slice)),* }
            }
        }

        $(
            impl<'a> From<&'a [$type]> for Slice<'a> {
                fn from(slice: &'a [$type]) -> Self { Self::$variant(slice) }
            }
            impl<'a> From<&'a mut [$type]> for SliceMut<'a> {
                fn from(slice: &'a mut [$type]) -> Self { Self::$variant(slice) }
            }
            impl<'a> From<&'a [$type]> for TensorView<'a> {
                fn from(slice: &'a [$type]) -> Self { Self::flat(slice) }
            }
            impl<'a> From<&'a Vec<$type>> for TensorView<'a> {
                fn from(vec: &'a Vec<$type>) -> Self { Self::flat(vec.as_slice()) }
            }
            impl<'a> From<&'a mut [$type]> for TensorViewMut<'a> {
                fn from(slice: &'a mut [$type]) -> Self { Self::flat(slice) }
            }
            impl<'a> From<&'a mut Vec<$type>> for TensorViewMut<'a> {
                fn from(vec: &'a mut Vec<$type>) -> Self { Self::flat(vec.as_mut_slice()) }
            }
            impl Typed for $type {
                fn of<'a>(slice: Slice<'a>) -> Option<&'a [Self]> {
                    if let Slice::$variant(slice) = slice { Some(slice) } else { None }
                }
                fn of_mut<'a>(slice: SliceMut<'a>) -> Option<&'a mut [Self]> {
                    if let SliceMut::$variant(slice) = slice { Some(slice) } else { None }
                }
            }
        )*
    };
}

/// Gets the typed slice back out of a [`Slice`]; for code that is generic over the element.
pub trait Typed: Element {
    /// The slice, if it holds this type.
    fn of(slice: Slice<'_>) -> Option<&[Self]>;
    /// The mutable slice, if it holds this type.
    fn of_mut(slice: SliceMut<'_>) -> Option<&mut [Self]>;
}

slices!(F32 f32, F16 f16, Bf16 bf16, F64 f64);

/// Shape and strides in elements; `None` where only a flat slice was given.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Dims {
    shape: Vec<usize>,
    strides: Vec<isize>,
}

impl Dims {
    fn contiguous(shape: &[usize]) -> Self {
        let mut strides = vec![1isize; shape.len()];
        for axis in (1..shape.len()).rev() {
            strides[axis - 1] = strides[axis].wrapping_mul(shape[axis].max(1).cast_signed());
        }
        Self { shape: shape.to_vec(), strides }
    }

    /// Axes of one element may have any stride, an empty tensor has no order at all.
    fn is_contiguous(&self) -> bool {
        let wanted = Self::contiguous(&self.shape);
        self.shape.contains(&0)
            || (0..self.shape.len())
                .all(|axis| self.shape[axis] == 1 || self.strides[axis] == wanted.strides[axis])
    }

    /// Checked against a slice of `len` elements, the view's first element being at 0.
    fn checked(shape: &[usize], strides: &[isize], len: usize) -> Result<Self, Error> {
        let outside =
            || Error::ViewOutOfBounds { shape: shape.to_vec(), strides: strides.to_vec(), len };
        if shape.len() != strides.len() {
            return Err(outside());
        }
        if !shape.contains(&0) {
            let (mut lowest, mut highest) = (0i128, 0i128);
            for (&size, &stride) in shape.iter().zip(strides) {
                let reach = (size as i128 - 1) * stride as i128;
                lowest += reach.min(0);
                highest += reach.max(0);
            }
            if lowest < 0 || highest >= len as i128 {
                return Err(outside());
            }
        }
        Ok(Self { shape: shape.to_vec(), strides: strides.to_vec() })
    }
}

/// What a tensor of a call is called and must look like.
#[derive(Clone, Debug)]
pub(crate) struct Expected {
    pub tensor: &'static str,
    pub dtype: DType,
    pub shape: Shape,
}

impl Expected {
    pub(crate) fn new(problem: &Problem, role: Role) -> Self {
        let (dtype, shape) = (problem.format_of(role), problem.shape_of(role));
        Self { tensor: role.name(), dtype, shape }
    }

    fn check(&self, dtype: DType, len: usize, dims: Option<&Dims>) -> Result<usize, Error> {
        let Self { tensor, dtype: expected, ref shape } = *self;
        if dtype != expected {
            return Err(Error::DtypeMismatch { tensor, expected, found: dtype });
        }
        let count = shape.iter().product();
        match dims {
            Some(dims) if !splits_into(shape, &dims.shape) => Err(self.mismatch(&dims.shape)),
            Some(dims) if !dims.is_contiguous() => Err(Error::NotContiguous {
                tensor,
                shape: dims.shape.clone(),
                strides: dims.strides.clone(),
            }),
            None if len != count => Err(Error::LengthMismatch {
                tensor,
                expected: count,
                found: len,
                shape: format!("shape {shape:?}"),
            }),
            _ => Ok(count),
        }
    }

    fn mismatch(&self, found: &[usize]) -> Error {
        Error::ShapeMismatch {
            tensor: self.tensor,
            expected: format!("{:?}", self.shape),
            found: found.iter().map(|&size| size as i64).collect(),
        }
    }
}

/// Whether `found` is `expected`, perhaps with axes split further: `[N, Lq, M, L, P, 2]` is as good
/// as `[N, Lq, M, L * P, 2]`.
fn splits_into(expected: &[usize], found: &[usize]) -> bool {
    if expected.contains(&0) || found.contains(&0) {
        return expected.contains(&0) && found.contains(&0);
    }
    let mut rest = found.iter().copied();
    let every_axis_is_covered = expected.iter().all(|&wanted| {
        let mut product = 1usize;
        while product < wanted {
            let Some(size) = rest.next() else { return false };
            product = product.saturating_mul(size);
        }
        product == wanted
    });
    every_axis_is_covered && rest.all(|size| size == 1)
}

/// A borrowed tensor to read. A plain slice or `Vec` converts into a flat view, of which only the
/// element count is checked; a shaped view is checked in full.
#[derive(Clone, Debug)]
pub struct TensorView<'a> {
    data: Slice<'a>,
    dims: Option<Dims>,
}

impl<'a> TensorView<'a> {
    /// A tensor of a call whose first axes, as many as `outer` has, have any strides. The elements of its other axes are
    /// contiguous.
    ///
    /// # Errors
    /// [`Error::ViewOutOfBounds`] if the strides reach outside of the elements.
    pub fn of_rows(
        problem: &Problem,
        role: Role,
        data: Slice<'a>,
        outer: &[isize],
    ) -> Result<Self, Error> {
        let shape = problem.shape_of(role);
        let mut strides = outer.to_vec();
        strides.extend(Dims::contiguous(&shape[outer.len()..]).strides);
        Self::strided(data, &shape, &strides)
    }

    /// The elements, after checking that this is the tensor `expected` describes.
    pub(crate) fn elements<T: Typed>(self, expected: &Expected) -> Result<&'a [T], Error> {
        let count = expected.check(self.data.dtype(), self.data.len(), self.dims.as_ref())?;
        let found = self.data.dtype();
        T::of(self.data).map(|slice| &slice[..count]).ok_or(Error::DtypeMismatch {
            tensor: expected.tensor,
            expected: T::DTYPE,
            found,
        })
    }

    /// The elements of a tensor whose first axes, as many as `strides` has, may lie anywhere, and the strides of those. The
    /// others follow each other.
    pub(crate) fn spread<T: Typed, const AXES: usize>(
        self,
        expected: &Expected,
    ) -> Result<(&'a [T], [usize; AXES]), Error> {
        let Some(dims) = self.dims.as_ref().filter(|dims| !dims.is_contiguous()) else {
            let packed = Dims::contiguous(&expected.shape).strides;
            let strides = std::array::from_fn(|axis| packed[axis].unsigned_abs());
            return Ok((self.elements(expected)?, strides));
        };
        let (found, wanted) = (&dims.shape, &expected.shape);
        let has_axes = found.len() >= AXES && found[..AXES] == wanted[..AXES];
        if !(has_axes && splits_into(&wanted[AXES..], &found[AXES..])) {
            return Err(expected.mismatch(found));
        }
        let rest = Dims { shape: found[AXES..].to_vec(), strides: dims.strides[AXES..].to_vec() };
        if !rest.is_contiguous() {
            let (shape, strides) = (found.clone(), dims.strides.clone());
            return Err(Error::NotContiguous { tensor: expected.tensor, shape, strides });
        }
        // Below zero only along axes of one element, where nothing moves.
        let strides = std::array::from_fn(|axis| usize::try_from(dims.strides[axis]).unwrap_or(0));
        let dtype = self.data.dtype();
        let elements = T::of(self.data).filter(|_| dtype == expected.dtype);
        let mismatch = Error::DtypeMismatch {
            tensor: expected.tensor,
            expected: expected.dtype,
            found: dtype,
        };
        elements.map(|elements| (elements, strides)).ok_or(mismatch)
    }
}

/// A borrowed tensor to write. Larger buffers than needed are fine: the front is written.
#[derive(Debug)]
pub struct TensorViewMut<'a> {
    data: SliceMut<'a>,
    dims: Option<Dims>,
}

impl<'a> TensorViewMut<'a> {
    /// The elements to write, after checking that this is the tensor `expected` describes.
    pub(crate) fn elements<T: Typed>(self, expected: &Expected) -> Result<&'a mut [T], Error> {
        let found = self.data.len();
        let required = expected.shape.iter().product();
        if self.dims.is_none() && found < required {
            return Err(Error::OutputTooSmall { tensor: expected.tensor, required, found });
        }
        let len = if self.dims.is_none() { required } else { found };
        expected.check(self.data.dtype(), len, self.dims.as_ref())?;
        let dtype = self.data.dtype();
        T::of_mut(self.data).map(|slice| &mut slice[..required]).ok_or(Error::DtypeMismatch {
            tensor: expected.tensor,
            expected: T::DTYPE,
            found: dtype,
        })
    }
}

/// How a view is made of a slice, whether it may be written or not.
macro_rules! made_of_slices {
    ($view:ident, $slice:ident) => {
        impl<'a> $view<'a> {
            /// All elements of a slice, in order, without a shape.
            #[must_use]
            pub fn flat(data: impl Into<$slice<'a>>) -> Self {
                Self { data: data.into(), dims: None }
            }

            /// A row-major tensor that takes the first elements of a slice.
            ///
            /// # Errors
            /// [`Error::ViewOutOfBounds`] if the slice is too short.
            pub fn new(data: impl Into<$slice<'a>>, shape: &[usize]) -> Result<Self, Error> {
                let strides = Dims::contiguous(shape).strides;
                Self::strided(data, shape, &strides)
            }

            /// A tensor with strides in elements, its first element being the slice's first.
            ///
            /// # Errors
            /// [`Error::ViewOutOfBounds`] if it reaches outside of the slice.
            pub fn strided(
                data: impl Into<$slice<'a>>,
                shape: &[usize],
                strides: &[isize],
            ) -> Result<Self, Error> {
                let data = data.into();
                let dims = Dims::checked(shape, strides, data.len())?;
                Ok(Self { data, dims: Some(dims) })
            }

            /// Format of the elements.
            #[must_use]
            pub const fn dtype(&self) -> DType {
                self.data.dtype()
            }
        }
    };
}

made_of_slices!(TensorView, Slice);
made_of_slices!(TensorViewMut, SliceMut);

#[cfg(test)]
mod tests {
    use super::*;

    const EXPECTED: Expected =
        Expected { tensor: "value", dtype: DType::F32, shape: Shape::new([2, 6]) };

    #[test]
    fn plain_slices_are_checked_by_length() {
        let data = vec![0f32; 12];
        assert!(TensorView::from(&data).elements::<f32>(&EXPECTED).is_ok());
        let short = TensorView::from(&data[..11]).elements::<f32>(&EXPECTED).unwrap_err();
        assert!(matches!(short, Error::LengthMismatch { expected: 12, found: 11, .. }));
        let half = vec![f16::ZERO; 12];
        let dtype = TensorView::from(&half).elements::<f32>(&EXPECTED).unwrap_err();
        assert!(matches!(dtype, Error::DtypeMismatch { found: DType::F16, .. }));
    }

    #[test]
    fn shaped_views_may_split_axes_but_not_transpose_them() {
        let data = vec![0f32; 12];
        let view = |shape: &[usize]| TensorView::new(data.as_slice(), shape).unwrap();
        assert!(view(&[2, 3, 2]).elements::<f32>(&EXPECTED).is_ok());
        assert!(view(&[1, 2, 6, 1]).elements::<f32>(&EXPECTED).is_ok());
        for wrong in [&[6, 2][..], &[3, 4], &[2, 5], &[12, 1, 1]] {
            let error = view(wrong).elements::<f32>(&EXPECTED).unwrap_err();
            assert!(matches!(error, Error::ShapeMismatch { .. }), "{wrong:?}: {error}");
        }
        let transposed = TensorView::strided(data.as_slice(), &[2, 6], &[1, 2]).unwrap();
        let error = transposed.elements::<f32>(&EXPECTED).unwrap_err();
        assert!(matches!(error, Error::NotContiguous { .. }));
    }

    #[test]
    fn leading_axes_may_lie_anywhere_where_that_is_allowed() {
        let data = vec![0f32; 20];
        let spread = |shape: &[usize], strides: &[isize]| {
            let view = TensorView::strided(data.as_slice(), shape, strides).unwrap();
            view.spread::<f32, 1>(&EXPECTED).map(|(_, strides)| strides)
        };
        assert_eq!(spread(&[2, 6], &[6, 1]).unwrap(), [6]);
        assert_eq!(spread(&[2, 6], &[10, 1]).unwrap(), [10]);
        assert_eq!(spread(&[2, 3, 2], &[0, 2, 1]).unwrap(), [0]);
        assert!(matches!(spread(&[2, 6], &[1, 2]), Err(Error::NotContiguous { .. })));
        assert!(matches!(spread(&[4, 3], &[4, 1]), Err(Error::ShapeMismatch { .. })));
        let flat = TensorView::from(&data[..12]).spread::<f32, 1>(&EXPECTED).unwrap();
        assert_eq!((flat.0.len(), flat.1), (12, [6]));
    }

    #[test]
    fn views_outside_of_their_slice_are_refused() {
        let mut data = vec![0f32; 12];
        for (shape, strides) in
            [(&[2usize, 6][..], &[7isize, 1][..]), (&[12], &[-1]), (&[2, 6], &[6]), (&[13], &[1])]
        {
            let error = TensorView::strided(data.as_slice(), shape, strides).unwrap_err();
            assert!(matches!(error, Error::ViewOutOfBounds { len: 12, .. }));
        }
        assert!(TensorViewMut::new(data.as_mut_slice(), &[3, 5]).is_err());
    }

    #[test]
    fn a_larger_output_is_fine_and_a_smaller_one_is_not() {
        let mut data = vec![0f32; 13];
        let elements = TensorViewMut::from(&mut data).elements::<f32>(&EXPECTED).unwrap();
        assert_eq!(elements.len(), 12);
        let error = TensorViewMut::from(&mut data[..11]).elements::<f32>(&EXPECTED).unwrap_err();
        assert!(matches!(error, Error::OutputTooSmall { required: 12, found: 11, .. }));
    }
}
