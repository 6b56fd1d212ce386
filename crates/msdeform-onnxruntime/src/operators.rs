//! The kinds of nodes as data: what registration, checks and shapes follow from.

use std::ffi::CStr;

use msdeform::{ATTENTION, DType, FROM_OFFSETS, Operator, Role};
use ort_sys::ONNXTensorElementDataType as ElementType;

/// What a node is called and how it is written. Its inputs are the first input of the operator, the shapes and starts of the
/// levels, and the other inputs of the operator.
#[derive(Debug)]
pub(crate) struct NodeKind {
    pub domain: &'static CStr,
    pub name: &'static CStr,
    pub operator: &'static Operator,
    /// The type of shapes and starts.
    pub integers: ElementType,
    /// Whether samples must be of the value's type. Otherwise each may also be `f32`.
    pub one_type: bool,
    /// Whether heads and channels are two axes of the output.
    pub splits_heads: bool,
}

/// The first input that samples are made of.
pub(crate) const FIRST_SAMPLES: usize = 3;

/// Formats of values. Each is an operator of its own to the runtime.
pub(crate) const FORMATS: [DType; 2] = [DType::F32, DType::F16];

pub(crate) static NODE_KINDS: [NodeKind; 4] = [
    NodeKind::new(c"msdeform", c"MSDeformAttn", &ATTENTION),
    NodeKind::new(c"msdeform", c"MSDeformAttnFromOffsets", &FROM_OFFSETS),
    NodeKind::new(c"mmdeploy", c"MMCVMultiScaleDeformableAttention", &ATTENTION),
    // As strict as the plugin: what runs here should run there.
    NodeKind {
        integers: ElementType::ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32,
        one_type: true,
        splits_heads: true,
        ..NodeKind::new(c"trt.plugins", c"MultiscaleDeformableAttnPlugin_TRT", &ATTENTION)
    },
];

impl NodeKind {
    const fn new(domain: &'static CStr, name: &'static CStr, operator: &'static Operator) -> Self {
        let integers = ElementType::ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64;
        Self { domain, name, operator, integers, one_type: false, splits_heads: false }
    }

    /// Its inputs, with their index: those of the operator.
    pub(crate) fn inputs(&self) -> impl Iterator<Item = (usize, Role)> + use<> {
        let roles = self.operator.inputs.iter().enumerate();
        roles.map(|(place, &role)| (if place == 0 { 0 } else { place + FIRST_SAMPLES - 1 }, role))
    }

    pub(crate) const fn input_count(&self) -> usize {
        self.operator.inputs.len() + FIRST_SAMPLES - 1
    }

    /// Whether its operator is the fused one, whose problems have a rule for offsets.
    pub(crate) fn has_rule(&self) -> bool {
        self.operator.inputs.contains(&Role::References)
    }
}

/// Whose kernels are launched, and in whose memory tensors are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Provider {
    Cpu,
    Cuda,
}

impl Provider {
    pub(crate) const fn name(self) -> &'static CStr {
        match self {
            Self::Cpu => c"CPUExecutionProvider",
            Self::Cuda => c"CUDAExecutionProvider",
        }
    }
}

/// A kernel as it is registered: a kind of node, for one provider and types.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Signature {
    pub kind: &'static NodeKind,
    pub provider: Provider,
    /// Of values and output.
    pub format: DType,
    /// Of references, where there are any, and of the samples. `None` leaves them open: what fits is checked when the node is
    /// made, with a better message than the runtime's.
    samples: Option<[DType; 2]>,
}

impl Signature {
    /// Those of a kind of node. The CPU's come first and take every type of the node. Those of a GPU take the types that its
    /// kernels read; nodes with other types stay with the CPU provider.
    pub(crate) fn of(kind: &'static NodeKind) -> Vec<Self> {
        let samples_of = |format: DType| {
            let formats = FORMATS.into_iter().filter(move |&sampling| {
                sampling == format || (sampling == DType::F32 && !kind.one_type)
            });
            formats.flat_map(move |sampling| {
                let wider = kind.has_rule() && sampling != DType::F32;
                let wider = wider.then_some([DType::F32, sampling]);
                [[sampling, sampling]].into_iter().chain(wider)
            })
        };
        let on_cpu = FORMATS.into_iter().map(|format| {
            let samples = kind.one_type.then_some([format, format]);
            Self { kind, provider: Provider::Cpu, format, samples }
        });
        let on_gpu = FORMATS.into_iter().flat_map(|format| {
            samples_of(format).map(move |samples| Self {
                kind,
                provider: Provider::Cuda,
                format,
                samples: Some(samples),
            })
        });
        on_cpu.chain(on_gpu).collect()
    }

