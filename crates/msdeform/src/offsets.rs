//! How samples follow from what a model's linear layers give: offsets from reference points, and logits.
//!
//! ```text
//! location[n, q, m, l, p] = centre(reference[n, q, r]) + offset[n, q, m, l, p] * s
//! weight[n, q, m, l, p]   = softmax over all (l, p) of logit[n, q, m, l, p]
//!
//! r = l, or 0 where one reference serves all levels, or p mod Z with Z anchors
//! s = (1 / W, 1 / H) of the level for points, (width, height) of the reference * offset_scale / P for boxes
//! ```
//!
//! A row of logits that are all `-inf` has weights of zero.

use std::fmt;

use crate::Error;

/// What an offset starts from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ReferenceKind {
    /// `(x, y)`; offsets are pixels of their level.
    Point,
    /// `(x, y, width, height)`; offsets are parts of the box.
    Box,
}

impl ReferenceKind {
    /// Numbers of one reference.
    pub const fn components(self) -> usize {
        match self {
            Self::Point => 2,
            Self::Box => 4,
        }
    }
}

/// Which of a query's references a sample starts from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ReferenceOf {
    /// That of its level.
    Level,
    /// The only one.
    Query,
    /// With `Z` anchors the sample's point `p` starts from anchor `p mod Z`, on every level.
    Anchor(usize),
}

/// A rule that turns offsets and logits into samples.
///
/// ```
/// use msdeform::{Offsets, Problem};
///
/// // The decoder of RT-DETR: one box for all levels.
/// let problem = Problem::builder()
///     .heads(8).channels(32).queries(300).points(4).levels([(80, 80), (40, 40), (20, 20)])
///     .offsets(Offsets::from_boxes().one_for_all_levels()).build()?;
/// assert_eq!(problem.references_shape(), [1, 300, 1, 4]);
/// # Ok::<(), msdeform::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use]
pub struct Offsets {
    kind: ReferenceKind,
    of: ReferenceOf,
    /// Bits of an `f32`, so that rules can be keys.
    scale: u32,
    softmax: bool,
    nearest: bool,
}

impl Offsets {
    const fn from(kind: ReferenceKind) -> Self {
        let scale = 0.5f32.to_bits();
        Self { kind, of: ReferenceOf::Level, scale, softmax: true, nearest: false }
    }

    /// Offsets in pixels of their level from a point, one for each level unless said otherwise.
    pub const fn from_points() -> Self {
        Self::from(ReferenceKind::Point)
    }

    /// Offsets in parts of a box, one for each level unless said otherwise.
    pub const fn from_boxes() -> Self {
        Self::from(ReferenceKind::Box)
    }

    /// One reference serves all levels.
    pub const fn one_for_all_levels(mut self) -> Self {
        self.of = ReferenceOf::Query;
        self
    }

    /// `count` references serve all levels; the points of a level take them in turn.
    pub const fn anchors(mut self, count: usize) -> Self {
        self.of = ReferenceOf::Anchor(count);
        self
    }

    /// What an offset of one moves in a level of one point: a part of the box. Half of it unless said; points have none.
    pub const fn offset_scale(mut self, scale: f32) -> Self {
        self.scale = scale.to_bits();
        self
    }

    /// Takes the logits as the weights, without a softmax.
    pub const fn raw_weights(mut self) -> Self {
        self.softmax = false;
        self
    }

    /// Takes the nearest pixel, at the border the last one, instead of interpolating. Locations have no gradient then.
    pub const fn nearest(mut self) -> Self {
        self.nearest = true;
        self
    }

    /// What an offset starts from.
    pub const fn kind(&self) -> ReferenceKind {
        self.kind
    }

    /// Which of a query's references a sample starts from.
    pub const fn reference_of(&self) -> ReferenceOf {
        self.of
    }

    /// References of one query, for so many levels.
    pub const fn references(&self, levels: usize) -> usize {
        match self.of {
            ReferenceOf::Level => levels,
            ReferenceOf::Query => 1,
            ReferenceOf::Anchor(count) => count,
        }
    }

    /// The reference that point `point` of level `level` starts from.
    pub const fn reference(&self, level: usize, point: usize) -> usize {
        match self.of {
            ReferenceOf::Level => level,
            ReferenceOf::Query => 0,
            ReferenceOf::Anchor(count) => point % count,
        }
    }

    /// See [`Offsets::offset_scale`].
    pub const fn scale(&self) -> f32 {
        f32::from_bits(self.scale)
    }

    /// Whether the weights are the softmax of the logits.
    pub const fn has_softmax(&self) -> bool {
        self.softmax
    }

    /// Whether nearest pixels are taken.
    pub const fn is_nearest(&self) -> bool {
        self.nearest
    }

    pub(crate) fn check(&self) -> Result<(), Error> {
        let refuse = |reason: String| Err(Error::OffsetRule { reason });
        if self.of == ReferenceOf::Anchor(0) {
            return refuse("0 anchors; there must be at least one".into());
        }
        if !self.scale().is_finite() {
            return refuse(format!("`offset_scale` is {}; it must be finite", self.scale()));
        }
        Ok(())
    }
}

impl fmt::Display for Offsets {
    /// A few words for tables and messages: `boxes per level, softmax`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            ReferenceKind::Point => f.write_str("points")?,
            ReferenceKind::Box => f.write_str("boxes")?,
        }
        match self.of {
            ReferenceOf::Level => f.write_str(" per level")?,
            ReferenceOf::Query => f.write_str(" per query")?,
            ReferenceOf::Anchor(count) => write!(f, " by {count} anchors")?,
        }
        if self.kind == ReferenceKind::Box && self.scale() != 0.5 {
            write!(f, " times {}", self.scale())?;
        }
        f.write_str(if self.softmax { ", softmax" } else { ", raw weights" })?;
        f.write_str(if self.nearest { ", nearest" } else { "" })
    }
}
