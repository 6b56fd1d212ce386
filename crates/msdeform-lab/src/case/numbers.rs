//! What the tensors of a case hold: kinds of locations, values, weights and upstream gradients by name.

use crate::Random;
use crate::names::named;

named! {
    Samples "samples" {
        Inside "inside",
        /// On the level and a good pixel around it.
        Around "around",
        /// Near one point of the query, as trained models do.
        Local "local",
        /// On pixel centres, on cell borders and on the limits of what counts.
        Borders "borders",
        /// All between the same four pixels.
        OnePlace "one_place",
        Far "far",
        /// Subnormal, tiny, and zeros of both signs.
        Tiny "tiny",
        /// NaN and infinite, with weights that are NaN.
        NonFinite "non_finite",
        /// Each sample of another kind.
        Mixed "mixed",
    }
}

named! {
    Values "values" {
        Unit "unit",
        Small "small",
        /// Where `f16` is subnormal.
        Subnormal "subnormal",
        Large "large",
        /// Zeros of both signs.
        Zero "zero",
        OneNan "one_nan",
    }
}

named! {
    Weights "weights" {
        /// Like a softmax over the samples of a query and head.
        Softmax "softmax",
        Signed "signed",
        /// Zeros of both signs.
        Zero "zero",
        /// One sample has nearly all of it, the others next to nothing.
        Peaked "peaked",
    }
}

impl Samples {
    /// One coordinate on an axis of `size` pixels. `near` is the query's own place, in units of the level.
    pub(crate) fn draw(self, size: usize, near: f64, random: &mut Random) -> f64 {
        let pixels = size as f64;
        match self {
            Self::Inside => random.between(0.0, 1.0),
            Self::Around => random.between(-1.2 / pixels, 1.0 + 1.2 / pixels),
            Self::Local => near + random.between(-2.5, 2.5) / pixels,
            Self::Borders => {
                // The pixel coordinate is location * size - 0.5.
                let whole = random.below(size + 2) as f64 - 1.0;
                let from_pixel = [0.0, 0.5, -0.001, 0.001][random.below(4)];
                (whole + from_pixel + 0.5) / pixels
            }
            Self::OnePlace => 0.3125,
            Self::Far => {
                let far = random.one_of(&[2.0, 3.0, 50.0, 1e6, 1e30]);
                if random.once_in(2) { far } else { -far }
            }
            Self::Tiny => random.one_of(&[0.0, -0.0, 1e-45, -1e-45, 6e-8, -6e-8, 1e-38, 1e-5]),
            Self::NonFinite => {
                random.one_of(&[f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 0.5, 0.25])
            }
            Self::Mixed => {
                let kind = Self::ALL[random.below(Self::ALL.len() - 1)];
                kind.draw(size, near, random)
            }
        }
    }
}

impl Values {
    pub(crate) fn draw(self, random: &mut Random) -> f64 {
        let unit = random.between(-1.0, 1.0);
        match self {
            Self::Unit | Self::OneNan => unit,
            Self::Small => 1e-3 * unit,
            Self::Subnormal => 1e-6 * unit,
            Self::Large => 30.0 * unit,
            Self::Zero => 0.0f64.copysign(unit),
        }
    }
}

impl Weights {
    pub(crate) fn draw(self, samples: usize, random: &mut Random) -> Vec<f64> {
        let mut raw = |kind: Self| -> f64 {
            match kind {
                Self::Softmax => random.between(-2.0, 2.0).exp(),
                Self::Signed => random.between(-0.5, 1.0),
                Self::Zero => 0.0f64.copysign(random.between(-1.0, 1.0)),
                Self::Peaked => random.between(1e-7, 1e-4),
            }
        };
        let mut weights: Vec<f64> = (0..samples).map(|_| raw(self)).collect();
        match self {
            Self::Softmax => {
                let sum: f64 = weights.iter().sum();
                weights.iter_mut().for_each(|weight| *weight /= sum);
            }
            Self::Peaked if samples > 0 => weights[random.below(samples)] = 0.999,
            _ => {}
        }
        weights
    }
}
