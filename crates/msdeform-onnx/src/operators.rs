//! What the standard's operators do, one table each: to the shapes of their inputs ([`Call::shapes`]) and to the elements
//! ([`Call::elements`]).
//!
//! The tables hold what exporters write around the attention. The shapes of other operators come from the model's
//! `value_info`, or are not known.

use crate::array::{Array, Element, elements};
use crate::attributes::{
    axes, axis, permutation, sliced_axes, slices, split_sizes, squeezed, unsqueezed,
};
use crate::dim::{Dim, Dims, Sizes, product};
use crate::facts::Facts;
use crate::proto::{Node, data_type};

/// Operators whose output has the shape of their first input.
const KEEP_THE_SHAPE: &str = "Abs BatchNormalization BiasGelu Cast CastLike Ceil Clip Cos CumSum DequantizeLinear Dropout \
    Elu Erf Exp FastGelu Floor Gelu GroupNormalization HardSigmoid HardSwish Identity InstanceNormalization \
    LayerNormalization LeakyRelu Log LogSoftmax Mish Neg Not PRelu QuantizeLinear QuickGelu RMSNormalization Reciprocal Relu Round \
    ScatterElements ScatterND Sigmoid Sign Sin SkipLayerNormalization Softmax Softplus Sqrt Swish Tanh Trilu";
/// Operators of two inputs that are broadcast.
const BROADCAST: &str =
    "Add And Div Equal Greater GreaterOrEqual Less LessOrEqual Max Min Mod Mul Or Pow Sub Xor";
/// Operators that move the elements of their first input, and do nothing else. `Cast` is one unless it drops fractions.
const MOVE_THEIR_INPUT: &str = "Cast Expand Flatten Gather Identity Reshape SequenceAt Slice Split SplitToSequence Squeeze \
    Transpose Unsqueeze";
/// Operators that put the elements of their inputs together.
const JOIN_THEIR_INPUTS: &str = "Concat ConcatFromSequence SequenceConstruct";
/// Operators that compute with all of their inputs.
const COMPUTE: &str = "Add And Ceil Clip Div Equal Floor Gather GatherElements GatherND Greater GreaterOrEqual GridSample \
    Less LessOrEqual MatMul Max Min Mod Mul Neg Not Or Range Sub Where";
/// Operators that compute with their first input, where the others are sizes or axes.
const COMPUTE_FIRST: &str = "Cast ConstantOfShape CumSum Pad ReduceProd ReduceSum Shape Tile";

/// Pieces of a sequence, at most.
const MOST_PIECES: usize = 1024;

fn is_in(list: &str, op: &str) -> bool {
    list.split(' ').any(|one| one == op)
}

/// Whether a node moves elements of its first input alone.
pub(crate) fn is_movement(facts: &Facts, node: &Node) -> bool {
    let does_more = match node.op_type.as_str() {
        "Cast" => {
            let to = node.int("to").and_then(|to| i32::try_from(to).ok()).unwrap_or(0);
            let from = node.input(0).and_then(|name| facts.data_type(name));
            !data_type::has_fractions(to) && from != Some(to)
        }
        "Gather" => node.input(1).is_none_or(|name| facts.known_numbers(name).is_none()),
        _ => false,
    };
    node.is_standard() && !does_more && is_in(MOVE_THEIR_INPUT, &node.op_type)
}

pub(crate) fn is_join(node: &Node) -> bool {
    node.is_standard() && is_in(JOIN_THEIR_INPUTS, &node.op_type)
}

/// Names of the inputs whose elements become those of the output; none for operators that are not followed.
pub(crate) fn data_inputs<'n>(facts: &Facts, node: &'n Node) -> Vec<&'n str> {
    let count = match node.op_type.as_str() {
        _ if is_movement(facts, node) => 1,
        _ if is_join(node) => usize::MAX,
        op if node.is_standard() && is_in(COMPUTE, op) => usize::MAX,
        op if node.is_standard() && is_in(COMPUTE_FIRST, op) => 1,
        _ => 0,
    };
    node.input.iter().map(String::as_str).filter(|name| !name.is_empty()).take(count).collect()
}

/// An array, or a sequence of them.
#[derive(Clone, Debug)]
pub(crate) enum Value<T> {
    Array(Array<T>),
    List(Vec<Array<T>>),
}

