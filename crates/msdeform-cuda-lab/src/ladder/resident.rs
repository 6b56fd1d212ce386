//! Levels that a rung keeps in shared memory, and how the queries of a slab are divided among the blocks that hold
//! them.

use super::{Call, slabs};
use msdeform_cuda::level_geometry;

/// Pixels from a level's first to its last, those between the rows included: `span` in the kernels.
fn spans(call: &Call<'_>) -> Result<Vec<u64>, String> {
    let levels = level_geometry(call.problem).map_err(|error| error.to_string())?;
    let span = |level: &msdeform_cuda::LevelGeometry| {
        (level.height as u64 - 1) * level.row_pitch as u64 + level.width as u64
    };
    Ok(levels.iter().map(span).collect())
}

/// The levels that fit, smallest first, as a bit mask, and the sum of their pixels.
pub(super) fn resident_levels(
    call: &Call<'_>,
    capacity_pixels: u64,
) -> Result<(usize, u64), String> {
    let mut smallest_first: Vec<(u64, usize)> = spans(call)?.into_iter().zip(0..).collect();
    smallest_first.sort_unstable();
    let (mut mask, mut pixels) = (0, 0);
    for (span, level) in smallest_first {
        if pixels + span > capacity_pixels {
            break;
        }
        mask |= 1 << level;
        pixels += span;
    }
    Ok((mask, pixels))
}

/// Of all rounds, the part that must have work.
const BUSY: f64 = 0.95;
/// Every share copies the levels once more: no more than so many rounds.
const MOST_ROUNDS: u64 = 4;

/// Into how many shares the queries of a slab are cut: the fewest with which the rounds of `holders` (blocks or
/// clusters that run at once) are nearly full; never more than there are turns of `items_per_turn` queries.
pub(super) fn shares_of_a_slab(call: &Call<'_>, holders: u64, items_per_turn: u64) -> u64 {
    let slabs = slabs(call);
    let turns = (call.problem.queries() as u64).div_ceil(items_per_turn);
    let most = (MOST_ROUNDS * holders).div_ceil(slabs).clamp(1, turns.max(1));
    let busy = |shares: u64| {
        let parts = slabs * shares;
        parts as f64 / (parts.div_ceil(holders) * holders) as f64
    };
    (1..=most).find(|&shares| busy(shares) >= BUSY).unwrap_or(most)
}

#[cfg(test)]
mod tests {
    use msdeform::{DType, Problem, ValueLayout};

    use super::*;
    use msdeform_cuda::DeviceProps;

    fn seed(layout: ValueLayout) -> Problem {
        let problem = Problem::builder().batch(48).heads(1).channels(32).queries(15_422).points(8);
        let problem = problem.levels([(92, 160), (46, 80), (23, 40), (12, 20)]);
        problem.dtype(DType::F16).layout(layout).build().unwrap()
    }

    #[test]
    fn the_smallest_levels_are_kept_first() {
        let device = DeviceProps::h200();
        let problem = seed(ValueLayout::HeadMajor);
        let call = Call::new(&problem, &device);
        assert_eq!(resident_levels(&call, 0).unwrap(), (0b0000, 0));
        assert_eq!(resident_levels(&call, 240).unwrap(), (0b1000, 240));
        assert_eq!(resident_levels(&call, 3632).unwrap(), (0b1100, 1160));
        assert_eq!(resident_levels(&call, 29_056).unwrap(), (0b1111, 19_560));
        let padded = seed(ValueLayout::HeadMajorPadded);
        let call = Call::new(&padded, &device);
        assert_eq!(resident_levels(&call, 300).unwrap(), (0b1000, 11 * 22 + 20));
    }

    #[test]
    fn slabs_are_cut_until_everybody_has_work_and_no_further() {
        let device = DeviceProps::h200();
        let problem = seed(ValueLayout::HeadMajor);
        let call = Call::new(&problem, &device);
        assert_eq!(shares_of_a_slab(&call, 132, 256), 8, "384 blocks: 2.9 rounds of 3");
        assert_eq!(shares_of_a_slab(&call, 66, 512), 4, "192 clusters: 2.9 rounds of 3");
        assert_eq!(shares_of_a_slab(&call, 16, 2048), 1, "48 clusters: 3 rounds");
        let one = problem.to_builder().queries(1).build().unwrap();
        assert_eq!(shares_of_a_slab(&Call::new(&one, &device), 132, 256), 1);
    }
}
