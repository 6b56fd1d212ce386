//! Multi-scale deformable attention in ONNX models: where it is, and the same model with it in another form.
//!
//! Exporters of PyTorch write the attention as some hundred standard operators around `GridSample`; `TensorRT`, mmdeploy and
//! msdeform have an operator for it. [`inspect`] finds all of them, [`rewrite`] turns each into any other. Both take the
//! bytes of a file: nothing is read or written here.
//!
//! - A site is found by what it computes, not by how it is spelled: the nodes around the samples are run on marks, and on
//!   random numbers together with the reference (`find.rs`). What cannot be shown to be the attention is left alone, with a reason.
//! - What is not rewritten keeps its bytes, unknown fields included (`model.rs`).
//! - A rewritten model is searched again: every site must be there in its new form, and mean the same.

mod apart;
mod array;
mod attributes;
mod check;
mod compute;
mod dim;
mod emit;
mod error;
mod evaluate;
mod facts;
mod find;
mod form;
mod gather;
mod graph;
mod layout;
mod model;
mod nodes;
mod open;
mod operators;
mod probe;
mod product;
mod proto;
mod report;
mod runtime;
mod sampler;
mod site;
mod skeleton;
#[cfg(test)]
mod tests;
mod trial;
mod windows;

use std::collections::HashSet;

use emit::Written;
use evaluate::Context;
use form::Operator;
use model::{Changes, Model};
use site::Site;

pub use error::OnnxError;
pub use form::Form;
pub use probe::{Probe, probes};
pub use report::{Left, Report, Rewrite, RewrittenSite, SiteReport};
pub use runtime::{Runtime, Target};
pub use trial::{Trial, trials};

/// How far to go.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Elements that a tensor may have for it to be followed. A site of fixed sizes is run in these sizes, with two or three
    /// tensors of 8 bytes an element at a time.
    pub most_elements: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self { most_elements: 1 << 27 }
    }
}

/// What was found in a graph.
struct Found {
    sites: Vec<Site>,
    left: Vec<Left>,
}

fn search(context: &Context<'_>) -> Found {
    let mut found = Found { sites: Vec::new(), left: Vec::new() };
    let mut explained: HashSet<String> = HashSet::new();
    for (index, node) in context.graph.model.nodes.iter().enumerate() {
        let result = if let Some(operator) = Operator::of(node) {
            nodes::at_node(context, index, operator).map(Some)
        } else if node.is("ReduceSum") {
            find::at_sum(context, index)
        } else if node.is("MatMul") {
            product::at_product(context, index)
        } else {
            Ok(None)
        };
        match result {
            Ok(Some(site)) => {
                explained.extend(site.nodes.iter().cloned());
                found.sites.push(site);
            }
            Ok(None) => {}
            Err(reason) => {
                let samplers = skeleton::samplers_above(context, index);
                explained.extend(samplers.iter().cloned());
                found.left.push(Left { node: node.label().to_owned(), reason });
            }
        }
    }
    let alone = "its samples are not weighted and added up";
    let samplers = context.samplers.of.values().filter_map(|sampler| sampler.nodes.first());
    let mut unexplained: Vec<(usize, &str)> = samplers.map(|&at| (at, alone)).collect();
    unexplained.extend(context.samplers.unclear.iter().map(|(at, reason)| (*at, reason.as_str())));
    unexplained.sort_unstable();
    for (at, reason) in unexplained {
        let node = context.graph.node(at).label();
        if !explained.contains(node) {
            found.left.push(Left { node: node.to_owned(), reason: reason.to_owned() });
        }
    }
    for node in &context.graph.model.hidden {
        let reason = "it is in a subgraph or in a function, which are not searched".to_owned();
        found.left.push(Left { node: node.clone(), reason });
    }
    found
}

/// The attention in a model.
///
/// # Errors
/// [`OnnxError`] where the bytes are no ONNX model.
pub fn inspect(bytes: &[u8], options: Options) -> Result<Report, OnnxError> {
    let model = Model::read(bytes)?;
    let context = Context::new(&model, options);
    let Found { sites, left } = search(&context);
    Ok(Report::new(&model, &context.facts, &sites, left))
}

