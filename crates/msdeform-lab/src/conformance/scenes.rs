//! What changes from call to call: image sizes, queries, numbers, where the memory lies.

use msdeform::{Gradients, Problem};

use super::Backend::{self, Cpu, Emulator, Gpu};
use crate::case::{Case, Numbers, Samples, UpstreamMemory, ValueMemory, Values, Weights};

#[derive(Debug)]
pub struct Scene {
    pub name: &'static str,
    /// The first backend that can afford it.
    pub least: Backend,
    /// The shape it is shown on.
    pub shape: &'static str,
    /// Whether all shapes are shown in it, unless there is a larger one for them.
    pub for_all_shapes: bool,
    pub batch: usize,
    pub queries: usize,
    /// Height and width of level `l` are those of entry `l % len`.
    pub sizes: &'static [(i64, i64)],
    /// Unused pixels between the levels, which hold NaN; the last level comes first.
    pub gaps: bool,
    pub numbers: Numbers,
    pub value_memory: ValueMemory,
    pub upstream_memory: UpstreamMemory,
    /// Whether tensors begin at addresses as little aligned as what runs it allows; what that is, the backend knows.
    pub least_aligned: bool,
    /// Width of the raster that the caller states for the queries.
    pub raster_width: u32,
    /// Of the GPU, where that can be chosen: few make persistent kernels go around their loops.
    pub multiprocessors: u32,
}

impl Scene {
    /// The case that this scene makes of a problem.
    pub fn case(&self, problem: Problem, wants: Option<Gradients>) -> Case {
        // A multiple of eight: the CPU's runner computes such a case twice.
        let seed = 8 * (self.name.len() + problem.samples()) as u64;
        Case {
            numbers: self.numbers,
            value_memory: self.value_memory,
            upstream_memory: self.upstream_memory,
            raster_width: self.raster_width,
            seed,
            ..Case::plain(problem, wants)
        }
    }
}

const NUMBERS: Numbers = Numbers {
    samples: Samples::Around,
    values: Values::Unit,
    weights: Weights::Signed,
    upstream: Values::Unit,
};
const MIXED: Numbers = Numbers { samples: Samples::Mixed, ..NUMBERS };
const NOT_FINITE: Numbers = Numbers { samples: Samples::NonFinite, ..NUMBERS };
const BORDERS: Numbers = Numbers { samples: Samples::Borders, ..NUMBERS };
const CROWD: Numbers = Numbers { samples: Samples::OnePlace, ..NUMBERS };
const ONE_NAN: Numbers = Numbers { upstream: Values::OneNan, ..NUMBERS };

/// No level of one pixel's width: some kernels refuse those, and have their own scenes below.
const PYRAMID: &[(i64, i64)] = &[(6, 9), (3, 5), (2, 3), (2, 2)];
const LARGER: &[(i64, i64)] = &[(12, 20), (6, 10), (3, 5), (2, 3)];
/// Far more pixels than a few queries have samples.
const SPARSE: &[(i64, i64)] = &[(40, 30), (23, 50), (6, 10)];
/// Sizes that make every coordinate exact in every format, borders of cells included.
const POWERS_OF_TWO: &[(i64, i64)] = &[(8, 4), (4, 2), (2, 8), (1, 4)];

const FIRST: &str = "four levels";
/// For scenes with so many queries that the reference should not take long over each.
const NARROW: &str = "two heads";

const ORDINARY: Scene = Scene {
    name: "ordinary",
    least: Emulator,
    shape: FIRST,
    for_all_shapes: false,
    batch: 2,
    queries: 11,
    sizes: PYRAMID,
    gaps: false,
    numbers: NUMBERS,
    value_memory: ValueMemory { pixels: 0, heads: 0, channels: 0, one_image: false },
    upstream_memory: UpstreamMemory::Packed,
    least_aligned: false,
    raster_width: 0,
    multiprocessors: 132,
};

/// One scene a line: what differs from the ordinary one.
macro_rules! scenes {
    ($($name:literal $least:ident { $($field:ident: $value:expr),* $(,)? })*) => {
        &[$(Scene { name: $name, least: $least, $($field: $value,)* ..ORDINARY }),*]
    };
}

