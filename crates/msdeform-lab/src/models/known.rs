//! The shapes of published models: the one place that states heads, channels, points, queries and rules.
//!
//! Standard workloads are some of these shapes with the images that a comparison needs, which a test holds. Kernels of the ledger,
//! of kernel packs and of `msdeform warm` follow from the table.

use msdeform::Offsets;

/// Models that call the operator with the same heads, channels and points.
#[derive(Clone, Copy, Debug)]
pub struct ModelShape<'a> {
    pub models: &'a str,
    pub heads: usize,
    pub channels: usize,
    pub points: &'a [usize],
    /// Queries of its decoders, with and without what denoising or groups add; an encoder's are its pixels.
    pub queries: &'a [usize],
    /// Rules of the fused operator in their encoders, where every pixel is a query.
    pub encoder: &'a [Offsets],
    pub decoder: &'a [Offsets],
    /// Whether `patch()` replaces whole layers of theirs, which then call the fused operator.
    pub has_fused_layers: bool,
}

const POINTS: Offsets = Offsets::from_points();
const BOXES: Offsets = Offsets::from_boxes();
const ONE_BOX: Offsets = Offsets::from_boxes().one_for_all_levels();

/// What most have.
pub const USUAL: ModelShape<'_> = ModelShape {
    models: "",
    heads: 8,
    channels: 32,
    points: &[],
    queries: &[],
    encoder: &[],
    decoder: &[],
    has_fused_layers: true,
};

/// One shape an entry: what differs from the usual one.
macro_rules! model_shapes {
    ($($models:literal { $($field:ident: $value:expr),* $(,)? })*) => {
        &[$(ModelShape { models: $models, $($field: $value,)* ..USUAL }),*]
    };
}

/// What `msdeform.patch()` finds in Python, with the sizes that published checkpoints have.
pub static MODEL_SHAPES: &[ModelShape<'_>] = model_shapes! {
    "Deformable-DETR, DINO, Grounding DINO, MM Grounding DINO" {
        points: &[4, 4, 4, 4], queries: &[100, 300, 900, 1100], encoder: &[POINTS], decoder: &[POINTS, BOXES],
    }
    "RT-DETR, RT-DETRv2, D-FINE, DEIMv2, PP-DocLayout, Mask2Former, OneFormer, OmDet-Turbo" {
        points: &[4, 4, 4], queries: &[300, 500, 900], encoder: &[POINTS], decoder: &[ONE_BOX, ONE_BOX.nearest()],
    }
    "D-FINE" { points: &[3, 6, 3], queries: &[300, 500], decoder: &[ONE_BOX, ONE_BOX.nearest()] }
    "D-FINE nano" { channels: 16, points: &[6, 6], queries: &[300, 500], decoder: &[ONE_BOX, ONE_BOX.nearest()] }
    "LW-DETR tiny to medium, RF-DETR" {
        heads: 16, channels: 16, points: &[2], queries: &[100, 300, 3900], decoder: &[BOXES],
    }
    "LW-DETR large" { heads: 24, channels: 16, points: &[4, 4], queries: &[300, 3900], decoder: &[BOXES] }
    "BEVFormer, over the cameras" {
        points: &[8, 8, 8, 8], queries: &[900, 2500], decoder: &[POINTS.anchors(4)], has_fused_layers: false,
    }
    "BEVFormer, over time" { points: &[4], queries: &[900, 2500], decoder: &[POINTS], has_fused_layers: false }
};
