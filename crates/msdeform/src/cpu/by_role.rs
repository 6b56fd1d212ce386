//! A call whose tensors are told by their roles: for whoever runs every operator in the same way.

use super::{CpuPlan, GradientsMut, OffsetGradientsMut};
use crate::{Error, Role, TensorView, TensorViewMut};

impl CpuPlan {
    /// Runs a call of the plan's problem: forward where the output is among what is written, else backward. What is read
    /// beyond the needs of the call is left alone.
    ///
    /// # Errors
    /// As [`CpuPlan::forward`] and [`CpuPlan::backward`]; [`Error::Tensors`] for a tensor that is missing, or to be written and
    /// none of the operator's.
    pub fn run<'r, 'w>(
        &mut self,
        read: impl IntoIterator<Item = (Role, TensorView<'r>)>,
        written: impl IntoIterator<Item = (Role, TensorViewMut<'w>)>,
    ) -> Result<(), Error> {
        let mut inputs: [Option<TensorView<'r>>; Role::COUNT] = Default::default();
        for (role, view) in read {
            inputs[role.index()] = Some(view);
        }
        let mut results: [Option<TensorViewMut<'w>>; Role::COUNT] = Default::default();
        for (role, view) in written {
            results[role.index()] = Some(view);
        }
        let operator = self.problem().operator();
        let is_forward = results[operator.output.index()].is_some();
        let direction =
            if is_forward { crate::Direction::Forward } else { crate::Direction::Backward };
        let mut of_operator = [false; Role::COUNT];
        operator.written(direction).for_each(|role| of_operator[role.index()] = true);
        if let Some(surplus) = Role::ALL
            .into_iter()
            .find(|role| results[role.index()].is_some() && !of_operator[role.index()])
        {
            let reason = "to be written, but the call computes no such tensor; leave it out";
            return Err(Error::Tensors { tensor: surplus.name(), reason });
        }
        let mut input = |role: Role| {
            let reason = "missing; the call reads it";
            inputs[role.index()].take().ok_or(Error::Tensors { tensor: role.name(), reason })
        };
        let mut result = |role: Role| results[role.index()].take();
        let value = input(Role::Value)?;
        if self.problem().offsets().is_none() {
            let (locations, weights) = (input(Role::Locations)?, input(Role::Weights)?);
            return match result(Role::Output) {
                Some(output) => self.forward(value, locations, weights, output),
                None => {
                    let gradients = GradientsMut {
                        value: result(Role::GradValue),
                        locations: result(Role::GradLocations),
                        weights: result(Role::GradWeights),
                    };
                    self.backward(value, locations, weights, input(Role::GradOutput)?, gradients)
                }
            };
        }
        let (references, offsets) = (input(Role::References)?, input(Role::Offsets)?);
        let logits = input(Role::Logits)?;
        match result(Role::Output) {
            Some(output) => self.forward_from_offsets(value, references, offsets, logits, output),
            None => {
                let gradients = OffsetGradientsMut {
                    value: result(Role::GradValue),
                    references: result(Role::GradReferences),
                    offsets: result(Role::GradOffsets),
                    logits: result(Role::GradLogits),
                };
                let upstream = input(Role::GradOutput)?;
                self.backward_from_offsets(value, references, offsets, logits, upstream, gradients)
            }
        }
    }
}
