//! The levels of a call, and the points on each.

use msdeform::LevelLists;

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
    sizes: Vec<[i64; 2]>,
    starts: Option<Vec<i64>>,
    points: Option<Vec<i64>>,
}

impl Levels {
    /// Levels of these (height, width), one after the other in `value`.
    #[must_use]
    pub fn new(sizes: impl Into<Vec<(usize, usize)>>) -> Self {
        let pairs = sizes.into().into_iter().map(|(height, width)| [wide(height), wide(width)]);
        Self { sizes: pairs.collect(), starts: None, points: None }
    }

    /// The first pixel of each level in `value` (`level_start_index`), where they do not simply follow each other.
    #[must_use]
    pub fn starts(mut self, starts: impl Into<Vec<usize>>) -> Self {
        self.starts = Some(starts.into().into_iter().map(wide).collect());
        self
    }

    /// Points of each level, where they differ. Otherwise the shapes of the tensors say how many there are.
    #[must_use]
    pub fn points(mut self, points: impl Into<Vec<usize>>) -> Self {
        self.points = Some(points.into().into_iter().map(wide).collect());
        self
    }

    /// How many there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.sizes.len()
    }

    pub(crate) fn lists(&self) -> LevelLists<'_> {
        LevelLists {
            sizes: &self.sizes,
            starts: self.starts.as_deref(),
            points: self.points.as_deref(),
        }
    }
}

/// Sizes as the library takes them. Larger numbers than it knows are refused as the largest one is.
fn wide(size: usize) -> i64 {
    i64::try_from(size).unwrap_or(i64::MAX)
}

impl From<&Levels> for Levels {
    fn from(levels: &Levels) -> Self {
        levels.clone()
    }
}

impl<T: AsRef<[(usize, usize)]>> From<T> for Levels {
    fn from(sizes: T) -> Self {
        Self::new(sizes.as_ref())
    }
}
