//! Which calls a measurement is valid for.

use msdeform::{Direction, Mode, Problem};
use serde::{Deserialize, Serialize};

/// Images, queries and pixels may each differ by this factor between a call and the entry it uses.
const SIZE_FACTOR: f64 = 1.5;

/// A call, as far as the best variant depends on it.
///
/// Two parts. The model (direction, mode, formats, layout, heads, channels, points of each level) is what kernels are
/// compiled for and stays the same as long as a model runs: it must be equal. The sizes (images, queries, pixels)
/// change with every batch of a training, so an exact match would hardly ever be found; but what they decide, how many
/// rows there are for each multiprocessor and what fits the caches, changes slowly: an entry speaks for sizes within
/// a factor of 1.5 of its own, the nearest one first. Fixed buckets would put neighbours on two sides of a border.
/// Whether the queries are the pixels themselves (encoders) must be equal: kernels walk those in tiles.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallClass {
    /// `forward` or `backward`.
    pub direction: String,
    /// `fast` or, of a backward, `deterministic`.
    pub mode: String,
    /// Format of the values.
    pub dtype: String,
    /// Format of the output; nothing where it is that of the values.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_dtype: Option<String>,
    /// Format of locations and weights.
    pub sampling_dtype: String,
    /// The rule of the fused operator as text; nothing for the plain one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offsets: Option<String>,
    /// Order of the values.
    pub layout: String,
    /// Heads.
    pub heads: usize,
    /// Channels of a head.
    pub channels: usize,
    /// Points on each level, in order.
    pub points: Vec<usize>,
    /// Worker threads of a CPU; nothing on a GPU.
    pub threads: Option<usize>,
    /// Images.
    pub batch: usize,
    /// Queries of an image.
    pub queries: usize,
    /// Height and width of each level, in order.
    pub levels: Vec<(usize, usize)>,
}

impl CallClass {
    /// The class of a call.
    #[must_use]
    pub fn of(problem: &Problem, direction: Direction, mode: Mode, threads: Option<usize>) -> Self {
        // The forward has one mode: it is always bitwise reproducible.
        let mode = if direction == Direction::Forward { Mode::Fast } else { mode };
        let levels = problem.levels();
        Self {
            direction: direction.name().to_owned(),
            mode: mode.name().to_owned(),
            dtype: problem.dtype().name().to_owned(),
            output_dtype: (problem.output_dtype() != problem.dtype())
                .then(|| problem.output_dtype().name().to_owned()),
            sampling_dtype: problem.sampling_dtype().name().to_owned(),
            offsets: problem.offsets().map(ToString::to_string),
            layout: problem.layout().name().to_owned(),
            heads: problem.heads(),
            channels: problem.channels(),
            points: (0..levels.len()).map(|level| problem.level_samples(level).len()).collect(),
            threads,
            batch: problem.batch(),
            queries: problem.queries(),
            levels: levels.iter().map(|level| (level.height, level.width)).collect(),
        }
    }

    /// How far apart two calls are, 0 for the same sizes; `None` if a measurement of one is no evidence for the other.
    #[must_use]
    pub fn distance(&self, other: &Self) -> Option<f64> {
        let sizes = [
            (self.batch, other.batch),
            (self.queries, other.queries),
            (self.pixels(), other.pixels()),
        ];
        let apart = sizes.map(|(a, b)| (a.max(1) as f64 / b.max(1) as f64).ln().abs());
        // A hair more: the factor itself is within.
        let limit = SIZE_FACTOR.ln() + 1e-9;
        if apart.iter().any(|distance| *distance > limit)
            || self.queries_are_pixels() != other.queries_are_pixels()
        {
            return None;
        }
        let (batch, queries, levels) = (other.batch, other.queries, other.levels.clone());
        let is_same_model = Self { batch, queries, levels, ..self.clone() } == *other;
        is_same_model.then(|| apart.iter().sum())
    }

    /// Pixels of all levels of an image.
    #[must_use]
    pub fn pixels(&self) -> usize {
        self.levels.iter().map(|(height, width)| height.saturating_mul(*width)).sum()
    }

    fn queries_are_pixels(&self) -> bool {
        self.queries == self.pixels()
    }
}

#[cfg(test)]
mod tests {
    use msdeform::DType;

    use super::*;

    fn class(batch: usize, queries: usize, size: i64) -> CallClass {
        let problem = Problem::builder()
            .batch(batch)
            .heads(8)
            .channels(32)
            .queries(queries)
            .levels([(size, size), (size / 2, size / 2)])
            .points(4)
            .dtype(DType::F16)
            .build()
            .unwrap();
        CallClass::of(&problem, Direction::Forward, Mode::Fast, None)
    }

    #[test]
    fn sizes_may_differ_by_the_factor_and_the_model_may_not() {
        let base = class(2, 300, 64);
        assert_eq!(base.distance(&base), Some(0.0));
        for near in [class(3, 300, 64), class(2, 450, 64), class(2, 200, 64), class(2, 300, 72)] {
            let (there, back) = (base.distance(&near).unwrap(), near.distance(&base).unwrap());
            assert!(there > 0.0 && (there - back).abs() < 1e-12, "{near:?}");
        }
        for far in [class(4, 300, 64), class(1, 300, 64), class(2, 451, 64), class(2, 300, 96)] {
            assert_eq!(base.distance(&far), None, "{far:?}");
        }
        let changes: [fn(&mut CallClass); 11] = [
            |c| c.offsets = Some("points per level, softmax".into()),
            |c| c.direction = "backward".into(),
            |c| c.mode = "deterministic".into(),
            |c| c.dtype = "bf16".into(),
            |c| c.output_dtype = Some("f32".into()),
            |c| c.sampling_dtype = "f32".into(),
            |c| c.layout = "head_major".into(),
            |c| c.heads = 4,
            |c| c.channels = 64,
            |c| c.points = vec![4, 8],
            |c| c.threads = Some(2),
        ];
        for change in changes {
            let mut other = base.clone();
            change(&mut other);
            assert_eq!(base.distance(&other), None, "{other:?}");
        }
    }

    #[test]
    fn an_encoder_is_no_decoder_of_the_same_size() {
        let encoder = class(2, 64 * 64 + 32 * 32, 64);
        let decoder = class(2, 64 * 64 + 32 * 32 - 1, 64);
        assert_eq!(encoder.distance(&decoder), None);
    }

    #[test]
    fn the_mode_is_the_backwards_alone() {
        let problem = Problem::builder().queries(0).levels([(4, 4)]).build().unwrap();
        let mode = |direction| CallClass::of(&problem, direction, Mode::Deterministic, None).mode;
        assert_eq!(mode(Direction::Forward), "fast");
        assert_eq!(mode(Direction::Backward), "deterministic");
    }
}
