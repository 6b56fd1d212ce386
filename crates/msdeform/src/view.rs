//! Borrowed tensors: a typed slice, a shape, strides.

use std::ffi::c_void;
use std::ptr::NonNull;

use crate::{DType, Element, Error, Problem, Role, Shape};

/// In place of the address of no elements.
const ALIGNED: NonNull<f64> = NonNull::dangling();

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
        let mut wanted = 1isize;
        let mut axes = self.shape.iter().zip(&self.strides).rev();
        self.shape.contains(&0)
            || axes.all(|(&size, &stride)| {
                let is_next = size == 1 || stride == wanted;
                wanted = wanted.wrapping_mul(size.cast_signed());
                is_next
            })
    }

    /// Checked against a slice of `len` elements, the view's first element being at 0.
    fn checked(shape: &[usize], strides: &[isize], len: usize) -> Result<Self, Error> {
        let outside = || {
            let reason = format!(
                "a view of shape {shape:?} and strides {strides:?} reaches outside of its {len} elements"
            );
            Error::Strides { reason }
        };
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
    /// How many of the first axes may have any strides.
    pub free_axes: usize,
}

impl Expected {
    pub(crate) fn new(problem: &Problem, role: Role) -> Self {
        let (dtype, shape) = (problem.format_of(role), problem.shape_of(role));
        Self { tensor: role.name(), dtype, shape, free_axes: role.free_axes(true) }
    }

    fn check(&self, len: usize, dims: Option<&Dims>) -> Result<usize, Error> {
        let Self { tensor, ref shape, .. } = *self;
        let count = shape.iter().product();
        match dims {
            Some(dims) if !splits_into(shape, &dims.shape) => Err(self.mismatch(&dims.shape)),
            Some(dims) if !dims.is_contiguous() => Err(self.not_contiguous(dims)),
            None if len != count => {
                let expected = format!("{count} (shape {shape:?})");
                Err(Error::LengthMismatch { tensor, expected, found: len })
            }
            _ => Ok(count),
        }
    }

    fn not_contiguous(&self, Dims { shape, strides }: &Dims) -> Error {
        let reason = format!(
            "`{}` is not contiguous (shape {shape:?}, strides {strides:?}); copy it into a contiguous buffer first",
            self.tensor
        );
        Error::Strides { reason }
    }

    fn other_dtype(&self, found: DType) -> Error {
        Error::DtypeMismatch { tensor: self.tensor, expected: self.dtype, found }
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
    dtype: DType,
    /// Aligned for the dtype.
    bytes: &'a [u8],
    dims: Option<Dims>,
}

impl<'a> TensorView<'a> {
    /// `len` elements at an address, which is ignored if `len` is 0.
    ///
    /// # Safety
    /// Unless `len` is 0, the address is aligned for `dtype` and leads to `len` elements that live for `'a`. No code
    /// writes to them meanwhile.
    pub const unsafe fn from_raw_parts(dtype: DType, data: *const c_void, len: usize) -> Self {
        let data = if len == 0 { ALIGNED.as_ptr().cast() } else { data.cast() };
        // SAFETY: passed on from the caller; a dangling pointer leads to no elements.
        let bytes = unsafe { std::slice::from_raw_parts(data, len * dtype.size_bytes()) };
        Self { dtype, bytes, dims: None }
    }

    /// A tensor of a call whose first axes, as many as `outer` has, have any strides. The elements of its other axes are
    /// contiguous.
    ///
    /// # Errors
    /// [`Error::Strides`] if the strides reach outside of the elements.
    pub fn of_rows(
        problem: &Problem,
        role: Role,
        data: impl Into<Self>,
        outer: &[isize],
    ) -> Result<Self, Error> {
        let shape = problem.shape_of(role);
        let mut strides = [1isize; Shape::MOST_AXES];
        strides[..outer.len()].copy_from_slice(outer);
        for axis in (outer.len() + 1..shape.len()).rev() {
            strides[axis - 1] = strides[axis].wrapping_mul(shape[axis].max(1).cast_signed());
        }
        Self::strided(data, &shape, &strides[..shape.len()])
    }

    /// The elements, after checking that this is the tensor `expected` describes.
    pub(crate) fn elements<T: Element>(self, expected: &Expected) -> Result<&'a [T], Error> {
        let elements = self.of_dtype(expected)?;
        let count = expected.check(elements.len(), self.dims.as_ref())?;
        Ok(&elements[..count])
    }

