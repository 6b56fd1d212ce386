//! Whether there is memory for a call, before it is taken.
//!
//! A file of a few bytes, or an option, can declare tensors of any size. An allocation that fails ends the process, and one
//! that the system grants and cannot keep ends it later, or another one. So the sizes are added up first and compared with
//! what is free.

use std::fmt;

use msdeform::{DType, Problem, Role};
use sysinfo::{MemoryRefreshKind, RefreshKind, System};

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{what} would take {} of memory, {} are free; use fewer queries or images, or a larger machine",
    Size(*needed_bytes),
    Size(u128::from(*available_bytes))
)]
pub struct MemoryError {
    pub what: String,
    pub needed_bytes: u128,
    pub available_bytes: u64,
}

struct Size(u128);

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 7] = ["bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
        let mut rest = self.0 as f64;
        let mut unit = 0;
        while rest >= 1024.0 && unit + 1 < UNITS.len() {
            rest /= 1024.0;
            unit += 1;
        }
        let digits = usize::from(unit > 0);
        write!(f, "{rest:.digits$} {}", UNITS[unit])
    }
}

/// Refuses what does not fit into the memory that is free.
pub fn ensure_room(what: impl fmt::Display, needed_bytes: u128) -> Result<(), MemoryError> {
    let available_bytes = available_bytes();
    if needed_bytes <= u128::from(available_bytes) {
        Ok(())
    } else {
        Err(MemoryError { what: what.to_string(), needed_bytes, available_bytes })
    }
}

/// What this process can still get: of the machine, of its container, and of its address space. Without an answer from
/// the system, everything.
pub fn available_bytes() -> u64 {
    let system = System::new_with_specifics(
        RefreshKind::nothing().with_memory(MemoryRefreshKind::nothing().with_ram()),
    )
    .ok();
    let machine = system.as_ref().map(System::available_memory).filter(|&bytes| bytes > 0);
    let container =
        system.as_ref().and_then(System::cgroup_limits).map(|limits| limits.free_memory);
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let addresses = address_space_left(&read("/proc/self/limits"), &read("/proc/self/status"));
    [machine, container, addresses].into_iter().flatten().min().unwrap_or(u64::MAX)
}

/// What `ulimit -v` leaves, from `/proc/self/limits` and `/proc/self/status`.
fn address_space_left(limits: &str, status: &str) -> Option<u64> {
    let limit = limits.lines().find_map(|line| line.strip_prefix("Max address space"))?;
    let limit: u64 = limit.split_whitespace().next()?.parse().ok()?;
    let used = status.lines().find_map(|line| line.strip_prefix("VmSize:"))?;
    let used_kib: u64 = used.split_whitespace().next()?.parse().ok()?;
    Some(limit.saturating_sub(used_kib << 10))
}

/// Elements times bytes, without wrapping.
fn bytes(elements: usize, dtype: DType) -> u128 {
    elements as u128 * dtype.size_bytes() as u128
}

/// The tensors that a call reads, `grad_output` included.
pub fn of_inputs(problem: &Problem) -> u128 {
    stored(problem) + bytes(problem.output_len(), problem.output_dtype())
}

/// The tensors that a call writes; the gradients only where they are wanted.
pub fn of_outputs(problem: &Problem, backward: bool) -> u128 {
    let output = bytes(problem.output_len(), problem.output_dtype());
    if backward { output + stored(problem) } else { output }
}

/// What the reference takes to compute a call in `f64`, and a comparison with it.
pub fn of_reference(problem: &Problem, backward: bool) -> u128 {
    let inputs = of_tensors(problem, |_| DType::F64);
    let output = bytes(problem.output_len(), DType::F64);
    // What comes in, what comes out, and what is compared with it.
    let gradients = if backward { output + 2 * inputs } else { 0 };
    // The fused operator computes samples first: it stores them, and their gradients.
    let copies = if problem.offsets().is_some() { 1 + u128::from(backward) } else { 0 };
    let samples =
        bytes(problem.locations_len(), DType::F64) + bytes(problem.weights_len(), DType::F64);
    inputs + 2 * output + gradients + copies * samples + problem.weights_len() as u128
}

/// What the operator reads, as it is stored; as large as its gradients.
fn stored(problem: &Problem) -> u128 {
    of_tensors(problem, |role| problem.format_of(role))
}

fn of_tensors(problem: &Problem, format: impl Fn(Role) -> DType) -> u128 {
    let inputs = problem.operator().inputs.iter();
    inputs.map(|role| bytes(problem.len_of(*role), format(*role))).sum()
}

#[cfg(test)]
mod tests {
    use msdeform::Offsets;

    use super::*;

    fn problem(queries: usize) -> Problem {
        let builder = Problem::builder().queries(queries).channels(2).levels([(2, 2)]);
        builder.points(0).build().unwrap()
    }

    #[test]
    fn a_call_that_declares_a_tebibyte_is_refused_with_both_numbers() {
        let problem = problem(1 << 48);
        assert_eq!(of_outputs(&problem, false), 1 << 51);
        let error = ensure_room("the output", of_outputs(&problem, false)).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("the output would take 2.0 PiB of memory"), "{text}");
        assert!(text.contains("are free; use fewer queries"), "{text}");
        ensure_room("a little", 1 << 10).unwrap();
    }

    #[test]
    fn every_tensor_counts() {
        let builder = Problem::builder().queries(3).channels(2).levels([(2, 2)]);
        let half = builder.points(5).dtype(DType::F16);
        let plain = half.clone().sampling_dtype(DType::F32).build().unwrap();
        let fused = half.offsets(Offsets::from_boxes()).reference_dtype(DType::F32);
        let fused = fused.build().unwrap();
        for (problem, tensors, of_reference) in [
            (plain, (2 * 8) + (4 * 30) + (4 * 15), 8 * (8 + 30 + 15)),
            // The reference computes locations and weights too.
            (fused, (2 * 8) + (4 * 12) + (2 * 30) + (2 * 15), 8 * (8 + 12 + 30 + 15 + 30 + 15)),
        ] {
            assert_eq!(of_inputs(&problem), tensors + 2 * 6);
            assert_eq!(of_outputs(&problem, true), tensors + 2 * 6);
            assert_eq!(of_outputs(&problem, false), 2 * 6);
            assert_eq!(super::of_reference(&problem, false), of_reference + 2 * 8 * 6 + 15);
        }
    }

    #[test]
    fn a_limit_of_the_address_space_is_one_of_memory() {
        let limits = "Max file size   unlimited   unlimited   bytes\n\
                      Max address space         1048576              unlimited            bytes\n";
        assert_eq!(
            address_space_left(limits, "VmPeak: 1 kB\nVmSize:\t    512 kB\n"),
            Some(524_288)
        );
        assert_eq!(address_space_left(limits, "VmSize: 9999999 kB\n"), Some(0));
        let unlimited = "Max address space         unlimited            unlimited            bytes";
        assert_eq!(address_space_left(unlimited, "VmSize: 1 kB"), None);
        assert_eq!(address_space_left("", ""), None);
    }
}
