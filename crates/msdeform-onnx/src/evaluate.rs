//! Runs a part of a graph: on numbers to compare them, on marks to learn where elements go.

use std::collections::{HashMap, HashSet};

use crate::array::{Array, Element, elements};
use crate::attributes;
use crate::dim::{Dim, Symbol};
use crate::graph::Graph;
use crate::proto::Node;
use crate::shapes::{Dims, Facts, axis};

/// Why a part of a graph cannot be followed.
pub(crate) type Reason = String;

/// The numbers that open sizes have in one run. More of them become known while it runs: a tensor that is there has a
/// shape.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sizes(HashMap<Symbol, i64>);

impl Sizes {
    pub(crate) fn number(&self, dim: &Dim) -> Option<i64> {
        dim.number(|symbol| self.0.get(&symbol).copied())
    }

    pub(crate) fn size(&self, dim: &Dim) -> Option<usize> {
        self.number(dim).and_then(|number| usize::try_from(number).ok())
    }

    pub(crate) fn shape(&self, dims: &Dims) -> Option<Vec<usize>> {
        dims.iter().map(|dim| self.size(dim)).collect()
    }

    /// Lets a size be a number, if it has none yet and is open in a single symbol.
    pub(crate) fn set(&mut self, dim: &Dim, number: usize) {
        let open: Vec<Symbol> =
            dim.symbols().iter().copied().filter(|s| !self.0.contains_key(s)).collect();
        let Ok(number) = i64::try_from(number) else { return };
        let [symbol] = open[..] else { return };
        let rest =
            dim.number(|one| if one == symbol { Some(1) } else { self.0.get(&one).copied() });
        if let Some(rest) = rest.filter(|&rest| rest > 0 && number % rest == 0) {
            self.0.insert(symbol, number / rest);
        }
    }
}

/// A graph, what is known about it, and how much may be computed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Context<'a> {
    pub(crate) graph: &'a Graph<'a>,
    pub(crate) facts: &'a Facts,
    pub(crate) most_elements: usize,
}

/// Operators that move the elements of their first input, and do nothing else.
const MOVEMENTS: [&str; 13] = [
    "Identity",
    "Reshape",
    "Flatten",
    "Transpose",
    "Unsqueeze",
    "Squeeze",
    "Slice",
    "Split",
    "Gather",
    "Expand",
    "SplitToSequence",
    "SequenceAt",
    "Cast",
];

