//! Calls whose samples follow from offsets and logits: which files make one, and by what rule.

use anyhow::{Context, Result, ensure};
use clap::Args;
use msdeform::{
    ATTENTION, DType, FROM_OFFSETS, OffsetOptions, Operator, Problem, ReferenceKind, Role,
};

use super::formats::{Tensors, names};
use super::sizes::{SizeArgs, Stated, float_type, raw_like};
use crate::exit::Usage;

/// How samples follow from offsets.
#[derive(Args, Clone, Debug, Default)]
#[command(
    next_help_heading = "From raw projections (with sampling_offsets, attention_logits and reference_points)"
)]
pub struct OffsetArgs {
    /// The part of a box that an offset of one is, in a level of one point [default: 0.5]
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
    /// An option that was given, if any.
    fn given(&self) -> Option<&'static str> {
        let options = [
            ("--offset-scale", self.offset_scale.is_some()),
            ("--anchors", self.anchors),
            ("--raw-weights", self.raw_weights),
            ("--nearest", self.nearest),
        ];
        options.into_iter().find(|(_, given)| *given).map(|(option, _)| option)
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
        if let Some(option) = args.given() {
            let tensor = names::SAMPLING_OFFSETS;
            return Err(Usage(format!("{option} is about `{tensor}`, which is not there")).into());
        }
        return Ok(&ATTENTION);
    };
    ensure!(
        tensors.find(names::SAMPLING_LOCATIONS).is_none(),
        "{}: `{}` is there too; keep the one that is meant",
        offsets.label(),
        names::SAMPLING_LOCATIONS
    );
    Ok(&FROM_OFFSETS)
}

/// The references, and the dtype in which they are computed: as stored where the backends take it, else widened, which is exact.
pub fn references(
    tensors: &Tensors<'_>,
    args: &SizeArgs,
    value_dtype: DType,
    sampling_dtype: DType,
) -> Result<(Stated, DType)> {
    let tensor = tensors.get(names::REFERENCE_POINTS)?;
    let (stored, shape) = tensor.stated.as_ref().with_context(|| {
        format!(
            "{}: states no shape; keep calls from offsets as .npy or .safetensors",
            tensor.label()
        )
    })?;
    let dtype = float_type(tensor, *stored, raw_like(*stored, args))?;
    ensure!(
        dtype != DType::F64 || value_dtype == DType::F64,
        "{}: is f64 beside {value_dtype} values; convert it to f32, or the values to f64",
        tensor.label()
    );
    let computed = match dtype {
        _ if value_dtype == DType::F64 => DType::F64,
        dtype if dtype == sampling_dtype => dtype,
        _ => DType::F32,
    };
    Ok((Stated { role: Role::References, dtype, shape: shape.clone() }, computed))
}

/// Refuses a scale where offsets start from points, which have none.
pub fn check_scale(problem: &Problem, tensors: &Tensors<'_>, args: &SizeArgs) -> Result<()> {
    let has_points = problem.offsets().is_some_and(|rule| rule.kind() == ReferenceKind::Point);
    if has_points && args.offsets.offset_scale.is_some() {
        let label = tensors.get(names::REFERENCE_POINTS)?.label();
        return Err(Usage(format!("--offset-scale is about boxes; {label} has points")).into());
    }
    Ok(())
}
