//! The ways to sum the gradient of the values, each with the bytes that it cannot avoid.
//!
//! Locations and weights need four dot products of a sample's corners with the output's gradient, for every
//! way: a gather like the forward's. The values' gradient is its transpose, a scatter, and there the ways part.

use crate::{Ceilings, Work};
use msdeform::{DType, Problem};
use serde::{Deserialize, Serialize};

use super::Footprint;
use crate::digits::{three_digits, time};

/// Bytes of a sum: gradients are summed in f32 for every dtype.
const SUM_BYTES: u64 = 4;
/// Bytes of a sector, which is what L2 moves for a store that is alone.
const SECTOR_BYTES: u64 = 32;
/// Side of the tiles of pixels that samples are sorted into.
const TILE: f64 = 4.0;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Route {
    /// The technique, as verdicts name it.
    pub technique: String,
    /// Bytes that only this way moves: updates in L2, or lists and the rows they name.
    pub bytes: u64,
    /// Time of all gradients under the ceilings: this, the zeroing and rounding of sums, and the gather for locations
    /// and weights, one after the other.
    pub us: f64,
    pub what: String,
}

/// One f32 update for each corner and channel of every sample.
pub(super) fn update_bytes(problem: &Problem, work: &Work) -> u64 {
    work.samples * problem.channels() as u64 * 4 * SUM_BYTES
}

/// The ways, where the device has the ceilings. `gather_us` is what locations and weights take.
pub(super) fn routes(
    problem: &Problem,
    work: &Work,
    tiled: Option<&Footprint>,
    gather_us: f64,
    ceilings: &Ceilings,
) -> Vec<Route> {
    let ceilings =
        ["l2_reduce_f32", "l2_gather_line", "dram_copy"].map(|name| ceilings.ceiling(name));
    let [Some(reduce), Some(l2), Some(dram)] = ceilings else { return Vec::new() };
    // GB/s are 1e3 bytes a microsecond.
    let us = |bytes: u64, gb_per_s: f64| bytes as f64 / (gb_per_s * 1e3);
    let element = problem.dtype().size_bytes() as u64;
    let values = problem.value_len() as u64;
    // Half dtypes are summed in a second tensor and rounded once.
    let sums = values * SUM_BYTES;
    let around = if problem.dtype() == DType::F32 { sums } else { 2 * sums + values * element };
    let updates = update_bytes(problem, work);
    let atomics = |technique: &str, bytes: u64, how: &str| Route {
        technique: technique.to_owned(),
        bytes,
        us: gather_us + us(bytes, reduce) + us(around, dram),
        what: format!(
            "{} MB of f32 updates in L2{how} take {}, zeroing and rounding the sums {}",
            three_digits(bytes as f64 * 1e-6),
            time(us(bytes, reduce)),
            time(us(around, dram))
        ),
    };
    let again = tiled.map_or(0.0, |tiled| tiled.hit_rate);
    let merged = (updates as f64 * (1.0 - again)) as u64;
    let of_neighbours =
        format!(", {:.0} % of them merged within 32 queries before,", 100.0 * again);

    // A sample's cell of two by two pixels reaches into the next tile from one of four columns, and of four rows.
    let lists = (1.0 + 1.0 / TILE).powi(2);
    let entries = (work.samples as f64 * lists) as u64;
    let entry = if problem.sampling_dtype() == DType::F32 { 16 } else { 8 };
    let row = problem.channels() as u64 * element;
    let sorted = entries * (SECTOR_BYTES + entry + row);
    let sorting = Route {
        technique: "sorting".to_owned(),
        bytes: sorted,
        us: gather_us + us(sorted, l2) + us(values * element, dram),
        what: format!(
            "{} M list entries of {entry} bytes ({lists:.2} tiles of {TILE} x {TILE} pixels a sample), written \
             one sector each and read with a row of {row} bytes, are {} MB through L2 in {}; no sums to zero or round",
            three_digits(entries as f64 * 1e-6),
            three_digits(sorted as f64 * 1e-6),
            time(us(sorted, l2))
        ),
    };
    vec![
        atomics("plain atomics", updates, ""),
        atomics("aggregation", merged, &of_neighbours),
        sorting,
    ]
}

#[cfg(test)]
mod tests {
    use crate::workload::{self, Sizes};
    use msdeform::{Direction, ValueLayout};

    use super::*;
    use crate::fixtures::ceilings_of;

    fn routes_of(name: &str, dtype: DType, hit_rate: f64) -> Vec<Route> {
        let workload = workload::find(name).unwrap();
        let problem = workload.problem(dtype, ValueLayout::Interleaved, Sizes::default()).unwrap();
        let work = Work::of(&problem, Direction::Backward);
        let tiled = Footprint {
            grouping: String::new(),
            queries: 32,
            accesses: 0,
            distinct: 0,
            hit_rate,
            group_bytes: 0.0,
            group_lines: 0.0,
        };
        let mut ceilings = ceilings_of("h200");
        let mut reduce = ceilings.ceilings[0].clone();
        (reduce.name, reduce.value) = ("l2_reduce_f32".to_owned(), 3_500.0);
        ceilings.ceilings.push(reduce);
        routes(&problem, &work, Some(&tiled), 0.0, &ceilings)
    }

    #[test]
    fn updates_of_an_encoder_are_as_many_gigabytes_as_published() {
        let [plain, merged, sorted] = &routes_of("ddetr_enc", DType::F16, 0.85)[..] else {
            panic!("three ways");
        };
        // 2 images, 22223 queries, 8 heads, 16 samples, 4 corners, 32 channels, 4 bytes.
        assert_eq!(plain.bytes, 2 * 22223 * 8 * 16 * 4 * 32 * 4);
        assert!((merged.bytes as f64 / plain.bytes as f64 - 0.15).abs() < 1e-6);
        assert!(sorted.us < merged.us && merged.us < plain.us);
        // 2.91 GB at 3.5 TB/s is 832 us, and 114 MB of sums at 4.8 TB/s.
        assert!((plain.us - 832.0 - 23.8).abs() < 1.0, "{plain:?}");
    }

    #[test]
    fn full_precision_needs_no_second_tensor_of_sums() {
        let bytes_around = |dtype| {
            let plain = &routes_of("ddetr_dec", dtype, 0.0)[0];
            (plain.us - plain.bytes as f64 / 3_500.0e3) * 4_800.0e3
        };
        let (half, single) = (bytes_around(DType::F16), bytes_around(DType::F32));
        assert!((half / single - 2.5).abs() < 1e-6, "{half} {single}");
    }

    #[test]
    fn without_a_reduction_ceiling_there_is_nothing_to_say() {
        let workload = workload::find("ddetr_dec").unwrap();
        let problem =
            workload.problem(DType::F16, ValueLayout::Interleaved, Sizes::default()).unwrap();
        let work = Work::of(&problem, Direction::Backward);
        assert!(routes(&problem, &work, None, 0.0, &ceilings_of("x")).is_empty());
    }
}
