//! Runs a part of a graph: on numbers to compare them, on marks to learn where elements go.

use std::collections::{HashMap, HashSet};

use crate::Options;
use crate::array::{Array, Element};
use crate::dim::Sizes;
use crate::facts::Facts;
use crate::graph::Graph;
use crate::model::Model;
use crate::operators::{Call, Value, data_inputs};
use crate::proto::{Node, data_type};
use crate::sampler::Samplers;

/// Why a part of a graph cannot be followed.
pub(crate) type Reason = String;

/// A graph, what is known about it, and how much may be computed.
#[derive(Debug)]
pub(crate) struct Context<'a> {
    pub(crate) graph: Graph<'a>,
    pub(crate) facts: Facts,
    pub(crate) samplers: Samplers<'a>,
    pub(crate) most_elements: usize,
}

/// Arithmetic on whole numbers is followed up to this many nodes.
const MOST_STEPS: usize = 32;
/// And for tensors up to this size.
const MOST_NUMBERS: usize = 1 << 12;

impl<'a> Context<'a> {
    pub(crate) fn new(model: &'a Model, options: Options) -> Self {
        let graph = Graph::new(model);
        let facts = Facts::of(&graph);
        let samplers = Samplers::of(&graph, &facts);
        Self { facts, samplers, graph, most_elements: options.most_elements }
    }

    /// A small constant with a fraction.
    pub(crate) fn float_constant(&self, name: &str) -> Option<Array<f64>> {
        if let Some(tensor) = self.graph.constant(name) {
            return Some(Array { shape: tensor.shape()?, data: tensor.read_floats()? });
        }
        let node = self.graph.node(self.graph.producer(name)?);
        if node.is("Constant") {
            let number = node.float("value_float")?;
            return Some(Array { shape: vec![], data: vec![f64::from(number)] });
        }
        // Exporters convert or expand constants before they use them.
        let is_plain = node.is("Cast") || node.is("Identity") || node.is("Unsqueeze");
        let inner = is_plain.then(|| self.graph.constant(node.input(0)?)).flatten()?;
        let numbers = inner
            .read_floats()
            .or_else(|| Some(inner.read_ints()?.iter().map(|&x| x as f64).collect()))?;
        (numbers.len() == 1).then_some(Array { shape: vec![], data: numbers })
    }

    /// Numbers of a tensor that no run has to tell: a constant, or whole numbers that follow from sizes.
    pub(crate) fn numbers(&self, sizes: &Sizes, name: &str) -> Option<Array<f64>> {
        self.numbers_within(sizes, name, MOST_STEPS)
    }

    fn numbers_within(&self, sizes: &Sizes, name: &str, steps: usize) -> Option<Array<f64>> {
        if let Some(constant) = self.float_constant(name) {
            return Some(constant);
        }
        if let Some(tensor) = self.graph.constant(name) {
            return Some(Array { shape: tensor.shape()?, data: tensor.read_numbers()? });
        }
        if let Some(Array { shape, data }) = self.facts.array(name) {
            let numbers = data.iter().map(|dim| sizes.number(dim).map(|number| number as f64));
            if let Some(data) = numbers.collect() {
                return Some(Array { shape: shape.clone(), data });
            }
        }
        if let Some(data) = sizes.tensor(name) {
            let data: Vec<f64> = data.iter().map(|&number| number as f64).collect();
            return Some(Array { shape: vec![data.len()], data });
        }
        let kind = self.facts.data_type(name)?;
        let node = self.graph.node(self.graph.producer(name)?);
        let inputs = data_inputs(&self.facts, node);
        if data_type::has_fractions(kind) || steps == 0 || inputs.is_empty() || node.is("Shape") {
            return None;
        }
        let operand = |name| self.numbers_within(sizes, name, steps - 1).map(Value::Array);
        let operands: Vec<Value<f64>> = inputs.into_iter().map(operand).collect::<Option<_>>()?;
        let mut sizes = sizes.clone();
        self.note_arguments(&mut sizes, node, operands.len(), steps - 1);
        let call = Call::new(&self.facts, &sizes, node).on(operands.iter().map(Value::shape));
        let outputs = call.elements(operands, MOST_NUMBERS)?;
        let at = node.output.iter().position(|output| output == name)?;
        match outputs.into_iter().nth(at)? {
            Value::Array(array) => Some(array),
            Value::List(_) => None,
        }
    }

    /// Notes the sizes and axes that a node takes and that no product of sizes is.
    fn note_arguments(&self, sizes: &mut Sizes, node: &Node, count: usize, steps: usize) {
        for name in node.input.iter().skip(count).filter(|name| !name.is_empty()) {
            let told = sizes.numbers(name, self.facts.numbers(name));
            if told.is_some_and(|dims| dims.iter().all(|dim| dim.known().is_some())) {
                continue;
            }
            if let Some(numbers) = self.numbers_within(sizes, name, steps) {
                sizes.set_numbers(name, numbers.data.iter().map(|&x| x as i64).collect());
            }
        }
    }

