//! What is stable in a model.

use super::Backend;

/// What a kernel may be compiled for.
#[derive(Debug)]
pub struct Model {
    /// What it is for.
    pub name: &'static str,
    /// Attention heads.
    pub heads: usize,
    /// Channels of a head.
    pub channels: usize,
    /// Points of each level.
    pub points: &'static [usize],
    /// The first backend that can afford it.
    pub least: Backend,
}

const fn model(
    name: &'static str,
    heads: usize,
    channels: usize,
    points: &'static [usize],
    least: Backend,
) -> Model {
    Model { name, heads, channels, points, least }
}

use Backend::{Cpu, Emulator, Gpu};

/// The first is the one that scenes are shown on.
pub const MODELS: &[Model] = &[
    model("four levels", 8, 32, &[4, 4, 4, 4], Emulator),
    model("eight points", 2, 32, &[8, 8, 8, 8], Emulator),
    model("differing points", 4, 32, &[1, 5, 2], Emulator),
    // Rows of samples start at no more than an element's alignment.
    model("odd points", 4, 32, &[1, 5, 3], Emulator),
    model("64 channels", 2, 64, &[4, 4], Emulator),
    model("16 channels", 3, 16, &[8], Emulator),
    model("odd channels", 2, 33, &[3, 3], Emulator),
    model("one channel", 1, 1, &[1], Emulator),
    model("a level without points", 2, 8, &[0, 3], Emulator),
    model("no points", 2, 8, &[0], Emulator),
    // More than fit into a kernel's parameter.
    model("twenty levels", 1, 8, &[1; 20], Emulator),
    model("no levels", 2, 8, &[], Emulator),
    model("two heads", 2, 32, &[4, 4], Gpu),
    model("40 channels", 3, 40, &[5, 5, 5, 5], Gpu),
    // More than a block has lanes for.
    model("520 channels", 3, 520, &[2, 2], Gpu),
    model("points from none to nine", 3, 16, &[5, 0, 1, 9], Gpu),
    model("many points", 3, 16, &[40, 40, 40, 40], Gpu),
    model("twenty levels of two points", 3, 16, &[2; 20], Gpu),
    model("one point", 3, 32, &[1, 1, 1], Cpu),
    model("points of all sizes", 3, 32, &[17, 70, 2], Cpu),
    model("no heads", 0, 32, &[4, 4], Cpu),
    model("no channels", 3, 0, &[4, 4], Cpu),
    // Less than a vector, vectors exactly, and with a rest.
    model("7 channels", 3, 7, &[4, 4], Cpu),
    model("8 channels", 3, 8, &[4, 4], Cpu),
    model("48 channels", 3, 48, &[4, 4], Cpu),
    model("100 channels", 3, 100, &[4, 4], Cpu),
    model("200 channels", 3, 200, &[4, 4], Cpu),
];
