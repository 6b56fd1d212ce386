//! A problem with its tensors, for tests of what plans promise beyond the numbers.

#![allow(dead_code, reason = "each test binary uses its own part")]

use msdeform::{CpuOptions, CpuPlan, Direction, Gradients, Offsets, Problem, ProblemBuilder};
use msdeform_lab::oracle::expect;
use msdeform_lab::runner::run_plan;
use msdeform_lab::{Case, HostTensors};

/// The tensors of both directions: samples of every kind, NaN where nothing may be read.
pub struct Call {
    pub problem: Problem,
    pub inputs: HostTensors,
    seed: u64,
}

impl Call {
    pub fn random(problem: Problem, seed: u64) -> Self {
        let mut call = Self { problem, inputs: HostTensors::default(), seed };
        call.inputs = call.case(call.everything()[1]).inputs();
        call
    }

    pub fn case(&self, wants: Option<Gradients>) -> Case {
        Case { wants, ..Case::varied(self.problem.clone(), Direction::Backward, self.seed) }
    }

    /// What a call of a plan writes into poisoned memory.
    pub fn written(&self, plan: &mut CpuPlan, wants: Option<Gradients>) -> HostTensors {
        run_plan(plan, &self.case(wants), &self.inputs).unwrap()
    }

    /// What both directions write.
    fn everything(&self) -> [Option<Gradients>; 2] {
        [None, Some(Gradients::all_of(&self.problem))]
    }

    /// The output, and all gradients.
    pub fn run(&self, plan: &mut CpuPlan) -> HostTensors {
        self.everything().into_iter().flat_map(|wants| self.written(plan, wants)).collect()
    }

    /// Compares what [`Call::run`] gave with the reference, within the contract.
    pub fn check(&self, results: &HostTensors) -> Result<(), String> {
        let expected =
            self.everything().map(|wants| expect(&self.case(wants), &self.inputs)).concat();
        assert_eq!(expected.len(), results.iter().count());
        for (expected, (_, found)) in expected.iter().zip(results.iter()) {
            let bound = expected.dtype.rel_l2_bound();
            expected.compare(found.bytes(), bound).fault.map_or(Ok(()), Err)?;
        }
        Ok(())
    }
}

pub fn plan(problem: &Problem, threads: usize) -> CpuPlan {
    CpuPlan::new(problem, &CpuOptions { threads: Some(threads), isa: None }).unwrap()
}

/// An encoder (values read often, hence staged) and two decoders of the fused operator: levels apart enough to be shared out.
pub fn fused() -> [ProblemBuilder; 3] {
    let base = Problem::builder().batch(2).points(3);
    // Miri, thousands of times slower, takes as much staging of less.
    let (base, queries) = if cfg!(miri) {
        (base.heads(1).channels(5).levels([(2, 3), (1, 2)]), [2, 1, 2])
    } else {
        (base.heads(3).channels(19).levels([(7, 9), (4, 5), (2, 3)]), [60, 4, 5])
    };
    [
        base.clone().queries(queries[0]).offsets(Offsets::from_points()),
        base.clone().queries(queries[1]).offsets(Offsets::from_boxes().one_for_all_levels()),
        base.queries(queries[2]).offsets(Offsets::from_boxes().nearest()),
    ]
}