    fn of_dtype<T: Element>(&self, expected: &Expected) -> Result<&'a [T], Error> {
        let elements = bytemuck::try_cast_slice(self.bytes).ok();
        elements.filter(|_| self.dtype == T::DTYPE).ok_or_else(|| expected.other_dtype(self.dtype))
    }

    /// The elements of a tensor whose free axes may have any strides, and those strides. The other axes follow each other.
    pub(crate) fn spread<T: Element>(
        self,
        expected: &Expected,
    ) -> Result<(&'a [T], [usize; Role::MOST_FREE_AXES]), Error> {
        let (axes, wanted) = (expected.free_axes, &expected.shape);
        let mut outer = [0; Role::MOST_FREE_AXES];
        let Some(dims) = self.dims.as_ref().filter(|dims| !dims.is_contiguous()) else {
            let packed = Dims::contiguous(wanted).strides;
            outer[..axes].copy_from_slice(&packed[..axes]);
            return Ok((self.elements(expected)?, outer.map(isize::unsigned_abs)));
        };
        let elements = self.of_dtype(expected)?;
        let found = &dims.shape;
        let has_axes = found.len() >= axes && found[..axes] == wanted[..axes];
        if !(has_axes && splits_into(&wanted[axes..], &found[axes..])) {
            return Err(expected.mismatch(found));
        }
        let rest = Dims { shape: found[axes..].to_vec(), strides: dims.strides[axes..].to_vec() };
        if !rest.is_contiguous() {
            return Err(expected.not_contiguous(dims));
        }
        outer[..axes].copy_from_slice(&dims.strides[..axes]);
        // Below zero only along axes of one element, where nothing moves.
        Ok((elements, outer.map(|stride| usize::try_from(stride).unwrap_or(0))))
    }
}

/// A borrowed tensor to write. Larger buffers than needed are fine: the front is written.
#[derive(Debug)]
pub struct TensorViewMut<'a> {
    dtype: DType,
    /// Aligned for the dtype.
    bytes: &'a mut [u8],
    dims: Option<Dims>,
}

impl<'a> TensorViewMut<'a> {
    /// `len` elements at an address, which is ignored if `len` is 0.
    ///
    /// # Safety
    /// As [`TensorView::from_raw_parts`], and no other code reads or writes the elements meanwhile.
    pub const unsafe fn from_raw_parts(dtype: DType, data: *mut c_void, len: usize) -> Self {
        let data = if len == 0 { ALIGNED.as_ptr().cast() } else { data.cast() };
        // SAFETY: as of `TensorView::from_raw_parts`.
        let bytes = unsafe { std::slice::from_raw_parts_mut(data, len * dtype.size_bytes()) };
        Self { dtype, bytes, dims: None }
    }

    /// The elements to write, after checking that this is the tensor `expected` describes.
    pub(crate) fn elements<T: Element>(self, expected: &Expected) -> Result<&'a mut [T], Error> {
        let elements = bytemuck::try_cast_slice_mut(self.bytes).ok();
        let elements = elements.filter(|_| self.dtype == T::DTYPE);
        let elements = elements.ok_or_else(|| expected.other_dtype(self.dtype))?;
        let (tensor, found) = (expected.tensor, elements.len());
        let required = expected.shape.iter().product();
        if self.dims.is_none() && found < required {
            let expected = format!("at least {required}; give a larger buffer");
            return Err(Error::LengthMismatch { tensor, expected, found });
        }
        let len = if self.dims.is_none() { required } else { found };
        expected.check(len, self.dims.as_ref())?;
        Ok(&mut elements[..required])
    }
}

impl<'a, T: Element> From<&'a [T]> for TensorView<'a> {
    fn from(elements: &'a [T]) -> Self {
        Self { dtype: T::DTYPE, bytes: bytemuck::cast_slice(elements), dims: None }
    }
}

impl<'a, T: Element> From<&'a Vec<T>> for TensorView<'a> {
    fn from(elements: &'a Vec<T>) -> Self {
        elements.as_slice().into()
    }
}

impl<'a, T: Element> From<&'a mut [T]> for TensorViewMut<'a> {
    fn from(elements: &'a mut [T]) -> Self {
        Self { dtype: T::DTYPE, bytes: bytemuck::cast_slice_mut(elements), dims: None }
    }
}