impl<T> Value<T> {
    /// Its shape; that of a sequence is not followed.
    pub(crate) fn shape(&self) -> &[usize] {
        match self {
            Self::Array(array) => &array.shape,
            Self::List(_) => &[],
        }
    }

    fn array(self) -> Option<Array<T>> {
        match self {
            Self::Array(array) => Some(array),
            Self::List(_) => None,
        }
    }
}

/// A node and what is known about its inputs.
#[derive(Debug)]
pub(crate) struct Call<'a> {
    facts: &'a Facts,
    sizes: &'a Sizes,
    node: &'a Node,
    inputs: Vec<Option<Dims>>,
}

impl<'a> Call<'a> {
    /// With the shapes that the model tells, where symbols have these sizes.
    pub(crate) fn new(facts: &'a Facts, sizes: &'a Sizes, node: &'a Node) -> Self {
        let shape = |name: &String| facts.shape(name).map(|dims| sizes.known(dims));
        Self { facts, sizes, node, inputs: node.input.iter().map(shape).collect() }
    }

    /// The same, where arrays of these shapes are the first inputs.
    pub(crate) fn on<'s>(mut self, shapes: impl IntoIterator<Item = &'s [usize]>) -> Self {
        for (input, shape) in self.inputs.iter_mut().zip(shapes) {
            *input = Some(shape.iter().map(|&size| size.into()).collect());
        }
        self
    }

    pub(crate) fn dims(&self, index: usize) -> Option<&Dims> {
        self.inputs.get(index)?.as_ref()
    }

    pub(crate) const fn node(&self) -> &'a Node {
        self.node
    }

    /// Whether an input holds whole numbers.
    pub(crate) fn is_whole(&self, index: usize) -> bool {
        let kind = self.node.input(index).and_then(|name| self.facts.data_type(name));
        kind.is_some_and(|kind| matches!(kind, data_type::INT32 | data_type::INT64))
    }

    pub(crate) fn numbers(&self, index: usize) -> Option<Dims> {
        let name = self.node.input(index)?;
        self.sizes.numbers(name, self.facts.numbers(name))
    }

    pub(crate) fn known_numbers(&self, index: usize) -> Option<Vec<i64>> {
        self.known(self.node.input(index)?)
    }

    fn known(&self, name: &str) -> Option<Vec<i64>> {
        let numbers = self.sizes.numbers(name, self.facts.numbers(name))?;
        numbers.iter().map(Dim::known).collect()
    }

    /// What `Pad` adds before and after every axis.
    pub(crate) fn pads(&self) -> Option<Vec<i64>> {
        let pads = match self.node.ints("pads") {
            Some(pads) => pads.to_vec(),
            None => self.known_numbers(1)?,
        };
        let rank = self.dims(0)?.len();
        if self.node.input(3).is_none() {
            return Some(pads);
        }
        let (mut all, axes) = (vec![0; 2 * rank], self.known_numbers(3)?);
        for (at, &number) in axes.iter().enumerate() {
            let axis = axis(number, rank)?;
            (all[axis], all[rank + axis]) = (*pads.get(at)?, *pads.get(axes.len() + at)?);
        }
        Some(all)
    }

    pub(crate) fn floats(&self, index: usize) -> Option<&[f64]> {
        self.facts.floats(self.node.input(index)?)
    }

    pub(crate) fn axis(&self, default: i64, rank: usize) -> Option<usize> {
        axis(self.node.int("axis").unwrap_or(default), rank)
    }

    fn has(&self, flag: &str, default: i64) -> bool {
        self.node.int(flag).unwrap_or(default) != 0
    }

    /// The axes that a reduction sums up.
    pub(crate) fn reduced_axes(&self, rank: usize) -> Option<Vec<usize>> {
        let axes = axes(&|name| self.known(name), self.node)?;
        if !axes.is_empty() {
            return axes.iter().map(|&at| axis(at, rank)).collect();
        }
        Some(if self.has("noop_with_empty_axes", 0) { vec![] } else { (0..rank).collect() })
    }

    /// The shapes of the outputs. A size that does not follow is [`Dim::unknown`].
    pub(crate) fn shapes(&self) -> Option<Vec<Dims>> {
        let (node, first) = (self.node, self.dims(0));
        let dims = match node.op_type.as_str() {
            op if is_in(KEEP_THE_SHAPE, op) => first?.clone(),
            op if is_in(BROADCAST, op) => match (first, self.dims(1)) {
                (Some(a), Some(b)) => broadcast(a, b)?,
                (one, other) => beside_unknown(one.or(other)?)?,
            },
            "Where" => broadcast(&broadcast(self.dims(1)?, self.dims(2)?)?, first?)?,
            "MatMul" | "MatMulInteger" | "MatMulIntegerToFloat" | "DynamicQuantizeMatMul" => {
                multiplied(first?, self.dims(1)?)?
            }
            "FusedMatMul" => {
                let (mut a, mut b) = (first?.clone(), self.dims(1)?.clone());
                for (dims, flag) in [(&mut a, "transA"), (&mut b, "transB")] {
                    if let Some([.., rows, columns]) = self.has(flag, 0).then_some(&mut dims[..]) {
                        std::mem::swap(rows, columns);
                    }
                }
                multiplied(&a, &b)?
            }
            "Gemm" => {
                let (row, column) = (self.has("transA", 0), !self.has("transB", 0));
                let (a, b) = (first?.get(usize::from(row)), self.dims(1)?.get(usize::from(column)));
                vec![a?.clone(), b?.clone()]
            }
            "GatherElements" => self.dims(1)?.clone(),
            "GridSample" => match (&first?[..], &self.dims(1)?[..]) {
                ([batch, channels, _, _], [_, height, width, _]) => {
                    [batch, channels, height, width].map(Clone::clone).to_vec()
                }
                _ => return None,
            },
            "Size" => vec![],
            // The scale and the zero point are scalars.
            "DynamicQuantizeLinear" => return Some(vec![first?.clone(), vec![], vec![]]),
            "ConstantOfShape" => self.numbers(0)?,
            "Expand" => broadcast(first?, &self.numbers(1)?)?,
            op if op.starts_with("Reduce") => self.reduced(first?)?,
            "Reshape" => reshaped(first, &self.numbers(1)?, self.has("allowzero", 0))?,
            "Flatten" => {
                let (dims, at) = (first?, node.int("axis").unwrap_or(1));
                let is_end = usize::try_from(at) == Ok(dims.len());
                let at = if is_end { dims.len() } else { axis(at, dims.len())? };
                vec![product(&dims[..at])?, product(&dims[at..])?]
            }
            "Transpose" => {
                let dims = first?;
                permutation(node, dims.len())?.into_iter().map(|at| dims[at].clone()).collect()
            }
            "Unsqueeze" => {
                unsqueezed(first?, &axes(&|name| self.known(name), node)?, &Dim::from(1i64))?
            }
            "Squeeze" => squeezed(first?, &axes(&|name| self.known(name), node)?)?,
            "Concat" => self.concatenated()?,
            "Split" => return self.split(first?),
            "Slice" => self.sliced(first?)?,
            "Gather" => {
                let (dims, at) = (first?, self.axis(0, first?.len())?);
                [&dims[..at], self.dims(1)?, &dims[at + 1..]].concat()
            }
            _ => return crate::windows::shapes(self),
        };
        Some(vec![dims])
    }

    fn reduced(&self, dims: &Dims) -> Option<Dims> {
        let axes = self.reduced_axes(dims.len())?;
        let keeps = self.has("keepdims", 1);
        let of = |(at, dim): (usize, &Dim)| match axes.contains(&at) {
            false => Some(dim.clone()),
            true => keeps.then(|| 1i64.into()),
        };
        Some(dims.iter().enumerate().filter_map(of).collect())
    }

    fn concatenated(&self) -> Option<Dims> {
        let parts: Vec<&Dims> = self.inputs.iter().map(Option::as_ref).collect::<Option<_>>()?;
        let mut dims = (*parts.first()?).clone();
        let at = self.axis(0, dims.len())?;
        for (index, dim) in dims.iter_mut().enumerate() {
            let mut sizes = parts.iter().map(|part| part.get(index).and_then(Dim::known));
            if index == at {
                let total = sizes.try_fold(0i64, |sum, size| sum.checked_add(size?));
                *dim = total.map_or_else(Dim::unknown, Dim::from);
            } else if let Some(size) = sizes.flatten().next() {
                // A size that any part knows is that of all.
                *dim = size.into();
            }
        }
        Some(dims)
    }

    fn split(&self, dims: &Dims) -> Option<Vec<Dims>> {
        let at = self.axis(0, dims.len())?;
        let part = |size: usize| [&dims[..at], &[size.into()], &dims[at + 1..]].concat();
        Some(
            split_sizes(&|name| self.known(name), self.node, dims[at].size())?
                .into_iter()
                .map(part)
                .collect(),
        )
    }

    fn sliced(&self, dims: &Dims) -> Option<Dims> {
        let mut dims = dims.clone();
        let Some(slices) = slices(&|name| self.known(name), self.node) else {
            // Without the bounds the other axes are still as they were.
            for at in sliced_axes(&|name| self.known(name), self.node)? {
                *dims.get_mut(axis(at, self.dims(0)?.len())?)? = Dim::unknown();
            }
            return Some(dims);
        };
        for slice in slices {
            let dim = dims.get_mut(axis(slice.axis, self.dims(0)?.len())?)?;
            *dim = match dim.size().and_then(|size| slice.range(size)) {
                Some((_, count, _)) => count.into(),
                // Bounds from the front give the size of what is known to be long enough.
                None => slice.size_from_front().map_or_else(Dim::unknown, Dim::from),
            };
        }
        Some(dims)
    }

    /// The outputs, of `most` elements each at most.
    pub(crate) fn elements<T: Element>(
        &self,
        operands: Vec<Value<T>>,
        most: usize,
    ) -> Option<Vec<Value<T>>> {
        let op = self.node.op_type.as_str();
        if op.contains("Sequence") {
            return Some(vec![self.sequence(operands, most)?]);
        }
        let mut arrays: Vec<Array<T>> =
            operands.into_iter().map(Value::array).collect::<Option<_>>()?;
        if let Some(result) = T::computed(self, &arrays, most) {
            return Some(vec![Value::Array(result)]);
        }
        let shapes = self.shapes()?;
        let shape = resolved(shapes.first()?, arrays.first()?.data.len())?;
        if elements(&shape)? > most {
            return None;
        }
        let (first, second) = (&arrays[0], arrays.get(1));
        let rank = first.shape.len();
        let result = match op {
            "Identity" | "Cast" | "CastLike" | "Reshape" | "Flatten" | "Unsqueeze" | "Squeeze" => {
                arrays.swap_remove(0).reshaped(shape)
            }
            "Add" | "Sub" | "Mul" | "Div" => Array::arithmetic(op, first, second?, &shape),
            "GridSample" => T::sampled(first, second?),
            "ReduceSum" | "ReduceProd" => first.reduced(op, &self.reduced_axes(rank)?, shape),
            "Concat" => Array::concatenated(&arrays, self.axis(0, rank)?),
            "Transpose" => first.transposed(&permutation(self.node, rank)?),
            "Expand" => first.expanded(&shape),
            "Slice" => first.sliced(&slices(&|name| self.known(name), self.node)?),
            "Gather" => first.gathered(self.axis(0, rank)?, &self.known_numbers(1)?, shape),
            "Split" => {
                let at = self.axis(0, rank)?;
                let sizes: Option<Vec<usize>> = shapes.iter().map(|dims| dims[at].size()).collect();
                return Some(first.parts(at, &sizes?)?.into_iter().map(Value::Array).collect());
            }
            _ => None,
        };
        Some(vec![Value::Array(result?)])
    }

    fn sequence<T: Element>(&self, mut operands: Vec<Value<T>>, most: usize) -> Option<Value<T>> {
        if self.node.op_type == "SequenceConstruct" {
            return Some(Value::List(
                operands.into_iter().map(Value::array).collect::<Option<_>>()?,
            ));
        }
        match (self.node.op_type.as_str(), operands.pop()?) {
            ("SplitToSequence", Value::Array(array)) => {
                let at = self.axis(0, array.shape.len())?;
                Some(Value::List(array.parts(at, &self.pieces(array.shape[at])?)?))
            }
            ("SequenceAt", Value::List(parts)) => {
                let index = *self.known_numbers(1)?.first()?;
                Some(Value::Array(parts.get(axis(index, parts.len())?)?.clone()))
            }
            ("ConcatFromSequence", Value::List(mut parts)) => {
                let is_new = self.has("new_axis", 0);
                let rank = parts.first()?.shape.len() + usize::from(is_new);
                let at = axis(self.node.int("axis")?, rank)?;
                for part in parts.iter_mut().filter(|_| is_new) {
                    part.shape = unsqueezed(&part.shape, &[i64::try_from(at).ok()?], &1)?;
                }
                let lengths = parts.iter().map(|part| part.data.len());
                let total = lengths.into_iter().try_fold(0usize, usize::checked_add)?;
                (total <= most).then(|| Array::concatenated(&parts, at).map(Value::Array))?
            }
            _ => None,
        }
    }

    /// The sizes that `SplitToSequence` cuts an axis into: those of a list, or equal ones.
    fn pieces(&self, whole: usize) -> Option<Vec<usize>> {
        let given = self.known_numbers(1)?;
        let sizes: Vec<usize> =
            given.iter().map(|&size| usize::try_from(size).ok()).collect::<Option<_>>()?;
        if !self.dims(1)?.is_empty() {
            return Some(sizes);
        }
        let chunk = *sizes.first()?;
        let is_followed = chunk > 0 && whole / chunk <= MOST_PIECES;
        let starts = || (0..whole).step_by(chunk);
        is_followed.then(|| starts().map(|start| chunk.min(whole - start)).collect())
    }
}

