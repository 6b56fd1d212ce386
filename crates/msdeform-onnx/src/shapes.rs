//! What is known about shapes and about whole numbers that shapes are made of, without running anything.
//!
//! Only as much as exporters write around the attention; what another operator does to shapes comes from the model's
//! `value_info`, or is not known.

use std::collections::HashMap;

use crate::dim::{Dim, Symbol, product};
use crate::graph::Graph;
use crate::proto::{Node, Tensor, ValueInfo, data_type};

/// Ranks past this are not followed.
const MOST_AXES: usize = 12;
/// Lists of whole numbers past this are not followed.
const MOST_NUMBERS: usize = 256;

pub(crate) type Dims = Vec<Dim>;

/// Facts about every tensor of a graph.
#[derive(Debug, Default)]
pub(crate) struct Facts {
    shapes: HashMap<String, Dims>,
    numbers: HashMap<String, Dims>,
    types: HashMap<String, i32>,
    /// Names of symbols; `None` if the model does not name the symbol.
    symbols: Vec<Option<String>>,
    named: HashMap<String, Symbol>,
}

/// An axis counted from the front.
pub(crate) fn axis(number: i64, rank: usize) -> Option<usize> {
    let rank_number = i64::try_from(rank).ok()?;
    let number = if number < 0 { number.checked_add(rank_number)? } else { number };
    usize::try_from(number).ok().filter(|&axis| axis < rank)
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
        self.numbers.get(name)
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
        if tensor.dims.len() <= MOST_AXES {
            self.shapes
                .insert(name.to_owned(), tensor.dims.iter().map(|&dim| dim.into()).collect());
        }
        if let Some(numbers) = tensor.read_ints().filter(|numbers| numbers.len() <= MOST_NUMBERS) {
            self.numbers.insert(name.to_owned(), numbers.into_iter().map(Dim::from).collect());
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

    fn set(&mut self, name: Option<&String>, dims: Option<Dims>) {
        if let (Some(name), Some(dims)) = (name, dims)
            && dims.len() <= MOST_AXES
            && !name.is_empty()
        {
            self.shapes.insert(name.clone(), dims);
        }
    }

    fn set_numbers(&mut self, name: Option<&String>, numbers: Option<Dims>) {
        if let (Some(name), Some(numbers)) = (name, numbers)
            && numbers.len() <= MOST_NUMBERS
        {
            self.numbers.insert(name.clone(), numbers);
        }
    }

    fn follow(&mut self, graph: &Graph<'_>, node: &Node) {
        if !matches!(node.domain.as_str(), "" | "ai.onnx") {
            return;
        }
        let output = node.output.first();
        let of = |facts: &Self, index: usize| {
            node.input(index).and_then(|name| facts.shapes.get(name)).cloned()
        };
        let first = of(self, 0);
        // Of arithmetic, all operands are of one type; that of one may be known and of another not. The first of `Where` is a mask.
        let typed = match node.op_type.as_str() {
            "Add" | "Sub" | "Mul" | "Div" | "Concat" => node.input.as_slice(),
            "Where" => node.input.get(1..).unwrap_or_default(),
            _ => node.input.get(..1).unwrap_or_default(),
        };
        if let Some(data_type) = typed.iter().find_map(|name| self.data_type(name)) {
            let data_type = match node.op_type.as_str() {
                "Cast" => node.int("to").and_then(|to| i32::try_from(to).ok()).unwrap_or(0),
                "Shape" | "Size" | "ArgMax" | "NonZero" => data_type::INT64,
                "Equal" | "Less" | "Greater" | "Not" | "TopK" => 0,
                _ => data_type,
            };
            for name in &node.output {
                self.types.entry(name.clone()).or_insert(data_type);
            }
        }
        let numbers = node.input(0).and_then(|name| self.numbers.get(name)).cloned();
        match node.op_type.as_str() {
            "Constant" => {
                if let (Some(name), Some(tensor)) =
                    (output, node.attribute("value").and_then(|value| value.t.as_ref()))
                {
                    self.note_tensor(name, tensor);
                } else if let Some(values) = node.ints("value_ints") {
                    self.set(output, Some(vec![(values.len() as i64).into()]));
                    self.set_numbers(
                        output,
                        Some(values.iter().map(|&value| value.into()).collect()),
                    );
                } else if let Some(value) = node.int("value_int") {
                    self.set(output, Some(vec![]));
                    self.set_numbers(output, Some(vec![value.into()]));
                } else if node.attribute("value_float").is_some() {
                    self.set(output, Some(vec![]));
                }
            }
            "Identity" | "Cast" | "CastLike" => {
                self.set(output, first);
                self.set_numbers(output, numbers);
            }
            "Relu"
            | "Sigmoid"
            | "Softmax"
            | "LogSoftmax"
            | "Clip"
            | "Sqrt"
            | "Exp"
            | "Log"
            | "Neg"
            | "Erf"
            | "Gelu"
            | "Tanh"
            | "Floor"
            | "Abs"
            | "Not"
            | "Dropout"
            | "BatchNormalization"
            | "InstanceNormalization"
            | "LayerNormalization"
            | "HardSigmoid"
            | "LeakyRelu"
            | "HardSwish"
            | "Softplus"
            | "Sin"
            | "Cos"
            | "Reciprocal"
            | "CumSum" => self.set(output, first),
            "Add" | "Sub" | "Mul" | "Div" | "Pow" | "Min" | "Max" | "Equal" | "Less"
            | "Greater" | "And" | "Or" => {
                let second = of(self, 1);
                let dims = match (first, second) {
                    (Some(a), Some(b)) => self.broadcast(&a, &b),
                    (Some(one), None) | (None, Some(one)) => self.beside_unknown(&one),
                    (None, None) => None,
                };
                self.set(output, dims);
                let other = node.input(1).and_then(|name| self.numbers.get(name)).cloned();
                let result =
                    numbers.zip(other).and_then(|(a, b)| self.arithmetic(&node.op_type, &a, &b));
                self.set_numbers(output, result);
            }
            "Where" => {
                let (a, b) = (of(self, 1), of(self, 2));
                let dims = a.zip(b).and_then(|(a, b)| self.broadcast(&a, &b));
                let dims = dims.zip(first).and_then(|(a, b)| self.broadcast(&a, &b));
                self.set(output, dims);
            }
            "MatMul" => {
                let dims = first.zip(of(self, 1)).and_then(|(a, b)| self.matmul(&a, &b));
                self.set(output, dims);
            }
            "Gemm" => {
                let column = |dims: Dims, flag: &str, axis: usize| {
                    let at = if node.int(flag).unwrap_or(0) == 0 { axis } else { 1 - axis };
                    dims.get(at).cloned()
                };
                let dims = first.zip(of(self, 1)).and_then(|(a, b)| {
                    Some(vec![column(a, "transA", 0)?, column(b, "transB", 1)?])
                });
                self.set(output, dims);
            }
            "GatherElements" => {
                let dims = of(self, 1);
                self.set(output, dims);
            }
            "GridSample" => {
                let dims = first.zip(of(self, 1)).and_then(|(image, grid)| {
                    (image.len() == 4 && grid.len() == 4).then(|| {
                        vec![image[0].clone(), image[1].clone(), grid[1].clone(), grid[2].clone()]
                    })
                });
                self.set(output, dims);
            }
            "Shape" => {
                let dims = first.or_else(|| self.guessed_shape(graph, node));
                let Some(dims) = dims else { return };
                let bound = |name: &str, otherwise: usize| {
                    let rank = dims.len() as i64;
                    let number =
                        node.int(name).map(|x| if x < 0 { x.saturating_add(rank) } else { x });
                    number.map_or(otherwise, |x| usize::try_from(x.clamp(0, rank)).unwrap_or(0))
                };
                let (start, end) = (bound("start", 0), bound("end", dims.len()));
                let part: Dims = dims.get(start..end).unwrap_or(&[]).to_vec();
                self.set(output, Some(vec![(part.len() as i64).into()]));
                self.set_numbers(output, Some(part));
            }
            "Size" => {
                self.set(output, Some(vec![]));
                self.set_numbers(
                    output,
                    first.and_then(|dims| product(&dims)).map(|size| vec![size]),
                );
            }
            "ConstantOfShape" | "Range" => {
                if node.op_type == "ConstantOfShape" {
                    self.set(output, numbers);
                }
            }
            "Expand" => {
                let target = node.input(1).and_then(|name| self.numbers.get(name)).cloned();
                let dims = first.zip(target).and_then(|(a, b)| self.broadcast(&a, &b));
                self.set(output, dims);
            }
            "ReduceSum" | "ReduceMean" | "ReduceMax" | "ReduceMin" | "ReduceProd" => {
                let axes = crate::attributes::axes(self, node);
                let keeps = node.int("keepdims").unwrap_or(1) != 0;
                let dims = first.and_then(|dims| {
                    let axes = axes?;
                    let axes: Vec<usize> =
                        axes.iter().map(|&a| axis(a, dims.len())).collect::<Option<_>>()?;
                    let all = axes.is_empty();
                    let is_gone = |index: usize| all || axes.contains(&index);
                    let kept =
                        dims.iter().enumerate().filter(|(index, _)| keeps || !is_gone(*index));
                    Some(
                        kept.map(
                            |(index, dim)| if is_gone(index) { 1.into() } else { dim.clone() },
                        )
                        .collect(),
                    )
                });
                self.set(output, dims);
                if node.op_type == "ReduceProd" {
                    self.set_numbers(
                        output,
                        numbers.and_then(|all| product(&all)).map(|one| vec![one]),
                    );
                }
            }
            _ => self.follow_movement(node, first, numbers),
        }
    }

    /// Operators that move elements about.
    fn follow_movement(&mut self, node: &Node, first: Option<Dims>, numbers: Option<Dims>) {
        let output = node.output.first();
        match node.op_type.as_str() {
            "Reshape" => {
                let target = node.input(1).and_then(|name| self.numbers.get(name)).cloned();
                let allows_zero = node.int("allowzero").unwrap_or(0) != 0;
                let dims = target.map(|target| self.reshaped(first.as_ref(), &target, allows_zero));
                self.set(output, dims);
                self.set_numbers(output, numbers);
            }
            "Flatten" => {
                let dims = first.and_then(|dims| {
                    let at = node.int("axis").unwrap_or(1);
                    let at =
                        if at == dims.len() as i64 { dims.len() } else { axis(at, dims.len())? };
                    Some(vec![product(&dims[..at])?, product(&dims[at..])?])
                });
                self.set(output, dims);
            }
            "Transpose" => {
                let dims = first.and_then(|dims| {
                    let perm = crate::attributes::permutation(node, dims.len())?;
                    Some(perm.into_iter().map(|at| dims[at].clone()).collect())
                });
                self.set(output, dims);
            }
            "Unsqueeze" => {
                let axes = crate::attributes::axes(self, node);
                let dims = first.zip(axes).and_then(|(dims, axes)| {
                    crate::attributes::unsqueezed(&dims, &axes, &Dim::from(1))
                });
                self.set(output, dims);
                self.set_numbers(output, numbers);
            }
            "Squeeze" => {
                let axes = crate::attributes::axes(self, node);
                let dims = first.zip(axes).and_then(|(dims, axes)| {
                    let is_one = |dim: &Dim| dim.known() == Some(1);
                    crate::attributes::squeezed(&dims, &axes, is_one)
                });
                self.set(output, dims);
                self.set_numbers(output, numbers);
            }
            "Concat" => {
                let parts: Option<Vec<Dims>> =
                    node.input.iter().map(|name| self.shapes.get(name).cloned()).collect();
                let at = node.int("axis").unwrap_or(0);
                if let Some(parts) = parts {
                    let dims = self.concatenated(&parts, at);
                    self.set(output, dims);
                }
                let numbers: Option<Vec<Dims>> =
                    node.input.iter().map(|name| self.numbers.get(name).cloned()).collect();
                self.set_numbers(output, numbers.map(|parts| parts.concat()));
            }
            "Split" => {
                let Some(dims) = first else { return };
                let Some(at) = axis(node.int("axis").unwrap_or(0), dims.len()) else { return };
                let Some(sizes) = crate::attributes::split_sizes(self, node, dims[at].size())
                else {
                    return;
                };
                for (name, size) in node.output.iter().zip(sizes) {
                    let mut dims = dims.clone();
                    dims[at] = (size as i64).into();
                    self.set(Some(name), Some(dims));
                }
            }
            "Slice" => {
                let steps = crate::attributes::slices(self, node);
                if let (Some(mut dims), Some(steps)) = (first, &steps) {
                    for slice in steps {
                        let Some(at) = axis(slice.axis, dims.len()) else { return };
                        let size =
                            dims[at].size().and_then(|size| slice.range(size)).map(|range| range.1);
                        // Bounds from the front give the size of what is known to be long enough.
                        dims[at] = match size {
                            Some(size) => (size as i64).into(),
                            None => {
                                slice.size_from_front().map_or_else(|| self.fresh(None), Dim::from)
                            }
                        };
                    }
                    self.set(output, Some(dims));
                }
                let part = numbers.zip(steps).and_then(|(numbers, steps)| match &steps[..] {
                    [slice] if slice.axis == 0 || slice.axis == -1 => {
                        let (start, count, step) = slice.range(numbers.len())?;
                        let at = |i: usize| {
                            i64::try_from(start).ok()?.checked_add(step.checked_mul(i as i64)?)
                        };
                        (0..count)
                            .map(|i| numbers.get(usize::try_from(at(i)?).ok()?).cloned())
                            .collect::<Option<Dims>>()
                    }
                    _ => None,
                });
                self.set_numbers(output, part);
            }
            "Gather" => {
                let index_dims = node.input(1).and_then(|name| self.shapes.get(name)).cloned();
                let rank = first.as_ref().map(Vec::len);
                let at = rank.and_then(|rank| axis(node.int("axis").unwrap_or(0), rank));
                let dims = first
                    .zip(index_dims)
                    .zip(at)
                    .map(|((dims, index), at)| [&dims[..at], &index, &dims[at + 1..]].concat());
                self.set(output, dims);
                let indices = node.input(1).and_then(|name| self.known_numbers(name));
                let picked = numbers.filter(|_| rank == Some(1)).zip(indices).and_then(
                    |(numbers, indices)| {
                        let pick = |&index: &i64| numbers.get(axis(index, numbers.len())?).cloned();
                        indices.iter().map(pick).collect::<Option<Dims>>()
                    },
                );
                self.set_numbers(output, picked);
            }
            _ => {}
        }
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

    /// The shape of a sum whose other term is not known. What has as many axes as locations have is not broadcast to more:
    /// a site that assumes so is run, and would not run otherwise. Axes of size one may be broadcast.
    fn beside_unknown(&mut self, known: &Dims) -> Option<Dims> {
        let open = |facts: &mut Self, dim: &Dim| match dim.known() {
            Some(1) => facts.fresh(None),
            _ => dim.clone(),
        };
        (known.len() >= 5).then(|| known.iter().map(|dim| open(self, dim)).collect())
    }

    fn broadcast(&mut self, a: &Dims, b: &Dims) -> Option<Dims> {
        let rank = a.len().max(b.len());
        let one = Dim::from(1);
        let at = |dims: &Dims, index: usize| {
            (index + dims.len())
                .checked_sub(rank)
                .map_or_else(|| one.clone(), |at| dims[at].clone())
        };
        let join = |facts: &mut Self, a: Dim, b: Dim| match (a.known(), b.known()) {
            (Some(1), _) => b,
            (_, Some(1)) => a,
            (Some(_), _) => a,
            (_, Some(_)) => b,
            _ if a == b => a,
            _ => facts.fresh(None),
        };
        Some((0..rank).map(|index| join(self, at(a, index), at(b, index))).collect())
    }

    fn arithmetic(&mut self, op: &str, a: &Dims, b: &Dims) -> Option<Dims> {
        let count = if a.len() == 1 { b.len() } else { a.len() };
        if a.len() != 1 && b.len() != 1 && a.len() != b.len() {
            return None;
        }
        let at =
            |list: &Dims, index: usize| list.get(if list.len() == 1 { 0 } else { index }).cloned();
        (0..count)
            .map(|index| {
                let (a, b) = (at(a, index)?, at(b, index)?);
                match (op, a.known(), b.known()) {
                    ("Mul", ..) => a.times(&b),
                    ("Div", ..) => {
                        a.over(&b).or_else(|| Some(a.known()?.checked_div(b.known()?)?.into()))
                    }
                    ("Add", Some(a), Some(b)) => Some(a.checked_add(b)?.into()),
                    ("Sub", Some(a), Some(b)) => Some(a.checked_sub(b)?.into()),
                    ("Add" | "Sub", ..) => Some(self.fresh(None)),
                    _ => None,
                }
            })
            .collect()
    }

    fn matmul(&mut self, a: &Dims, b: &Dims) -> Option<Dims> {
        if a.len() < 2 || b.len() < 2 {
            return None;
        }
        let (a_batch, a_matrix) = a.split_at(a.len() - 2);
        let (b_batch, b_matrix) = b.split_at(b.len() - 2);
        let mut dims = self.broadcast(&a_batch.to_vec(), &b_batch.to_vec())?;
        dims.extend([a_matrix[0].clone(), b_matrix[1].clone()]);
        Some(dims)
    }

    fn concatenated(&mut self, parts: &[Dims], at: i64) -> Option<Dims> {
        let first = parts.first()?;
        let at = axis(at, first.len())?;
        let mut dims = first.clone();
        let sizes = parts.iter().map(|part| part.get(at).and_then(Dim::known));
        let total = sizes.into_iter().try_fold(0i64, |sum, size| sum.checked_add(size?));
        dims[at] = total.map_or_else(|| self.fresh(None), Dim::from);
        // A size that any part knows is that of all.
        for (index, dim) in dims.iter_mut().enumerate().filter(|(index, _)| *index != at) {
            let known =
                parts.iter().filter_map(|part| part.get(index)).find(|dim| dim.known().is_some());
            if let Some(known) = known {
                *dim = known.clone();
            }
        }
        Some(dims)
    }

    fn reshaped(&mut self, input: Option<&Dims>, target: &Dims, allows_zero: bool) -> Dims {
        let mut dims = Vec::with_capacity(target.len());
        let mut open = None;
        for (index, dim) in target.iter().enumerate() {
            match dim.known() {
                Some(0) if !allows_zero => {
                    let same = input.and_then(|input| input.get(index)).cloned();
                    let same = same.unwrap_or_else(|| self.fresh(None));
                    dims.push(same);
                }
                Some(-1) => {
                    open = Some(index);
                    dims.push(1.into());
                }
                _ => dims.push(dim.clone()),
            }
        }
        if let Some(open) = open {
            let rest =
                input.and_then(product).zip(product(&dims)).and_then(|(all, rest)| all.over(&rest));
            dims[open] = rest.unwrap_or_else(|| self.fresh(None));
        }
        dims
    }
}
