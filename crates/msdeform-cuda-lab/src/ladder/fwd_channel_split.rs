//! Eight channels a block.

use super::lane_groups::GROUP_LANES;
use super::resident_levels::{self, SHARED_KB};
use super::prelude::*;

/// See `kernels/ladder/fwd_channel_split.cu`.
pub(super) const RUNG: Rung = Rung {
    origin: "guide (002): channel split",
    idea: "a block owns 8 of 32 channels, so four times the pixels fit its shared memory",
    why: "three of four levels in shared memory",
    claim: "3.2x slower",
    knobs: &[SHARED_KB],
    configure: |call, knobs| {
        let blocks = (items(call) * GROUP_LANES).div_ceil(1024);
        let (configuration, _) = resident_levels::launch(call, knobs, 1024, blocks)?;
        Ok(configuration)
    },
    ..PLAIN
};
