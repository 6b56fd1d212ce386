//! The fused operator: which files call it, and by what rule.

use anyhow::{Result, ensure};
use clap::Args;
use msdeform::{ATTENTION, FROM_OFFSETS, OffsetOptions, Operator, Problem, ReferenceKind};

use super::formats::{Tensors, names};
use super::sizes::SizeArgs;
use crate::exit::Usage;

/// The rule of the fused operator.
#[derive(Args, Clone, Debug, Default)]
#[command(
    next_help_heading = "Fused operator (with sampling_offsets, attention_logits and reference_points)"
)]
pub struct OffsetArgs {
    /// Part of a box that an offset of one covers, in a level of one point [default: 0.5]
    #[arg(long, value_name = "SCALE")]
    pub offset_scale: Option<f32>,
    /// References are anchors that serve all levels: point p starts from anchor p mod their number
    #[arg(long)]
    pub anchors: bool,
    /// The logits are the weights, without a softmax
    #[arg(long)]
    pub raw_weights: bool,
    /// Take the nearest pixel instead of interpolating
    #[arg(long)]
    pub nearest: bool,
}

impl OffsetArgs {
    /// The first option that is set.
    fn first_set(&self) -> Option<&'static str> {
        let options = [
            ("--offset-scale", self.offset_scale.is_some()),
            ("--anchors", self.anchors),
            ("--raw-weights", self.raw_weights),
            ("--nearest", self.nearest),
        ];
        options.into_iter().find(|(_, is_set)| *is_set).map(|(option, _)| option)
    }

    /// As the library takes them.
    pub fn options(&self) -> OffsetOptions {
        let default = OffsetOptions::default();
        OffsetOptions {
            anchors: self.anchors,
            scale: self.offset_scale.unwrap_or(default.scale),
            softmax: !self.raw_weights,
            nearest: self.nearest,
        }
    }
}

/// The operator whose tensors are there.
pub fn operator(tensors: &Tensors<'_>, args: &OffsetArgs) -> Result<&'static Operator> {
    let Some(offsets) = tensors.find(names::SAMPLING_OFFSETS) else {
        if let Some(option) = args.first_set() {
            let tensor = names::SAMPLING_OFFSETS;
            return Err(Usage(format!("{option} needs `{tensor}`, which is missing")).into());
        }
        return Ok(&ATTENTION);
    };
    ensure!(
        tensors.find(names::SAMPLING_LOCATIONS).is_none(),
        "{}: `{}` is there too; keep one of them",
        offsets.label(),
        names::SAMPLING_LOCATIONS
    );
    Ok(&FROM_OFFSETS)
}

/// Refuses a scale if offsets start from points, which have none.
pub fn check_scale(problem: &Problem, tensors: &Tensors<'_>, args: &SizeArgs) -> Result<()> {
    let has_points = problem.offsets().is_some_and(|rule| rule.kind() == ReferenceKind::Point);
    if has_points && args.offsets.offset_scale.is_some() {
        let label = tensors.get(names::REFERENCE_POINTS)?.label();
        return Err(Usage(format!("--offset-scale needs boxes, but {label} has points")).into());
    }
    Ok(())
}
