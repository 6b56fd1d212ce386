//! What a caller may decide about a plan, and what comes of it.

use msdeform::{
    BackwardCall, Gradients, Mode, OutputStrides, Problem, SourceStrides, ValueStrides,
};

use crate::dispatch;
use crate::driver::Context;
use crate::engine::Engine;
use crate::error::Result;
use crate::registry;
use crate::tuning::{self, ChosenVariant};
use crate::variants::{Call, KnobChoices, Variant};

/// Names a variant for every plan of its direction that does not name one itself.
const VARIANT_VARIABLE: &str = "MSDEFORM_VARIANT";

/// Whether a GPU has run every kernel that the dispatcher may choose for the fused operator. While this is false, a plan
/// for that operator needs a named variant, because the dispatcher chooses no kernel that was only emulated. The ledger's
/// test checks that this is true only if the ledger confirms it.
pub const OFFSETS_ARE_VERIFIED: bool = true;
const NOT_VERIFIED: &str = "no GPU has verified it on samples that follow from offsets; give it locations and weights, or name a variant";

/// When a plan asks the driver what the pointers it is given point to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PointerChecks {
    /// On every launch: about a microsecond each.
    Every,
    /// On the first launch.
    #[default]
    First,
    /// Never; null and misaligned pointers are found all the same.
    Never,
}

/// Whose memory the steps of a call share.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Workspace {
    /// The plan's own, allocated when it is made. One launch at a time then: launches on one stream
    /// follow each other anyway, those on several need a plan each, or workspaces of the caller.
    #[default]
    OfPlan,
    /// The caller's, given with every launch: [`Plan::workspace_bytes`](super::Plan::workspace_bytes) bytes at a
    /// multiple of [`WORKSPACE_ALIGNMENT`](crate::WORKSPACE_ALIGNMENT).
    OfCaller,
}

/// What a caller may decide about a plan.
#[derive(Clone, Debug, Default)]
pub struct PlanOptions {
    /// Gradients instead of the output.
    pub backward: Option<BackwardOptions>,
    /// The variant, instead of the one of `MSDEFORM_VARIANT` or the dispatcher.
    pub variant: Option<&'static Variant>,
    /// Knobs of that variant, instead of its own choice.
    pub knobs: Vec<(String, i64)>,
    /// Strides of the value tensor, if it is not contiguous.
    pub strides: Option<ValueStrides>,
    /// Strides of references, offsets and logits, if they are not contiguous.
    pub sources: Option<SourceStrides>,
    /// Width of the raster that the queries form, if they do (a hint for scheduling).
    pub query_raster_width: u32,
    /// When pointers are looked up.
    pub pointer_checks: PointerChecks,
    /// Whose workspace is used.
    pub workspace: Workspace,
    /// What is compiled while the caller goes on; only where the choice of a variant is the dispatcher's.
    pub ahead: Ahead,
}

/// What is compiled while the caller of a plan goes on, so that no later call has to wait for it.
#[derive(Clone, Copy, Debug, Default)]
pub enum Ahead {
    /// Nothing.
    #[default]
    Nothing,
    /// What calls of the same model need in other sizes: batches, numbers of queries, images.
    OtherSizes,
    /// The gradients of this forward call, then both in other sizes.
    Gradients(BackwardOptions),
}

/// What only a backward plan has.
#[derive(Clone, Copy, Debug, Default)]
pub struct BackwardOptions {
    /// Which gradients are computed; all of them unless said.
    pub gradients: Gradients,
    /// What is promised about their last bits.
    pub mode: Mode,
    /// Strides of the gradient of the output, if it is not contiguous.
    pub grad_output_strides: Option<OutputStrides>,
}

impl BackwardOptions {
    fn of(self, problem: &Problem) -> BackwardCall {
        let Self { gradients, mode, grad_output_strides } = self;
        let grad_output = grad_output_strides.unwrap_or_else(|| OutputStrides::packed(problem));
        BackwardCall { gradients, mode, grad_output }
    }
}

impl PlanOptions {
    /// A backward plan, everything else as usual.
    #[must_use]
    pub fn backward(backward: BackwardOptions) -> Self {
        Self { backward: Some(backward), ..Self::default() }
    }

    /// The call that these options make of a problem.
    pub(super) fn call<'a>(&self, context: &'a Context, problem: &'a Problem) -> Result<Call<'a>> {
        let strides = self.strides.unwrap_or_else(|| ValueStrides::packed(problem));
        strides.check(problem)?;
        let backward = self.backward.map(|backward| backward.of(problem));
        if let Some(backward) = &backward {
            backward.grad_output.check(problem)?;
        }
        let sources = self.sources.unwrap_or_else(|| SourceStrides::packed(problem));
        sources.check(problem)?;
        let (device, query_raster_width) = (context.props(), self.query_raster_width);
        Ok(Call { problem, strides, device, query_raster_width, sources, backward })
    }

    /// What computes a call: the choice of the caller or of the environment, else what was measured on this machine,
    /// else the dispatcher's choice. A named variant is used or is an error, because a user would measure or trust a
    /// silent substitute as something it is not. The environment variable applies to both directions, so a variant of
    /// the other direction is ignored there.
    pub(super) fn choices(&self, engine: &Engine, call: &Call<'_>) -> Result<Choices> {
        let named = match self.variant {
            Some(variant) => Some(variant),
            None => match std::env::var(VARIANT_VARIABLE) {
                Ok(id) if !id.is_empty() => Some(registry::find(&id)?)
                    .filter(|variant| variant.spec.direction == call.direction()),
                _ => None,
            },
        };
        let variant = match named {
            Some(variant) => variant.check(call).map(|()| variant)?,
            None if call.problem.offsets().is_some() && !OFFSETS_ARE_VERIFIED => {
                return Err(dispatch::unaligned(call).0.refusal(NOT_VERIFIED.to_owned()).into());
            }
            None => dispatch::builtin(call)?,
        };
        let sure = ChosenVariant { variant, knobs: KnobChoices::new(variant, &self.knobs)? };
        // Knobs without a variant are those of the dispatcher's.
        let is_open = named.is_none() && self.knobs.is_empty();
        let tuned = if is_open { tuning::choose(engine.tuning(), call) } else { None };
        Ok(Choices { tuned, sure, is_open })
    }

    /// Queues the kernels that the next calls may need for compilation, if the choice was left to the dispatcher.
    pub(super) fn compile_ahead(&self, engine: &Engine, call: &Call<'_>, choices: &Choices) {
        let backward = match self.ahead {
            Ahead::Gradients(backward) => Some(backward.of(call.problem)),
            Ahead::OtherSizes => None,
            Ahead::Nothing => return,
        };
        if choices.is_open {
            engine.compiler().compile_ahead(call, backward);
        }
    }
}

/// What computes a call.
pub(super) struct Choices {
    /// What was measured on this machine, where it fits the call.
    pub tuned: Option<ChosenVariant>,
    /// What takes the call in any case.
    pub sure: ChosenVariant,
    /// Whether neither the caller nor the environment named a variant or a knob.
    pub is_open: bool,
}