impl<'a, T: Element> From<&'a mut Vec<T>> for TensorViewMut<'a> {
    fn from(elements: &'a mut Vec<T>) -> Self {
        elements.as_mut_slice().into()
    }
}

/// How a view gets a shape, whether it may be written or not.
macro_rules! shaped {
    ($view:ident) => {
        impl<'a> $view<'a> {
            /// A row-major tensor of the first elements of `data`.
            ///
            /// # Errors
            /// [`Error::Strides`] if `data` is too short.
            pub fn new(data: impl Into<Self>, shape: &[usize]) -> Result<Self, Error> {
                Self::strided(data, shape, &Dims::contiguous(shape).strides)
            }

            /// A tensor with strides in elements, whose first element is the first of `data`.
            ///
            /// # Errors
            /// [`Error::Strides`] if it reaches outside of `data`.
            pub fn strided(
                data: impl Into<Self>,
                shape: &[usize],
                strides: &[isize],
            ) -> Result<Self, Error> {
                let data = data.into();
                let len = data.bytes.len() / data.dtype.size_bytes();
                Ok(Self { dims: Some(Dims::checked(shape, strides, len)?), ..data })
            }
        }
    };
}

shaped!(TensorView);
shaped!(TensorViewMut);

#[cfg(test)]
mod tests {
    use half::f16;

    use super::*;

    const EXPECTED: Expected =
        Expected { tensor: "value", dtype: DType::F32, shape: Shape::new([2, 6]), free_axes: 1 };

    #[test]
    fn plain_slices_are_checked_by_length() {
        let data = vec![0f32; 12];
        assert!(TensorView::from(&data).elements::<f32>(&EXPECTED).is_ok());
        let short = TensorView::from(&data[..11]).elements::<f32>(&EXPECTED).unwrap_err();
        assert_eq!(short.to_string(), "`value` has 11 elements, expected 12 (shape [2, 6])");
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
        let words = "`value` is not contiguous (shape [2, 6], strides [1, 2]); copy it into a contiguous buffer first";
        assert_eq!(error.to_string(), words);
    }

    #[test]
    fn leading_axes_may_lie_anywhere_where_that_is_allowed() {
        let data = vec![0f32; 20];
        let spread = |shape: &[usize], strides: &[isize]| {
            let view = TensorView::strided(data.as_slice(), shape, strides).unwrap();
            view.spread::<f32>(&EXPECTED).map(|(_, strides)| strides)
        };
        assert_eq!(spread(&[2, 6], &[6, 1]).unwrap(), [6, 0, 0]);
        assert_eq!(spread(&[2, 6], &[10, 1]).unwrap(), [10, 0, 0]);
        assert_eq!(spread(&[2, 3, 2], &[0, 2, 1]).unwrap(), [0; 3]);
        assert!(matches!(spread(&[2, 6], &[1, 2]), Err(Error::Strides { .. })));
        assert!(matches!(spread(&[4, 3], &[4, 1]), Err(Error::ShapeMismatch { .. })));
        let flat = TensorView::from(&data[..12]).spread::<f32>(&EXPECTED).unwrap();
        assert_eq!((flat.0.len(), flat.1), (12, [6, 0, 0]));
    }

    #[test]
    fn views_outside_of_their_slice_are_refused() {
        let mut data = vec![0f32; 12];
        for (shape, strides) in
            [(&[2usize, 6][..], &[7isize, 1][..]), (&[12], &[-1]), (&[2, 6], &[6]), (&[13], &[1])]
        {
            let error = TensorView::strided(data.as_slice(), shape, strides).unwrap_err();
            assert!(error.to_string().ends_with("reaches outside of its 12 elements"), "{error}");
        }
        assert!(TensorViewMut::new(data.as_mut_slice(), &[3, 5]).is_err());
    }

    #[test]
    fn a_larger_output_is_fine_and_a_smaller_one_is_not() {
        let mut data = vec![0f32; 13];
        let elements = TensorViewMut::from(&mut data).elements::<f32>(&EXPECTED).unwrap();
        assert_eq!(elements.len(), 12);
        let error = TensorViewMut::from(&mut data[..11]).elements::<f32>(&EXPECTED).unwrap_err();
        let words = "`value` has 11 elements, expected at least 12; give a larger buffer";
        assert_eq!(error.to_string(), words);
    }
}
