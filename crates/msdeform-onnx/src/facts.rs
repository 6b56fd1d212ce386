//! What is known about shapes and about whole numbers that shapes are made of, without running anything.

use std::collections::HashMap;

use crate::array::Array;
use crate::dim::{Dim, Dims, Sizes, Symbol, product};
use crate::graph::Graph;
use crate::operators::{Call, Value, data_inputs};
use crate::proto::{Node, Tensor, ValueInfo, data_type};

/// Ranks past this are not followed.
const MOST_AXES: usize = 12;
/// Lists of whole numbers past this are not followed.
const MOST_NUMBERS: usize = 256;

/// Facts about every tensor of a graph.
#[derive(Debug, Default)]
pub(crate) struct Facts {
    shapes: HashMap<String, Dims>,
    numbers: HashMap<String, Array<Dim>>,
    floats: HashMap<String, Vec<f64>>,
    types: HashMap<String, i32>,
    /// Names of symbols; `None` if the model does not name the symbol.
    symbols: Vec<Option<String>>,
    named: HashMap<String, Symbol>,
}

impl Facts {
    pub(crate) fn of(graph: &Graph<'_>) -> Self {
        let mut facts = Self::default();
        let model = graph.model;
        let mut given = HashMap::new();
        for info in model.inputs.iter().chain(&model.value_info).chain(&model.outputs) {
            facts.note_type(info);
            if let Some(dims) = facts.dims_of(info) {
                given.insert(info.name.as_str(), dims);
            }
        }
        for tensor in &model.initializers {
            facts.note_tensor(&tensor.name, tensor);
        }
        for input in &model.inputs {
            if let Some(dims) = given.get(input.name.as_str()) {
                facts.shapes.insert(input.name.clone(), dims.clone());
            }
            // An initializer that is an input too may be replaced by the caller.
            facts.numbers.remove(&input.name);
        }
        for node in &model.nodes {
            facts.follow(graph, node);
            for output in &node.output {
                if let Some(dims) = given.get(output.as_str()) {
                    facts.merge(output, dims);
                }
            }
        }
        facts
    }

    pub(crate) fn shape(&self, name: &str) -> Option<&Dims> {
        self.shapes.get(name)
    }

    /// The whole numbers of a small tensor.
    pub(crate) fn numbers(&self, name: &str) -> Option<&Dims> {
        self.numbers.get(name).map(|numbers| &numbers.data)
    }

    /// The same with its shape.
    pub(crate) fn array(&self, name: &str) -> Option<&Array<Dim>> {
        self.numbers.get(name)
    }

    /// A small constant with fractions.
    pub(crate) fn floats(&self, name: &str) -> Option<&[f64]> {
        self.floats.get(name).map(Vec::as_slice)
    }

    /// The same, where all of them are numbers.
    pub(crate) fn known_numbers(&self, name: &str) -> Option<Vec<i64>> {
        self.numbers(name)?.iter().map(Dim::known).collect()
    }

    pub(crate) fn data_type(&self, name: &str) -> Option<i32> {
        self.types.get(name).copied().filter(|&data_type| data_type != 0)
    }

    /// A size as people read it: with the model's own names where it has some.
    pub(crate) fn text(&self, dim: &Dim) -> String {
        dim.text(|symbol| {
            let name = self.symbols.get(symbol as usize).cloned().flatten();
            name.unwrap_or_else(|| "?".into())
        })
    }

    fn fresh(&mut self, name: Option<String>) -> Dim {
        self.symbols.push(name);
        Dim::symbol(u32::try_from(self.symbols.len() - 1).unwrap_or(u32::MAX))
    }

    fn named(&mut self, name: &str) -> Dim {
        let factors: Vec<&str> =
            name.split('*').map(|part| part.trim_matches([' ', '(', ')'])).collect();
        let is_plain = |part: &&str| {
            !part.is_empty() && part.chars().all(|c| c.is_alphanumeric() || matches!(c, '_' | '.'))
        };
        if factors.len() > 1 && factors.iter().all(is_plain) {
            let parts: Vec<Dim> = factors.into_iter().map(|part| self.named_part(part)).collect();
            if let Some(dim) = product(&parts) {
                return dim;
            }
        }
        self.named_part(name)
    }

    fn named_part(&mut self, name: &str) -> Dim {
        if let Ok(number) = name.parse::<i64>() {
            return number.into();
        }
        if let Some(&symbol) = self.named.get(name) {
            return Dim::symbol(symbol);
        }
        let dim = self.fresh(Some(name.to_owned()));
        if let Some(symbol) = dim.single() {
            self.named.insert(name.to_owned(), symbol);
        }
        dim
    }

