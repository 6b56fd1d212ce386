//! How the value tensor lies in memory.

use std::str::FromStr;

use crate::Error;

/// Memory order of the value tensor (and of its gradient).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ValueLayout {
    /// `[batch, spatial, heads, channels]`: what the PyTorch ecosystem uses.
    Interleaved,
    /// `[batch, heads, spatial, channels]`: every head's pixels are contiguous.
    HeadMajor,
    /// [`ValueLayout::HeadMajor`] with a one-pixel border around every level, so that a level of
    /// `H x W` takes `(H + 2) * (W + 2)` pixels. The border must hold zeros; its gradient is zero.
    HeadMajorPadded,
}

impl ValueLayout {
    /// Every layout, in the order tables list them.
    pub const ALL: [Self; 3] = [Self::Interleaved, Self::HeadMajor, Self::HeadMajorPadded];

    /// The name used on the command line, in files and in records.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Interleaved => "interleaved",
            Self::HeadMajor => "head_major",
            Self::HeadMajorPadded => "head_major_padded",
        }
    }

    /// Width of the border around every level, in pixels.
    pub const fn border(self) -> usize {
        match self {
            Self::Interleaved | Self::HeadMajor => 0,
            Self::HeadMajorPadded => 1,
        }
    }

    /// Whether all pixels of one head are contiguous.
    pub const fn is_head_major(self) -> bool {
        !matches!(self, Self::Interleaved)
    }
}

impl FromStr for ValueLayout {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self, Error> {
        let wanted = name.to_ascii_lowercase().replace('-', "_");
        Self::ALL
            .into_iter()
            .find(|layout| layout.name() == wanted)
            .ok_or_else(|| Error::UnknownLayout { name: name.to_owned() })
    }
}
