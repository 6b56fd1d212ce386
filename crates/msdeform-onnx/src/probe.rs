//! A site of standard operators as a model of its own, for other runtimes to run.

use std::collections::HashSet;

use serde::Serialize;

use crate::array::Array;
use crate::dim::Sizes;
use crate::evaluate::Context;
use crate::model::Model;
use crate::proto::{Attribute, Node, Tensor, ValueInfo, data_type, model_of};
use crate::site::{Evidence, Operand, Site};
use crate::{OnnxError, Options, emit};

/// A site cut out of its model, in the sizes that it was evaluated in.
///
/// Its inputs are the tensors that the site takes from the rest of the model. Its outputs are what the site's own nodes make
/// of them, and then value, locations and weights as the operator takes them: what any implementation of the operator makes
/// of these three has to be the first.
#[derive(Clone, Debug, Serialize)]
pub struct Probe {
    /// The site's name in the report of [`crate::inspect`].
    pub site: String,
    /// The model.
    #[serde(skip)]
    pub model: Vec<u8>,
    /// Names and shapes of its inputs: value, locations, weights.
    pub inputs: Vec<(String, Vec<usize>)>,
    /// Names of its outputs: the site's, and then value, locations and weights of the operator.
    pub outputs: Vec<String>,
    /// Height, width and start of each level.
    pub levels: Vec<[usize; 3]>,
    /// Points of each level.
    pub points: Vec<usize>,
    /// Whether it computes in half precision, between conversions or from its inputs on.
    pub is_half: bool,
}

/// Cuts out every site of standard operators.
///
/// # Errors
/// [`OnnxError`] where the bytes are no ONNX model.
pub fn probes(bytes: &[u8], options: Options) -> Result<Vec<Probe>, OnnxError> {
    let model = Model::read(bytes)?;
    let context = Context::new(&model, options);
    let sites = crate::search(&context).sites;
    Ok(sites.iter().filter_map(|site| cut_out(&context, site)).collect())
}

fn cut_out(context: &Context<'_>, site: &Site) -> Option<Probe> {
    let Evidence { sizes, levels, .. } = site.evidence.as_ref()?;
    // What was run with fewer queries is cut out in full.
    let sizes = &sizes.in_full();
    let [locations, weights] = site.samples.as_ref()?;
    let operands = [&site.value, locations, weights];
    let given: HashSet<&str> = operands.iter().map(|operand| operand.tensor.as_str()).collect();
    let indices = context.between(sizes, &given, &[&site.output]).ok()?;
    let mut nodes = Vec::new();
    let mut written: HashSet<String> = given.iter().map(|&name| name.to_owned()).collect();
    for &index in &indices {
        let node = context.graph.node(index);
        for name in node.input.iter().filter(|name| !name.is_empty()) {
            if written.contains(name) {
                continue;
            }
            written.insert(name.clone());
            nodes.push(constant(context, sizes, name)?);
        }
        written.extend(node.output.iter().cloned());
        nodes.push(node.clone());
    }
    let mut outputs = vec![site.output.clone()];
    if site.is_output_transposed {
        let name = format!("{}/probe/output", site.output);
        let node = Node::new("", "Transpose", name.clone(), outputs, vec![name.clone()]);
        nodes.push(node.with(Attribute::ints("perm", &[0, 2, 1])));
        outputs = vec![name];
    }
    for (operand, name) in operands.iter().zip(["value", "locations", "weights"]) {
        let name = format!("{}/probe/{name}", site.output);
        nodes.extend(emit::operand_nodes(&context.facts, operand, &name));
        outputs.push(name);
    }
    let kind = |name: &str| context.facts.data_type(name).unwrap_or(data_type::FLOAT);
    let inputs = operands
        .iter()
        .map(|operand: &&Operand| {
            let shape = sizes.shape(context.facts.shape(&operand.tensor)?)?;
            Some((operand.tensor.clone(), shape))
        })
        .collect::<Option<Vec<_>>>()?;
    // A site may end behind a conversion, so that its output has another dtype than its value.
    let has_own = context.facts.data_type(&site.output).is_some();
    let of_output = if has_own { &site.output } else { &site.value.tensor };
    let likes = [of_output, &site.value.tensor, &locations.tensor, &weights.tensor];
    let input = |(name, shape): &(String, Vec<usize>)| {
        let dims = shape.iter().map(|&size| Some(i64::try_from(size).ok()?.into()));
        Some(ValueInfo::tensor(name, kind(name), Some(dims.collect::<Option<_>>()?)))
    };
    let input_infos: Vec<ValueInfo> = inputs.iter().map(input).collect::<Option<_>>()?;
    let output = |(name, like): (&String, &String)| ValueInfo::tensor(name, kind(like), None);
    let output_infos: Vec<ValueInfo> = outputs.iter().zip(likes).map(output).collect();
    let half = [data_type::FLOAT16, data_type::BFLOAT16];
    let converts = |node: &Node| {
        node.is("Cast") && half.iter().any(|&kind| node.int("to") == Some(i64::from(kind)))
    };
    let is_half = half.contains(&kind(&site.value.tensor)) || nodes.iter().any(converts);
    Some(Probe {
        is_half,
        site: site.name.clone(),
        model: model_of(&context.graph.model.opsets, &nodes, &input_infos, &output_infos),
        inputs,
        outputs,
        levels: levels.iter().map(|level| [level.height, level.width, level.start]).collect(),
        points: site.points.clone()?,
    })
}

/// A tensor from outside of the site: whole numbers as they were in the run, or a constant of the model.
fn constant(context: &Context<'_>, sizes: &Sizes, name: &str) -> Option<Node> {
    let tensor = match context.graph.constant(name) {
        Some(tensor) => tensor.clone(),
        None => {
            let Array { shape, data } = context.numbers(sizes, name)?;
            let dims: Option<Vec<i64>> =
                shape.into_iter().map(|size| i64::try_from(size).ok()).collect();
            let (dims, whole) = (dims?, data.iter().map(|&x| x as i64).collect::<Vec<_>>());
            match context.facts.data_type(name) {
                Some(data_type::INT64) => Tensor::of_ints(&dims, &whole, true),
                Some(data_type::INT32) => Tensor::of_ints(&dims, &whole, false),
                kind => Tensor::of_floats(&dims, &data, kind.unwrap_or(data_type::FLOAT)),
            }
        }
    };
    Some(Node::constant(name, tensor))
}
