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

/// The nodes that stand for a site in another form, and what all of their names begin with.
pub(crate) type Written = (Vec<Node>, String);

/// Writes a site in a form, or says why it has no such form.
pub(crate) fn nodes(
    context: &Context<'_>,
    site: &Site,
    to: Form,
    has_heads_apart: bool,
    taken: &HashSet<&str>,
) -> Result<Written, String> {
    let mut prefix = format!("{}/msdeform", site.output);
    while taken.iter().any(|name| name.starts_with(&prefix)) {
        prefix.push('_');
    }
    let anchor = context.graph.node(site.anchor);
    let of_output = context.facts.data_type(&site.output);
    let of_value = context.facts.data_type(&site.value.tensor);
    let last = [
        site.is_output_transposed.then(|| ("Transpose", Attribute::ints("perm", &[0, 2, 1]))),
        of_output
            .filter(|_| of_value.is_some() && of_value != of_output)
            .map(|kind| ("Cast", Attribute::int("to", i64::from(kind)))),
    ];
    let last: Vec<(&str, Attribute)> = last.into_iter().flatten().collect();
    let whole = site;
    let inner = Site { output: format!("{prefix}/rows"), ..site.clone() };
    let site = if last.is_empty() { site } else { &inner };
    let mut writer = Writer { facts: &context.facts, prefix, nodes: Vec::new() };
    let value = writer.operand(&site.value);
    let coordinates = writer.coordinates(site, to);
    let (locations, weights) = match &site.samples {
        Some([locations, weights]) => {
            let of_locations = match coordinates {
                Some(kind) => writer.operand_in(locations, kind),
                None => writer.operand(locations),
            };
            let of_weights = writer.operand(weights);
            let mut taken = |name: String, operand: &Operand| {
                (writer.as_taken(name, &operand.tensor, &site.value.tensor, to), operand.rank)
            };
            (taken(of_locations, locations), taken(of_weights, weights))
        }
        None => {
            let (locations, weights) = writer.samples_of_offsets(anchor, site, coordinates)?;
            ((locations, 5), (weights, 4))
        }
    };
    let of_weights = match &site.samples {
        Some([_, weights]) => weights.tensor.as_str(),
        None => anchor.input(5).unwrap_or_default(),
    };
    let opset = context.graph.model.opset();
    match (Operator::of_form(to), to) {
        (Some(operator), _) => writer.one_node(site, operator, value, locations, weights)?,
        (None, Form::Gather) => {
            writer.gather(site, opset, [&value, &locations.0, &weights.0], of_weights)?;
        }
        (None, _) if has_heads_apart => {
            writer.heads_apart(site, opset, [&value, &locations.0, &weights.0], of_weights)?;
        }
        (None, _) => {
            writer.grid_sample(site, opset, [&value, &locations.0, &weights.0], of_weights)?;
        }
    }
    let (mut name, count) = (site.output.clone(), last.len());
    for (at, (op, attribute)) in last.into_iter().enumerate() {
        let output = if at + 1 == count { whole.output.clone() } else { writer.fresh() };
        writer.push_to(op, &[&name], vec![attribute], vec![output.clone()]);
        name = output;
    }
    Ok((writer.nodes, writer.prefix))
}

/// Whether a site is as `rewrite` writes it. Gathers of exporters are slower, have five axes and round locations. Exporters also write
/// grids in f64, which ONNX Runtime does not load, or in half precision.
pub(crate) fn is_as_written(context: &Context<'_>, site: &Site) -> bool {
    if site.form == Form::Gather {
        return site.spelling == crate::product::SPELLING;
    }
    let wanted = grid_type(&context.facts, site);
    let nodes = context.graph.model.nodes.iter().filter(|node| node.is("GridSample"));
    let mut grids = nodes.filter(|node| site.nodes.iter().any(|name| name == node.label()));
    let kind = |node: &Node| node.input(1).and_then(|name| context.facts.data_type(name));
    grids.all(|node| kind(node).is_none_or(|kind| kind == wanted))
}

/// The dtype of grids beside these values.
fn grid_type(facts: &Facts, site: &Site) -> i32 {
    match facts.data_type(&site.value.tensor) {
        Some(data_type::DOUBLE) => data_type::DOUBLE,
        _ => data_type::FLOAT,
    }
}

