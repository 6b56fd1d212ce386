//! Calls whose samples follow from offsets and logits: which files make one, and by what rule.

use anyhow::{Context, Result, ensure};
use clap::Args;
use msdeform::{ATTENTION, DType, FROM_OFFSETS, Offsets, Operator, ProblemBuilder, Role};

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

/// Sizes of a call that its references must fit.
pub struct Sizes {
    pub batch: usize,
    pub queries: usize,
    pub levels: usize,
    pub value_dtype: DType,
    pub sampling_dtype: DType,
}

/// The builder with the rule that the references and the command line say, and the references.
pub fn with_rule(
    builder: ProblemBuilder,
    tensors: &Tensors<'_>,
    all: &SizeArgs,
    sizes: &Sizes,
) -> Result<(ProblemBuilder, Stated)> {
    let tensor = tensors.get(names::REFERENCE_POINTS)?;
    let (stored, shape) = tensor.stated.as_ref().with_context(|| {
        format!(
            "{}: states no shape; keep calls from offsets as .npy or .safetensors",
            tensor.label()
        )
    })?;
    let Sizes { batch, queries, levels, value_dtype, sampling_dtype } = *sizes;
    let args = &all.offsets;
    let fits = |found: usize, size: usize| found == size || found == 1;
    let (references, components) = match *shape.as_slice() {
        [images, rows, references, components]
            if fits(images, batch)
                && fits(rows, queries)
                && (references == levels || references == 1 || args.anchors)
                && (components == 2 || components == 4) =>
        {
            (references, components)
        }
        _ => anyhow::bail!(
            "{}: shape {shape:?}, expected [{batch}, {queries}, {levels} or 1, 2 or 4]; --anchors takes any number \
             of references",
            tensor.label()
        ),
    };
    ensure!(
        args.offset_scale.is_none() || components == 4,
        Usage(format!("--offset-scale is about boxes; {} has points", tensor.label()))
    );
    let mut rule = if components == 4 { Offsets::from_boxes() } else { Offsets::from_points() };
    rule = match references {
        count if args.anchors => rule.anchors(count),
        1 if levels != 1 => rule.one_for_all_levels(),
        _ => rule,
    };
    rule = args.offset_scale.map_or(rule, |scale| rule.offset_scale(scale));
    rule = if args.raw_weights { rule.raw_weights() } else { rule };
    rule = if args.nearest { rule.nearest() } else { rule };
    let dtype = float_type(tensor, *stored, raw_like(*stored, all))?;
    ensure!(
        dtype != DType::F64 || value_dtype == DType::F64,
        "{}: is f64 beside {value_dtype} values; convert it to f32, or the values to f64",
        tensor.label()
    );
    // As stored where the backends take it, else widened, which is exact.
    let computed = if dtype == sampling_dtype { dtype } else { DType::F32 };
    let computed = if value_dtype == DType::F64 { DType::F64 } else { computed };
    let stated = Stated { role: Role::References, dtype, shape: shape.clone() };
    Ok((builder.offsets(rule).reference_dtype(computed), stated))
}
