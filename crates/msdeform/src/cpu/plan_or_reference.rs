//! What computes any problem on the CPU: a plan, or the reference where no plan does.

use super::{CpuOptions, CpuPlan, Tensors};
use crate::{Error, Problem, Role, TensorView, TensorViewMut, call};

/// Computes calls of one problem: with a [`CpuPlan`], or with the [reference](crate::reference) if the CPU backend does
/// not take the problem, as with `f64`.
#[derive(Debug)]
pub enum PlanOrReference {
    /// Kernels.
    Plan(Box<CpuPlan>),
    /// The reference, which runs on one thread and keeps nothing between calls.
    Reference(Problem),
}

impl PlanOrReference {
    /// Prepares calls of `problem`.
    ///
    /// # Errors
    /// As [`CpuPlan::new`]; [`Error::Unsupported`] only if the options name an instruction set.
    pub fn new(problem: &Problem, options: &CpuOptions) -> Result<Self, Error> {
        match CpuPlan::new(problem, options) {
            Ok(plan) => Ok(Self::Plan(Box::new(plan))),
            Err(Error::Unsupported { .. }) if options.isa.is_none() => {
                Ok(Self::Reference(problem.clone()))
            }
            Err(error) => Err(error),
        }
    }

    /// The problem that it was prepared for.
    #[must_use]
    pub const fn problem(&self) -> &Problem {
        match self {
            Self::Plan(plan) => plan.problem(),
            Self::Reference(problem) => problem,
        }
    }

    /// Threads that share the work; 1 means the calling thread.
    #[must_use]
    pub fn threads(&self) -> usize {
        match self {
            Self::Plan(plan) => plan.threads(),
            Self::Reference(_) => 1,
        }
    }

    /// Scratch memory held now.
    #[must_use]
    pub fn workspace_bytes(&self) -> usize {
        match self {
            Self::Plan(plan) => plan.workspace_bytes(),
            Self::Reference(_) => 0,
        }
    }

    /// Runs a call; see [`CpuPlan::run`].
    ///
    /// # Errors
    /// As [`CpuPlan::run`].
    pub fn run<'r, 'w>(
        &mut self,
        read: impl IntoIterator<Item = (Role, TensorView<'r>)>,
        written: impl IntoIterator<Item = (Role, TensorViewMut<'w>)>,
    ) -> Result<(), Error> {
        let tensors = Tensors::by_role(self.problem(), read, written)?;
        self.compute(tensors)
    }

    pub(crate) fn compute(&mut self, tensors: Tensors<'_, '_>) -> Result<(), Error> {
        match self {
            Self::Plan(plan) => plan.compute(tensors, None),
            Self::Reference(problem) => call::compute_by_reference(problem, tensors),
        }
    }
}

/// Whether a call is done before a second thread wakes up. Starting threads for it would only cost time.
#[must_use]
pub fn is_for_one_thread(problem: &Problem) -> bool {
    // Miri is a thousand times slower and must see threads too.
    const PRODUCTS: usize = if cfg!(miri) { 1 << 6 } else { 1 << 16 };
    problem.weights_len().saturating_mul(problem.channels()) < PRODUCTS
}
