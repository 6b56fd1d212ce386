//! What a launch is given is looked at before anything is queued.

use std::sync::atomic::{AtomicBool, Ordering};

use msdeform::{Access, Problem};

use super::operands::{Argument, Operand, Pointers};
use super::options::PointerChecks;
use crate::driver::{Context, Stream, check_pointer};
use crate::error::{Error, Result};

#[derive(Debug)]
pub(super) struct Gate {
    context: Context,
    checks: PointerChecks,
    /// Relaxed: nothing is published by it. Who sees it late asks the driver once more.
    checked: AtomicBool,
}

impl Gate {
    pub(super) fn new(context: &Context, checks: PointerChecks) -> Self {
        Self { context: context.clone(), checks, checked: AtomicBool::new(false) }
    }

    pub(super) const fn context(&self) -> &Context {
        &self.context
    }

    pub(super) fn check_stream(&self, stream: &Stream) -> Result<()> {
        self.check_context("stream", stream.context())
    }

    pub(super) fn check_tensors(&self, operands: &[Operand], pointers: &Pointers) -> Result<()> {
        // An empty tensor is never touched: its pointer may be anything.
        let operands = operands.iter().filter(|operand| operand.bytes > 0);
        for &Operand { role, element_bytes, .. } in operands.clone() {
            let (tensor, address) = (role.name(), pointers.get(role));
            if address == 0 {
                return Err(Error::NullPointer { tensor });
            }
            if !address.is_multiple_of(element_bytes as u64) {
                return Err(Error::MisalignedElement { tensor, address, element_bytes });
            }
        }
        if self.asks_the_driver() {
            for &Operand { role, bytes, .. } in operands {
                check_pointer(&self.context, role.name(), pointers.get(role), bytes)?;
            }
            self.checked.store(true, Ordering::Relaxed);
        }
        Ok(())
    }

    /// A workspace of the caller. Looked at whenever tensors are: it is another one every time.
    pub(super) fn check_workspace(&self, address: u64, bytes: usize) -> Result<u64> {
        let tensor = "workspace";
        if address == 0 {
            return Err(Error::NullPointer { tensor });
        }
        if self.checks != PointerChecks::Never {
            check_pointer(&self.context, tensor, address, bytes)?;
        }
        Ok(address)
    }

    /// Refuses a buffer of another format, too small, on another GPU, or not to be written.
    pub(super) fn check_argument(
        &self,
        operand: &Operand,
        problem: &Problem,
        argument: &Argument<'_>,
    ) -> Result<()> {
        let tensor = operand.role.name();
        let (expected, found) = (problem.format_of(operand.role), argument.dtype);
        if expected != found {
            return Err(msdeform::Error::DtypeMismatch { tensor, expected, found }.into());
        }
        let (required, found) = (operand.bytes, argument.bytes);
        if found < required {
            return Err(Error::BufferTooSmall { tensor, required, found });
        }
        if operand.access == Access::Write && argument.access == Access::Read {
            return Err(Error::ReadOnly { tensor });
        }
        self.check_context(tensor, argument.context)
    }

    fn asks_the_driver(&self) -> bool {
        match self.checks {
            PointerChecks::Every => true,
            PointerChecks::First => !self.checked.load(Ordering::Relaxed),
            PointerChecks::Never => false,
        }
    }

    fn check_context(&self, what: &'static str, context: &Context) -> Result<()> {
        if context.raw() == self.context.raw() {
            return Ok(());
        }
        let (expected, found) = (self.context.ordinal(), context.ordinal());
        Err(Error::WrongDevice { what, expected, found })
    }
}
