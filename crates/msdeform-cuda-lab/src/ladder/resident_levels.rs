//! Common parts of the rungs that include `ladder/resident_levels.cuh`: one block per multiprocessor, which keeps
//! levels in shared memory.

use super::{check_shared_bytes, items, slabs};
use msdeform_cuda::variants::{Call, Configuration, Knob, KnobChoices};
use msdeform_cuda::{Derived, LaunchGeometry, Pipeline, Region};

/// Kilobytes of shared memory of a block: the documents' value, and the most on an H200.
pub(super) const SHARED_KB: Knob = Knob {
    name: "SHARED_KB",
    values: &[96, 227],
    meaning: "kilobytes of shared memory of a block",
};

/// Units of work that a multiprocessor takes on average: enough that all end together, few enough that changing the
/// kept levels between units costs little.
const UNITS_PER_MULTIPROCESSOR: u64 = 4;
/// Least queries of a unit. Fewer queries would take less time than copying the kept levels.
const MIN_UNIT_QUERIES: u64 = 64;

/// A block per multiprocessor, or fewer if there is less work.
pub(super) fn launch(
    call: &Call<'_>,
    knobs: &KnobChoices,
    threads: u32,
    most_blocks: u64,
) -> Result<(Configuration, LaunchGeometry), String> {
    let kilobytes = knobs.get(SHARED_KB.name).unwrap_or(96);
    let shared_bytes = kilobytes as u64 * 1024;
    check_shared_bytes(call, shared_bytes)?;
    let blocks = u64::from(call.device.multiprocessors).min(most_blocks).max(1);
    let geometry = LaunchGeometry {
        shared_bytes: shared_bytes as u32,
        ..LaunchGeometry::linear(blocks as u32, threads)
    };
    let configuration = Configuration {
        knobs: vec![(SHARED_KB.name, kilobytes)],
        pipeline: geometry.into(),
        ..Configuration::default()
    };
    Ok((configuration, geometry))
}

/// Reserves the counter of the units of work that blocks steal; returns how many units there are.
pub(super) fn reserve_units(
    call: &Call<'_>,
    pipeline: &mut Pipeline,
    derived: &mut Derived,
) -> Result<u64, String> {
    let (unit_queries, units) = units(call)?;
    derived.count("unit_queries", unit_queries)?;
    derived.count("slab_units", call.problem.queries().div_ceil(unit_queries))?;
    let offset = pipeline.reserve(4);
    derived.size("counter_at", offset);
    pipeline.zero(Region::Workspace { offset, bytes: 4 });
    Ok(units)
}

/// Queries of a unit, and how many units there are.
fn units(call: &Call<'_>) -> Result<(usize, u64), String> {
    let wanted = u64::from(call.device.multiprocessors) * UNITS_PER_MULTIPROCESSOR;
    let queries = call.problem.queries() as u64;
    // An axis has at most 31 bits.
    let unit_queries = items(call).div_ceil(wanted).max(MIN_UNIT_QUERIES).min(queries.max(1));
    let units = slabs(call) * queries.div_ceil(unit_queries);
    // Every block takes one number more than there are units, from a 32-bit counter.
    if units > u64::from(u32::MAX / 2) {
        return Err(format!("{units} units of work; the counter goes to {}", u32::MAX / 2));
    }
    Ok((unit_queries as usize, units))
}

#[cfg(test)]
mod tests {
    use msdeform::{DType, Problem};

    use super::*;
    use msdeform_cuda::DeviceProps;

    fn units_of(batch: usize, queries: usize) -> (usize, u64) {
        let problem = Problem::builder().batch(batch).channels(32).queries(queries);
        let problem = problem.levels([(8, 9)]).dtype(DType::F16).build().unwrap();
        units(&Call::new(&problem, &DeviceProps::h200())).unwrap()
    }

    #[test]
    fn units_divide_the_work_of_any_call() {
        // The seed workload: exactly four for each of 132 multiprocessors.
        assert_eq!(units_of(48, 15422), (1402, 528));
        assert_eq!(units_of(1, 1), (1, 1));
        assert_eq!(units_of(1, 100), (64, 2));
        // Never more than a slab.
        assert_eq!(units_of(1000, 7), (7, 1000));
    }
}
