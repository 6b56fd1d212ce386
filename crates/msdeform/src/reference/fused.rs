//! The fused operator: from offsets and logits to samples, and from the gradients of samples back.

use super::Gradients;
use crate::{Offsets, Problem, ReferenceKind, Role};

/// The locations and weights of all samples of a call.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Samples {
    /// `[N, Lq, M, samples, 2]`.
    pub locations: Vec<f64>,
    /// `[N, Lq, M, samples]`.
    pub weights: Vec<f64>,
}

/// The samples of a call, by the definition at the head of [`Offsets`]' module.
pub(super) fn samples<'a>(problem: &Problem, tensor: impl Fn(Role) -> &'a [f64]) -> Samples {
    let [references, offsets, logits] =
        [Role::References, Role::Offsets, Role::Logits].map(&tensor);
    let mut samples = Samples {
        locations: vec![0.0; problem.locations_len()],
        weights: vec![0.0; problem.weights_len()],
    };
    for_each_offset(problem, |offset| {
        let reference = &references[offset.reference..];
        let (scale_x, scale_y) = offset.scale(problem, reference);
        let (x, y) = (2 * offset.index, 2 * offset.index + 1);
        samples.locations[x] = reference[0] + offsets[x] * scale_x;
        samples.locations[y] = reference[1] + offsets[y] * scale_y;
    });
    let per_row = problem.samples().max(1);
    for (weights, logits) in samples.weights.chunks_mut(per_row).zip(logits.chunks(per_row)) {
        match problem.offsets() {
            Some(rule) if rule.has_softmax() => softmax(logits, weights),
            _ => weights.copy_from_slice(logits),
        }
    }
    samples
}

/// The gradients of what a fused call reads, from those of its samples.
pub(super) fn gradients<'a>(
    problem: &Problem,
    by_samples: Gradients,
    weights: &[f64],
    tensor: impl Fn(Role) -> &'a [f64],
) -> Vec<(Role, Vec<f64>)> {
    let (references, offsets) = (tensor(Role::References), tensor(Role::Offsets));
    let mut grad_references = vec![0.0; problem.references_len()];
    let mut grad_offsets = vec![0.0; problem.locations_len()];
    let mut grad_logits = by_samples.weights;
    for_each_offset(problem, |offset| {
        if offset.rule.is_nearest() {
            return;
        }
        let reference = &references[offset.reference..];
        let (scale_x, scale_y) = offset.scale(problem, reference);
        let (x, y) = (2 * offset.index, 2 * offset.index + 1);
        let (grad_x, grad_y) = (by_samples.locations[x], by_samples.locations[y]);
        // What does not count passes nothing on, even where its offset is infinite.
        let times = |grad: f64, by: f64| if grad == 0.0 { 0.0 } else { grad * by };
        grad_offsets[x] = times(grad_x, scale_x);
        grad_offsets[y] = times(grad_y, scale_y);
        let to = &mut grad_references[offset.reference..];
        to[0] += grad_x;
        to[1] += grad_y;
        if offset.rule.kind() == ReferenceKind::Box {
            to[2] += times(grad_x, offsets[x] * offset.box_scale);
            to[3] += times(grad_y, offsets[y] * offset.box_scale);
        }
    });
    if problem.offsets().is_some_and(Offsets::has_softmax) {
        let per_row = problem.samples().max(1);
        for (grads, weights) in grad_logits.chunks_mut(per_row).zip(weights.chunks(per_row)) {
            let mean: f64 = grads.iter().zip(weights).map(|(grad, weight)| grad * weight).sum();
            for (grad, weight) in grads.iter_mut().zip(weights) {
                *grad = weight * (*grad - mean);
            }
        }
    }
    vec![
        (Role::GradValue, by_samples.value),
        (Role::GradReferences, grad_references),
        (Role::GradOffsets, grad_offsets),
        (Role::GradLogits, grad_logits),
    ]
}

fn softmax(logits: &[f64], weights: &mut [f64]) {
    if logits.iter().all(|&logit| logit == f64::NEG_INFINITY) {
        weights.fill(0.0);
        return;
    }
    // A NaN is passed over here and comes back in the sum, so that the whole row becomes one.
    let largest = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = logits.iter().map(|logit| (logit - largest).exp()).sum();
    for (weight, logit) in weights.iter_mut().zip(logits) {
        *weight = (logit - largest).exp() / sum;
    }
}

/// One offset of a call.
struct Offset<'a> {
    rule: &'a Offsets,
    /// Position in the logits; its own is at twice that.
    index: usize,
    level: usize,
    /// Position of its reference's first number.
    reference: usize,
    /// What of a box an offset of one is, on this level.
    box_scale: f64,
}

impl Offset<'_> {
    /// What the offset is multiplied by to become a part of a location.
    fn scale(&self, problem: &Problem, reference: &[f64]) -> (f64, f64) {
        match self.rule.kind() {
            ReferenceKind::Point => {
                let level = problem.levels()[self.level];
                (1.0 / level.width as f64, 1.0 / level.height as f64)
            }
            ReferenceKind::Box => (reference[2] * self.box_scale, reference[3] * self.box_scale),
        }
    }
}

fn for_each_offset(problem: &Problem, mut visit: impl FnMut(&Offset<'_>)) {
    let Some(rule) = problem.offsets() else { return };
    // As for samples: there may be any number of images and heads without any.
    if problem.weights_len() == 0 {
        return;
    }
    let levels = problem.levels().len();
    let (per_query, components) = (rule.references(levels), rule.kind().components());
    for query in 0..problem.batch() * problem.queries() {
        for m in 0..problem.heads() {
            for level in 0..levels {
                let points = problem.points()[level];
                for (point, sample) in problem.level_samples(level).enumerate() {
                    let reference = query * per_query + rule.reference(level, point);
                    visit(&Offset {
                        rule,
                        index: (query * problem.heads() + m) * problem.samples() + sample,
                        level,
                        reference: reference * components,
                        box_scale: f64::from(rule.scale()) / points as f64,
                    });
                }
            }
        }
    }
}