/// Sizes that are numbers, of which one may be open: it holds what the others leave of the elements.
fn resolved(dims: &Dims, count: usize) -> Option<Vec<usize>> {
    let mut rest = Some(count);
    let is_open = |dim: &&Dim| dim.known().is_none();
    if dims.iter().any(|dim| is_open(&dim)) {
        let known: Vec<usize> =
            dims.iter().filter(|dim| !is_open(dim)).map(Dim::size).collect::<Option<_>>()?;
        let known = elements(&known).filter(|&known| known > 0 && count.is_multiple_of(known))?;
        rest = Some(count / known);
    }
    // A second size that is open finds nothing left.
    dims.iter().map(|dim| if is_open(&dim) { rest.take() } else { dim.size() }).collect()
}

/// The shape that two shapes have together. Symbols give way to numbers.
fn broadcast(a: &[Dim], b: &[Dim]) -> Option<Dims> {
    let rank = a.len().max(b.len());
    let at = |dims: &[Dim], index: usize| {
        (index + dims.len())
            .checked_sub(rank)
            .map_or_else(|| Dim::from(1i64), |at| dims[at].clone())
    };
    let join = |a: Dim, b: Dim| match (a.known(), b.known()) {
        _ if a == b => Some(a),
        (Some(1), _) => Some(b),
        (_, Some(1)) => Some(a),
        (Some(_), Some(_)) => None,
        (None, Some(_)) => Some(b),
        // Of two open sizes neither is one: exporters name sizes that may be broadcast.
        _ => Some(a),
    };
    (0..rank).map(|index| join(at(a, index), at(b, index))).collect()
}

