//! Bandwidth of the memory, which every figure in bytes per second is compared with.

use std::time::Instant;

use msdeform::{Isa, cpu};
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use super::{DeviceError, Result};
use crate::memory;

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Bandwidth {
    /// Bytes read plus bytes written, per nanosecond; the best of several passes.
    pub copy_gb_per_s: f64,
    pub buffer_bytes: u64,
    pub threads: usize,
    /// Whether the buffers fit the last-level cache, so that the figure is the cache's.
    pub in_cache: bool,
}

const PASSES: usize = 4;
const SMALLEST: u64 = 64 << 20;
const LARGEST: u64 = 512 << 20;

/// The shortest of several passes.
fn best_seconds(mut pass: impl FnMut()) -> f64 {
    let seconds = (0..PASSES).map(|_| {
        let start = Instant::now();
        pass();
        start.elapsed().as_secs_f64()
    });
    seconds.fold(f64::INFINITY, f64::min)
}

fn pool(threads: usize) -> Result<rayon::ThreadPool> {
    let builder = rayon::ThreadPoolBuilder::new().num_threads(threads);
    builder.build().map_err(|error| DeviceError::Threads { threads, reason: error.to_string() })
}

impl Bandwidth {
    /// Copies a buffer twice as large as the last-level cache (between 64 and 512 MiB, and at most
    /// an eighth of the free memory) on the given number of threads.
    pub(super) fn probe_memory(threads: usize, cache_bytes: u64) -> Result<Self> {
        let affordable = (memory::available_bytes() / 8).max(SMALLEST / 8);
        let bytes = (2 * cache_bytes).clamp(SMALLEST, LARGEST).min(affordable);
        let pool = pool(threads)?;
        let words = (bytes / 8) as usize;
        let part = words.div_ceil(threads).max(1);
        // Ones, not zeros: pages of zeros may all be the same page.
        let source = vec![1u64; words];
        let mut target = vec![2u64; words];
        let best_seconds = best_seconds(|| {
            pool.install(|| {
                let parts = target.par_chunks_mut(part).zip(source.par_chunks(part));
                parts.for_each(|(to, from)| to.copy_from_slice(from));
            });
            std::hint::black_box(&target);
        });
        let moved = (2 * 8 * words) as f64;
        Ok(Self {
            copy_gb_per_s: moved / best_seconds * 1e-9,
            buffer_bytes: 8 * words as u64,
            threads,
            in_cache: 2 * bytes <= cache_bytes,
        })
    }
}

/// Bytes read plus written per nanosecond by threads that each copy `bytes` of their own again and
/// again, small enough to stay in a cache; the best of several passes.
pub(super) fn copy_in_cache(threads: usize, bytes: u64) -> Result<f64> {
    /// Every thread moves this much in a pass.
    const MOVED: u64 = 1 << 30;
    let pool = pool(threads)?;
    let words = (bytes / 8).max(1) as usize;
    let repeats = (MOVED / (16 * words as u64)).max(1);
    let seconds = pool.broadcast(|_| {
        let source = vec![1u64; words];
        let mut target = vec![2u64; words];
        best_seconds(|| {
            for _ in 0..repeats {
                target.copy_from_slice(std::hint::black_box(&source));
                std::hint::black_box(&mut target);
            }
        })
    });
    // Threads share the outer caches: each one's own time counts, not the sum of the best.
    let slowest = seconds.into_iter().fold(0.0, f64::max);
    Ok((threads as u64 * repeats * 16 * words as u64) as f64 / slowest * 1e-9)
}

/// Floating-point operations per nanosecond of threads that do nothing but multiply-adds in registers; the
/// best of several passes.
pub(super) fn multiply_adds(threads: usize, isa: Isa) -> Result<f64> {
    const ROUNDS: usize = 1 << 18;
    let pool = pool(threads)?;
    let mut operations = 0u64;
    let seconds = best_seconds(|| {
        operations = pool.broadcast(|_| cpu::multiply_adds(isa, ROUNDS)).into_iter().sum();
    });
    Ok(operations as f64 / seconds * 1e-9)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_takes_time_and_moves_bytes() {
        let bandwidth = Bandwidth::probe_memory(2, 0).unwrap();
        assert!(bandwidth.copy_gb_per_s > 0.1 && bandwidth.copy_gb_per_s < 1e5, "{bandwidth:?}");
        assert!(bandwidth.buffer_bytes > 0 && !bandwidth.in_cache);
        let in_cache = copy_in_cache(2, 16 << 10).unwrap();
        assert!(in_cache > 0.1 && in_cache < 1e6, "{in_cache}");
        let arithmetic = multiply_adds(2, Isa::best()).unwrap();
        assert!(arithmetic > 0.1 && arithmetic < 1e5, "{arithmetic}");
    }
}
