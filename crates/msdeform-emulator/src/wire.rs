//! The protocol of the runner (`cpp/main.cpp`): little-endian numbers, no padding.

use std::time::Duration;

use crate::launch::{Launch, LaunchStep};

const REQUEST_MAGIC: &[u8] = b"MDAEMUL2";

struct Wire(Vec<u8>);

impl Wire {
    fn u64(&mut self, number: u64) {
        self.0.extend(number.to_le_bytes());
    }

    /// A number that fits 32 bits.
    fn u32(&mut self, number: impl TryInto<u32>) {
        self.0.extend(number.try_into().unwrap_or(u32::MAX).to_le_bytes());
    }

    fn launch(&mut self, launch: &Launch) {
        self.u32(launch.order as u32);
        self.u32(launch.block_order as u32);
        self.u32(launch.steps.len());
        for step in &launch.steps {
            self.step(step);
        }
        self.u64(launch.params.len() as u64);
        self.0.extend(&launch.params);
        self.u32(launch.buffers.len());
        for buffer in &launch.buffers {
            self.u64(buffer.bytes.len() as u64);
            self.u32(buffer.offset);
            self.u32(u32::from(buffer.written));
            self.0.extend(&buffer.bytes);
        }
        let pointers = launch.pointers();
        self.u32(pointers.len());
        for pointer in pointers {
            self.u64(pointer.position as u64);
            self.u32(pointer.buffer);
            self.u64(pointer.offset);
        }
    }

    fn step(&mut self, step: &LaunchStep) {
        match *step {
            LaunchStep::Kernel { entry, grid, block, shared_bytes } => {
                self.u32(0u32);
                self.u32(entry);
                grid.into_iter().chain(block).for_each(|size| self.u32(size));
                self.u64(shared_bytes as u64);
            }
            LaunchStep::Zero { buffer, offset, bytes } => {
                self.u32(1u32);
                self.u32(buffer);
                self.u64(offset as u64);
                self.u64(bytes as u64);
            }
        }
    }
}

/// Every launch, one after the other.
pub(crate) fn request(launches: &[Launch], time_limit: Duration) -> Vec<u8> {
    let mut wire = Wire(REQUEST_MAGIC.to_vec());
    wire.u32(time_limit.as_millis());
    wire.u32(launches.len());
    for launch in launches {
        wire.launch(launch);
    }
    wire.0
}

/// Splits the answer into the written buffers of every launch; `None` if its length is wrong.
pub(crate) fn split_answer(launches: &[Launch], answer: &[u8]) -> Option<Vec<Vec<Vec<u8>>>> {
    let mut rest = answer;
    let mut split = |length: usize| {
        let (bytes, after) = rest.split_at_checked(length)?;
        rest = after;
        Some(bytes.to_vec())
    };
    let mut outputs = Vec::with_capacity(launches.len());
    for launch in launches {
        let written = launch.buffers.iter().filter(|buffer| buffer.written);
        outputs.push(written.map(|buffer| split(buffer.bytes.len())).collect::<Option<_>>()?);
    }
    rest.is_empty().then_some(outputs)
}