/// The shape of a sum whose other term is not known. What has as many axes as locations have is not broadcast to more:
/// a site that assumes so is run, and would not run otherwise. Axes of size one may be broadcast.
fn beside_unknown(known: &Dims) -> Option<Dims> {
    let open = |dim: &Dim| if dim.known() == Some(1) { Dim::unknown() } else { dim.clone() };
    (known.len() >= 5).then(|| known.iter().map(open).collect())
}

fn multiplied(a: &Dims, b: &Dims) -> Option<Dims> {
    let (a_batch, [rows, _]) = a.split_last_chunk()?;
    let (b_batch, [_, columns]) = b.split_last_chunk()?;
    let mut dims = broadcast(a_batch, b_batch)?;
    dims.extend([rows.clone(), columns.clone()]);
    Some(dims)
}

fn reshaped(input: Option<&Dims>, target: &Dims, allows_zero: bool) -> Option<Dims> {
    let mut open = None;
    let mut dims = Vec::with_capacity(target.len());
    for (index, dim) in target.iter().enumerate() {
        dims.push(match (dim.known(), input) {
            (Some(0), Some(input)) if !allows_zero => input.get(index)?.clone(),
            (Some(0), None) if !allows_zero => Dim::unknown(),
            (Some(-1), _) if open.replace(index).is_some() => return None,
            (Some(-1), _) => 1i64.into(),
            _ => dim.clone(),
        });
    }
    if let Some(open) = open {
        let sizes = input.and_then(product).zip(product(&dims));
        dims[open] = sizes.and_then(|(all, rest)| all.over(&rest)).unwrap_or_else(Dim::unknown);
    }
    Some(dims)
}