    fn note_type(&mut self, info: &ValueInfo) {
        if let Some(tensor) = info.r#type.as_ref().and_then(|r#type| r#type.tensor.as_ref()) {
            self.types.insert(info.name.clone(), tensor.elem_type);
        }
    }

    fn dims_of(&mut self, info: &ValueInfo) -> Option<Dims> {
        let shape = info.r#type.as_ref()?.tensor.as_ref()?.shape.as_ref()?;
        if shape.dim.len() > MOST_AXES {
            return None;
        }
        let dims = shape.dim.iter().map(|dim| match (dim.value, &dim.param) {
            (Some(value), _) if value >= 0 => value.into(),
            (_, Some(name)) if !name.is_empty() => self.named(name),
            _ => self.fresh(None),
        });
        Some(dims.collect())
    }

    fn note_tensor(&mut self, name: &str, tensor: &Tensor) {
        self.types.insert(name.to_owned(), tensor.data_type);
        let Some(shape) = tensor.shape() else { return };
        self.set(name, shape.iter().map(|&size| size.into()).collect());
        if let Some(numbers) = tensor.read_ints() {
            self.note_numbers(name, shape, &numbers);
        } else if let Some(floats) = tensor.read_floats().filter(|floats| floats.len() <= MOST_AXES)
        {
            self.floats.insert(name.to_owned(), floats);
        }
    }

    /// What the model says, where nothing better follows from the operators.
    fn merge(&mut self, name: &str, given: &Dims) {
        let is_better = |facts: &Self, old: &Dim, new: &Dim| {
            let has_name = |dim: &Dim| {
                dim.symbols().iter().all(|&symbol| facts.symbols[symbol as usize].is_some())
            };
            old.known().is_none() && (new.known().is_some() || (!has_name(old) && has_name(new)))
        };
        let merged = match self.shapes.get(name) {
            Some(old) if old.len() == given.len() => old
                .iter()
                .zip(given)
                .map(|(old, new)| if is_better(self, old, new) { new.clone() } else { old.clone() })
                .collect(),
            _ => given.clone(),
        };
        self.shapes.insert(name.to_owned(), merged);
    }

    /// Sizes of which those that do not follow get symbols of their own.
    fn closed(&mut self, dims: Dims) -> Dims {
        let close = |dim: Dim| if dim.is_unknown() { self.fresh(None) } else { dim };
        dims.into_iter().map(close).collect()
    }

    fn set(&mut self, name: &str, dims: Dims) {
        if dims.len() <= MOST_AXES && !name.is_empty() {
            let dims = self.closed(dims);
            self.shapes.insert(name.to_owned(), dims);
        }
    }

    fn set_numbers(&mut self, name: &str, shape: Vec<usize>, numbers: Dims) {
        let data = self.closed(numbers);
        self.numbers.insert(name.to_owned(), Array { shape, data });
    }

    fn follow(&mut self, graph: &Graph<'_>, node: &Node) {
        // ONNX Runtime writes its fused operators into the models that it has optimised.
        let is_known = node.is_standard() || node.domain == "com.microsoft";
        let Some(output) = node.output.first().filter(|_| is_known) else { return };
        self.follow_type(node);
        match node.op_type.as_str() {
            "Constant" => return self.follow_constant(output, node),
            "Shape" => return self.follow_shape(graph, output, node),
            _ => {}
        }
        let sizes = Sizes::default();
        let call = Call::new(self, &sizes, node);
        let shapes = call.shapes().unwrap_or_default();
        let numbers = self.numbers_of(node, call);
        for (name, dims) in node.output.iter().zip(shapes) {
            self.set(name, dims);
        }
        for (name, value) in node.output.iter().zip(numbers.unwrap_or_default()) {
            if let Value::Array(numbers) = value {
                self.set(name, numbers.shape.iter().map(|&size| size.into()).collect());
                self.set_numbers(name, numbers.shape, numbers.data);
            }
        }
    }

    /// Whole numbers that follow from others.
    fn numbers_of(&self, node: &Node, call: Call<'_>) -> Option<Vec<Value<Dim>>> {
        if node.op_type == "Size" {
            let size = product(self.shape(node.input(0)?)?)?;
            return Some(vec![Value::Array(Array { shape: vec![], data: vec![size] })]);
        }
        let count = data_inputs(self, node).len().max(1);
        let numbers = |name: &String| self.numbers.get(name).cloned().map(Value::Array);
        let operands: Vec<Value<Dim>> =
            node.input.iter().take(count).map(numbers).collect::<Option<_>>()?;
        let call = call.on(operands.iter().map(Value::shape));
        let has_fractions = node.op_type == "Div" && !call.is_whole(0);
        let known = || operands.iter().map(known).collect::<Option<Vec<_>>>();
        // Exporters compute pads and positions with operators that no size of a model goes through.
        let computed = || whole(call.elements::<f64>(known()?, MOST_NUMBERS)?);
        if has_fractions && known().is_some() {
            return computed();
        }
        call.elements(operands.clone(), MOST_NUMBERS).or_else(computed)
    }

    fn follow_type(&mut self, node: &Node) {
        // Of arithmetic, all operands are of one type; that of one may be known and of another not. The first of `Where` is a mask.
        let typed = match node.op_type.as_str() {
            "Add" | "Sub" | "Mul" | "Div" | "Concat" => node.input.as_slice(),
            "Where" => node.input.get(1..).unwrap_or_default(),
            _ => node.input.get(..1).unwrap_or_default(),
        };
        let Some(of_input) = typed.iter().find_map(|name| self.data_type(name)) else { return };
        let data_type = match node.op_type.as_str() {
            "Cast" => node.int("to").and_then(|to| i32::try_from(to).ok()).unwrap_or(0),
            "Shape" | "Size" | "ArgMax" | "NonZero" => data_type::INT64,
            "TopK" => return self.follow_type_of_top(node, of_input),
            "Equal" | "Less" | "LessOrEqual" | "Greater" | "GreaterOrEqual" | "Not" | "And"
            | "Or" => data_type::BOOL,
            "DynamicQuantizeLinear"
            | "QuantizeLinear"
            | "DequantizeLinear"
            | "ConvInteger"
            | "MatMulInteger" => 0,
            "ConstantOfShape" => {
                let value = node.attribute("value").and_then(|value| value.t.as_ref());
                value.map_or(data_type::FLOAT, |tensor| tensor.data_type)
            }
            _ => of_input,
        };
        for name in &node.output {
            self.types.entry(name.clone()).or_insert(data_type);
        }
    }

    fn follow_type_of_top(&mut self, node: &Node, of_input: i32) {
        for (name, data_type) in node.output.iter().zip([of_input, data_type::INT64]) {
            self.types.entry(name.clone()).or_insert(data_type);
        }
    }

    fn follow_constant(&mut self, output: &str, node: &Node) {
        if let Some(tensor) = node.attribute("value").and_then(|value| value.t.as_ref()) {
            self.note_tensor(output, tensor);
        } else if let Some(values) = node.ints("value_ints") {
            self.note_numbers(output, vec![values.len()], values);
        } else if let Some(value) = node.int("value_int") {
            self.note_numbers(output, vec![], &[value]);
        } else if node.attribute("value_float").is_some() {
            self.set(output, vec![]);
            self.types.insert(output.to_owned(), data_type::FLOAT);
        }
    }

    fn note_numbers(&mut self, name: &str, shape: Vec<usize>, numbers: &[i64]) {
        self.set(name, shape.iter().map(|&size| size.into()).collect());
        if numbers.len() <= MOST_NUMBERS {
            self.set_numbers(name, shape, numbers.iter().map(|&number| number.into()).collect());
        }
    }

    fn follow_shape(&mut self, graph: &Graph<'_>, output: &str, node: &Node) {
        let known = node.input(0).and_then(|name| self.shape(name)).cloned();
        let Some(dims) = known.or_else(|| self.guessed_shape(graph, node)) else { return };
        let rank = dims.len() as i64;
        let bound = |name: &str, otherwise: usize| {
            let number = node.int(name).map(|x| if x < 0 { x.saturating_add(rank) } else { x });
            number.map_or(otherwise, |x| usize::try_from(x.clamp(0, rank)).unwrap_or(0))
        };
        let part = dims.get(bound("start", 0)..bound("end", dims.len())).unwrap_or(&[]).to_vec();
        self.set(output, vec![part.len().into()]);
        self.set_numbers(output, vec![part.len()], part);
    }

    /// A shape whose sizes are symbols, for a tensor of which only the rank is known: by the transpose that takes it.
    fn guessed_shape(&mut self, graph: &Graph<'_>, node: &Node) -> Option<Dims> {
        let name = node.input(0)?;
        // A transpose tells the rank.
        let transposed = graph.consumers(name).iter().find_map(|&user| {
            let user = graph.node(user);
            user.is("Transpose").then(|| user.ints("perm").map(<[i64]>::len)).flatten()
        });
        // Without one, sizes have names as long as all are asked for by their positions from the front.
        let rank = transposed.or_else(|| {
            let shape = node.output.first().filter(|shape| !graph.is_kept(shape))?;
            let users = graph.consumers(shape).iter().map(|&user| graph.node(user));
            let asked: Option<Vec<usize>> = users
                .map(|user| {
                    let index = user
                        .is("Gather")
                        .then(|| graph.constant(user.input(1)?)?.read_ints())??;
                    index.iter().map(|&index| usize::try_from(index).ok()).max()?
                })
                .collect();
            asked?.into_iter().max().and_then(|most| most.checked_add(1))
        });
        let rank = rank.filter(|&rank| rank <= MOST_AXES)?;
        let known: Dims = (0..rank).map(|at| self.named(&format!("{name}.{at}"))).collect();
        Some(known)
    }
}

