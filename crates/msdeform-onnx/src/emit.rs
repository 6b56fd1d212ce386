//! Writes a site in another form.

use std::collections::HashSet;

use crate::evaluate::Context;
use crate::facts::Facts;
use crate::form::{Form, Operator};
use crate::proto::{Attribute, Node, Tensor, data_type};
use crate::site::{Adaptation, Level, Levels, Operand, Site};

/// `GridSample` came with this opset.
const FIRST_OPSET_WITH_GRID_SAMPLE: i64 = 16;
/// `GridSample` calls its interpolation `linear` from this opset on.
const FIRST_OPSET_WITH_LINEAR: i64 = 20;

const OTHER_LEVELS: &str = "it has points of another number of levels";
/// Points of a query and head that are written out, at most.
const MOST_POINTS: usize = 1 << 14;

/// The nodes that stand for a site in a form, and what all of their names begin with; or why it has no such form.
pub(crate) fn nodes(
    context: &Context<'_>,
    site: &Site,
    to: Form,
    taken: &HashSet<&str>,
) -> Result<(Vec<Node>, String), String> {
    let mut prefix = format!("{}/msdeform", site.output);
    while taken.iter().any(|name| name.starts_with(&prefix)) {
        prefix.push('_');
    }
    let anchor = context.graph.node(site.anchor);
    let (site, transposed) = match site.is_output_transposed {
        true => {
            (&Site { output: format!("{prefix}/rows"), ..site.clone() }, Some(site.output.clone()))
        }
        false => (site, None),
    };
    let mut writer = Writer { facts: &context.facts, prefix, nodes: Vec::new() };
    let value = writer.operand(&site.value);
    let (locations, weights) = match &site.samples {
        Some([locations, weights]) => {
            let mut taken = |operand: &Operand| {
                let name = writer.operand(operand);
                (writer.as_taken(name, &operand.tensor, &site.value.tensor, to), operand.rank)
            };
            (taken(locations), taken(weights))
        }
        None => {
            let (locations, weights) = writer.samples_of_offsets(anchor, site)?;
            ((locations, 5), (weights, 4))
        }
    };
    match Operator::of_form(to) {
        Some(operator) => writer.one_node(site, operator, value, locations, weights)?,
        None => {
            let given = match &site.samples {
                Some(samples) => samples.each_ref().map(|samples| samples.tensor.as_str()),
                None => [4, 5].map(|at| anchor.input(at).unwrap_or_default()),
            };
            let opset = context.graph.model.opset();
            writer.grid_sample(site, opset, [&value, &locations.0, &weights.0], given)?;
        }
    }
    if let Some(output) = transposed {
        let perm = vec![Attribute::ints("perm", &[0, 2, 1])];
        writer.push_to("Transpose", &[&site.output], perm, vec![output]);
    }
    Ok((writer.nodes, writer.prefix))
}

/// The nodes from a tensor of the model to one of this name, as the operator takes it.
pub(crate) fn operand_nodes(facts: &Facts, operand: &Operand, name: &str) -> Vec<Node> {
    let mut writer = Writer { facts, prefix: name.to_owned(), nodes: Vec::new() };
    let last = writer.operand(operand);
    writer.push_to("Identity", &[&last], vec![], vec![name.to_owned()]);
    writer.nodes
}

struct Writer<'a> {
    facts: &'a Facts,
    prefix: String,
    nodes: Vec<Node>,
}

fn number(size: usize) -> i64 {
    i64::try_from(size).unwrap_or(i64::MAX)
}

