//! Eight channels a block.

use msdeform::Numerics;

use super::lane_groups::GROUP_LANES;
use super::resident_levels::{self, SHARED_KB};
use super::{AMPERE, Rung, anything, items, spec};
use crate::sources::kernel_source;

/// See `kernels/ladder/fwd_channel_split.cu`.
pub(super) static RUNG: Rung = Rung {
    spec: &spec(
        "fwd_channel_split",
        "guide (002): channel split",
        "a block owns 8 of 32 channels, so four times the pixels fit it",
        "three of four levels in shared memory",
        Numerics::Contract,
    ),
    source: kernel_source!("ladder/fwd_channel_split.cu"),
    claim: "3.2x slower",
    knobs: &[SHARED_KB],
    since: AMPERE,
    supports: anything,
    configure: |call, knobs| {
        let blocks = (items(call) * GROUP_LANES).div_ceil(1024);
        let (configuration, _) = resident_levels::launch(call, knobs, 1024, blocks)?;
        Ok(configuration)
    },
};
