//! The shapes that known models call the operator with, and every kernel that the dispatcher may choose for them.
//!
//! A kernel is compiled for a model's sizes, and another choice of knobs is other machine code. A verified problem is no
//! evidence for the kernels of another one, so the ledger counts compiled kernels, not problems.

mod image;
mod known;
mod scope;
mod specialisation;

use std::collections::HashSet;

use crate::conformance::FORMATS;
use msdeform::{DType, Operator, Problem, Role};
use msdeform_cuda::ahead::other_sizes;

use image::Image;

pub use known::{MODEL_SHAPES, ModelShape, USUAL};
pub use scope::Scope;
pub(crate) use scope::WITH_REFERENCES;
pub use specialisation::{Specialisation, specialisations, specialisations_of, specialisations_on};

impl ModelShape<'_> {
    /// Problems in every dtype, for decoders and for the encoder, that lead to everything that is compiled for the shape
    /// and an operator. A shape without rules has none of the fused operator.
    pub fn problems(&self, operator: &Operator) -> Vec<Problem> {
        self.problems_with(operator, &[Image::Usual, Image::Thin])
    }

    fn problems_with(&self, operator: &Operator, images: &[Image]) -> Vec<Problem> {
        let plain = self.plain_problems(images);
        if operator.inputs.contains(&Role::References) { self.fused(&plain) } else { plain }
    }

    fn plain_problems(&self, images: &[Image]) -> Vec<Problem> {
        let mut problems = Vec::new();
        for image in images {
            let levels: Vec<(i64, i64)> =
                (0..self.points.len()).map(|level| image.level(level)).collect();
            let pixels: i64 = levels.iter().map(|(height, width)| height * width).sum();
            let of_encoder = (!image.is_wide()).then_some(pixels as usize);
            for queries in self.queries.iter().copied().chain(of_encoder) {
                let sizes = Problem::builder()
                    .heads(self.heads)
                    .channels(self.channels)
                    .queries(queries)
                    .levels(levels.iter().copied())
                    .points_per_level(self.points);
                for (dtype, sampling) in FORMATS {
                    let formats = sizes.clone().dtype(dtype).sampling_dtype(sampling);
                    let of_batch = |&batch: &usize| formats.clone().batch(batch).build().ok();
                    problems.extend(image.batches().iter().filter_map(of_batch));
                }
            }
        }
        problems
    }

    /// The same calls of the fused operator. Layers compute offsets and logits in the dtype of the values. References have
    /// that dtype too, or `f32`, as automatic mixed precision leaves them.
    fn fused(&self, plain: &[Problem]) -> Vec<Problem> {
        let mut problems = Vec::new();
        for plain in plain.iter().filter(|plain| plain.sampling_dtype() == plain.dtype()) {
            for rule in if is_of_encoder(plain) { self.encoder } else { self.decoder } {
                let mut dtypes = vec![DType::F32, plain.dtype()];
                dtypes.dedup();
                let fused = plain.to_builder().offsets(*rule);
                let of_dtype = |dtype| fused.clone().reference_dtype(dtype).build().ok();
                problems.extend(dtypes.into_iter().filter_map(of_dtype));
            }
        }
        problems
    }
}

/// The same models in every size, for callers that do not know the sizes yet.
pub fn in_every_size(problems: impl IntoIterator<Item = Problem>) -> Vec<Problem> {
    let mut seen = HashSet::new();
    let sizes = problems.into_iter().flat_map(|problem| {
        let mut sizes = other_sizes(&problem).peekable();
        let is_new = sizes.peek().is_some_and(|smallest| seen.insert(smallest.clone()));
        is_new.then_some(sizes).into_iter().flatten().collect::<Vec<_>>()
    });
    sizes.collect()
}

/// Whether some level is one pixel high.
pub(crate) fn is_thin(problem: &Problem) -> bool {
    problem.levels().iter().any(|level| level.height < 2)
}

/// Whether every pixel is a query.
const fn is_of_encoder(problem: &Problem) -> bool {
    problem.queries() == problem.spatial()
}

#[cfg(test)]
mod tests;
