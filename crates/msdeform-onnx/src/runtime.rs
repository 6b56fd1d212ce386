//! The programs that run models, and the form of the attention that each of them computes correctly and fast.

use serde::Serialize;

use crate::form::Form;

/// A program that runs ONNX models.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Runtime {
    /// NVIDIA `TensorRT`.
    #[serde(rename = "tensorrt")]
    TensorRt,
    /// Intel `OpenVINO`.
    #[serde(rename = "openvino")]
    OpenVino,
    /// ONNX Runtime in browsers.
    OrtWeb,
    /// Core ML and Core AI.
    #[serde(rename = "coreml")]
    CoreMl,
    /// Tencent ncnn.
    Ncnn,
    /// ONNX Runtime with msdeform's library.
    Ort,
}

impl Runtime {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::TensorRt, Self::OpenVino, Self::OrtWeb, Self::CoreMl, Self::Ncnn, Self::Ort];

    /// What it is called on a command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::TensorRt => "tensorrt",
            Self::OpenVino => "openvino",
            Self::OrtWeb => "ort-web",
            Self::CoreMl => "coreml",
            Self::Ncnn => "ncnn",
            Self::Ort => "ort",
        }
    }
}

impl std::fmt::Display for Runtime {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

impl std::str::FromStr for Runtime {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|runtime| runtime.name() == name);
        found.ok_or_else(|| {
            format!("unknown runtime `{name}`; known: {}", Self::ALL.map(Self::name).join(", "))
        })
    }
}

/// How the attention of a model is to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// The form, and the one for sites that the first cannot express.
    pub(crate) forms: (Form, Option<Form>),
    pub(crate) most_axes: Option<usize>,
    /// Whether standard operators compute each head by itself.
    pub(crate) has_heads_apart: bool,
    pub(crate) runtime: Option<Runtime>,
    pub(crate) reason: Option<&'static str>,
}

impl Target {
    /// The same; the report then names the tensors of the new model that have more axes.
    #[must_use]
    pub const fn with_most_axes(mut self, most: usize) -> Self {
        self.most_axes = Some(most);
        self
    }

    pub(crate) fn each(&self) -> impl Iterator<Item = Form> + use<> {
        [Some(self.forms.0), self.forms.1].into_iter().flatten()
    }
}

impl From<Form> for Target {
    fn from(form: Form) -> Self {
        Self {
            forms: (form, None),
            most_axes: None,
            has_heads_apart: false,
            runtime: None,
            reason: None,
        }
    }
}

impl From<Runtime> for Target {
    fn from(runtime: Runtime) -> Self {
        let (form, otherwise, most_axes, reason) = match runtime {
            Runtime::TensorRt => (
                Form::TensorRt,
                Some(Form::Gather),
                None,
                "TensorRT brings a plugin for the attention. Its GridSample loses detections (TensorRT issue 4813), \
                 so sites that the plugin cannot express become gathers",
            ),
            Runtime::OpenVino => (
                Form::GridSample,
                None,
                None,
                "OpenVINO computes GridSample correctly. Compile the model with INFERENCE_PRECISION_HINT=f32, because \
                 its default on many CPUs is bf16, in which the coordinates that lead to GridSample lose bits",
            ),
            Runtime::OrtWeb => (
                Form::Gather,
                None,
                None,
                "GridSample gives wrong results on WebGPU (onnxruntime issue 32275); gathers run on every backend",
            ),
            Runtime::CoreMl => (
                Form::Gather,
                None,
                None,
                "Core AI has no GridSample; gathers use operators that Core ML and Core AI have",
            ),
            Runtime::Ncnn => (
                Form::GridSample,
                None,
                Some(4),
                "ncnn has GridSample but no Gather of rows. It has tensors of 4 axes at most and no batch, so every head gets nodes \
                 of its own",
            ),
            Runtime::Ort => (
                Form::MsDeform,
                None,
                None,
                "msdeform's library computes the attention in one node, several times faster than standard operators; \
                 choose --to gather if you cannot load a library",
            ),
        };
        let has_heads_apart = runtime == Runtime::Ncnn;
        Self {
            forms: (form, otherwise),
            most_axes,
            has_heads_apart,
            runtime: Some(runtime),
            reason: Some(reason),
        }
    }
}
