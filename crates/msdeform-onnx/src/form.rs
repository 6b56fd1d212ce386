//! The forms that the attention takes in ONNX models.

use serde::Serialize;

use crate::proto::Node;

/// A way to write the attention down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Form {
    /// Standard operators around `GridSample`: most runtimes run it, not all of them correctly.
    GridSample,
    /// Standard operators around one `Gather`, for runtimes whose `GridSample` is wrong or missing.
    Gather,
    /// `msdeform::MSDeformAttn`, what msdeform's library for ONNX Runtime computes.
    MsDeform,
    /// `mmdeploy::MMCVMultiScaleDeformableAttention`, which mmdeploy's libraries compute.
    Mmdeploy,
    /// `trt.plugins::MultiscaleDeformableAttnPlugin_TRT`, the plugin that `TensorRT` comes with.
    TensorRt,
}

impl Form {
    /// All of them.
    pub const ALL: [Self; 5] =
        [Self::TensorRt, Self::Mmdeploy, Self::MsDeform, Self::GridSample, Self::Gather];

    /// What it is called on a command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::GridSample => "gridsample",
            Self::Gather => "gather",
            Self::MsDeform => "msdeform",
            Self::Mmdeploy => "mmdeploy",
            Self::TensorRt => "tensorrt",
        }
    }
}

impl std::fmt::Display for Form {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

impl std::str::FromStr for Form {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|form| form.name() == name);
        found.ok_or_else(|| {
            format!("unknown form `{name}`; known: {}", Self::ALL.map(Self::name).join(", "))
        })
    }
}

/// An operator that is the attention in one node.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Operator {
    pub(crate) form: Form,
    pub(crate) domain: &'static str,
    pub(crate) name: &'static str,
    /// Whether it takes references, offsets and logits instead of locations and weights.
    pub(crate) is_fused: bool,
}

const fn plain(form: Form, domain: &'static str, name: &'static str) -> Operator {
    Operator { form, domain, name, is_fused: false }
}

static OPERATORS: [Operator; 4] = [
    plain(Form::MsDeform, "msdeform", "MSDeformAttn"),
    Operator {
        form: Form::MsDeform,
        domain: "msdeform",
        name: "MSDeformAttnFromOffsets",
        is_fused: true,
    },
    plain(Form::Mmdeploy, "mmdeploy", "MMCVMultiScaleDeformableAttention"),
    plain(Form::TensorRt, "trt.plugins", "MultiscaleDeformableAttnPlugin_TRT"),
];

impl Operator {
    pub(crate) fn of(node: &Node) -> Option<&'static Self> {
        // TensorRT's parser finds plugins by their name and ignores the domain.
        let is_in = |domain: &str, form| form == Form::TensorRt || domain == node.domain;
        OPERATORS.iter().find(|one| one.name == node.op_type && is_in(one.domain, one.form))
    }

    /// The operator that a form is written with; none for standard operators.
    pub(crate) fn of_form(form: Form) -> Option<&'static Self> {
        OPERATORS.iter().find(|one| one.form == form && !one.is_fused)
    }

    pub(crate) const fn inputs(&self) -> usize {
        if self.is_fused { 6 } else { 5 }
    }
}
