//! Synthetic shapes: the edges of what a kernel is compiled for. Shapes of published models are in [`crate::models`].

use msdeform::Offsets;

use super::Backend;

#[derive(Debug)]
pub struct Shape {
    pub name: &'static str,
    pub heads: usize,
    pub channels: usize,
    pub points: &'static [usize],
    /// The rule of the fused operator; `None` for the plain one.
    pub rule: Option<Offsets>,
    /// The first backend that can afford it.
    pub least: Backend,
}

/// One shape a line: heads, channels, points of each level.
macro_rules! shapes {
    ($($name:literal $least:ident { $heads:literal, $channels:literal, $points:expr $(; $rule:expr)? })*) => {
        &[$(Shape {
            name: $name,
            heads: $heads,
            channels: $channels,
            points: &$points,
            rule: first(&[$($rule)?]),
            least: Backend::$least,
        }),*]
    };
}

const fn first(rules: &[Offsets]) -> Option<Offsets> {
    match rules {
        [rule, ..] => Some(*rule),
        [] => None,
    }
}

/// The first is the one that scenes are shown on.
pub const SHAPES: &[Shape] = shapes! {
    "four levels" Emulator { 8, 32, [4, 4, 4, 4] }
    "eight points" Emulator { 2, 32, [8, 8, 8, 8] }
    "differing points" Emulator { 4, 32, [1, 5, 2] }
    // Rows of samples start at no more than an element's alignment.
    "odd points" Emulator { 4, 32, [1, 5, 3] }
    "64 channels" Emulator { 2, 64, [4, 4] }
    "16 channels" Emulator { 3, 16, [8] }
    "odd channels" Emulator { 2, 33, [3, 3] }
    "one channel" Emulator { 1, 1, [1] }
    "a level without points" Emulator { 2, 8, [0, 3] }
    "no points" Emulator { 2, 8, [0] }
    // More than fit into a kernel's parameter.
    "twenty levels" Emulator { 1, 8, [1; 20] }
    "no levels" Emulator { 2, 8, [] }
    "two heads" Gpu { 2, 32, [4, 4] }
    "40 channels" Gpu { 3, 40, [5, 5, 5, 5] }
    // More than a block has lanes for.
    "520 channels" Gpu { 3, 520, [2, 2] }
    "points from none to nine" Gpu { 3, 16, [5, 0, 1, 9] }
    "many points" Gpu { 3, 16, [40, 40, 40, 40] }
    "twenty levels of two points" Gpu { 3, 16, [2; 20] }
    "one point" Cpu { 3, 32, [1, 1, 1] }
    "points of all sizes" Cpu { 3, 32, [17, 70, 2] }
    "no heads" Cpu { 0, 32, [4, 4] }
    "no channels" Cpu { 3, 0, [4, 4] }
    // Less than a vector, vectors exactly, and with a rest.
    "7 channels" Cpu { 3, 7, [4, 4] }
    "8 channels" Cpu { 3, 8, [4, 4] }
    "48 channels" Cpu { 3, 48, [4, 4] }
    "100 channels" Cpu { 3, 100, [4, 4] }
    "200 channels" Cpu { 3, 200, [4, 4] }
    // What encoders and decoders of known models do with their offsets.
    "from points" Cpu { 4, 32, [4, 4, 4, 4]; Offsets::from_points() }
    "from boxes" Cpu { 4, 32, [4, 4, 4]; Offsets::from_boxes() }
    "from a box for all levels" Cpu { 3, 33, [3, 5, 4]; Offsets::from_boxes().one_for_all_levels() }
    "from anchors" Cpu { 3, 32, [8]; Offsets::from_points().anchors(4) }
    "from points with raw weights" Cpu { 3, 16, [5, 0, 9]; Offsets::from_points().raw_weights() }
    "nearest from boxes" Cpu { 3, 32, [4, 4]; Offsets::from_boxes().nearest() }
    "many points from points" Cpu { 2, 16, [40, 40]; Offsets::from_points() }
};
