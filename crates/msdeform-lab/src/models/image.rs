//! The images that problems have.

/// The images that a model may get, as far as what is compiled depends on them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Image {
    /// Small: what is compiled depends on no other size of it.
    Usual,
    /// All levels are one pixel high.
    Thin,
    /// A level has more tiles of pixels than a block of `bwd_level_sort` can count, on any GPU. As few pixels as that takes:
    /// it is two rows high. For decoders: with a query for every pixel the level does not matter.
    Wide,
    ThinAndWide,
    /// It has more tiles than `bwd_tile_sort` can count, on any GPU: what computes then is the same for every size.
    Huge,
}

/// The widths of [`Image::Wide`] and [`Image::Huge`]: a block has 227 KiB at most, and counts a tile of 4 x 4 pixels in 16 words or
/// in one.
pub(super) const WIDE: i64 = 4 * (227 << 10) / (16 * 4);
const HUGE: i64 = 16 * WIDE;

impl Image {
    /// Those that a known model is looked at with in every size.
    pub(super) const SIZED: [Self; 4] = [Self::Usual, Self::Thin, Self::Wide, Self::ThinAndWide];

    pub(super) fn level(self, level: usize) -> (i64, i64) {
        let halved = |size: i64| {
            let halved = if level < 5 { size >> level } else { 0 };
            if halved < 2 { 2 } else { halved }
        };
        let usual = (halved(32), halved(40));
        match self {
            Self::Wide if level == 0 => (2, WIDE),
            Self::ThinAndWide if level == 0 => (1, WIDE),
            Self::Huge if level == 0 => (2, HUGE),
            Self::Usual | Self::Wide | Self::Huge => usual,
            Self::Thin | Self::ThinAndWide => (1, usual.1),
        }
    }

    pub(super) const fn is_wide(self) -> bool {
        matches!(self, Self::Wide | Self::ThinAndWide | Self::Huge)
    }

    /// Sizes of a batch. The images of a batch are padded to one size: where a level is thin all of them are, which happens
    /// with one or two.
    pub(super) const fn batches(self) -> &'static [usize] {
        match self {
            Self::Usual | Self::Wide => &[1, 2, 4, 8, 16, 32, 64],
            Self::Thin | Self::ThinAndWide => &[1, 2],
            Self::Huge => &[1],
        }
    }
}
