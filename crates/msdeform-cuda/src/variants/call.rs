//! What a variant is asked to do.

use msdeform::{
    BackwardCall, Direction, Gradients, Operator, Problem, Role, SourceStrides, ValueStrides,
};

use crate::driver::DeviceProps;

/// What a variant is asked to do.
#[derive(Clone, Copy, Debug)]
pub struct Call<'a> {
    /// The operator's sizes.
    pub problem: &'a Problem,
    /// Strides of the value tensor.
    pub strides: ValueStrides,
    /// The GPU.
    pub device: &'a DeviceProps,
    /// Width of the raster that the queries form, 0 if nothing is known.
    pub query_raster_width: u32,
    /// Where references, offsets and logits lie; of no meaning where samples are given.
    pub sources: SourceStrides,
    /// What only a backward call has; `None` makes it a forward call.
    pub backward: Option<BackwardCall>,
}

impl<'a> Call<'a> {
    /// A forward call with packed values and no knowledge about the queries.
    pub fn new(problem: &'a Problem, device: &'a DeviceProps) -> Self {
        let strides = ValueStrides::packed(problem);
        let sources = SourceStrides::packed(problem);
        Self { problem, strides, device, query_raster_width: 0, sources, backward: None }
    }

    /// An ordinary call in a direction: everything packed, all gradients, fast.
    pub fn in_direction(
        direction: Direction,
        problem: &'a Problem,
        device: &'a DeviceProps,
    ) -> Self {
        let backward = match direction {
            Direction::Forward => None,
            Direction::Backward => Some(BackwardCall::new(problem)),
        };
        Self { backward, ..Self::new(problem, device) }
    }

    /// The operator that is called.
    pub fn operator(&self) -> &'static Operator {
        self.problem.operator()
    }

    /// Whether a tensor of the operator is part of this call: all but the gradients that the caller did not request.
    pub fn has(&self, role: Role) -> bool {
        self.backward.is_none_or(|backward| backward.gradients.includes(role))
    }

    /// Bytes from the first element of a tensor to one past its last.
    pub fn extent(&self, role: Role) -> usize {
        let problem = self.problem;
        let elements = match (role, self.backward) {
            (Role::Value, _) => self.strides.extent(problem),
            (Role::GradOutput, Some(backward)) => backward.grad_output.extent(problem),
            (Role::References | Role::Offsets | Role::Logits, _) => {
                self.sources.extent(problem, role)
            }
            _ => problem.len_of(role),
        };
        elements * problem.format_of(role).size_bytes()
    }

    /// Which way it runs.
    pub const fn direction(&self) -> Direction {
        match self.backward {
            None => Direction::Forward,
            Some(_) => Direction::Backward,
        }
    }

    /// Which gradients are asked for; none by a forward call.
    pub fn gradients(&self) -> Gradients {
        self.backward.map_or(Gradients::NONE, |backward| backward.gradients)
    }

    /// Whether there is nothing for a kernel to do: no output, or no sample that could contribute to a
    /// gradient, which are then all zero. Variants are not configured for such calls.
    pub fn is_empty(&self) -> bool {
        let is_without = |role: &Role| self.problem.len_of(*role) == 0;
        let nothing_contributes = || self.operator().inputs.iter().any(is_without);
        is_without(&self.operator().output) || (self.backward.is_some() && nothing_contributes())
    }

    /// Output rows: one per image, query and head.
    pub fn rows(&self) -> u64 {
        // Fits: Problem checked the output's element count.
        (self.problem.batch() * self.problem.queries() * self.problem.heads()) as u64
    }
}