/// A model with every attention in one form, or in the form that a runtime computes correctly.
///
/// Sites that are in this form already stay; so do those that cannot be shown to be the attention or have no such form, each
/// with its reason in the report. If nothing changes there is no new model: the old bytes are it.
///
/// # Errors
/// [`OnnxError`] where the bytes are no ONNX model, or where the new model did not stand up to being searched again.
pub fn rewrite(
    bytes: &[u8],
    to: impl Into<Target>,
    options: Options,
) -> Result<Rewrite, OnnxError> {
    let to: Target = to.into();
    let model = Model::read(bytes)?;
    let context = Context::new(&model, options);
    let Found { sites, left } = search(&context);
    let mut result = Rewrite::new(&to, &model, left);
    let taken: HashSet<&str> = names(&model);
    let mut changes = Changes::default();
    let mut anchors = Vec::new();
    let mut expected = Vec::new();
    for site in &sites {
        match written(&context, site, &to, &taken) {
            Ok(None) => result.kept.push(site.name.clone()),
            Ok(Some((form, (nodes, prefix)))) => {
                changes.added.extend(nodes.into_iter().map(|node| (site.anchor, node)));
                anchors.push(site.anchor);
                changes
                    .domains
                    .extend(Operator::of_form(form).map(|operator| (operator.domain, 1)));
                expected.push((site, form, prefix));
                result.rewritten.push(RewrittenSite::new(site, form));
            }
            Err(reason) => result.left.push(Left { node: site.name.clone(), reason }),
        }
    }
    if expected.is_empty() {
        result.note_axes(&context, &to);
        return Ok(result);
    }
    let used: HashSet<&str> =
        changes.added.iter().flat_map(|(_, node)| &node.input).map(String::as_str).collect();
    let removed = context.graph.dead_without(anchors, &used);
    changes.unused = context.graph.unused_without(&removed, &used);
    changes.removed = removed;
    let bytes = model.with(&changes);
    confirm(&bytes, &to, options, &expected, &mut result)?;
    result.removed_nodes = changes.removed.len();
    result.added_nodes = changes.added.len();
    result.model = Some(bytes);
    Ok(result)
}

/// The nodes of a site in the first form that can express it; nothing if the site has that form. The reason is that of the first
/// form, which the user has chosen.
fn written(
    context: &Context<'_>,
    site: &Site,
    to: &Target,
    taken: &HashSet<&str>,
) -> Result<Option<(Form, Written)>, String> {
    let mut reason = None;
    for form in to.each() {
        if site.form == form && !to.has_heads_apart && emit::is_as_written(context, site) {
            return Ok(None);
        }
        match emit::nodes(context, site, form, to.has_heads_apart, taken) {
            Ok(written) => return Ok(Some((form, written))),
            Err(why) => reason = reason.or(Some(why)),
        }
    }
    Err(reason.unwrap_or_default())
}

fn names(model: &Model) -> HashSet<&str> {
    let of_nodes = model
        .nodes
        .iter()
        .flat_map(|node| node.input.iter().chain(&node.output).chain([&node.name]));
    let inputs = model.inputs.iter().map(|info| &info.name);
    let captured = model.captured.iter().flatten();
    of_nodes.chain(inputs).chain(captured).map(String::as_str).collect()
}

/// Whether the sizes of a site's tensors are known in a rewritten model. The old nodes may have told some of them.
fn has_sizes(context: &Context<'_>, site: &Site) -> bool {
    let mut operands = [&site.value].into_iter().chain(site.samples.iter().flatten());
    site.channels.is_some()
        && operands.all(|operand| context.facts.shape(&operand.tensor).is_some())
}

/// Searches the new model for the sites that were rewritten.
fn confirm(
    bytes: &[u8],
    to: &Target,
    options: Options,
    expected: &[(&Site, Form, String)],
    result: &mut Rewrite,
) -> Result<(), OnnxError> {
    let model = Model::read(bytes)?;
    let context = Context::new(&model, options);
    result.note_axes(&context, to);
    let has_heads_apart = to.has_heads_apart;
    let found = search(&context);
    for ((site, to, prefix), rewritten) in expected.iter().zip(&mut result.rewritten) {
        let is_new = |again: &&Site| {
            again.form == *to && again.nodes.iter().any(|name| name.starts_with(prefix))
        };
        let again = found.sites.iter().find(is_new);
        let Some(again) = again else {
            // The search does not know heads that are apart, or levels whose sizes come from outside: the new nodes are run from
            // the tensors of the old site.
            let has_open_levels = !matches!(site.levels, site::Levels::Known(_));
            if (has_heads_apart || has_open_levels)
                && let Ok(evidence) = product::confirmed(&context, site, None)
            {
                rewritten.max_error =
                    Some(rewritten.max_error.unwrap_or(0.0).max(evidence.max_error));
                continue;
            }
            let reason = found
                .left
                .iter()
                .map(|left| left.reason.as_str())
                .next()
                .unwrap_or("it is not there");
            // Without the sizes of its tensors a site cannot be run: that is no fault of the new nodes.
            if Operator::of_form(*to).is_none() && !has_sizes(&context, site) {
                rewritten.not_checked = Some(reason.to_owned());
                continue;
            }
            return Err(OnnxError::NotConfirmed {
                site: site.name.clone(),
                reason: reason.to_owned(),
            });
        };
        let differs = |what: &str| OnnxError::NotConfirmed {
            site: site.name.clone(),
            reason: format!("its {what} are not what they were"),
        };
        if again.levels != site.levels && matches!(site.levels, site::Levels::Known(_)) {
            return Err(differs("levels"));
        }
        if again.points != site.points && again.points.is_some() && site.points.is_some() {
            return Err(differs("points"));
        }
        rewritten.confirm(again);
    }
    Ok(())
}
