//! Where the samples of a workload lie.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A way to draw sampling locations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Locations {
    /// What trained models do: around the query's reference point, `0.75 (p + 1)` pixels of each
    /// level in the head's direction `2 pi m / M`, plus Gaussian noise of one pixel.
    Local,
    /// Uniform in `[0, 1)`: the worst case for caches.
    Uniform,
    /// Every sample outside of its level.
    Outside,
    /// NaN, infinite, huge, exactly on borders, and ordinary ones between them.
    Hostile,
    /// Every sample of a level between the same four pixels: what updates that meet make of the backward pass.
    OnePlace,
}

impl Locations {
    /// Every kind.
    pub const ALL: [Self; 5] =
        [Self::Local, Self::Uniform, Self::Outside, Self::Hostile, Self::OnePlace];

    /// The name used on the command line, in files and in records.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Uniform => "uniform",
            Self::Outside => "outside",
            Self::Hostile => "hostile",
            Self::OnePlace => "one_place",
        }
    }
}

impl fmt::Display for Locations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Locations {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|kind| kind.name() == name).ok_or_else(|| {
            format!("unknown locations `{name}`; known: {}", Self::ALL.map(Self::name).join(", "))
        })
    }
}