impl Writer<'_> {
    fn fresh(&self) -> String {
        format!("{}/{}", self.prefix, self.nodes.len())
    }

    fn push(&mut self, op: &str, inputs: &[&str], attributes: Vec<Attribute>) -> String {
        let output = self.fresh();
        self.push_to(op, inputs, attributes, vec![output.clone()]);
        output
    }

    fn push_to(
        &mut self,
        op: &str,
        inputs: &[&str],
        attributes: Vec<Attribute>,
        outputs: Vec<String>,
    ) {
        let inputs = inputs.iter().map(|&name| name.to_owned()).collect();
        let node = Node::new("", op, self.fresh(), inputs, outputs);
        self.nodes.push(attributes.into_iter().fold(node, Node::with));
    }

    /// Locations and weights in a format that the node of a form takes: exporters write some in double, which no runtime has.
    fn as_taken(&mut self, name: String, tensor: &str, value: &str, to: Form) -> String {
        let (Some(kind), Some(of_value)) =
            (self.facts.data_type(tensor), self.facts.data_type(value))
        else {
            return name;
        };
        let is_taken = match to {
            Form::GridSample => true,
            Form::MsDeform => kind == of_value || kind == data_type::FLOAT,
            Form::Mmdeploy | Form::TensorRt => kind == of_value,
        };
        if is_taken {
            return name;
        }
        let kind = if to == Form::MsDeform { data_type::FLOAT } else { of_value };
        self.cast(&name, kind)
    }

    fn cast(&mut self, name: &str, to: i32) -> String {
        self.push("Cast", &[name], vec![Attribute::int("to", i64::from(to))])
    }

    fn constant(&mut self, tensor: Tensor) -> String {
        self.push("Constant", &[], vec![Attribute::tensor("value", tensor)])
    }

    fn ints(&mut self, values: &[i64]) -> String {
        self.constant(Tensor::of_ints(&[number(values.len())], values, true))
    }

    /// A constant in the type of a tensor; `f32` where that is not known.
    fn floats(&mut self, like: &str, dims: &[i64], values: &[f64]) -> String {
        let kind = self.facts.data_type(like).unwrap_or(data_type::FLOAT);
        self.constant(Tensor::of_floats(dims, values, kind))
    }

    fn reshape(&mut self, input: &str, target: &[i64]) -> String {
        let target = self.ints(target);
        self.push("Reshape", &[input, &target], vec![])
    }

    fn transpose(&mut self, input: &str, perm: &[i64]) -> String {
        self.push("Transpose", &[input], vec![Attribute::ints("perm", perm)])
    }

    fn operand(&mut self, operand: &Operand) -> String {
        let mut name = operand.tensor.clone();
        for step in &operand.steps {
            name = match step {
                Adaptation::Reshape(target) => self.reshape(&name, target),
                Adaptation::Transpose(perm) => self.transpose(&name, perm),
                Adaptation::Scale { factor, shift } => {
                    let factor = self.floats(&operand.tensor, &[], &[*factor]);
                    let shift = self.floats(&operand.tensor, &[], &[*shift]);
                    let scaled = self.push("Mul", &[&name, &factor], vec![]);
                    self.push("Add", &[&scaled, &shift], vec![])
                }
            };
        }
        name
    }

    /// Locations `[N, Lq, M, samples, 2]` and weights `[N, Lq, M, samples]` of `MSDeformAttnFromOffsets`.
    fn samples_of_offsets(&mut self, node: &Node, site: &Site) -> Result<(String, String), String> {
        if node.int("nearest").unwrap_or(0) != 0 {
            return Err("it takes the nearest pixel, which no other form does".into());
        }
        let levels = known_levels(site)?;
        let points = known_points(site)?;
        if points.len() != levels.len() {
            return Err(OTHER_LEVELS.into());
        }
        let input = |at: usize| node.input(at).unwrap_or_default().to_owned();
        let (references, given, logits) = (input(3), input(4), input(5));
        let dims = self.facts.shape(&references).filter(|dims| dims.len() == 4);
        let sizes = dims.and_then(|dims| Some((dims[2].size()?, dims[3].size()?)));
        let (count, components) = sizes
            .ok_or_else(|| format!("the shape of its references `{references}` is not known"))?;
        let has_anchors = node.int("anchors").unwrap_or(0) != 0;
        let samples = || {
            points
                .iter()
                .enumerate()
                .flat_map(|(level, &count)| (0..count).map(move |point| (level, point)))
        };
        let reference_of = |(level, point): (usize, usize)| match count {
            _ if has_anchors => number(point % count.max(1)),
            1 => 0,
            _ => number(level),
        };
        if !has_anchors && count != 1 && count != levels.len() {
            return Err(format!("it has {count} references for {} levels", levels.len()));
        }
        let total = number(points.iter().sum());
        let indices = self.ints(&samples().map(reference_of).collect::<Vec<_>>());
        let picked = self.push("Gather", &[&references, &indices], vec![Attribute::int("axis", 2)]);
        let picked = self.reshape(&picked, &[0, 0, 1, total, number(components)]);
        let offsets = self.reshape(&given, &[0, 0, 0, total, 2]);
        let (centres, moves) = if components == 4 {
            let (starts, middle, ends, axes) =
                (self.ints(&[0]), self.ints(&[2]), self.ints(&[4]), self.ints(&[4]));
            let centres = self.push("Slice", &[&picked, &starts, &middle, &axes], vec![]);
            let boxes = self.push("Slice", &[&picked, &middle, &ends, &axes], vec![]);
            let scale = f64::from(node.float("offset_scale").unwrap_or(0.5));
            let scales: Vec<f64> =
                samples().map(|(level, _)| scale / points[level] as f64).collect();
            let scales = self.floats(&given, &[total, 1], &scales);
            let parts = self.push("Mul", &[&offsets, &scales], vec![]);
            (centres, self.push("Mul", &[&parts, &boxes], vec![]))
        } else {
            let pixel = |(level, _): (usize, usize)| {
                [1.0 / levels[level].width as f64, 1.0 / levels[level].height as f64]
            };
            let pixels: Vec<f64> = samples().flat_map(pixel).collect();
            let pixels = self.floats(&given, &[total, 2], &pixels);
            (picked, self.push("Mul", &[&offsets, &pixels], vec![]))
        };
        let locations = self.push("Add", &[&centres, &moves], vec![]);
        let mut weights = self.reshape(&logits, &[0, 0, 0, total]);
        if node.int("softmax").unwrap_or(1) != 0 {
            weights = self.push("Softmax", &[&weights], vec![Attribute::int("axis", -1)]);
        }
        Ok((locations, weights))
    }

    fn one_node(
        &mut self,
        site: &Site,
        operator: &Operator,
        value: String,
        (mut locations, location_rank): (String, usize),
        (mut weights, weight_rank): (String, usize),
    ) -> Result<(), String> {
        let to = operator.form;
        let is_split = location_rank == 6 && weight_rank == 5;
        let is_flat = location_rank == 5 && weight_rank == 4;
        let takes_flat = to == Form::MsDeform;
        let fits = is_split || (is_flat && takes_flat);
        if !fits {
            let points = known_points(site)?;
            let levels = number(points.len());
            match site.uniform_points() {
                Some(points) => {
                    let points = number(points);
                    if location_rank != 6 {
                        locations = self.reshape(&locations, &[0, 0, 0, levels, points, 2]);
                    }
                    if weight_rank != 5 {
                        weights = self.reshape(&weights, &[0, 0, 0, levels, points]);
                    }
                }
                None if takes_flat => {
                    locations = self.reshape(&locations, &[0, 0, 0, -1, 2]);
                    weights = self.reshape(&weights, &[0, 0, 0, -1]);
                }
                None => {
                    return Err(format!(
                        "its levels have {points:?} points; the operator of {to} takes the same number on each"
                    ));
                }
            }
        }
        let (shapes, starts) = self.levels(site, to != Form::TensorRt);
        let gives_split = to == Form::TensorRt;
        let is_same = gives_split == site.is_output_split;
        let output = if is_same { site.output.clone() } else { format!("{}/output", self.prefix) };
        let inputs = vec![value, shapes, starts, locations, weights];
        let outputs = vec![output.clone()];
        let mut node = Node::new(operator.domain, operator.name, self.fresh(), inputs, outputs);
        if to == Form::Mmdeploy {
            // Of no meaning, but an attribute of the operator.
            node = node.with(Attribute::int("im2col_step", 64));
        }
        if let (Form::MsDeform, Some(points), None) = (to, &site.points, site.uniform_points()) {
            let points: Vec<i64> = points.iter().map(|&count| number(count)).collect();
            node = node.with(Attribute::ints("points", &points));
        }
        self.nodes.push(node);
        if !is_same {
            self.finish(site, &output)?;
        }
        Ok(())
    }

    /// Sizes and starts of the levels, in 64 bits if `is_wide`, else in 32.
    fn levels(&mut self, site: &Site, is_wide: bool) -> (String, String) {
        match &site.levels {
            Levels::Known(levels) => {
                let sizes: Vec<i64> = levels
                    .iter()
                    .flat_map(|level| [number(level.height), number(level.width)])
                    .collect();
                let firsts: Vec<i64> = levels.iter().map(|level| number(level.start)).collect();
                let count = number(levels.len());
                let shapes = self.constant(Tensor::of_ints(&[count, 2], &sizes, is_wide));
                (shapes, self.constant(Tensor::of_ints(&[count], &firsts, is_wide)))
            }
            Levels::Computed(sizes) => self.computed_levels(sizes, is_wide),
            Levels::Tensors { shapes, starts } => {
                let was_wide = site.form != Form::TensorRt;
                let kind = if is_wide { data_type::INT64 } else { data_type::INT32 };
                let mut converted = |name: &String| {
                    if is_wide == was_wide {
                        return name.clone();
                    }
                    self.cast(name, kind)
                };
                (converted(shapes), converted(starts))
            }
        }
    }

    /// The same, where the model computes the sizes: they are the last two numbers of a tensor for each level.
    fn computed_levels(&mut self, sizes: &[String], is_wide: bool) -> (String, String) {
        let (from, to) = (self.ints(&[-2]), self.ints(&[i64::MAX]));
        let slice =
            |writer: &mut Self, name: &String| writer.push("Slice", &[name, &from, &to], vec![]);
        let pairs: Vec<String> = sizes.iter().map(|name| slice(self, name)).collect();
        let names: Vec<&str> = pairs.iter().map(String::as_str).collect();
        let all = self.push("Concat", &names, vec![Attribute::int("axis", 0)]);
        let shapes = self.reshape(&all, &[-1, 2]);
        let zero = self.constant(Tensor::of_ints(&[], &[0], true));
        let side = |writer: &mut Self, at: i64| {
            let at = writer.constant(Tensor::of_ints(&[], &[at], true));
            writer.push("Gather", &[&shapes, &at], vec![Attribute::int("axis", 1)])
        };
        let (heights, widths) = (side(self, 0), side(self, 1));
        let areas = self.push("Mul", &[&heights, &widths], vec![]);
        let starts = self.push("CumSum", &[&areas, &zero], vec![Attribute::int("exclusive", 1)]);
        if is_wide {
            return (shapes, starts);
        }
        (self.cast(&shapes, data_type::INT32), self.cast(&starts, data_type::INT32))
    }

    /// From heads and channels together to apart or the reverse, into the site's output.
    fn finish(&mut self, site: &Site, output: &str) -> Result<(), String> {
        let target = match (site.is_output_split, site.heads, site.channels) {
            (false, ..) => vec![0, 0, -1],
            (true, Some(heads), _) => vec![0, 0, number(heads), -1],
            (true, None, Some(channels)) => vec![0, 0, -1, number(channels)],
            (true, None, None) => return Err("the number of its heads is not known".into()),
        };
        let target = self.ints(&target);
        self.push_to("Reshape", &[output, &target], vec![], vec![site.output.clone()]);
        Ok(())
    }

    /// Standard operators, of rank 5 at most. Batch and queries may be open: no size of theirs is written down, zeros of
    /// `Reshape` copy them and `Flatten` folds them.
    fn grid_sample(
        &mut self,
        site: &Site,
        opset: i64,
        [value, locations, weights]: [&str; 3],
        [given_locations, given_weights]: [&str; 2],
    ) -> Result<(), String> {
        if opset < FIRST_OPSET_WITH_GRID_SAMPLE {
            return Err(format!(
                "the model has opset {opset}, and GridSample is there from {FIRST_OPSET_WITH_GRID_SAMPLE} on; \
                 convert it first (onnx.version_converter)"
            ));
        }
        let levels = known_levels(site)?;
        let points = known_points(site)?;
        let heads = number(site.heads.ok_or("the number of its heads is not known")?);
        if points.len() != levels.len() {
            return Err(OTHER_LEVELS.into());
        }
        if levels.is_empty() || points.contains(&0) {
            return Err("it has no levels, or levels without points".into());
        }
        let total = number(points.iter().sum());
        let value_kind = self.facts.data_type(&site.value.tensor);
        let value = self.transpose(value, &[0, 2, 3, 1]);
        let values = self.slices(&value, 3, levels);
        let two = self.floats(given_locations, &[], &[2.0]);
        let one = self.floats(given_locations, &[], &[1.0]);
        let grids = self.reshape(locations, &[0, 0, 0, total, 2]);
        let grids = self.push("Mul", &[&grids, &two], vec![]);
        let grids = self.push("Sub", &[&grids, &one], vec![]);
        let grids = self.transpose(&grids, &[0, 2, 1, 3, 4]);
        let grids = self.split(&grids, 3, points);
        let mode = if opset < FIRST_OPSET_WITH_LINEAR { "bilinear" } else { "linear" };
        let mut samples = Vec::new();
        for (((level, image), grid), &count) in levels.iter().zip(&values).zip(&grids).zip(points) {
            let image = self.fold(image, &[0, -1, number(level.height), number(level.width)]);
            let grid = self.fold(grid, &[0, -1, number(count), 2]);
            let attributes = vec![
                Attribute::int("align_corners", 0),
                Attribute::text("mode", mode),
                Attribute::text("padding_mode", "zeros"),
            ];
            samples.push(self.push("GridSample", &[&image, &grid], attributes));
        }
        let names: Vec<&str> = samples.iter().map(String::as_str).collect();
        let stacked = match names[..] {
            [only] => only.to_owned(),
            _ => self.push("Concat", &names, vec![Attribute::int("axis", -1)]),
        };
        let mut weights = weights.to_owned();
        if let (Some(value), Some(kind)) = (value_kind, self.facts.data_type(given_weights))
            && value != kind
        {
            weights = self.cast(&weights, value);
        }
        let weights = self.reshape(&weights, &[0, 0, 0, total]);
        let weights = self.transpose(&weights, &[0, 2, 1, 3]);
        let weights = self.fold(&weights, &[0, 1, -1, total]);
        let products = self.push("Mul", &[&stacked, &weights], vec![]);
        let last = self.ints(&[-1]);
        let sums = self.push("ReduceSum", &[&products, &last], vec![Attribute::int("keepdims", 0)]);
        // [N * M, D, Lq] -> [Lq, D, N, M] -> [N, Lq, M, D]
        let sums = self.transpose(&sums, &[2, 1, 0]);
        let sums = self.reshape(&sums, &[0, 0, -1, heads]);
        if site.is_output_split {
            let perm = vec![Attribute::ints("perm", &[2, 0, 3, 1])];
            self.push_to("Transpose", &[&sums], perm, vec![site.output.clone()]);
        } else {
            let sums = self.transpose(&sums, &[2, 0, 3, 1]);
            self.finish(site, &sums)?;
        }
        Ok(())
    }

    /// The first two axes as one, and then another shape.
    fn fold(&mut self, input: &str, target: &[i64]) -> String {
        let folded = self.push("Flatten", &[input], vec![Attribute::int("axis", 2)]);
        self.reshape(&folded, target)
    }

    fn split(&mut self, input: &str, axis: i64, sizes: &[usize]) -> Vec<String> {
        if sizes.len() == 1 {
            return vec![input.to_owned()];
        }
        let given = self.ints(&sizes.iter().map(|&size| number(size)).collect::<Vec<_>>());
        let base = self.fresh();
        let outputs: Vec<String> = (0..sizes.len()).map(|part| format!("{base}.{part}")).collect();
        let axis = vec![Attribute::int("axis", axis)];
        self.push_to("Split", &[input, &given], axis, outputs.clone());
        outputs
    }

    /// The pixels of each level, along an axis. Levels may leave gaps, which no `Split` does.
    fn slices(&mut self, input: &str, axis: i64, levels: &[Level]) -> Vec<String> {
        let axes = self.ints(&[axis]);
        let slice = |Level { height, width, start }: &Level| {
            let end = number(start.saturating_add(height * width));
            let (start, end) = (self.ints(&[number(*start)]), self.ints(&[end]));
            self.push("Slice", &[input, &start, &end, &axes], vec![])
        };
        levels.iter().map(slice).collect()
    }
}

fn known_levels(site: &Site) -> Result<&[Level], String> {
    match &site.levels {
        Levels::Known(levels) => Ok(levels),
        Levels::Tensors { shapes, starts } => {
            Err(format!("the sizes of its levels are no constants: `{shapes}`, `{starts}`"))
        }
        Levels::Computed(names) => {
            Err(format!("the sizes of its levels are no constants: `{}`", names.join("`, `")))
        }
    }
}

fn known_points(site: &Site) -> Result<&[usize], String> {
    let points = site.points.as_deref().ok_or("how many points its levels have is not known")?;
    if site.total_points().is_none_or(|total| total > MOST_POINTS) {
        return Err(format!("it has more than {MOST_POINTS} points"));
    }
    Ok(points)
}