/// The nodes from a tensor of the model to one of this name, as the operator takes it.
pub(crate) fn operand_nodes(facts: &Facts, operand: &Operand, name: &str) -> Vec<Node> {
    let mut writer = Writer { facts, prefix: name.to_owned(), nodes: Vec::new() };
    let last = writer.operand(operand);
    writer.push_to("Identity", &[&last], vec![], vec![name.to_owned()]);
    writer.nodes
}

pub(crate) struct Writer<'a> {
    pub(crate) facts: &'a Facts,
    prefix: String,
    nodes: Vec<Node>,
}

pub(crate) fn number(size: usize) -> i64 {
    i64::try_from(size).unwrap_or(i64::MAX)
}

impl Writer<'_> {
    pub(crate) fn fresh(&self) -> String {
        format!("{}/{}", self.prefix, self.nodes.len())
    }

    pub(crate) fn push(&mut self, op: &str, inputs: &[&str], attributes: Vec<Attribute>) -> String {
        let output = self.fresh();
        self.push_to(op, inputs, attributes, vec![output.clone()]);
        output
    }

    pub(crate) fn push_to(
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
            Form::GridSample | Form::Gather => true,
            Form::MsDeform => kind == of_value || kind == data_type::FLOAT,
            Form::Mmdeploy | Form::TensorRt => kind == of_value,
        };
        if is_taken {
            return name;
        }
        let kind = if to == Form::MsDeform { data_type::FLOAT } else { of_value };
        self.cast(&name, kind)
    }

    pub(crate) fn cast(&mut self, name: &str, to: i32) -> String {
        self.push("Cast", &[name], vec![Attribute::int("to", i64::from(to))])
    }

    pub(crate) fn constant(&mut self, tensor: Tensor) -> String {
        self.push("Constant", &[], vec![Attribute::tensor("value", tensor)])
    }

    pub(crate) fn ints(&mut self, values: &[i64]) -> String {
        self.constant(Tensor::of_ints(&[number(values.len())], values, true))
    }

    pub(crate) fn ints32(&mut self, dims: &[i64], values: &[i64]) -> String {
        self.constant(Tensor::of_ints(dims, values, false))
    }

    fn floats(&mut self, kind: i32, dims: &[i64], values: &[f64]) -> String {
        self.constant(Tensor::of_floats(dims, values, kind))
    }

    pub(crate) fn reshape(&mut self, input: &str, target: &[i64]) -> String {
        let target = self.ints(target);
        self.push("Reshape", &[input, &target], vec![])
    }

    pub(crate) fn transpose(&mut self, input: &str, perm: &[i64]) -> String {
        self.push("Transpose", &[input], vec![Attribute::ints("perm", perm)])
    }

    /// The dtype that standard operators compute coordinates in. Half precision moves a sample of a level of 80 pixels by 0.02 to
    /// 0.3 pixels. Few runtimes have `GridSample` in f64, and exporters write locations in f64 beside values in f32.
    fn coordinates(&self, site: &Site, to: Form) -> Option<i32> {
        match to {
            Form::GridSample => Some(grid_type(self.facts, site)),
            Form::Gather => Some(data_type::FLOAT),
            Form::MsDeform | Form::Mmdeploy | Form::TensorRt => None,
        }
    }

    /// A tensor in a dtype, if `like`, which has the same dtype, is known to have another one.
    pub(crate) fn in_type(&mut self, name: &str, like: &str, kind: i32) -> String {
        match self.facts.data_type(like) {
            Some(given) if given != kind => self.cast(name, kind),
            _ => name.to_owned(),
        }
    }

    fn operand(&mut self, operand: &Operand) -> String {
        self.operand_from(operand.tensor.clone(), operand, self.kind(&operand.tensor))
    }

    /// The same, computed in a dtype from the first step on.
    fn operand_in(&mut self, operand: &Operand, kind: i32) -> String {
        let name = self.in_type(&operand.tensor, &operand.tensor, kind);
        self.operand_from(name, operand, kind)
    }

    /// The dtype of a tensor; `f32` where that is not known.
    fn kind(&self, tensor: &str) -> i32 {
        self.facts.data_type(tensor).unwrap_or(data_type::FLOAT)
    }

    fn operand_from(&mut self, mut name: String, operand: &Operand, kind: i32) -> String {
        for step in &operand.steps {
            name = match step {
                Adaptation::Reshape(target) => self.reshape(&name, target),
                Adaptation::Transpose(perm) => self.transpose(&name, perm),
                Adaptation::Scale { factor, shift } => {
                    let factor = self.floats(kind, &[], &[*factor]);
                    let shift = self.floats(kind, &[], &[*shift]);
                    let scaled = self.push("Mul", &[&name, &factor], vec![]);
                    self.push("Add", &[&scaled, &shift], vec![])
                }
            };
        }
        name
    }

    /// Locations `[N, Lq, M, samples, 2]` and weights `[N, Lq, M, samples]` of `MSDeformAttnFromOffsets`.
    fn samples_of_offsets(
        &mut self,
        node: &Node,
        site: &Site,
        coordinates: Option<i32>,
    ) -> Result<(String, String), String> {
        if node.int("nearest").unwrap_or(0) != 0 {
            return Err("it takes the nearest pixel, which no other form does".into());
        }
        let levels = known_levels(site)?;
        let points = known_points(site)?;
        if points.len() != levels.len() {
            return Err(OTHER_LEVELS.into());
        }
        let input = |at: usize| node.input(at).unwrap_or_default().to_owned();
        let (mut references, mut given, logits) = (input(3), input(4), input(5));
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
        let mut kind = self.kind(&given);
        if let Some(coordinates) = coordinates {
            references = self.in_type(&references.clone(), &references, coordinates);
            given = self.in_type(&given.clone(), &given, coordinates);
            kind = coordinates;
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
            let scales = self.floats(kind, &[total, 1], &scales);
            let parts = self.push("Mul", &[&offsets, &scales], vec![]);
            (centres, self.push("Mul", &[&parts, &boxes], vec![]))
        } else {
            let pixel = |(level, _): (usize, usize)| {
                [1.0 / levels[level].width as f64, 1.0 / levels[level].height as f64]
            };
            let pixels: Vec<f64> = samples().flat_map(pixel).collect();
            let pixels = self.floats(kind, &[total, 2], &pixels);
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

    /// Standard operators, of rank 4 at most. Batch and queries may be open: no size of theirs is written down, zeros of
    /// `Reshape` copy them and `Flatten` folds them.
    ///
    /// Values of half precision are sampled in f32: runtimes take image and grid of the same dtype, or have no half precision.
    fn grid_sample(
        &mut self,
        site: &Site,
        opset: i64,
        [value, locations, weights]: [&str; 3],
        given_weights: &str,
    ) -> Result<(), String> {
        let attributes = self.sampling(opset)?;
        let points = known_points(site)?;
        let heads = number(site.heads.ok_or("the number of its heads is not known")?);
        let total = number(points.iter().sum());
        let kind = grid_type(self.facts, site);
        let value = self.in_type(value, &site.value.tensor, kind);
        let value = self.transpose(&value, &[0, 2, 3, 1]);
        let images = self.images(site, &value, points)?;
        let grids = self.grids(locations, kind, heads, total);
        let grids = self.fold(&grids, &[0, -1, total, 2]);
        let grids = self.split(&grids, 2, points);
        let mut samples = Vec::new();
        for (image, grid) in images.iter().zip(&grids) {
            samples.push(self.push("GridSample", &[image, grid], attributes.clone()));
        }
        let stacked = self.joined(&samples, -1);
        let weights = self.in_type(weights, given_weights, kind);
        let weights = self.reshape(&weights, &[0, 0, heads, total]);
        let weights = self.transpose(&weights, &[0, 2, 1, 3]);
        let weights = self.fold(&weights, &[0, 1, -1, total]);
        let products = self.push("Mul", &[&stacked, &weights], vec![]);
        let last = self.ints(&[-1]);
        let mut sums =
            self.push("ReduceSum", &[&products, &last], vec![Attribute::int("keepdims", 0)]);
        if let Some(wanted) =
            self.facts.data_type(&site.value.tensor).filter(|&wanted| wanted != kind)
        {
            sums = self.cast(&sums, wanted);
        }
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

    /// The attributes of `GridSample`, if the model has it.
    pub(crate) fn sampling(&self, opset: i64) -> Result<Vec<Attribute>, String> {
        if opset < FIRST_OPSET_WITH_GRID_SAMPLE {
            return Err(format!(
                "the model has opset {opset}, and GridSample is there from {FIRST_OPSET_WITH_GRID_SAMPLE} on; \
                 convert it first (onnx.version_converter), or choose the form gather"
            ));
        }
        let mode = if opset < FIRST_OPSET_WITH_LINEAR { "bilinear" } else { "linear" };
        Ok(vec![
            Attribute::int("align_corners", 0),
            Attribute::text("mode", mode),
            Attribute::text("padding_mode", "zeros"),
        ])
    }

    /// Locations between -1 and 1, `[N, M, Lq, 2 * samples]`.
    pub(crate) fn grids(&mut self, locations: &str, kind: i32, heads: i64, total: i64) -> String {
        let (two, one) = (self.floats(kind, &[], &[2.0]), self.floats(kind, &[], &[1.0]));
        let grids = self.reshape(locations, &[0, 0, heads, 2 * total]);
        let grids = self.push("Mul", &[&grids, &two], vec![]);
        let grids = self.push("Sub", &[&grids, &one], vec![]);
        self.transpose(&grids, &[0, 2, 1, 3])
    }

    /// Tensors one after the other along an axis.
    pub(crate) fn joined(&mut self, parts: &[String], axis: i64) -> String {
        let names: Vec<&str> = parts.iter().map(String::as_str).collect();
        match names[..] {
            [only] => only.to_owned(),
            _ => self.push("Concat", &names, vec![Attribute::int("axis", axis)]),
        }
    }

    /// The image of each level, `[N * M, D, H, W]`, of values `[N, M, D, S]`.
    fn images(
        &mut self,
        site: &Site,
        value: &str,
        points: &[usize],
    ) -> Result<Vec<String>, String> {
        let Levels::Known(levels) = &site.levels else {
            return self.open_images(site, value, points);
        };
        same_levels(levels.len(), points)?;
        let slices = self.slices(value, 3, levels);
        let fold = |(image, level): (&String, &Level)| {
            self.fold(image, &[0, -1, number(level.height), number(level.width)])
        };
        Ok(slices.iter().zip(levels).map(fold).collect())
    }

    /// The first two axes as one, and then another shape.
    fn fold(&mut self, input: &str, target: &[i64]) -> String {
        let target = self.ints(target);
        self.fold_to(input, &target)
    }

    pub(crate) fn fold_to(&mut self, input: &str, target: &str) -> String {
        let folded = self.push("Flatten", &[input], vec![Attribute::int("axis", 2)]);
        self.push("Reshape", &[&folded, target], vec![])
    }

    pub(crate) fn split(&mut self, input: &str, axis: i64, sizes: &[usize]) -> Vec<String> {
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
    pub(crate) fn slices(&mut self, input: &str, axis: i64, levels: &[Level]) -> Vec<String> {
        let axes = self.ints(&[axis]);
        let slice = |Level { height, width, start }: &Level| {
            let end = number(start.saturating_add(height * width));
            let (start, end) = (self.ints(&[number(*start)]), self.ints(&[end]));
            self.push("Slice", &[input, &start, &end, &axes], vec![])
        };
        levels.iter().map(slice).collect()
    }
}

pub(crate) fn known_levels(site: &Site) -> Result<&[Level], String> {
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

pub(crate) fn known_points(site: &Site) -> Result<&[usize], String> {
    let points = site.points.as_deref().ok_or("how many points its levels have is not known")?;
    if site.total_points().is_none_or(|total| total > MOST_POINTS) {
        return Err(format!("it has more than {MOST_POINTS} points"));
    }
    Ok(points)
}

/// Standard operators cut samples into levels.
pub(crate) fn same_levels(levels: usize, points: &[usize]) -> Result<(), String> {
    if points.len() != levels {
        return Err(OTHER_LEVELS.into());
    }
    if levels == 0 || points.contains(&0) {
        return Err("it has no levels, or levels without points".into());
    }
    Ok(())
}
