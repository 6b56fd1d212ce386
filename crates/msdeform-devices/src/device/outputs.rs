//! What comes out of a run.

use msdeform::{Direction, Gradients, Problem, Role};

use crate::Buffer;

/// Results of a run, brought to the host: every tensor that was asked for, in the operator's order.
#[derive(Clone, Debug, PartialEq)]
pub struct Outputs(Vec<(Role, Buffer)>);

impl Outputs {
    /// Buffers of NaN for the results of a problem: the output, or the gradients that are asked for.
    #[must_use]
    pub fn poisoned(problem: &Problem, direction: Direction, gradients: Gradients) -> Self {
        let buffer = |role| Buffer::poisoned(problem.format_of(role), problem.len_of(role));
        Self::roles(problem, direction, gradients).map(|role| (role, buffer(role))).collect()
    }

    /// Which tensors those are.
    pub fn roles(
        problem: &Problem,
        direction: Direction,
        gradients: Gradients,
    ) -> impl Iterator<Item = Role> {
        problem.operator().written(direction).filter(move |role| gradients.includes(*role))
    }

    /// Every tensor.
    pub fn iter(&self) -> impl Iterator<Item = (Role, &Buffer)> {
        self.0.iter().map(|(role, buffer)| (*role, buffer))
    }

    /// Every tensor, to be written.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (Role, &mut Buffer)> {
        self.0.iter_mut().map(|(role, buffer)| (*role, buffer))
    }

    /// Whether every bit of every tensor is the same.
    #[must_use]
    pub fn has_same_bits(&self, other: &Self) -> bool {
        let bits = |outputs: &Self| {
            outputs.iter().map(|(_, buffer)| buffer.to_le_bytes()).collect::<Vec<_>>()
        };
        bits(self) == bits(other)
    }

    /// Fills all of them with NaN.
    pub fn poison(&mut self) {
        self.iter_mut().for_each(|(_, buffer)| buffer.poison());
    }
}

impl IntoIterator for Outputs {
    type Item = (Role, Buffer);
    type IntoIter = std::vec::IntoIter<(Role, Buffer)>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

impl FromIterator<(Role, Buffer)> for Outputs {
    fn from_iter<T: IntoIterator<Item = (Role, Buffer)>>(tensors: T) -> Self {
        Self(tensors.into_iter().collect())
    }
}
