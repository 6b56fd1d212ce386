//! The operators as data: what registration, checks and shapes follow from.

use std::ffi::CStr;

use msdeform::DType;
use ort_sys::ONNXTensorElementDataType as ElementType;

/// What a node is called and how it is written.
#[derive(Debug)]
pub(crate) struct Operator {
    pub domain: &'static CStr,
    pub name: &'static CStr,
    /// Its inputs, in order: value, shapes and starts first, then what samples are made of.
    pub inputs: &'static [&'static str],
    /// The type of shapes and starts.
    pub integers: ElementType,
    /// Whether samples must be of the value's type. Otherwise each may also be `f32`.
    pub one_type: bool,
    /// Whether heads and channels are two axes of the output.
    pub splits_heads: bool,
}

const GIVEN: &[&str] =
    &["value", "spatial_shapes", "level_start_index", "sampling_locations", "attention_weights"];
const OFFSETS: &[&str] = &[
    "value",
    "spatial_shapes",
    "level_start_index",
    "reference_points",
    "sampling_offsets",
    "attention_logits",
];

/// Inputs that are no samples.
pub(crate) const FIRST_SAMPLES: usize = 3;

/// Formats of values. Each is an operator of its own to the runtime.
pub(crate) const FORMATS: [DType; 2] = [DType::F32, DType::F16];

pub(crate) static OPERATORS: [Operator; 4] = [
    Operator {
        domain: c"msdeform",
        name: c"MSDeformAttn",
        inputs: GIVEN,
        integers: ElementType::ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64,
        one_type: false,
        splits_heads: false,
    },
    Operator {
        domain: c"msdeform",
        name: c"MSDeformAttnFromOffsets",
        inputs: OFFSETS,
        integers: ElementType::ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64,
        one_type: false,
        splits_heads: false,
    },
    Operator {
        domain: c"mmdeploy",
        name: c"MMCVMultiScaleDeformableAttention",
        inputs: GIVEN,
        integers: ElementType::ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64,
        one_type: false,
        splits_heads: false,
    },
    // As strict as the plugin: what runs here should run there.
    Operator {
        domain: c"trt.plugins",
        name: c"MultiscaleDeformableAttnPlugin_TRT",
        inputs: GIVEN,
        integers: ElementType::ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32,
        one_type: true,
        splits_heads: true,
    },
];

impl Operator {
    /// Whether samples follow from offsets.
    pub(crate) const fn is_from_offsets(&self) -> bool {
        self.inputs.len() == OFFSETS.len()
    }

    /// The type that the runtime should hold an input to. What it leaves open is checked when the node is made, with a
    /// better message.
    pub(crate) fn declared_type(&self, index: usize, format: DType) -> ElementType {
        match index {
            0 => element_type(format),
            1 | 2 => self.integers,
            _ if self.one_type => element_type(format),
            _ => ElementType::ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED,
        }
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
}
