//! The reference of whichever operator a problem describes.

use super::{
    Gradients, OffsetGradients, Samples, backward, backward_from_offsets, forward, samples,
};
use crate::{Direction, Problem, Role};

/// Every tensor that a call writes. `tensor` gives what it reads.
///
/// # Panics
/// If a slice is shorter than the problem says.
#[must_use]
pub fn compute<'a>(
    problem: &Problem,
    direction: Direction,
    tensor: impl Fn(Role) -> &'a [f64],
) -> Vec<(Role, Vec<f64>)> {
    let value = tensor(Role::Value);
    match (problem.offsets(), direction) {
        (None, Direction::Forward) => {
            let (locations, weights) = (tensor(Role::Locations), tensor(Role::Weights));
            vec![(Role::Output, forward(problem, value, locations, weights))]
        }
        (Some(_), Direction::Forward) => {
            let Samples { locations, weights } = samples_of(problem, tensor);
            vec![(Role::Output, forward(problem, value, &locations, &weights))]
        }
        (None, Direction::Backward) => {
            let (locations, weights) = (tensor(Role::Locations), tensor(Role::Weights));
            let Gradients { value, locations, weights } =
                backward(problem, value, locations, weights, tensor(Role::GradOutput));
            vec![
                (Role::GradValue, value),
                (Role::GradLocations, locations),
                (Role::GradWeights, weights),
            ]
        }
        (Some(_), Direction::Backward) => {
            let OffsetGradients { value, references, offsets, logits } = backward_from_offsets(
                problem,
                value,
                tensor(Role::References),
                tensor(Role::Offsets),
                tensor(Role::Logits),
                tensor(Role::GradOutput),
            );
            vec![
                (Role::GradValue, value),
                (Role::GradReferences, references),
                (Role::GradOffsets, offsets),
                (Role::GradLogits, logits),
            ]
        }
    }
}

/// The samples of a call, given or following from offsets.
///
/// # Panics
/// As [`compute`].
#[must_use]
pub fn samples_of<'a>(problem: &Problem, tensor: impl Fn(Role) -> &'a [f64]) -> Samples {
    match problem.offsets() {
        None => Samples {
            locations: tensor(Role::Locations).to_vec(),
            weights: tensor(Role::Weights).to_vec(),
        },
        Some(_) => {
            samples(problem, tensor(Role::References), tensor(Role::Offsets), tensor(Role::Logits))
        }
    }
}