    /// The type that the runtime should hold an input to.
    pub(crate) fn declared_type(&self, index: usize) -> ElementType {
        match (index, self.samples) {
            (0, _) => element_type(self.format),
            (1 | 2, _) => self.kind.integers,
            (_, None) => ElementType::ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED,
            (FIRST_SAMPLES, Some([references, _])) if self.kind.has_rule() => {
                element_type(references)
            }
            (_, Some([_, sampling])) => element_type(sampling),
        }
    }

    /// Whether an input must be in host memory while the others are in a GPU's: levels are read before a launch.
    pub(crate) fn is_read_by_host(&self, index: usize) -> bool {
        self.provider == Provider::Cuda && (1..FIRST_SAMPLES).contains(&index)
    }
}

/// Formats that tensors of numbers may have here.
pub(crate) fn format_of(element_type: i32) -> Option<DType> {
    FORMATS.into_iter().find(|&format| self::element_type(format) as i32 == element_type)
}

pub(crate) const fn element_type(format: DType) -> ElementType {
    match format {
        DType::F32 => ElementType::ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT,
        DType::F16 => ElementType::ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16,
        DType::Bf16 => ElementType::ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16,
        DType::F64 => ElementType::ONNX_TENSOR_ELEMENT_DATA_TYPE_DOUBLE,
    }
}

/// As ONNX names it.
pub(crate) fn type_name(element_type: i32) -> String {
    let names = [
        (1, "float"),
        (6, "int32"),
        (7, "int64"),
        (10, "float16"),
        (11, "double"),
        (16, "bfloat16"),
    ];
    let known = names.iter().find(|(code, _)| *code == element_type);
    known.map_or_else(|| format!("of element type {element_type}"), |(_, name)| (*name).to_owned())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a step that fails is a failed test")]

    use super::*;

    #[test]
    fn types_have_the_codes_and_names_of_onnx() {
        assert_eq!(format_of(1), Some(DType::F32));
        assert_eq!(format_of(10), Some(DType::F16));
        assert_eq!(format_of(11), None);
        for format in DType::ALL {
            assert!(!type_name(element_type(format) as i32).contains(' '), "{format}");
        }
        assert_eq!(type_name(2), "of element type 2");
    }

    #[test]
    fn a_gpu_gets_the_types_that_its_kernels_read() {
        use DType::{F16, F32};
        let of = |name: &CStr, provider| -> Vec<(DType, Option<[DType; 2]>)> {
            let kind = NODE_KINDS.iter().find(|kind| kind.name == name).unwrap();
            let all = Signature::of(kind).into_iter();
            all.filter(|found| found.provider == provider)
                .map(|found| (found.format, found.samples))
                .collect()
        };
        let samples = |references, sampling| Some([references, sampling]);
        let (plain, offsets) = (c"MSDeformAttn", c"MSDeformAttnFromOffsets");
        let plugin = c"MultiscaleDeformableAttnPlugin_TRT";
        assert_eq!(of(plain, Provider::Cpu), [(F32, None), (F16, None)]);
        let typed = [(F32, samples(F32, F32)), (F16, samples(F16, F16))];
        assert_eq!(of(plugin, Provider::Cpu), typed);
        assert_eq!(of(plugin, Provider::Cuda), typed);
        assert_eq!(
            of(plain, Provider::Cuda),
            [(F32, samples(F32, F32)), (F16, samples(F32, F32)), (F16, samples(F16, F16))]
        );
        let wider = (F16, samples(F32, F16));
        assert_eq!(
            of(offsets, Provider::Cuda),
            [(F32, samples(F32, F32)), (F16, samples(F32, F32)), (F16, samples(F16, F16)), wider]
        );
    }

    #[test]
    fn references_may_be_wider_than_what_follows_them() {
        let signature = Signature {
            kind: &NODE_KINDS[1],
            provider: Provider::Cuda,
            format: DType::F16,
            samples: Some([DType::F32, DType::F16]),
        };
        let types: Vec<i32> = (0..6).map(|index| signature.declared_type(index) as i32).collect();
        assert_eq!(types, [10, 7, 7, 1, 10, 10]);
        let hosted: Vec<usize> = (0..6).filter(|&index| signature.is_read_by_host(index)).collect();
        assert_eq!(hosted, [1, 2]);
    }
}
