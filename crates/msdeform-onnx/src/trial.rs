//! The sites of a model as small models, each in several forms and dtypes, for other runtimes to run.

use serde::Serialize;

use crate::dim::Dim;
use crate::evaluate::Context;
use crate::form::Form;
use crate::model::Model;
use crate::proto::{Attribute, Node, OpsetId, Tensor, ValueInfo, data_type, model_of};
use crate::report::Left;
use crate::site::{Levels, Site};
use crate::{OnnxError, Options, Rewrite, Target};

/// Images and queries of a site that leaves them open.
const OPEN: [usize; 2] = [1, 300];
/// For models that are older than `GridSample`.
const OPSET: i64 = 17;

/// A site of a model in one form and dtype, as a model of its own.
///
/// Its inputs are `value` `[N, S, M, D]`, `locations` `[N, Lq, M, samples, 2]` and `weights` `[N, Lq, M, samples]`, and its output is
/// `output` `[N, Lq, M * D]`.
#[derive(Clone, Debug, Serialize)]
pub struct Trial {
    /// The site's name in the report of [`crate::inspect`].
    pub site: String,
    /// The form.
    pub form: Form,
    /// The dtype of all inputs: `f32` or `f16`.
    pub dtype: &'static str,
    /// The model.
    #[serde(skip)]
    pub model: Vec<u8>,
    /// Shapes of value, locations and weights.
    pub shapes: [Vec<usize>; 3],
    /// Height, width and start of each level.
    pub levels: Vec<[usize; 3]>,
    /// Points of each level.
    pub points: Vec<usize>,
}

/// Writes every site of a model in these forms, in f32 and in f16.
///
/// # Errors
/// [`OnnxError`] where the bytes are no ONNX model.
pub fn trials(
    bytes: &[u8],
    targets: &[Target],
    options: Options,
) -> Result<(Vec<Trial>, Vec<Left>), OnnxError> {
    let model = Model::read(bytes)?;
    let context = Context::new(&model, options);
    let crate::Found { sites, mut left } = crate::search(&context);
    let mut found = Vec::new();
    for site in &sites {
        match of_site(&context, site, targets, options) {
            Ok(trials) => found.extend(trials),
            Err(reason) => left.push(Left { node: site.name.clone(), reason }),
        }
    }
    Ok((found, left))
}

fn of_site(
    context: &Context<'_>,
    site: &Site,
    targets: &[Target],
    options: Options,
) -> Result<Vec<Trial>, String> {
    let Levels::Known(levels) = &site.levels else {
        return Err("the sizes of its levels are no constants".into());
    };
    let points = site.points.clone().ok_or("how many points its levels have is not known")?;
    let heads = site.heads.ok_or("the number of its heads is not known")?;
    let channels = site.channels.ok_or("the number of its channels is not known")?;
    let size = |dim: &Option<Dim>, open| dim.as_ref().and_then(Dim::size).unwrap_or(open);
    let (images, queries) = (size(&site.batch, OPEN[0]), size(&site.queries, OPEN[1]));
    let pixels =
        levels.iter().map(|level| level.start + level.height * level.width).max().unwrap_or(0);
    let total = site.total_points().ok_or("it has too many points")?;
    let shapes = [
        vec![images, pixels, heads, channels],
        vec![images, queries, heads, total, 2],
        vec![images, queries, heads, total],
    ];
    let opset = if context.graph.model.opset() < 16 { OPSET } else { context.graph.model.opset() };
    let mut trials = Vec::new();
    for (dtype, kind) in [("f32", data_type::FLOAT), ("f16", data_type::FLOAT16)] {
        let base = one_node(site, opset, kind, &shapes);
        for &target in targets {
            let rewritten =
                crate::rewrite(&base, target, options).map_err(|error| error.to_string())?;
            let Rewrite { to: form, model, mut left, kept, .. } = rewritten;
            let model = match (model, kept.is_empty()) {
                (Some(model), _) => model,
                (None, false) => base.clone(),
                (None, true) => {
                    return Err(left.pop().map_or_else(String::new, |left| left.reason));
                }
            };
            trials.push(Trial {
                site: site.name.clone(),
                form,
                dtype,
                model,
                shapes: shapes.clone(),
                levels: levels
                    .iter()
                    .map(|level| [level.height, level.width, level.start])
                    .collect(),
                points: points.clone(),
            });
        }
    }
    Ok(trials)
}

/// `msdeform::MSDeformAttn` in the sizes of a site.
fn one_node(site: &Site, opset: i64, kind: i32, shapes: &[Vec<usize>; 3]) -> Vec<u8> {
    let number = crate::emit::number;
    let Levels::Known(levels) = &site.levels else { return Vec::new() };
    let sizes: Vec<i64> =
        levels.iter().flat_map(|level| [number(level.height), number(level.width)]).collect();
    let starts: Vec<i64> = levels.iter().map(|level| number(level.start)).collect();
    let count = number(levels.len());
    let names = ["value", "shapes", "starts", "locations", "weights"].map(str::to_owned);
    let points: Vec<i64> = site.points.iter().flatten().map(|&count| number(count)).collect();
    let attention = Node::new(
        "msdeform",
        "MSDeformAttn",
        "attention".into(),
        names.into(),
        vec!["output".into()],
    );
    let nodes = [
        Node::constant("shapes", Tensor::of_ints(&[count, 2], &sizes, true)),
        Node::constant("starts", Tensor::of_ints(&[count], &starts, true)),
        attention.with(Attribute::ints("points", &points)),
    ];
    let info = |name: &str, shape: &[usize]| {
        let dims = shape.iter().map(|&size| number(size).into()).collect();
        ValueInfo::tensor(name, kind, Some(dims))
    };
    let inputs: Vec<ValueInfo> = ["value", "locations", "weights"]
        .iter()
        .zip(shapes)
        .map(|(name, shape)| info(name, shape))
        .collect();
    let output = info("output", &[shapes[0][0], shapes[1][1], shapes[0][2] * shapes[0][3]]);
    let id = |domain: &str, version| OpsetId { domain: domain.into(), version };
    model_of(&[id("", opset), id("msdeform", 1)], &nodes, &inputs, &[output])
}
