//! ONNX files, of the messages that msdeform-onnx reads and writes.

#[allow(dead_code, reason = "tests need a part of the messages")]
#[path = "../../../msdeform-onnx/src/proto.rs"]
mod proto;

pub(crate) use proto::{Attribute, Node, ValueInfo, data_type};
use proto::{Dimension, OpsetId, Tensor, model_of};

/// An input or output with any sizes.
pub(crate) fn port(name: &str, element_type: i32, rank: usize) -> ValueInfo {
    let dim = |axis| Dimension { value: None, param: Some(format!("{name}_{axis}")) };
    ValueInfo::tensor(name, element_type, Some((0..rank).map(dim).collect()))
}

pub(crate) fn node(domain: &str, operator: &str, inputs: &[&str], output: &str) -> Node {
    let inputs = inputs.iter().map(|&name| name.to_owned()).collect();
    Node::new(domain, operator, String::new(), inputs, vec![output.to_owned()])
}

pub(crate) fn floats(name: &str, dims: &[i64], numbers: &[f32]) -> Node {
    let numbers: Vec<f64> = numbers.iter().map(|&number| number.into()).collect();
    Node::constant(name, Tensor::of_floats(dims, &numbers, data_type::FLOAT))
}

pub(crate) fn ints(name: &str, dims: &[i64], numbers: &[i64]) -> Node {
    Node::constant(name, Tensor::of_ints(dims, numbers, true))
}

/// The bytes of a model.
pub(crate) fn model(nodes: &[Node], inputs: &[ValueInfo], outputs: &[ValueInfo]) -> Vec<u8> {
    let opset = |domain: &str, version| OpsetId { domain: domain.to_owned(), version };
    model_of(&[opset("", 17), opset("msdeform", 1)], nodes, inputs, outputs)
}
