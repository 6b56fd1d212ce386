//! The messages of ONNX, as far as they are read or written here.
//!
//! What a file holds beyond them is never lost: a model is cut into its fields and put together again from the same bytes
//! (`model.rs`), and only nodes that are read whole, or new, go through these types.
//!
//! This file uses no other of the crate, because the tests of msdeform-onnxruntime include it.

use prost::Message;
use prost::bytes::Bytes;
use prost::encoding::{WireType, encode_key, encode_varint};

/// Fields of `ModelProto`.
pub(crate) const MODEL_GRAPH: u32 = 7;
pub(crate) const MODEL_OPSET: u32 = 8;
/// Fields of `GraphProto`.
pub(crate) const GRAPH_NODE: u32 = 1;
pub(crate) const GRAPH_INPUT: u32 = 11;
pub(crate) const GRAPH_OUTPUT: u32 = 12;

/// `TensorProto.DataType`.
pub(crate) mod data_type {
    pub(crate) const FLOAT: i32 = 1;
    pub(crate) const INT32: i32 = 6;
    pub(crate) const INT64: i32 = 7;
    pub(crate) const BOOL: i32 = 9;
    pub(crate) const FLOAT16: i32 = 10;
    pub(crate) const DOUBLE: i32 = 11;
    pub(crate) const BFLOAT16: i32 = 16;

    /// Whether numbers of a type may have fractions.
    pub(crate) const fn has_fractions(kind: i32) -> bool {
        matches!(kind, FLOAT | FLOAT16 | DOUBLE | BFLOAT16)
    }
}

