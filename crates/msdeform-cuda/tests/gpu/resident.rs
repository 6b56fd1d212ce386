//! A case with its tensors on the device, for tests of how plans are launched.

use libtest_mimic::Failed;
use msdeform::{Access, Direction, Element, Problem, Role, ValueStrides};
use msdeform_cuda::{Argument, DeviceBuffer, Plan, Pointers, Stream};

use msdeform_lab::oracle::{Expected, expect};
use msdeform_lab::{Case, HostTensors};

use crate::{Outcome, ensure};

/// Values, locations and gradients are all of one format.
pub struct Resident<T> {
    pub case: Case,
    pub inputs: HostTensors,
    buffers: Vec<(Role, Access, DeviceBuffer<T>)>,
}

fn stored<T: Element>(inputs: &HostTensors, role: Role) -> Vec<T> {
    inputs[role].to_f64().into_iter().map(T::from_f64).collect()
}

impl<T: Element> Resident<T> {
    /// [`Case::varied`] on the device.
    pub fn new(
        stream: &Stream,
        problem: &Problem,
        direction: Direction,
        seed: u64,
    ) -> Result<Self, Failed> {
        let case = Case::varied(problem.clone(), direction, seed);
        let inputs = case.inputs();
        Self::holding(stream, case, inputs)
    }

    /// These inputs on the device; what is written is poisoned.
    pub fn holding(stream: &Stream, case: Case, inputs: HostTensors) -> Result<Self, Failed> {
        let (values, samples) = (case.problem.dtype(), case.problem.sampling_dtype());
        ensure!(values == T::DTYPE && samples == T::DTYPE, "not in {}", T::DTYPE);
        let buffer = |(role, access)| {
            let buffer = match access {
                Access::Read => DeviceBuffer::from_host(stream, &stored(&inputs, role)),
                Access::Write => DeviceBuffer::filled(stream, case.problem.len_of(role), 0xff),
            };
            Ok((role, access, buffer?))
        };
        let buffers = case.tensors().map(buffer).collect::<Result<Vec<_>, Failed>>()?;
        Ok(Self { case, inputs, buffers })
    }

    /// Draws other numbers into the same memory.
    pub fn redraw(&mut self, stream: &Stream, seed: u64) -> Outcome {
        self.case.seed = seed;
        self.inputs = self.case.inputs();
        for (role, access, buffer) in &mut self.buffers {
            match access {
                Access::Read => buffer.copy_from(stream, 0, &stored(&self.inputs, *role))?,
                Access::Write => buffer.fill(stream, 0xff)?,
            }
        }
        Ok(())
    }

    /// Moves the second image of the values to where the strides put it. No tensor owns the memory between the images.
    pub fn spread_images(&mut self, stream: &Stream, strides: ValueStrides) -> Outcome {
        let value: Vec<T> = stored(&self.inputs, Role::Value);
        let (first, second) = value.split_at(value.len() / 2);
        let extent = strides.extent(&self.case.problem);
        let mut spread = DeviceBuffer::filled(stream, extent, 0xff)?;
        spread.copy_from(stream, 0, first)?;
        spread.copy_from(stream, strides.batch as usize, second)?;
        let held = self.buffers.iter_mut().find(|(role, ..)| *role == Role::Value);
        held.map(|(.., buffer)| *buffer = spread).ok_or_else(|| "no values".into())
    }

    pub fn arguments(&mut self) -> impl Iterator<Item = Argument<'_>> {
        self.buffers.iter_mut().map(|(role, access, buffer)| match access {
            Access::Read => Argument::read(*role, buffer),
            Access::Write => Argument::write(*role, buffer),
        })
    }

    pub fn run(&mut self, stream: &Stream, plan: &Plan) -> msdeform_cuda::Result<()> {
        plan.run(stream, self.arguments())
    }

    pub fn pointers(&self) -> Pointers {
        let all = self.buffers.iter();
        all.fold(Pointers::default(), |all, (role, _, buffer)| all.with(*role, buffer.address()))
    }

    pub fn poison(&mut self, stream: &Stream) -> msdeform_cuda::Result<()> {
        let written = self.buffers.iter_mut().filter(|(_, access, _)| *access == Access::Write);
        written.map(|(.., buffer)| buffer).try_for_each(|buffer| buffer.fill(stream, 0xff))
    }

    /// What was written.
    pub fn download(&self, stream: &Stream) -> msdeform_cuda::Result<Vec<(Role, Vec<f64>)>> {
        let written = self.buffers.iter().filter(|(_, access, _)| *access == Access::Write);
        let numbers = |found: Vec<T>| found.into_iter().map(T::to_f64).collect();
        written.map(|(role, _, buffer)| Ok((*role, numbers(buffer.to_host(stream)?)))).collect()
    }

    /// Whether all that would be written is still poison.
    pub fn is_untouched(&self, stream: &Stream) -> msdeform_cuda::Result<bool> {
        let written = self.download(stream)?;
        Ok(written.iter().all(|(_, numbers)| numbers.iter().all(|x| x.is_nan())))
    }

    /// Every bit, through `f64`, which holds each of the formats; NaN is one number here.
    pub fn bits(&self, stream: &Stream) -> msdeform_cuda::Result<Vec<u64>> {
        let of = |x: f64| if x.is_nan() { u64::MAX } else { x.to_bits() };
        let written = self.download(stream)?;
        Ok(written.into_iter().flat_map(|(_, numbers)| numbers.into_iter().map(of)).collect())
    }

    /// Fails unless all that was written is within the contract of the format.
    pub fn check(&self, stream: &Stream) -> Outcome {
        let found = self.download(stream)?;
        let expected = expect(&self.case, &self.inputs);
        expected.iter().zip(&found).try_for_each(|(wanted, (_, found))| compare(wanted, found))
    }
}

/// Fails unless a tensor is within the contract of its format, without allowances.
pub fn compare(expected: &Expected, found: &[f64]) -> Outcome {
    let verdict = expected.compare_numbers(found, expected.dtype.rel_l2_bound());
    verdict.fault.map_or(Ok(()), |fault| Err(fault.into()))
}