/// The same numbers, if none is open.
fn known(value: &Value<Dim>) -> Option<Value<f64>> {
    let Value::Array(Array { shape, data }) = value else { return None };
    let data = data.iter().map(|dim| dim.known().map(|number| number as f64));
    Some(Value::Array(Array { shape: shape.clone(), data: data.collect::<Option<_>>()? }))
}

/// The same numbers, if all of them are whole.
fn whole(values: Vec<Value<f64>>) -> Option<Vec<Value<Dim>>> {
    let of_number = |x: f64| {
        let is_whole = x.fract() == 0.0 && x.abs() < f64::from(u32::MAX);
        is_whole.then(|| Dim::from(x as i64))
    };
    let of_value = |value| match value {
        Value::Array(Array { shape, data }) => {
            let data = data.into_iter().map(of_number).collect::<Option<_>>()?;
            Some(Value::Array(Array { shape, data }))
        }
        Value::List(_) => None,
    };
    values.into_iter().map(of_value).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Model;
    use crate::proto::{Attribute, OpsetId, model_of};

    fn node(op: &str, inputs: &[&str], output: &str) -> Node {
        let inputs = inputs.iter().map(|&name| name.to_owned()).collect();
        Node::new("", op, output.to_owned(), inputs, vec![output.to_owned()])
    }

    fn ints(name: &str, values: &[i64]) -> Node {
        Node::constant(name, Tensor::of_ints(&[values.len() as i64], values, true))
    }

    fn facts(nodes: &[Node]) -> Facts {
        let dims = [2i64, 16, 8, 10].map(Into::into).to_vec();
        let input = ValueInfo::tensor("value", data_type::FLOAT, Some(dims));
        let opset = OpsetId { domain: String::new(), version: 17 };
        let model = Model::read(&model_of(&[opset], nodes, &[input], &[])).unwrap();
        Facts::of(&Graph::new(&model))
    }

    #[test]
    fn pads_are_known_that_torchscript_computes() {
        let zero = Attribute::tensor("value", Tensor::of_ints(&[1], &[0], true));
        let facts = facts(&[
            ints("four", &[4]),
            ints("given", &[0, 1, 0, 1]),
            node("ConstantOfShape", &["four"], "zeros").with(zero),
            node("Concat", &["given", "zeros"], "all").with(Attribute::int("axis", 0)),
            ints("in pairs", &[-1, 2]),
            node("Reshape", &["all", "in pairs"], "pairs"),
            ints("last", &[-1]),
            ints("front", &[i64::MIN + 1]),
            ints("first axis", &[0]),
            node("Slice", &["pairs", "last", "front", "first axis", "last"], "reversed"),
            node("Transpose", &["reversed"], "columns").with(Attribute::ints("perm", &[1, 0])),
            node("Reshape", &["columns", "last"], "pads"),
            node("Pad", &["value", "pads"], "padded"),
        ]);
        let sizes: Option<Vec<i64>> =
            facts.shape("padded").unwrap().iter().map(Dim::known).collect();
        assert_eq!(sizes, Some(vec![2, 16, 9, 11]));
    }

    #[test]
    fn scales_of_dynamic_quantisation_are_scalars() {
        let outputs = ["bytes", "scale", "zero"].map(str::to_owned).to_vec();
        let quantise = "DynamicQuantizeLinear";
        let quantised = Node::new("", quantise, quantise.into(), vec!["value".to_owned()], outputs);
        let facts = facts(&[quantised, node("Mul", &["value", "scale"], "scaled")]);
        assert_eq!(facts.shape("scale").map(Vec::len), Some(0));
        assert_eq!(facts.shape("scaled"), facts.shape("value"));
    }

    #[test]
    fn a_quotient_with_a_fraction_is_no_whole_number() {
        let float = || Attribute::int("to", i64::from(data_type::FLOAT));
        let facts = facts(&[
            ints("seven", &[7]),
            ints("two", &[2]),
            node("Cast", &["seven"], "seven as float").with(float()),
            node("Cast", &["two"], "two as float").with(float()),
            node("Div", &["seven as float", "two as float"], "with a fraction"),
            node("Div", &["seven", "two"], "whole"),
        ]);
        assert_eq!(facts.known_numbers("with a fraction"), None);
        assert_eq!(facts.known_numbers("whole"), Some(vec![3]));
    }
}
