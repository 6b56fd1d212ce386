//! What was found and done, for people and for JSON.

use serde::Serialize;

use crate::dim::Dim;
use crate::evaluate::Context;
use crate::facts::Facts;
use crate::form::Form;
use crate::model::Model;
use crate::proto::data_type;
use crate::runtime::{Runtime, Target};
use crate::site::{Levels, Site};

/// Something that looks like the attention and was left alone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Left {
    /// The node.
    pub node: String,
    /// Why.
    pub reason: String,
}

/// The attention in a model.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The version of the standard operators.
    pub opset: i64,
    /// Every place that was recognised.
    pub sites: Vec<SiteReport>,
    /// What was not, and why.
    pub left: Vec<Left>,
    /// Number of nodes in subgraphs and functions that may belong to the attention. They were not searched.
    pub hidden: usize,
    /// Files next to the model that hold its weights.
    pub external_files: Vec<String>,
}

/// One place. Sizes that are open have the model's names for them, or `?`.
#[derive(Clone, Debug, Serialize)]
pub struct SiteReport {
    /// The node that makes the output.
    pub name: String,
    /// The form.
    pub form: Form,
    /// How the form is written.
    pub spelling: String,
    /// The nodes that it was recognised by.
    pub nodes: Vec<String>,
    /// The tensors that it takes: value, locations, weights; nothing is listed where the last two follow from offsets.
    pub inputs: Vec<String>,
    /// The tensor that it makes.
    pub output: String,
    /// Images, `N`.
    pub batch: String,
    /// Queries of an image, `Lq`.
    pub queries: String,
    /// Heads, `M`.
    pub heads: Option<usize>,
    /// Channels of a head, `D`.
    pub channels: Option<usize>,
    /// Height and width of each level.
    pub levels: Option<Vec<[usize; 2]>>,
    /// Points of each level.
    pub points: Option<Vec<usize>>,
    /// Floating-point operations of a query: a product and an addition for each of four pixels, sample and channel.
    pub flops_per_query: Option<u64>,
    /// Bytes that a query gathers: four pixels of every channel for each sample.
    pub gathered_bytes_per_query: Option<u64>,
    /// Operations of all, where images and queries are known.
    pub flops: Option<u64>,
    /// Bytes of all, likewise.
    pub gathered_bytes: Option<u64>,
    /// The largest difference from the reference on random inputs, where standard operators were run.
    pub max_error: Option<f64>,
}

impl Report {
    pub(crate) fn new(model: &Model, facts: &Facts, sites: &[Site], left: Vec<Left>) -> Self {
        Self {
            opset: model.opset(),
            sites: sites.iter().map(|site| SiteReport::new(facts, site)).collect(),
            left,
            hidden: model.hidden.len(),
            external_files: model.external_files(),
        }
    }
}

impl SiteReport {
    fn new(facts: &Facts, site: &Site) -> Self {
        let text =
            |dim: &Option<Dim>| dim.as_ref().map_or_else(|| "?".into(), |dim| facts.text(dim));
        let element_bytes = match facts.data_type(&site.value.tensor) {
            Some(data_type::FLOAT16 | data_type::BFLOAT16) => 2,
            Some(data_type::DOUBLE) => 8,
            _ => 4u64,
        };
        let product = |factors: &[Option<u64>]| {
            factors.iter().try_fold(1u64, |product, factor| product.checked_mul((*factor)?))
        };
        let wide = |size: Option<usize>| size.map(|size| size as u64);
        let sample_channels =
            product(&[wide(site.heads), wide(site.total_points()), wide(site.channels)]);
        let rows = product(
            &[&site.batch, &site.queries].map(|dim| wide(dim.as_ref().and_then(Dim::size))),
        );
        let flops_per_query = product(&[sample_channels, Some(8)]);
        let gathered_bytes_per_query = product(&[sample_channels, Some(4 * element_bytes)]);
        let inputs = [&site.value].into_iter().chain(site.samples.iter().flatten());
        let levels = match &site.levels {
            Levels::Known(levels) => {
                Some(levels.iter().map(|level| [level.height, level.width]).collect())
            }
            Levels::Tensors { .. } | Levels::Computed(_) => None,
        };
        Self {
            name: site.name.clone(),
            form: site.form,
            spelling: site.spelling.clone(),
            nodes: site.nodes.clone(),
            inputs: inputs.map(|operand| operand.tensor.clone()).collect(),
            output: site.output.clone(),
            batch: text(&site.batch),
            queries: text(&site.queries),
            heads: site.heads,
            channels: site.channels,
            levels,
            points: site.points.clone(),
            flops_per_query,
            gathered_bytes_per_query,
            flops: product(&[flops_per_query, rows]),
            gathered_bytes: product(&[gathered_bytes_per_query, rows]),
            max_error: site.evidence.as_ref().map(|evidence| evidence.max_error),
        }
    }
}

