//! The tensors of a call by role: one entry for all operators.

use super::{CpuPlan, LentThreads};
use crate::{Access, Direction, Error, Operator, Problem, Role, TensorView, TensorViewMut};

/// The tensors of a call, by role.
pub(crate) struct Tensors<'r, 'w> {
    pub(crate) operator: &'static Operator,
    read: [Option<TensorView<'r>>; Role::COUNT],
    written: [Option<TensorViewMut<'w>>; Role::COUNT],
}

impl<'r, 'w> Tensors<'r, 'w> {
    fn new(operator: &'static Operator) -> Self {
        Self { operator, read: Default::default(), written: Default::default() }
    }

    /// The tensors of a call in the order of its signature. A backward call reads one more than the inputs.
    pub(crate) fn of<const READ: usize>(
        operator: &'static Operator,
        read: [TensorView<'r>; READ],
        written: impl IntoIterator<Item = Option<TensorViewMut<'w>>>,
    ) -> Self {
        let is_forward = READ == operator.inputs.len();
        let direction = if is_forward { Direction::Forward } else { Direction::Backward };
        let (mut read, mut written) = (read.into_iter(), written.into_iter());
        let mut tensors = Self::new(operator);
        for (role, access) in operator.tensors(direction) {
            match access {
                Access::Read => tensors.read[role.index()] = read.next(),
                Access::Write => tensors.written[role.index()] = written.next().flatten(),
            }
        }
        tensors
    }

    /// What a call of a problem reads and writes.
    ///
    /// # Errors
    /// [`Error::Tensors`] for a tensor to be written that the operator does not compute.
    pub(crate) fn by_role(
        problem: &Problem,
        read: impl IntoIterator<Item = (Role, TensorView<'r>)>,
        written: impl IntoIterator<Item = (Role, TensorViewMut<'w>)>,
    ) -> Result<Self, Error> {
        let mut tensors = Self::new(problem.operator());
        for (role, view) in read {
            tensors.read[role.index()] = Some(view);
        }
        for (role, view) in written {
            tensors.written[role.index()] = Some(view);
        }
        let mut of_operator = [false; Role::COUNT];
        let computed = tensors.operator.written(tensors.direction());
        computed.for_each(|role| of_operator[role.index()] = true);
        let is_surplus =
            |role: &Role| tensors.written[role.index()].is_some() && !of_operator[role.index()];
        if let Some(surplus) = Role::ALL.into_iter().find(is_surplus) {
            let reason = "to be written, but the call computes no such tensor; leave it out";
            return Err(Error::Tensors { tensor: surplus.name(), reason });
        }
        Ok(tensors)
    }

    /// Forward where there is an output to write.
    pub(crate) fn direction(&self) -> Direction {
        let is_forward = self.written[Role::Output.index()].is_some();
        if is_forward { Direction::Forward } else { Direction::Backward }
    }

    pub(crate) fn input(&mut self, role: Role) -> Result<TensorView<'r>, Error> {
        let reason = "missing; the call reads it";
        self.read[role.index()].take().ok_or(Error::Tensors { tensor: role.name(), reason })
    }

    pub(crate) fn result(&mut self, role: Role) -> Option<TensorViewMut<'w>> {
        self.written[role.index()].take()
    }
}

impl CpuPlan {
    /// Computes a call of the plan's problem: a forward call if the output is among `written`, else a backward call. Tensors
    /// that the call does not read are ignored.
    ///
    /// # Errors
    /// As [`CpuPlan::forward`] and [`CpuPlan::backward`]; [`Error::Tensors`] for an input that is missing, and for a tensor to
    /// be written that the operator does not compute.
    pub fn run<'r, 'w>(
        &mut self,
        read: impl IntoIterator<Item = (Role, TensorView<'r>)>,
        written: impl IntoIterator<Item = (Role, TensorViewMut<'w>)>,
    ) -> Result<(), Error> {
        let tensors = Tensors::by_role(self.problem(), read, written)?;
        self.compute(tensors, None)
    }

    /// As [`CpuPlan::run`], but a forward call runs on lent threads instead of the plan's own.
    ///
    /// # Errors
    /// As [`CpuPlan::run`].
    pub fn run_on<'r, 'w>(
        &mut self,
        threads: &dyn LentThreads,
        read: impl IntoIterator<Item = (Role, TensorView<'r>)>,
        written: impl IntoIterator<Item = (Role, TensorViewMut<'w>)>,
    ) -> Result<(), Error> {
        let tensors = Tensors::by_role(self.problem(), read, written)?;
        self.compute(tensors, Some(threads))
    }
}