    /// Notes the numbers of the `Shape` nodes of a tensor that is there.
    fn note_shape(&self, sizes: &mut Sizes, name: &str, shape: &[usize]) {
        for node in self.graph.consumers(name).iter().map(|&user| self.graph.node(user)) {
            let is_whole =
                node.is("Shape") && node.int("start").is_none() && node.int("end").is_none();
            let numbers = shape.iter().map(|&size| i64::try_from(size).ok()).collect();
            if let (true, Some(output), Some(numbers)) = (is_whole, node.output.first(), numbers) {
                sizes.set_numbers(output, numbers);
            }
        }
    }

    /// The nodes between tensors that are given and those that are wanted, in order.
    pub(crate) fn between(
        &self,
        sizes: &Sizes,
        given: &HashSet<&str>,
        wanted: &[&str],
    ) -> Result<Vec<usize>, Reason> {
        let (mut nodes, mut seen) = (HashSet::new(), HashSet::new());
        let mut waiting: Vec<&str> = wanted.to_vec();
        while let Some(name) = waiting.pop() {
            if given.contains(name) || !seen.insert(name) || self.numbers(sizes, name).is_some() {
                continue;
            }
            let producer = self.graph.producer(name);
            let producer = producer.ok_or_else(|| format!("`{name}` comes from outside"))?;
            if !nodes.insert(producer) {
                continue;
            }
            let node = self.graph.node(producer);
            let inputs = data_inputs(&self.facts, node);
            if inputs.is_empty() {
                return Err(format!("`{}` ({}) stands in between", node.label(), node.op_type));
            }
            waiting.extend(inputs);
        }
        let mut nodes: Vec<usize> = nodes.into_iter().collect();
        nodes.sort_unstable();
        Ok(nodes)
    }

    /// Computes tensors from others.
    pub(crate) fn run<T: Element>(
        &self,
        sizes: &mut Sizes,
        given: Vec<(&str, Array<T>)>,
        wanted: &[&str],
    ) -> Result<Vec<Array<T>>, Reason> {
        let names: HashSet<&str> = given.iter().map(|(name, _)| *name).collect();
        given.iter().for_each(|(name, array)| self.note_shape(sizes, name, &array.shape));
        let nodes = self.between(sizes, &names, wanted)?;
        let mut values: HashMap<&str, Value<T>> =
            given.into_iter().map(|(name, array)| (name, Value::Array(array))).collect();
        // A tensor is dropped after its last use, because each tensor of a large site takes a gigabyte.
        let mut uses: HashMap<&str, usize> = HashMap::new();
        wanted.iter().for_each(|name| *uses.entry(name).or_default() += 1);
        for &index in &nodes {
            let inputs = data_inputs(&self.facts, self.graph.node(index));
            inputs.into_iter().for_each(|name| *uses.entry(name).or_default() += 1);
        }
        for &index in &nodes {
            let node = self.graph.node(index);
            let inputs = data_inputs(&self.facts, node);
            let failed = || format!("`{}` ({}) cannot be followed", node.label(), node.op_type);
            let mut operands = Vec::with_capacity(inputs.len());
            for name in inputs {
                let left = uses.get_mut(name).map_or(0, |left| {
                    *left -= 1;
                    *left
                });
                let value = if left == 0 { values.remove(name) } else { values.get(name).cloned() };
                operands.push(value.or_else(|| self.constant(sizes, name)).ok_or_else(failed)?);
            }
            self.note_arguments(sizes, node, operands.len(), MOST_STEPS);
            let call = Call::new(&self.facts, sizes, node).on(operands.iter().map(Value::shape));
            let outputs = call.elements(operands, self.most_elements).ok_or_else(failed)?;
            for (name, value) in node.output.iter().zip(outputs) {
                if let Value::Array(array) = &value {
                    self.note_shape(sizes, name, &array.shape);
                    let target = node.input(1).filter(|_| node.is("Reshape"));
                    let target = target.and_then(|name| self.facts.numbers(name));
                    for dims in self.facts.shape(name).into_iter().chain(target) {
                        if dims.len() == array.shape.len() {
                            sizes.set_all(dims, &array.shape);
                        }
                    }
                }
                if uses.get(name.as_str()).is_some_and(|&left| left > 0) {
                    values.insert(name, value);
                }
            }
        }
        wanted
            .iter()
            .map(|name| match values.remove(name).or_else(|| self.constant(sizes, name)) {
                Some(Value::Array(array)) => Ok(array),
                _ => Err(format!("`{name}` is no tensor")),
            })
            .collect()
    }

    fn constant<T: Element>(&self, sizes: &Sizes, name: &str) -> Option<Value<T>> {
        let numbers = self.numbers(sizes, name)?;
        let data = numbers.data.into_iter().map(T::constant).collect::<Option<_>>()?;
        Some(Value::Array(Array { shape: numbers.shape, data }))
    }

    /// Whether the samples of a node are those of the attention: bilinear, zero outside, corners not aligned.
    pub(crate) fn samples_as_attention(node: &Node) -> bool {
        let mode = node.text("mode").unwrap_or("bilinear");
        matches!(mode, "bilinear" | "linear")
            && node.text("padding_mode").unwrap_or("zeros") == "zeros"
            && node.int("align_corners").unwrap_or(0) == 0
    }
}