/// What became of a model.
#[derive(Clone, Debug, Serialize)]
pub struct Rewrite {
    /// The form that was asked for.
    pub to: Form,
    /// The runtime that the form was chosen for.
    pub runtime: Option<Runtime>,
    /// Why that runtime gets this form.
    pub reason: Option<&'static str>,
    /// The new model; none if nothing has changed.
    #[serde(skip)]
    pub model: Option<Vec<u8>>,
    /// Sites that have the form now.
    pub rewritten: Vec<RewrittenSite>,
    /// Sites that had it before.
    pub kept: Vec<String>,
    /// What was left alone, and why.
    pub left: Vec<Left>,
    /// Number of nodes in subgraphs and functions that may belong to the attention. They were not searched.
    pub hidden: usize,
    /// Files next to the model that hold its weights. The new model refers to them by the same names.
    pub external_files: Vec<String>,
    /// Tensors of the new model that have more axes than [`Target::with_most_axes`] allows.
    pub more_axes: Vec<String>,
    /// Nodes that are gone.
    pub removed_nodes: usize,
    /// Nodes that are new.
    pub added_nodes: usize,
}

impl Rewrite {
    pub(crate) fn new(to: &Target, model: &Model, left: Vec<Left>) -> Self {
        Self {
            to: to.forms.0,
            runtime: to.runtime,
            reason: to.reason,
            more_axes: Vec::new(),
            model: None,
            rewritten: Vec::new(),
            kept: Vec::new(),
            left,
            hidden: model.hidden.len(),
            external_files: model.external_files(),
            removed_nodes: 0,
            added_nodes: 0,
        }
    }

    pub(crate) fn note_axes(&mut self, context: &Context<'_>, to: &Target) {
        let Some(most) = to.most_axes else { return };
        let outputs = context.graph.model.nodes.iter().flat_map(|node| &node.output);
        let has_more =
            |name: &&String| context.facts.shape(name).is_some_and(|dims| dims.len() > most);
        self.more_axes = outputs.filter(has_more).cloned().collect();
    }
}

/// A site that was rewritten.
#[derive(Clone, Debug, Serialize)]
pub struct RewrittenSite {
    /// The node that made its output.
    pub name: String,
    /// The form that it had.
    pub from: Form,
    /// The form that it has now.
    pub to: Form,
    /// The largest difference of the standard operators, old or new, from the reference on random inputs. None where one
    /// operator became another and there was nothing to run.
    pub max_error: Option<f64>,
    /// Why new standard operators were not run, where they were not.
    pub not_checked: Option<String>,
}

impl RewrittenSite {
    pub(crate) fn new(site: &Site, to: Form) -> Self {
        let max_error = site.evidence.as_ref().map(|evidence| evidence.max_error);
        Self { name: site.name.clone(), from: site.form, to, max_error, not_checked: None }
    }

    pub(crate) fn confirm(&mut self, again: &Site) {
        self.max_error =
            self.max_error.or(again.evidence.as_ref().map(|evidence| evidence.max_error));
    }
}
