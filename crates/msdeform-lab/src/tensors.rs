//! The tensors of a call in host memory, by role.

use std::ops::Index;

use msdeform::{Direction, Gradients, Problem, Role};

use crate::Buffer;
use crate::case::Trespass;

/// Inputs or results of a call, in the operator's order. Inputs are what the operator reads, and the gradient of the output,
/// which only the backward reads.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HostTensors(Vec<(Role, Buffer)>);

/// The tensors that a call writes: the output, or the gradients that are computed.
pub(crate) fn written(
    problem: &Problem,
    direction: Direction,
    gradients: Gradients,
) -> impl Iterator<Item = Role> {
    problem.operator().written(direction).filter(move |role| gradients.includes(*role))
}

impl HostTensors {
    /// Buffers of NaN for the results of a problem.
    pub fn poisoned(problem: &Problem, direction: Direction, gradients: Gradients) -> Self {
        let buffer = |role| Buffer::poisoned(problem.format_of(role), problem.len_of(role));
        written(problem, direction, gradients).map(|role| (role, buffer(role))).collect()
    }

    pub fn iter(&self) -> impl Iterator<Item = (Role, &Buffer)> {
        self.0.iter().map(|(role, buffer)| (*role, buffer))
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = (Role, &mut Buffer)> {
        self.0.iter_mut().map(|(role, buffer)| (*role, buffer))
    }

    pub(crate) fn get(&self, wanted: Role) -> Option<&Buffer> {
        self.0.iter().find(|(role, _)| *role == wanted).map(|(_, buffer)| buffer)
    }

    /// Replaces the numbers of a tensor that the call has; its dtype stays.
    pub fn set(&mut self, wanted: Role, numbers: &[f64]) {
        if let Some((_, buffer)) = self.0.iter_mut().find(|(role, _)| *role == wanted) {
            *buffer = Buffer::from_numbers(buffer.dtype(), numbers);
        }
    }

    pub fn poison(&mut self) {
        self.iter_mut().for_each(|(_, buffer)| buffer.poison());
    }

    /// Whether all that was written lies inside of the tensors.
    pub(crate) fn check_guards(&self) -> Result<(), Trespass> {
        let trespass = self.iter().find_map(|(role, buffer)| {
            Some(Trespass { tensor: role.name(), place: buffer.trespass()? })
        });
        trespass.map_or(Ok(()), Err)
    }

    pub fn widened(&self) -> Widened {
        Widened(self.iter().map(|(role, buffer)| (role, buffer.to_f64())).collect())
    }
}

impl IntoIterator for HostTensors {
    type Item = (Role, Buffer);
    type IntoIter = std::vec::IntoIter<(Role, Buffer)>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

impl FromIterator<(Role, Buffer)> for HostTensors {
    fn from_iter<T: IntoIterator<Item = (Role, Buffer)>>(tensors: T) -> Self {
        Self(tensors.into_iter().collect())
    }
}

/// A tensor that the call does not have is empty.
impl Index<Role> for HostTensors {
    type Output = Buffer;

    fn index(&self, wanted: Role) -> &Buffer {
        static NONE: Buffer = Buffer::EMPTY;
        self.get(wanted).unwrap_or(&NONE)
    }
}

/// Inputs of a call as the reference takes them.
#[derive(Clone, Debug, PartialEq)]
pub struct Widened(Vec<(Role, Vec<f64>)>);

impl Widened {
    /// A tensor; empty if the call does not have it.
    pub fn get(&self, wanted: Role) -> &[f64] {
        self.0.iter().find(|(role, _)| *role == wanted).map_or(&[], |(_, numbers)| numbers)
    }
}
