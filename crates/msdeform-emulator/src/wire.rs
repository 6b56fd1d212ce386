//! The protocol of the runner (`cpp/main.cpp`): little-endian numbers, no padding.

use std::time::Duration;

use crate::launch::{Launch, LaunchStep, Order};

const REQUEST_MAGIC: u64 = u64::from_le_bytes(*b"MDAEMUL2");

/// Every launch, one after the other.
pub(crate) fn request(launches: &[Launch], time_limit: Duration) -> Vec<u8> {
    let mut bytes = Vec::new();
    put_u64(&mut bytes, REQUEST_MAGIC);
    put_u32(&mut bytes, u32::try_from(time_limit.as_millis()).unwrap_or(u32::MAX));
    put_count(&mut bytes, launches.len());
    for launch in launches {
        put_launch(&mut bytes, launch);
    }
    bytes
}

fn put_launch(bytes: &mut Vec<u8>, launch: &Launch) {
    put_order(bytes, launch.order);
    put_order(bytes, launch.block_order);
    put_count(bytes, launch.steps.len());
    for step in &launch.steps {
        put_step(bytes, step);
    }
    put_u64(bytes, launch.params.len() as u64);
    bytes.extend_from_slice(&launch.params);
    put_count(bytes, launch.buffers.len());
    for buffer in &launch.buffers {
        put_u64(bytes, buffer.bytes.len() as u64);
        put_u32(bytes, buffer.offset);
        put_u32(bytes, u32::from(buffer.written));
        bytes.extend_from_slice(&buffer.bytes);
    }
    let pointers = launch.pointers();
    put_count(bytes, pointers.len());
    for pointer in pointers {
        put_u64(bytes, pointer.position as u64);
        put_count(bytes, pointer.buffer);
        put_u64(bytes, pointer.offset);
    }
}

fn put_step(bytes: &mut Vec<u8>, step: &LaunchStep) {
    match step {
        LaunchStep::Kernel { entry, grid, block, shared_bytes } => {
            put_u32(bytes, 0);
            put_count(bytes, *entry);
            for size in grid.iter().chain(block) {
                put_u32(bytes, *size);
            }
            put_u64(bytes, *shared_bytes as u64);
        }
        LaunchStep::Zero { buffer, offset, bytes: count } => {
            put_u32(bytes, 1);
            put_u32(bytes, u32::from(*buffer));
            put_u64(bytes, *offset as u64);
            put_u64(bytes, *count as u64);
        }
    }
}

fn put_order(bytes: &mut Vec<u8>, order: Order) {
    put_u32(
        bytes,
        match order {
            Order::Ascending => 0,
            Order::Descending => 1,
            Order::Shuffled => 2,
        },
    );
}

/// Splits the answer into the written buffers of every launch; `None` if its length is wrong.
pub(crate) fn split_answer(launches: &[Launch], answer: &[u8]) -> Option<Vec<Vec<Vec<u8>>>> {
    let mut rest = answer;
    let mut outputs = Vec::with_capacity(launches.len());
    for launch in launches {
        let written = launch.buffers.iter().filter(|buffer| buffer.written);
        let mut buffers = Vec::new();
        for buffer in written {
            let (bytes, after) = rest.split_at_checked(buffer.bytes.len())?;
            buffers.push(bytes.to_vec());
            rest = after;
        }
        outputs.push(buffers);
    }
    rest.is_empty().then_some(outputs)
}

fn put_u32(bytes: &mut Vec<u8>, number: u32) {
    bytes.extend_from_slice(&number.to_le_bytes());
}

fn put_u64(bytes: &mut Vec<u8>, number: u64) {
    bytes.extend_from_slice(&number.to_le_bytes());
}

/// A count, which always fits the number.
fn put_count(bytes: &mut Vec<u8>, count: usize) {
    put_u32(bytes, u32::try_from(count).unwrap_or(u32::MAX));
}