/// What both directions run.
pub(crate) const ALL: &[Scene] = scenes! {
    "ordinary" Emulator { for_all_shapes: true }
    "one query" Emulator { batch: 3, queries: 1, multiprocessors: 1 }
    "many queries" Emulator { batch: 1, queries: 133, multiprocessors: 2 }
    "queries in a raster" Emulator { batch: 1, queries: 54, raster_width: 9 }
    "an odd raster" Emulator { queries: 37, raster_width: 7, multiprocessors: 1 }
    "one-pixel levels" Emulator { queries: 5, sizes: &[(1, 1)] }
    "lines" Emulator { queries: 7, sizes: &[(1, 13), (11, 1)] }
    "on borders" Emulator { queries: 8, numbers: BORDERS }
    "not finite" Emulator { queries: 8, numbers: NOT_FINITE }
    "nothing counts" Emulator {
        queries: 4,
        numbers: Numbers { samples: Samples::Far, ..NUMBERS },
    }
    "levels with gaps" Emulator { queries: 9, gaps: true, multiprocessors: 2 }
    "a slice of pixels and heads" Emulator {
        queries: 6,
        value_memory: ValueMemory { pixels: 3, heads: 1, ..ORDINARY.value_memory },
    }
    "a slice of channels" Emulator {
        queries: 6,
        value_memory: ValueMemory { channels: 16, ..ORDINARY.value_memory },
    }
    "least alignment" Emulator { queries: 13, least_aligned: true }
    "no queries" Emulator { queries: 0 }
    "no images" Emulator { batch: 0 }
    "larger images" Gpu { for_all_shapes: true, queries: 37, sizes: LARGER, numbers: MIXED }
    "a query for every pixel" Gpu { queries: 321, sizes: LARGER, numbers: MIXED }
    "few samples of many pixels" Gpu { sizes: SPARSE, numbers: MIXED }
    "coarse level first" Gpu {
        queries: 37,
        sizes: &[(2, 3), (3, 5), (6, 10), (12, 9)],
        numbers: MIXED,
    }
    "thin levels read often" Gpu {
        shape: NARROW,
        queries: 200,
        sizes: &[(1, 9), (9, 1), (1, 1)],
        numbers: MIXED,
    }
    "one of everything" Gpu { shape: "one channel", batch: 1, queries: 1, sizes: &[(1, 1)] }
    "pixels without a level" Cpu { shape: "no levels", gaps: true }
    // So often that the CPU's plan stages the values.
    "values read often" Cpu { shape: NARROW, queries: 500, numbers: MIXED }
    "odd channels read often" Cpu { shape: "odd channels", queries: 60, numbers: MIXED }
    "64 channels read often" Cpu { shape: "64 channels", queries: 60, numbers: MIXED }
    "offsets read often" Cpu { shape: "from points", queries: 60, numbers: MIXED }
    "offsets on borders" Cpu { shape: "from points", queries: 8, numbers: BORDERS }
    "offsets that are not finite" Cpu { shape: "from boxes", queries: 8, numbers: NOT_FINITE }
    "rows without a weight" Cpu {
        shape: "from boxes",
        queries: 5,
        numbers: Numbers { weights: Weights::Zero, ..NUMBERS },
    }
    "offsets from an infinite distance" Cpu { shape: "from a box for all levels", queries: 9, numbers: MIXED }
};

/// What only gradients are about.
pub(crate) const BACKWARD: &[Scene] = scenes! {
    "exact borders" Emulator { sizes: POWERS_OF_TWO, numbers: BORDERS }
    "all in one place" Emulator { queries: 20, numbers: CROWD }
    "all in one place of a large level" Emulator {
        queries: 12,
        sizes: &[(15, 17)],
        numbers: CROWD,
    }
    // More than 512 samples of a level: bwd_level_sort shares such a list among the warps of a block.
    "many in one place" Emulator { batch: 1, queries: 140, numbers: CROWD }
    "zero weights" Emulator {
        queries: 3,
        numbers: Numbers { weights: Weights::Zero, ..NUMBERS },
    }
    "one row is NaN" Emulator { queries: 5, numbers: ONE_NAN }
    "an expanded gradient" Emulator { upstream_memory: UpstreamMemory::Expanded }
    "a strided gradient" Emulator { queries: 6, upstream_memory: UpstreamMemory::Spread }
    "a gradient shared by images" Gpu { upstream_memory: UpstreamMemory::SharedImage }
    "a gradient with channels first" Gpu { upstream_memory: UpstreamMemory::ChannelsFirst }
    "thousands in one place" Gpu {
        shape: NARROW,
        batch: 1,
        queries: 3000,
        sizes: &[(13, 21), (5, 7)],
        numbers: CROWD,
    }
    "nine in one of many places" Gpu { shape: NARROW, batch: 1, queries: 9, sizes: SPARSE, numbers: CROWD }
    "twelve in one of many places" Gpu { shape: NARROW, batch: 1, queries: 12, sizes: SPARSE, numbers: CROWD }
    "forty in one of many places" Gpu { shape: NARROW, batch: 1, queries: 40, sizes: SPARSE, numbers: CROWD }
    // Groups of tiles with lists that are too long for one warp.
    "a long list of a large level" Gpu {
        shape: NARROW,
        batch: 1,
        queries: 300,
        sizes: &[(100, 167)],
        numbers: CROWD,
    }
    "one row is NaN among many pixels" Gpu { sizes: SPARSE, numbers: ONE_NAN }
    "one row is NaN in long lists" Gpu {
        shape: NARROW,
        batch: 1,
        queries: 1000,
        sizes: &[(5, 7)],
        numbers: ONE_NAN,
    }
};
