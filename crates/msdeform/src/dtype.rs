//! The number formats a tensor may be stored in.

use std::fmt;
use std::str::FromStr;

use half::{bf16, f16};

use crate::{Error, Level, Problem};

/// How the numbers of a tensor are stored. Arithmetic is `f32` or better for every dtype.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DType {
    /// IEEE 754 single precision.
    F32,
    /// IEEE 754 half precision.
    F16,
    /// The upper half of an `f32`: eight exponent bits, seven mantissa bits.
    Bf16,
    /// IEEE 754 double precision; only the reference computes in it.
    F64,
}

impl DType {
    /// Every format, in the order tables list them.
    pub const ALL: [Self; 4] = [Self::F32, Self::F16, Self::Bf16, Self::F64];

    /// The formats that fast backends compute.
    pub const FAST: [Self; 3] = [Self::F32, Self::F16, Self::Bf16];

    /// Bytes one element takes.
    pub const fn size_bytes(self) -> usize {
        match self {
            Self::F16 | Self::Bf16 => 2,
            Self::F32 => 4,
            Self::F64 => 8,
        }
    }

    /// The name used on the command line, in files and in records.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::F64 => "f64",
        }
    }

    /// The accuracy contract: the largest relative L2 error against the `f64` reference on the same
    /// stored inputs that an output or a gradient of this format may have.
    pub const fn rel_l2_bound(self) -> f64 {
        match self {
            Self::F32 => 1e-5,
            Self::F16 => 5e-4,
            Self::Bf16 => 4e-3,
            Self::F64 => 1e-12,
        }
    }

    /// [`DType::rel_l2_bound`] for a tensor of this format of a problem.
    ///
    /// A coordinate that is given is rounded once, when it becomes one of pixels: for samples anywhere along a side that is an
    /// eighth of `f32`'s epsilon, in the root mean square, times its pixels, and by interpolation (below) three tenths of it. The
    /// bound has room for sides of 256 pixels; what a longer one has more is added.
    ///
    /// Where samples follow from offsets, coordinates are results, and rounded: the location once, what an offset is
    /// multiplied by up to three times, which is the same for all samples of a level and so may be off by half a step for
    /// all of them. For samples that lie anywhere in an image that is a third of `f32`'s epsilon, in the root mean square, times
    /// the pixels of the longest side. Neighbours among the values that know nothing of each other make of it, when they are
    /// interpolated, a relative error `sqrt(6)` times as large: in all at most the longest side times the epsilon.
    pub fn rel_l2_bound_on(self, problem: &Problem) -> f64 {
        // Nearest pixels are the same ones wherever in them a sample lies.
        let longest = |level: &Level| level.width.max(level.height);
        let side = problem.levels().iter().map(longest).max().unwrap_or(0);
        let steps = match problem.offsets() {
            Some(rule) if rule.is_nearest() => 0.0,
            Some(_) => side as f64,
            None => 0.3 * side.saturating_sub(256) as f64,
        };
        let epsilon = if self == Self::F64 { f64::EPSILON } else { f64::from(f32::EPSILON) };
        self.rel_l2_bound() + steps * epsilon
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for DType {
    type Err = Error;

    /// Accepts our names and the ones torch, NumPy and safetensors print.
    fn from_str(name: &str) -> Result<Self, Error> {
        match name.to_ascii_lowercase().as_str() {
            "f32" | "fp32" | "float32" | "float" => Ok(Self::F32),
            "f16" | "fp16" | "float16" | "half" => Ok(Self::F16),
            "bf16" | "bfloat16" => Ok(Self::Bf16),
            "f64" | "fp64" | "float64" | "double" => Ok(Self::F64),
            _ => Err(Error::UnknownDtype { name: name.to_owned() }),
        }
    }
}

pub(crate) mod sealed {
    /// What this crate needs of an element.
    pub trait Sealed: bytemuck::Pod {
        fn to_f32(self) -> f32;
        fn from_f32(value: f32) -> Self;
    }
}

/// A Rust type that stores one element of a tensor.
pub trait Element: sealed::Sealed + Default + Send + Sync + fmt::Debug {
    /// The format this type stores.
    const DTYPE: DType;
    /// The value, exactly.
    fn to_f64(self) -> f64;
    /// The nearest representable value.
    fn from_f64(value: f64) -> Self;
}

macro_rules! element {
    ($type:ty, $dtype:ident, $to_f64:expr, $to_f32:expr, $from_f64:expr, $from_f32:expr) => {
        impl Element for $type {
            const DTYPE: DType = DType::$dtype;
            #[inline(always)]
            fn to_f64(self) -> f64 {
                $to_f64(self)
            }
            #[inline(always)]
            fn from_f64(value: f64) -> Self {
                $from_f64(value)
            }
        }

        impl sealed::Sealed for $type {
            #[inline(always)]
            fn to_f32(self) -> f32 {
                $to_f32(self)
            }
            #[inline(always)]
            fn from_f32(value: f32) -> Self {
                $from_f32(value)
            }
        }
    };
}

element!(f32, F32, f64::from, |x| x, |x: f64| x as f32, |x| x);
element!(f64, F64, |x| x, |x: f64| x as f32, |x| x, f64::from);
element!(f16, F16, f16::to_f64, f16::to_f32, f16::from_f64, f16::from_f32);
element!(bf16, Bf16, bf16::to_f64, bf16::to_f32, bf16::from_f64, bf16::from_f32);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Offsets;

    #[test]
    fn coordinates_that_are_rounded_widen_the_bound_by_the_longest_side() {
        let plain =
            Problem::builder().queries(1).channels(1).levels([(100, 200), (50, 256)]).points(4);
        let bound = |rule: Option<Offsets>, dtype: DType| {
            let builder = rule.map_or(plain.clone(), |rule| plain.clone().offsets(rule));
            dtype.rel_l2_bound_on(&builder.build().unwrap())
        };
        for dtype in DType::ALL {
            assert_eq!(bound(None, dtype), dtype.rel_l2_bound());
            assert_eq!(bound(Some(Offsets::from_boxes().nearest()), dtype), dtype.rel_l2_bound());
        }
        let points = Some(Offsets::from_points());
        assert_eq!(bound(points, DType::F32), 1e-5 + 256.0 * f64::from(f32::EPSILON));
        assert!(bound(points, DType::F16) < 5.4e-4);
        assert!(bound(points, DType::F64) < 1.1e-12);
        let long = plain.clone().levels([(1, 719), (1, 360)]).build().unwrap();
        let of_long = DType::F32.rel_l2_bound_on(&long);
        assert!((2.6e-5..2.7e-5).contains(&of_long), "{of_long}");
    }

    #[test]
    fn names_round_trip_and_unknown_names_are_refused() {
        for dtype in DType::ALL {
            assert_eq!(dtype.name().parse::<DType>().unwrap(), dtype);
        }
        assert_eq!("BFloat16".parse::<DType>().unwrap(), DType::Bf16);
        let error = "int8".parse::<DType>().unwrap_err().to_string();
        assert!(error.contains("int8") && error.contains("bf16"), "{error}");
    }
}
