//! The small problems that every kernel is run on.
//!
//! A model is what a kernel may be compiled for (heads, channels, levels, points). A scene is what
//! changes from call to call: image sizes, queries, locations, where the memory lies, how many
//! multiprocessors there are. All scenes of a model run through one compiled kernel.

use msdeform::{DType, Direction, Error, Problem, ValueLayout};
use msdeform_cuda::{OutputStrides, ValueStrides};

/// What is stable in a model.
pub struct Model {
    pub name: &'static str,
    pub heads: usize,
    pub channels: usize,
    pub points: &'static [usize],
}

/// The first is run for every format and layout, the others once each, [`ODD`] more often.
pub const MODELS: &[Model] = &[
    Model { name: "four levels", heads: 8, channels: 32, points: &[4, 4, 4, 4] },
    Model { name: "eight points", heads: 2, channels: 32, points: &[8, 8, 8, 8] },
    Model { name: "differing points", heads: 4, channels: 32, points: &[1, 5, 2] },
    Model { name: "an odd number of points", heads: 4, channels: 32, points: &[1, 5, 3] },
    Model { name: "64 channels", heads: 2, channels: 64, points: &[4, 4] },
    Model { name: "16 channels", heads: 3, channels: 16, points: &[8] },
    Model { name: "odd channels", heads: 2, channels: 33, points: &[3, 3] },
    Model { name: "one channel", heads: 1, channels: 1, points: &[1] },
    Model { name: "a level without points", heads: 2, channels: 8, points: &[0, 3] },
    Model { name: "no points", heads: 2, channels: 8, points: &[0] },
    Model { name: "twenty levels", heads: 1, channels: 8, points: &[1; 20] },
    Model { name: "no levels", heads: 2, channels: 8, points: &[] },
];

/// The model whose rows of samples start at no more than an element's alignment.
pub const ODD: usize = 3;

/// Where the samples of a scene lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Locations {
    /// Over the level and a good part of a pixel or more around it.
    Around,
    /// On pixel centres, on the limits of what counts, NaN and infinite (with NaN weights).
    Special,
    /// Nowhere near the level: the output is exactly zero.
    Outside,
    /// All between the same four pixels.
    OnePlace,
}

/// The gradient of the output in a backward scene.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Upstream {
    Packed,
    /// One query's is NaN.
    OneNan,
    /// One number seen from everywhere, as of a sum: every stride is zero.
    Expanded,
    /// Channels apart from each other, NaN in between.
    Strided,
}

/// What changes from call to call.
pub struct Scene {
    pub name: &'static str,
    pub batch: usize,
    pub queries: usize,
    /// Height and width of level `l` are those of entry `l % len`.
    sizes: &'static [(i64, i64)],
    pub locations: Locations,
    /// All attention weights are zero.
    pub zero_weights: bool,
    pub upstream: Upstream,
    /// Pixels between the levels that belong to nobody and hold NaN; the last level comes first.
    gaps: bool,
    /// Elements between pixels, heads and images that belong to nobody and hold NaN.
    padding: i64,
    /// Put every tensor at the least aligned address that the configuration allows.
    pub least_aligned: bool,
    /// Width of the raster that the queries are said to form.
    pub raster_width: u32,
    /// Few make persistent kernels go around their loops.
    pub multiprocessors: u32,
}

/// No level of one pixel's width: some kernels refuse those, and have their own scenes below.
const PYRAMID: &[(i64, i64)] = &[(6, 9), (3, 5), (2, 3), (2, 2)];

const ORDINARY: Scene = Scene {
    name: "ordinary",
    batch: 2,
    queries: 11,
    sizes: PYRAMID,
    locations: Locations::Around,
    zero_weights: false,
    upstream: Upstream::Packed,
    gaps: false,
    padding: 0,
    least_aligned: false,
    raster_width: 0,
    multiprocessors: 132,
};

/// Every scene of a direction.
pub fn scenes(direction: Direction) -> impl Iterator<Item = &'static Scene> {
    let only_backward = match direction {
        Direction::Forward => &[][..],
        Direction::Backward => BACKWARD_SCENES,
    };
    SCENES.iter().chain(only_backward)
}

