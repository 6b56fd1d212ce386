//! A forward and a backward as one training step.

use msdeform::Direction;

use super::{KnobbedVariant, Prepared, Ready, Result, Timing};
use crate::HostTensors;

/// One after the other; the time of a step is the sum of theirs. For devices that have nothing better:
/// a GPU queues both in one go.
pub(super) struct PreparedStep<'a> {
    pub forward: Ready<'a>,
    pub backward: Ready<'a>,
}

impl Prepared for PreparedStep<'_> {
    fn poison(&mut self) -> Result<()> {
        self.forward.poison()?;
        self.backward.poison()
    }

    fn run(&mut self) -> Result<()> {
        self.forward.run()?;
        self.backward.run()
    }

    fn switch(&mut self, choice: &KnobbedVariant) -> Result<()> {
        match choice.variant.direction {
            Direction::Forward => self.forward.switch(choice),
            Direction::Backward => self.backward.switch(choice),
        }
    }

    fn read(&mut self) -> Result<HostTensors> {
        self.backward.read()
    }

    fn time(&mut self, clock: Timing, count: usize) -> Result<Vec<f64>> {
        let once = |_| {
            let forward: f64 = self.forward.time(clock, 1)?.iter().sum();
            let backward: f64 = self.backward.time(clock, 1)?.iter().sum();
            Ok(forward + backward)
        };
        (0..count).map(once).collect()
    }

    fn clocks(&self) -> Vec<Timing> {
        self.backward.clocks()
    }

    fn is_reproducible(&self) -> bool {
        self.backward.is_reproducible()
    }

    fn mode(&self) -> &'static str {
        self.backward.mode()
    }

    fn workspace_bytes(&self) -> usize {
        self.forward.workspace_bytes() + self.backward.workspace_bytes()
    }
}