impl Context<'_> {
    /// Whether a node moves elements of its first input alone. A conversion does if it converts nothing.
    pub(crate) fn is_movement(&self, node: &Node) -> bool {
        let is_standard = matches!(node.domain.as_str(), "" | "ai.onnx");
        let converts = node.op_type == "Cast"
            && node.input(0).and_then(|name| self.facts.data_type(name)).map(i64::from)
                != node.int("to");
        is_standard && !converts && MOVEMENTS.contains(&node.op_type.as_str())
    }

    /// Names of the inputs whose elements become those of the output; none for other operators.
    pub(crate) fn data_inputs<'n>(&self, node: &'n Node) -> Vec<&'n str> {
        let all = || node.input.iter().map(String::as_str).filter(|name| !name.is_empty());
        match node.op_type.as_str() {
            _ if self.is_movement(node) => all().take(1).collect(),
            _ if !matches!(node.domain.as_str(), "" | "ai.onnx") => Vec::new(),
            "Concat" | "ConcatFromSequence" | "SequenceConstruct" => all().collect(),
            "Add" | "Sub" | "Mul" | "Div" | "GridSample" => all().take(2).collect(),
            "ReduceSum" => all().take(1).collect(),
            _ => Vec::new(),
        }
    }

    /// A small constant with a fraction.
    pub(crate) fn float_constant(&self, name: &str) -> Option<Array<f64>> {
        if let Some(tensor) = self.graph.constant(name) {
            let shape =
                tensor.dims.iter().map(|&dim| usize::try_from(dim).ok()).collect::<Option<_>>()?;
            return Array { shape: vec![], data: tensor.read_floats()? }.reshaped(shape).or(None);
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

    /// The nodes between tensors that are given and those that are wanted, in order.
    pub(crate) fn between(
        &self,
        given: &HashSet<&str>,
        wanted: &[&str],
    ) -> Result<Vec<usize>, Reason> {
        let mut nodes = HashSet::new();
        let mut waiting: Vec<&str> = wanted.to_vec();
        while let Some(name) = waiting.pop() {
            if given.contains(name) || self.float_constant(name).is_some() {
                continue;
            }
            let producer = self.graph.producer(name);
            let producer = producer.ok_or_else(|| format!("`{name}` comes from outside"))?;
            if !nodes.insert(producer) {
                continue;
            }
            let node = self.graph.node(producer);
            let inputs = self.data_inputs(node);
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
    ) -> Result<Vec<Array<T>>, Reason>
    where
        Self: Sampler<T>,
    {
        let names: HashSet<&str> = given.iter().map(|(name, _)| *name).collect();
        let nodes = self.between(&names, wanted)?;
        let mut values: HashMap<&str, Value<T>> =
            given.into_iter().map(|(name, array)| (name, Value::Array(array))).collect();
        // A tensor is dropped after its last use, because each tensor of a large site takes a gigabyte.
        let mut uses: HashMap<&str, usize> = HashMap::new();
        wanted.iter().for_each(|name| *uses.entry(name).or_default() += 1);
        for &index in &nodes {
            let inputs = self.data_inputs(self.graph.node(index));
            inputs.into_iter().for_each(|name| *uses.entry(name).or_default() += 1);
        }
        for &index in &nodes {
            let node = self.graph.node(index);
            let inputs = self.data_inputs(node);
            let failed = || format!("`{}` ({}) cannot be followed", node.label(), node.op_type);
            let mut operands = Vec::with_capacity(inputs.len());
            for name in inputs {
                let left = uses.get_mut(name).map_or(0, |left| {
                    *left -= 1;
                    *left
                });
                let value = if left == 0 { values.remove(name) } else { values.get(name).cloned() };
                operands.push(value.or_else(|| self.constant(name)).ok_or_else(failed)?);
            }
            let outputs = self.apply(sizes, node, operands).ok_or_else(failed)?;
            for (name, value) in node.output.iter().zip(outputs) {
                if let (Value::Array(array), Some(dims)) = (&value, self.facts.shape(name))
                    && array.shape.len() == dims.len()
                {
                    dims.iter().zip(&array.shape).for_each(|(dim, &size)| sizes.set(dim, size));
                }
                if uses.get(name.as_str()).is_some_and(|&left| left > 0) {
                    values.insert(name, value);
                }
            }
        }
        wanted
            .iter()
            .map(|name| match values.get(name) {
                Some(Value::Array(array)) => Ok(array.clone()),
                _ => Err(format!("`{name}` is no tensor")),
            })
            .collect()
    }

    fn constant<T: Element>(&self, name: &str) -> Option<Value<T>> {
        let numbers = self.float_constant(name)?;
        let data = numbers.data.into_iter().map(T::constant).collect::<Option<_>>()?;
        Some(Value::Array(Array { shape: numbers.shape, data }))
    }

    fn numbers(&self, sizes: &Sizes, name: &str) -> Option<Vec<Option<i64>>> {
        Some(self.facts.numbers(name)?.iter().map(|dim| sizes.number(dim)).collect())
    }

    fn apply<T: Element>(
        &self,
        sizes: &mut Sizes,
        node: &Node,
        mut operands: Vec<Value<T>>,
    ) -> Option<Vec<Value<T>>>
    where
        Self: Sampler<T>,
    {
        let facts = self.facts;
        let one = |array: Array<T>| Some(vec![Value::Array(array)]);
        match node.op_type.as_str() {
            "SequenceConstruct" => {
                return Some(vec![Value::List(
                    operands.into_iter().map(Value::array).collect::<Option<_>>()?,
                )]);
            }
            "ConcatFromSequence" => {
                let Some(Value::List(mut parts)) = operands.pop() else { return None };
                let rank = parts.first()?.shape.len()
                    + usize::from(node.int("new_axis").unwrap_or(0) != 0);
                let at = axis(node.int("axis")?, rank)?;
                if node.int("new_axis").unwrap_or(0) != 0 {
                    let axes = [i64::try_from(at).ok()?];
                    for part in &mut parts {
                        part.shape = attributes::unsqueezed(&part.shape, &axes, &1)?;
                    }
                }
                return one(self.joined(&parts, at)?);
            }
            "SequenceAt" => {
                let Some(Value::List(parts)) = operands.pop() else { return None };
                let index = *facts.known_numbers(node.input(1)?)?.first()?;
                return one(parts.get(axis(index, parts.len())?)?.clone());
            }
            "Concat" => {
                let parts = operands.into_iter().map(Value::array).collect::<Option<Vec<_>>>()?;
                return one(
                    self.joined(&parts, axis(node.int("axis")?, parts.first()?.shape.len())?)?
                );
            }
            "Add" | "Sub" | "Mul" | "Div" => {
                let (b, a) = (operands.pop()?.array()?, operands.pop()?.array()?);
                return one(Array::arithmetic(&node.op_type, &a, &b, self.most_elements)?);
            }
            "GridSample" => {
                let (grid, image) = (operands.pop()?.array()?, operands.pop()?.array()?);
                return one(self.sample(&image, &grid)?);
            }
            _ => {}
        }
        let input = operands.pop()?.array()?;
        let rank = input.shape.len();
        match node.op_type.as_str() {
            "Identity" | "Cast" => one(input),
            "Reshape" => {
                let target = self.numbers(sizes, node.input(1)?)?;
                let allows_zero = node.int("allowzero").unwrap_or(0) != 0;
                let shape = reshape_target(&input.shape, &target, allows_zero)?;
                // A size that was open is what is left for it, or the model would not run.
                facts
                    .numbers(node.input(1)?)?
                    .iter()
                    .zip(&shape)
                    .for_each(|(dim, &size)| sizes.set(dim, size));
                one(input.reshaped(shape)?)
            }
            "Flatten" => {
                let at = node.int("axis").unwrap_or(1);
                let at = if usize::try_from(at) == Ok(rank) { rank } else { axis(at, rank)? };
                let shape = vec![elements(&input.shape[..at])?, elements(&input.shape[at..])?];
                one(input.reshaped(shape)?)
            }
            "Transpose" => one(input.transposed(&attributes::permutation(node, rank)?)?),
            "Unsqueeze" => {
                let shape =
                    attributes::unsqueezed(&input.shape, &attributes::axes(facts, node)?, &1)?;
                one(input.reshaped(shape)?)
            }
            "Squeeze" => {
                let axes = attributes::axes(facts, node)?;
                let shape = attributes::squeezed(&input.shape, &axes, |&size| size == 1)?;
                one(input.reshaped(shape)?)
            }
            "Slice" => one(input.sliced(&attributes::slices(facts, node)?)?),
            "Gather" => {
                let name = node.input(1)?;
                let indices = facts.known_numbers(name)?;
                let shape = sizes.shape(facts.shape(name)?)?;
                let at = axis(node.int("axis").unwrap_or(0), rank)?;
                let row = input.data.len().checked_div(input.shape[at])?;
                if row.checked_mul(indices.len())? > self.most_elements {
                    return None;
                }
                one(input.gathered(at, &indices, &shape)?)
            }
            "Expand" => {
                let target = self.numbers(sizes, node.input(1)?)?;
                let target: Vec<usize> =
                    target.iter().map(|x| usize::try_from((*x)?).ok()).collect::<Option<_>>()?;
                let shape = crate::array::broadcast(&input.shape, &target)?;
                if elements(&shape)? > self.most_elements {
                    return None;
                }
                one(input.expanded(&shape)?)
            }
            "Split" | "SplitToSequence" => {
                let at = axis(node.int("axis").unwrap_or(0), rank)?;
                let pieces = if node.op_type == "Split" {
                    attributes::split_sizes(facts, node, Some(input.shape[at]))?
                } else {
                    let name = node.input(1)?;
                    let given = facts.known_numbers(name)?;
                    let is_scalar = facts.shape(name)?.is_empty();
                    let sizes: Vec<usize> =
                        given.iter().map(|&x| usize::try_from(x).ok()).collect::<Option<_>>()?;
                    let chunk = *sizes.first()?;
                    if !is_scalar {
                        sizes
                    } else if chunk > 0 && input.shape[at] / chunk <= 1024 {
                        let starts = (0..input.shape[at]).step_by(chunk);
                        starts.map(|start| chunk.min(input.shape[at] - start)).collect()
                    } else {
                        return None;
                    }
                };
                let mut start = 0usize;
                let mut parts = Vec::with_capacity(pieces.len());
                for size in pieces {
                    parts.push(input.part(at, start, size)?);
                    start += size;
                }
                if start != input.shape[at] {
                    return None;
                }
                Some(if node.op_type == "Split" {
                    parts.into_iter().map(Value::Array).collect()
                } else {
                    vec![Value::List(parts)]
                })
            }
            "ReduceSum" => {
                let axes = attributes::axes(facts, node)?;
                let is_nothing =
                    axes.is_empty() && node.int("noop_with_empty_axes").unwrap_or(0) != 0;
                let axes: Vec<usize> =
                    axes.iter().map(|&a| axis(a, rank)).collect::<Option<_>>()?;
                if is_nothing {
                    return None;
                }
                one(self.sum(&input, &axes, node.int("keepdims").unwrap_or(1) != 0)?)
            }
            _ => None,
        }
    }

    fn joined<T: Element>(&self, parts: &[Array<T>], at: usize) -> Option<Array<T>> {
        let total = parts.iter().try_fold(0usize, |sum, part| sum.checked_add(part.data.len()))?;
        if total > self.most_elements {
            return None;
        }
        Array::concatenated(&parts.iter().collect::<Vec<_>>(), at)
    }

    /// Whether the samples of a node are those of the attention: bilinear, zero outside, corners not aligned.
    pub(crate) fn samples_as_attention(node: &Node) -> bool {
        let mode = node.text("mode").unwrap_or("bilinear");
        matches!(mode, "bilinear" | "linear")
            && node.text("padding_mode").unwrap_or("zeros") == "zeros"
            && node.int("align_corners").unwrap_or(0) == 0
    }
}

/// What only numbers can do.
pub(crate) trait Sampler<T> {
    fn sample(&self, image: &Array<T>, grid: &Array<T>) -> Option<Array<T>>;
    fn sum(&self, array: &Array<T>, axes: &[usize], keeps: bool) -> Option<Array<T>>;
}

impl Sampler<f64> for Context<'_> {
    fn sample(&self, image: &Array<f64>, grid: &Array<f64>) -> Option<Array<f64>> {
        image.grid_sampled(grid, self.most_elements)
    }

    fn sum(&self, array: &Array<f64>, axes: &[usize], keeps: bool) -> Option<Array<f64>> {
        array.summed(axes, keeps)
    }
}

macro_rules! marks_are_only_moved {
    ($($kind:ty),*) => {$(
        impl Sampler<$kind> for Context<'_> {
            fn sample(&self, _: &Array<$kind>, _: &Array<$kind>) -> Option<Array<$kind>> {
                None
            }

            fn sum(&self, _: &Array<$kind>, _: &[usize], _: bool) -> Option<Array<$kind>> {
                None
            }
        }
    )*};
}
marks_are_only_moved!(u32, (u32, u32));

#[derive(Clone, Debug)]
enum Value<T> {
    Array(Array<T>),
    List(Vec<Array<T>>),
}

impl<T> Value<T> {
    fn array(self) -> Option<Array<T>> {
        match self {
            Self::Array(array) => Some(array),
            Self::List(_) => None,
        }
    }
}

/// A shape from what `Reshape` is told; one size may be open.
fn reshape_target(
    input: &[usize],
    target: &[Option<i64>],
    allows_zero: bool,
) -> Option<Vec<usize>> {
    let mut open = None;
    let mut shape = Vec::with_capacity(target.len());
    for (at, &size) in target.iter().enumerate() {
        match size {
            Some(0) if !allows_zero => shape.push(*input.get(at)?),
            None | Some(-1) => {
                if open.replace(at).is_some() {
                    return None;
                }
                shape.push(1);
            }
            Some(size) => shape.push(usize::try_from(size).ok()?),
        }
    }
    if let Some(open) = open {
        let (all, rest) = (elements(input)?, elements(&shape)?);
        if rest == 0 || all % rest != 0 {
            return None;
        }
        shape[open] = all / rest;
    }
    Some(shape)
}