/// What both directions run.
pub const SCENES: &[Scene] = &[
    ORDINARY,
    Scene { name: "one query", batch: 3, queries: 1, multiprocessors: 1, ..ORDINARY },
    Scene { name: "many queries", batch: 1, queries: 133, multiprocessors: 2, ..ORDINARY },
    Scene { name: "queries in a raster", batch: 1, queries: 54, raster_width: 9, ..ORDINARY },
    Scene { name: "an odd raster", queries: 37, raster_width: 7, multiprocessors: 1, ..ORDINARY },
    Scene { name: "one-pixel levels", queries: 5, sizes: &[(1, 1)], ..ORDINARY },
    Scene { name: "lines", queries: 7, sizes: &[(1, 13), (11, 1)], ..ORDINARY },
    Scene { name: "special locations", queries: 16, locations: Locations::Special, ..ORDINARY },
    Scene { name: "nothing counts", queries: 4, locations: Locations::Outside, ..ORDINARY },
    Scene { name: "levels with gaps", queries: 9, gaps: true, multiprocessors: 2, ..ORDINARY },
    Scene { name: "strided values", queries: 6, padding: 16, ..ORDINARY },
    Scene { name: "least alignment", queries: 13, least_aligned: true, ..ORDINARY },
    Scene { name: "no queries", queries: 0, ..ORDINARY },
    Scene { name: "no images", batch: 0, ..ORDINARY },
];

/// Sizes that make every coordinate exact in every format, borders of cells included.
const POWERS_OF_TWO: &[(i64, i64)] = &[(8, 4), (4, 2), (2, 8), (1, 4)];

const BACKWARD_SCENES: &[Scene] = &[
    Scene {
        name: "exact borders",
        sizes: POWERS_OF_TWO,
        locations: Locations::Special,
        ..ORDINARY
    },
    Scene { name: "all in one place", queries: 20, locations: Locations::OnePlace, ..ORDINARY },
    Scene {
        name: "all in one place of a large level",
        queries: 12,
        sizes: &[(15, 17)],
        locations: Locations::OnePlace,
        ..ORDINARY
    },
    // More than 512 samples of a level: bwd_level_sort shares such a list among the warps of a block.
    Scene {
        name: "many in one place",
        batch: 1,
        queries: 140,
        locations: Locations::OnePlace,
        ..ORDINARY
    },
    Scene { name: "zero weights", queries: 3, zero_weights: true, ..ORDINARY },
    Scene { name: "one query is NaN", queries: 5, upstream: Upstream::OneNan, ..ORDINARY },
    Scene { name: "an expanded gradient", upstream: Upstream::Expanded, ..ORDINARY },
    Scene { name: "a strided gradient", queries: 6, upstream: Upstream::Strided, ..ORDINARY },
];

impl Scene {
    /// The problem this scene makes of a model.
    pub fn problem(
        &self,
        model: &Model,
        dtype: DType,
        sampling_dtype: DType,
        layout: ValueLayout,
    ) -> Result<Problem, Error> {
        let levels = model.points.len();
        let builder = Problem::builder()
            .batch(self.batch)
            .heads(model.heads)
            .channels(model.channels)
            .queries(self.queries)
            .levels((0..levels).map(|l| self.sizes[l % self.sizes.len()]))
            .points_per_level(model.points)
            .layout(layout)
            .dtype(dtype)
            .sampling_dtype(sampling_dtype);
        if !self.gaps {
            return builder.build();
        }
        let packed = builder.clone().build()?;
        let mut starts = vec![0i64; levels];
        let mut next = 3;
        for (l, level) in packed.levels().iter().enumerate().rev() {
            starts[l] = next;
            next += level.footprint(layout) as i64 + 2;
        }
        builder.level_starts(starts).spatial(next as usize).build()
    }

    /// The strides of the value tensor.
    pub fn strides(&self, problem: &Problem) -> ValueStrides {
        let packed = ValueStrides::packed(problem);
        if self.padding == 0 {
            return packed;
        }
        let pixel = packed.pixel + self.padding;
        let spatial = problem.spatial() as i64;
        let head = if problem.layout().is_head_major() {
            spatial * pixel + self.padding
        } else {
            packed.head
        };
        let image = if problem.layout().is_head_major() {
            problem.heads() as i64 * head
        } else {
            spatial * pixel
        };
        ValueStrides { batch: image + self.padding, head, pixel }
    }

    /// The strides of the gradient of the output.
    pub fn upstream_strides(&self, problem: &Problem) -> OutputStrides {
        match self.upstream {
            Upstream::Packed | Upstream::OneNan => OutputStrides::packed(problem),
            Upstream::Expanded => OutputStrides { batch: 0, query: 0, head: 0, channel: 0 },
            Upstream::Strided => {
                let head = 2 * problem.channels() as i64 + 1;
                let query = head * problem.heads() as i64 + 3;
                let batch = query * problem.queries() as i64 + 5;
                OutputStrides { batch, query, head, channel: 2 }
            }
        }
    }
}