/// `AttributeProto.AttributeType`.
mod attribute_type {
    pub(super) const INT: i32 = 2;
    pub(super) const STRING: i32 = 3;
    pub(super) const TENSOR: i32 = 4;
    pub(super) const INTS: i32 = 7;
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct OpsetId {
    #[prost(string, tag = "1")]
    pub(crate) domain: String,
    #[prost(int64, tag = "2")]
    pub(crate) version: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Node {
    #[prost(string, repeated, tag = "1")]
    pub(crate) input: Vec<String>,
    #[prost(string, repeated, tag = "2")]
    pub(crate) output: Vec<String>,
    #[prost(string, tag = "3")]
    pub(crate) name: String,
    #[prost(string, tag = "4")]
    pub(crate) op_type: String,
    #[prost(message, repeated, tag = "5")]
    pub(crate) attribute: Vec<Attribute>,
    #[prost(string, tag = "7")]
    pub(crate) domain: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Attribute {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(float, optional, tag = "2")]
    pub(crate) f: Option<f32>,
    #[prost(int64, optional, tag = "3")]
    pub(crate) i: Option<i64>,
    #[prost(bytes = "bytes", optional, tag = "4")]
    pub(crate) s: Option<Bytes>,
    #[prost(message, optional, tag = "5")]
    pub(crate) t: Option<Tensor>,
    /// A subgraph, which `model::subgraphs` reads.
    #[prost(bytes = "bytes", optional, tag = "6")]
    pub(crate) g: Option<Bytes>,
    #[prost(float, repeated, tag = "7")]
    pub(crate) floats: Vec<f32>,
    #[prost(int64, repeated, tag = "8")]
    pub(crate) ints: Vec<i64>,
    #[prost(bytes = "bytes", repeated, tag = "11")]
    pub(crate) graphs: Vec<Bytes>,
    #[prost(int32, tag = "20")]
    pub(crate) r#type: i32,
    #[prost(string, tag = "21")]
    pub(crate) ref_attr_name: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Tensor {
    #[prost(int64, repeated, tag = "1")]
    pub(crate) dims: Vec<i64>,
    #[prost(int32, tag = "2")]
    pub(crate) data_type: i32,
    #[prost(float, repeated, tag = "4")]
    pub(crate) float_data: Vec<f32>,
    #[prost(int32, repeated, tag = "5")]
    pub(crate) int32_data: Vec<i32>,
    #[prost(int64, repeated, tag = "7")]
    pub(crate) int64_data: Vec<i64>,
    #[prost(string, tag = "8")]
    pub(crate) name: String,
    #[prost(bytes = "bytes", tag = "9")]
    pub(crate) raw_data: Bytes,
    #[prost(double, repeated, tag = "10")]
    pub(crate) double_data: Vec<f64>,
    #[prost(message, repeated, tag = "13")]
    pub(crate) external_data: Vec<Entry>,
    #[prost(int32, tag = "14")]
    pub(crate) data_location: i32,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Entry {
    #[prost(string, tag = "1")]
    pub(crate) key: String,
    #[prost(string, tag = "2")]
    pub(crate) value: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ValueInfo {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(message, optional, tag = "2")]
    pub(crate) r#type: Option<Type>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Type {
    #[prost(message, optional, tag = "1")]
    pub(crate) tensor: Option<TensorType>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct TensorType {
    #[prost(int32, tag = "1")]
    pub(crate) elem_type: i32,
    #[prost(message, optional, tag = "2")]
    pub(crate) shape: Option<Shape>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Shape {
    #[prost(message, repeated, tag = "1")]
    pub(crate) dim: Vec<Dimension>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Dimension {
    #[prost(int64, optional, tag = "1")]
    pub(crate) value: Option<i64>,
    #[prost(string, optional, tag = "2")]
    pub(crate) param: Option<String>,
}

/// Appends a field that has a length.
pub(crate) fn put(out: &mut Vec<u8>, tag: u32, content: &[u8]) {
    encode_key(tag, WireType::LengthDelimited, out);
    encode_varint(content.len() as u64, out);
    out.extend_from_slice(content);
}

/// The bytes of a model of these nodes, between these tensors.
pub(crate) fn model_of(
    opsets: &[OpsetId],
    nodes: &[Node],
    inputs: &[ValueInfo],
    outputs: &[ValueInfo],
) -> Vec<u8> {
    let mut graph = Vec::new();
    nodes.iter().for_each(|node| put(&mut graph, GRAPH_NODE, &node.encode_to_vec()));
    put(&mut graph, 2, b"site");
    inputs.iter().for_each(|info| put(&mut graph, GRAPH_INPUT, &info.encode_to_vec()));
    outputs.iter().for_each(|info| put(&mut graph, GRAPH_OUTPUT, &info.encode_to_vec()));
    let mut out = Vec::new();
    encode_key(1, WireType::Varint, &mut out);
    encode_varint(8, &mut out);
    put(&mut out, MODEL_GRAPH, &graph);
    opsets.iter().for_each(|id| put(&mut out, MODEL_OPSET, &id.encode_to_vec()));
    out
}

impl From<i64> for Dimension {
    fn from(size: i64) -> Self {
        Self { value: Some(size), param: None }
    }
}

impl ValueInfo {
    /// A tensor with elements of this type; of any shape if none is given.
    pub(crate) fn tensor(name: &str, elem_type: i32, shape: Option<Vec<Dimension>>) -> Self {
        let tensor = TensorType { elem_type, shape: shape.map(|dim| Shape { dim }) };
        Self { name: name.into(), r#type: Some(Type { tensor: Some(tensor) }) }
    }
}

impl Node {
    /// A tensor that does not change.
    pub(crate) fn constant(name: &str, value: Tensor) -> Self {
        let node = Self::new("", "Constant", format!("{name}/constant"), vec![], vec![name.into()]);
        node.with(Attribute::tensor("value", value))
    }

    /// A node of a domain, to be given attributes.
    pub(crate) fn new(
        domain: &str,
        op_type: &str,
        name: String,
        input: Vec<String>,
        output: Vec<String>,
    ) -> Self {
        Self {
            input,
            output,
            name,
            op_type: op_type.into(),
            attribute: vec![],
            domain: domain.into(),
        }
    }

    pub(crate) fn with(mut self, attribute: Attribute) -> Self {
        self.attribute.push(attribute);
        self
    }

    pub(crate) fn is_standard(&self) -> bool {
        matches!(self.domain.as_str(), "" | "ai.onnx")
    }

    /// Whether it is this operator of the standard.
    pub(crate) fn is(&self, op_type: &str) -> bool {
        self.op_type == op_type && self.is_standard()
    }

    /// The name of an input that is there.
    pub(crate) fn input(&self, index: usize) -> Option<&str> {
        self.input.get(index).map(String::as_str).filter(|name| !name.is_empty())
    }

    pub(crate) fn attribute(&self, name: &str) -> Option<&Attribute> {
        self.attribute.iter().find(|attribute| attribute.name == name)
    }

    pub(crate) fn int(&self, name: &str) -> Option<i64> {
        self.attribute(name)?.i
    }

    pub(crate) fn float(&self, name: &str) -> Option<f32> {
        self.attribute(name)?.f
    }

    pub(crate) fn ints(&self, name: &str) -> Option<&[i64]> {
        self.attribute(name).map(|attribute| attribute.ints.as_slice())
    }

    pub(crate) fn text(&self, name: &str) -> Option<&str> {
        std::str::from_utf8(self.attribute(name)?.s.as_ref()?).ok()
    }

    /// How people find it in the model.
    pub(crate) fn label(&self) -> &str {
        if self.name.is_empty() {
            self.output.first().map_or("", String::as_str)
        } else {
            &self.name
        }
    }
}

impl Attribute {
    fn named(name: &str, r#type: i32) -> Self {
        Self { name: name.into(), r#type, ..Self::default() }
    }

    pub(crate) fn int(name: &str, value: i64) -> Self {
        Self { i: Some(value), ..Self::named(name, attribute_type::INT) }
    }

    pub(crate) fn ints(name: &str, values: &[i64]) -> Self {
        Self { ints: values.to_vec(), ..Self::named(name, attribute_type::INTS) }
    }

    pub(crate) fn text(name: &str, value: &str) -> Self {
        let s = Some(Bytes::copy_from_slice(value.as_bytes()));
        Self { s, ..Self::named(name, attribute_type::STRING) }
    }

    pub(crate) fn tensor(name: &str, value: Tensor) -> Self {
        Self { t: Some(value), ..Self::named(name, attribute_type::TENSOR) }
    }
}

/// Constants are read up to this many elements: sizes, shapes and scales are never larger.
const MOST_READ: usize = 4096;

impl Tensor {
    pub(crate) fn of_ints(dims: &[i64], values: &[i64], is_wide: bool) -> Self {
        let (data_type, raw): (i32, Vec<u8>) = if is_wide {
            (data_type::INT64, values.iter().flat_map(|x| x.to_le_bytes()).collect())
        } else {
            let narrow = |x: &i64| i32::try_from(*x).unwrap_or(i32::MAX).to_le_bytes();
            (data_type::INT32, values.iter().flat_map(narrow).collect())
        };
        Self { dims: dims.to_vec(), data_type, raw_data: raw.into(), ..Self::default() }
    }

    pub(crate) fn of_floats(dims: &[i64], values: &[f64], kind: i32) -> Self {
        let raw: Vec<u8> = match kind {
            data_type::FLOAT16 => {
                values.iter().flat_map(|&x| half::f16::from_f64(x).to_le_bytes()).collect()
            }
            data_type::BFLOAT16 => {
                values.iter().flat_map(|&x| half::bf16::from_f64(x).to_le_bytes()).collect()
            }
            data_type::DOUBLE => values.iter().flat_map(|x| x.to_le_bytes()).collect(),
            _ => values.iter().flat_map(|&x| (x as f32).to_le_bytes()).collect(),
        };
        let is_kind = matches!(kind, data_type::FLOAT16 | data_type::BFLOAT16 | data_type::DOUBLE);
        let data_type = if is_kind { kind } else { data_type::FLOAT };
        Self { dims: dims.to_vec(), data_type, raw_data: raw.into(), ..Self::default() }
    }

    /// Whether its numbers lie in another file, and in which.
    pub(crate) fn external_file(&self) -> Option<&str> {
        let of = |key: &str| self.external_data.iter().find(|entry| entry.key == key);
        (self.data_location == 1).then(|| of("location").map_or("", |entry| entry.value.as_str()))
    }

    pub(crate) fn shape(&self) -> Option<Vec<usize>> {
        self.dims.iter().map(|&dim| usize::try_from(dim).ok()).collect()
    }

    fn readable_elements(&self) -> Option<usize> {
        let count = self.shape()?.into_iter().try_fold(1usize, usize::checked_mul)?;
        (count <= MOST_READ && self.data_location != 1).then_some(count)
    }

    /// Its elements: those of a typed field, or of the raw bytes.
    fn read<T: Copy, U, const N: usize>(
        &self,
        typed: &[T],
        of_bytes: fn([u8; N]) -> T,
        wide: impl Fn(T) -> U,
    ) -> Vec<U> {
        if self.raw_data.is_empty() {
            return typed.iter().copied().map(wide).collect();
        }
        self.raw_data.as_chunks().0.iter().map(|&bytes| wide(of_bytes(bytes))).collect()
    }

    /// Its whole numbers, if that is what it holds and it is small.
    pub(crate) fn read_ints(&self) -> Option<Vec<i64>> {
        let count = self.readable_elements()?;
        let values = match self.data_type {
            data_type::INT64 => self.read(&self.int64_data, i64::from_le_bytes, |x| x),
            data_type::INT32 => self.read(&self.int32_data, i32::from_le_bytes, i64::from),
            _ => return None,
        };
        (values.len() == count).then_some(values)
    }

    /// Its numbers, with or without fractions.
    pub(crate) fn read_numbers(&self) -> Option<Vec<f64>> {
        let whole = || Some(self.read_ints()?.into_iter().map(|x| x as f64).collect());
        self.read_floats().or_else(whole)
    }

    /// Its numbers with a fraction, likewise.
    pub(crate) fn read_floats(&self) -> Option<Vec<f64>> {
        let count = self.readable_elements()?;
        // The field of half dtypes holds 16 bits in 32.
        let bits = |bytes| i32::from(u16::from_le_bytes(bytes));
        let values = match self.data_type {
            data_type::FLOAT => self.read(&self.float_data, f32::from_le_bytes, f64::from),
            data_type::DOUBLE => self.read(&self.double_data, f64::from_le_bytes, |x| x),
            data_type::FLOAT16 => {
                self.read(&self.int32_data, bits, |bits| half::f16::from_bits(bits as u16).to_f64())
            }
            data_type::BFLOAT16 => self
                .read(&self.int32_data, bits, |bits| half::bf16::from_bits(bits as u16).to_f64()),
            _ => return None,
        };
        (values.len() == count).then_some(values)
    }
}
