//! The forms that the attention takes in ONNX models.

use serde::Serialize;

use crate::proto::Node;

/// A way to write the attention down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Form {
    /// Standard operators around `GridSample`: any runtime runs it.
    GridSample,
    /// `msdeform::MSDeformAttn`, what msdeform's library for ONNX Runtime computes.
    MsDeform,
    /// `mmdeploy::MMCVMultiScaleDeformableAttention`, which mmdeploy's libraries compute.
    Mmdeploy,
    /// `trt.plugins::MultiscaleDeformableAttnPlugin_TRT`, the plugin that `TensorRT` comes with.
    TensorRt,
}

impl Form {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::TensorRt, Self::Mmdeploy, Self::MsDeform, Self::GridSample];

    /// What it is called on a command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::GridSample => "gridsample",
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operator {
    Attention(Form),
    /// `msdeform::MSDeformAttnFromOffsets`.
    FromOffsets,
}

pub(crate) const MSDEFORM: &str = "msdeform";
pub(crate) const MMDEPLOY: &str = "mmdeploy";
pub(crate) const TENSORRT: &str = "trt.plugins";

impl Operator {
    pub(crate) fn of(node: &Node) -> Option<Self> {
        match (node.domain.as_str(), node.op_type.as_str()) {
            (MSDEFORM, "MSDeformAttn") => Some(Self::Attention(Form::MsDeform)),
            (MSDEFORM, "MSDeformAttnFromOffsets") => Some(Self::FromOffsets),
            (MMDEPLOY, "MMCVMultiScaleDeformableAttention") => {
                Some(Self::Attention(Form::Mmdeploy))
            }
            // TensorRT's parser finds plugins by their name and ignores the domain.
            (_, "MultiscaleDeformableAttnPlugin_TRT") => Some(Self::Attention(Form::TensorRt)),
            _ => None,
        }
    }

    pub(crate) fn form(self) -> Form {
        match self {
            Self::Attention(form) => form,
            Self::FromOffsets => Form::MsDeform,
        }
    }
}
