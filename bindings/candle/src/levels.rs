//! The levels of a call, and the points on each.

use msdeform::{Problem, ProblemBuilder};

use crate::{Error, Result};

/// The levels of the feature pyramid: (height, width) of each, and where they lie in `value`. A list of sizes converts into it.
///
/// ```
/// use msdeform_candle::Levels;
///
/// let plain: Levels = [(32, 32), (16, 16)].into();
/// let uneven = Levels::new([(80, 80), (40, 40), (20, 20)]).points([3, 6, 3]);
/// # assert_ne!(plain, uneven);
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Levels {
    sizes: Vec<(usize, usize)>,
    starts: Option<Vec<usize>>,
    points: Option<Vec<usize>>,
}

impl Levels {
    /// Levels of these (height, width), one after the other in `value`.
    #[must_use]
    pub fn new(sizes: impl Into<Vec<(usize, usize)>>) -> Self {
        Self { sizes: sizes.into(), starts: None, points: None }
    }

    /// The first pixel of each level in `value` (`level_start_index`), where they do not simply follow each other.
    #[must_use]
    pub fn starts(mut self, starts: impl Into<Vec<usize>>) -> Self {
        self.starts = Some(starts.into());
        self
    }

    /// Points of each level, where they differ. Otherwise the shapes of the tensors say how many there are.
    #[must_use]
    pub fn points(mut self, points: impl Into<Vec<usize>>) -> Self {
        self.points = Some(points.into());
        self
    }

    /// How many there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.sizes.len()
    }

    /// Starts the description of a call. `samples` are the axes of locations or offsets that say which points there are: `[L, P]`
    /// or all samples in one.
    pub(crate) fn describe(&self, pixels: usize, samples: &[usize]) -> Result<ProblemBuilder> {
        let wide = |size: usize| size as u64;
        let sizes = self.sizes.iter().map(|&(height, width)| (wide(height), wide(width)));
        let mut builder = Problem::builder().levels(sizes).spatial(pixels);
        match &self.starts {
            Some(starts) => builder = builder.level_starts(starts.iter().copied().map(wide)),
            None => {
                let area = |&(height, width): &(usize, usize)| height.saturating_mul(width);
                let levels = self.sizes.iter().map(area).fold(0, usize::saturating_add);
                if levels != pixels {
                    return Err(Error::Pixels { levels, found: pixels });
                }
            }
        }
        let levels = self.count();
        Ok(match (&self.points, samples) {
            (Some(points), _) => builder.points_per_level(points.clone()),
            (None, &[_, points]) => builder.points(points),
            (None, _) if levels == 0 => builder,
            (None, _) => {
                let samples = samples.iter().product::<usize>();
                if samples % levels != 0 {
                    return Err(Error::Points { samples, levels });
                }
                builder.points(samples / levels)
            }
        })
    }
}

impl From<&Levels> for Levels {
    fn from(levels: &Levels) -> Self {
        levels.clone()
    }
}

impl From<Vec<(usize, usize)>> for Levels {
    fn from(sizes: Vec<(usize, usize)>) -> Self {
        Self::new(sizes)
    }
}

impl From<&Vec<(usize, usize)>> for Levels {
    fn from(sizes: &Vec<(usize, usize)>) -> Self {
        Self::new(sizes.as_slice())
    }
}

impl From<&[(usize, usize)]> for Levels {
    fn from(sizes: &[(usize, usize)]) -> Self {
        Self::new(sizes)
    }
}

impl<const COUNT: usize> From<[(usize, usize); COUNT]> for Levels {
    fn from(sizes: [(usize, usize); COUNT]) -> Self {
        Self::new(sizes)
    }
}

impl<const COUNT: usize> From<&[(usize, usize); COUNT]> for Levels {
    fn from(sizes: &[(usize, usize); COUNT]) -> Self {
        Self::new(sizes.as_slice())
    }
}
