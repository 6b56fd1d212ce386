//! Hardware counters: a small named set, read by Nsight Compute, joined to what was measured.

mod csv;
mod folder;
mod ncu;

use serde::{Deserialize, Serialize};

pub use csv::parse;
pub use folder::{Counted, CounterFile};
pub use ncu::{CounterError, command, find_ncu, run};

#[derive(Clone, Copy, Debug)]
pub struct Counter {
    pub name: &'static str,
    pub metric: &'static str,
    pub what: &'static str,
}

macro_rules! counters {
    ($($name:literal $metric:literal $what:literal)*) => {
        pub const COUNTERS: &[Counter] =
            &[$(Counter { name: $name, metric: $metric, what: $what }),*];
    };
}

counters! {
    "time_ns" "gpu__time_duration.sum" "time under the profiler, which runs a kernel several times"
    "clock_hz" "smsp__cycles_elapsed.avg.per_second" "cycles per second while it ran"
    "instructions" "smsp__inst_executed.sum" "instructions of all warps"
    "issue_percent" "sm__inst_issued.avg.pct_of_peak_sustained_active" "issue slots used"
    "occupancy_percent" "sm__warps_active.avg.pct_of_peak_sustained_active" "warps resident"
    "registers" "launch__registers_per_thread" "of a thread"
    "l1_wavefronts" "l1tex__data_pipe_lsu_wavefronts.sum" "passes of the L1 data path"
    "l1_percent" "l1tex__data_pipe_lsu_wavefronts.avg.pct_of_peak_sustained_elapsed" "of its peak"
    "shared_wavefronts" "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum" "of them for shared memory"
    "bank_conflicts" "l1tex__data_bank_conflicts_pipe_lsu.sum" "wavefronts more than without conflicts"
    "l1_sectors" "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum" "sectors of 32 bytes loaded"
    "l1_hit_percent" "l1tex__t_sector_hit_rate.pct" "sectors found in L1"
    "l2_sectors" "lts__t_sectors.sum" "sectors through L2"
    "l2_hit_percent" "lts__t_sector_hit_rate.pct" "sectors found in L2"
    "l2_reductions" "lts__t_sectors_op_red.sum" "sectors of reductions in L2"
    "l2_atomics" "lts__t_sectors_op_atom.sum" "sectors of atomics in L2"
    "dram_bytes" "dram__bytes.sum" "through DRAM"
    "tensor_percent" "sm__inst_executed_pipe_tensor.avg.pct_of_peak_sustained_active" "of the tensor pipe"
    "fma_percent" "sm__inst_executed_pipe_fma.avg.pct_of_peak_sustained_active" "of the FMA pipe"
    "stall_long_scoreboard" "smsp__average_warps_issue_stalled_long_scoreboard_per_issue_active.ratio" "warps waiting for memory, per issue"
    "stall_short_scoreboard" "smsp__average_warps_issue_stalled_short_scoreboard_per_issue_active.ratio" "warps waiting for shared memory, per issue"
    "stall_throttle" "smsp__average_warps_issue_stalled_lg_throttle_per_issue_active.ratio" "warps waiting for the load queue, per issue"
    "stall_math" "smsp__average_warps_issue_stalled_math_pipe_throttle_per_issue_active.ratio" "warps waiting for an arithmetic pipe, per issue"
    "stall_barrier" "smsp__average_warps_issue_stalled_barrier_per_issue_active.ratio" "warps waiting at a barrier, per issue"
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Reading {
    /// As in [`COUNTERS`].
    pub name: String,
    /// The mean over the counted launches.
    pub value: f64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KernelCounters {
    pub kernel: String,
    pub launches: usize,
    /// The counters that the profiler could read.
    pub readings: Vec<Reading>,
}

impl KernelCounters {
    pub fn get(&self, name: &str) -> Option<f64> {
        self.readings.iter().find(|reading| reading.name == name).map(|reading| reading.value)
    }

    /// Wavefronts that bank conflicts cost, in percent of all.
    pub fn conflict_percent(&self) -> Option<f64> {
        let wavefronts = self.get("l1_wavefronts").filter(|count| *count > 0.0)?;
        Some(100.0 * self.get("bank_conflicts")? / wavefronts)
    }
}

/// The kernels of one variant among those of several: each belongs to the longest id that its name starts
/// with.
pub fn of_variant(kernels: &[KernelCounters], id: &str, ids: &[&str]) -> Vec<KernelCounters> {
    let starts = |name: &str, id: &str| {
        name.strip_prefix(id).is_some_and(|rest| rest.is_empty() || rest.starts_with('_'))
    };
    let owner = |name: &str| {
        let candidates = ids.iter().copied().filter(|id| starts(name, id));
        candidates.max_by_key(|id| id.len())
    };
    kernels.iter().filter(|kernel| owner(&kernel.kernel) == Some(id)).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_belongs_to_the_longest_id_it_starts_with() {
        let kernel = |name: &str| KernelCounters {
            kernel: name.to_owned(),
            launches: 1,
            readings: Vec::new(),
        };
        let kernels = ["fwd_a", "fwd_a_sort", "fwd_a_b", "fwd_a_b_sort", "fwd_ab"].map(kernel);
        let names = |id| {
            let found = of_variant(&kernels, id, &["fwd_a", "fwd_a_b"]);
            found.into_iter().map(|kernel| kernel.kernel).collect::<Vec<_>>()
        };
        assert_eq!(names("fwd_a"), ["fwd_a", "fwd_a_sort"]);
        assert_eq!(names("fwd_a_b"), ["fwd_a_b", "fwd_a_b_sort"]);
        assert!(of_variant(&kernels, "fwd_c", &["fwd_c"]).is_empty());
    }

    #[test]
    fn names_are_unique() {
        let unique = |key: fn(&Counter) -> &'static str| {
            let mut names: Vec<&str> = COUNTERS.iter().map(key).collect();
            names.sort_unstable();
            names.dedup();
            names.len()
        };
        assert_eq!(unique(|counter| counter.name), COUNTERS.len());
        assert_eq!(unique(|counter| counter.metric), COUNTERS.len());
    }
}
