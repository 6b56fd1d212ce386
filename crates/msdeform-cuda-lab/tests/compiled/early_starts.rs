//! Launches that start while the one before them still runs: their kernels wait for it before they touch memory.
//!
//! The source has the wait first, but the compiler may move loads of read-only data before it.

/// `ACQBULK`, what `wait_for_launch_before` becomes.
const WAIT: u128 = 0x82e;
/// `LD`, `LDG`, `LDGSTS`, `ST` and `STG`.
const TOUCH: [u128; 5] = [0x980, 0x981, 0xfae, 0x985, 0x986];
/// Kernels that read nothing of the launch before, or wait for it list by list, and wait before they end.
const WAIT_LAST: [&str; 4] = [
    "bwd_level_sort_gather",
    "bwd_level_sort_samples",
    "bwd_tile_sort_rows",
    "bwd_tile_sort_samples",
];

/// The fault of a kernel whose launch may start early, if any.
pub fn fault(kernel: &str, code: &[u128]) -> Option<&'static str> {
    let first = |opcodes: &[u128]| code.iter().position(|word| opcodes.contains(&(word & 0xfff)));
    match (first(&[WAIT]), first(&TOUCH)) {
        (None, _) => Some("does not wait for the launch before it"),
        (Some(waits), Some(touches)) if touches < waits && !WAIT_LAST.contains(&kernel) => {
            Some("touches memory before it waits for the launch before it")
        }
        _ => None,
    }
}
