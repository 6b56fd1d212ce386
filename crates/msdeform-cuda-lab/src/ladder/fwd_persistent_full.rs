//! Small levels whole in shared memory, large ones streamed.

use msdeform::Numerics;

use super::lane_groups::GROUP_LANES;
use super::resident_levels::{self, SHARED_KB};
use super::{AMPERE, Rung, anything, items, spec};
use crate::sources::kernel_source;

/// See `kernels/ladder/fwd_persistent_full.cu`.
pub(super) static RUNG: Rung = Rung {
    spec: &spec(
        "fwd_persistent_full",
        "guide (002): persistent_full",
        "one block per SM, a contiguous run of queries, small levels kept whole",
        "L1 for the large levels, shared memory for the small ones",
        Numerics::Contract,
    ),
    source: kernel_source!("ladder/fwd_persistent_full.cu"),
    claim: "2.2 TFLOP/s, 4.4x",
    knobs: &[SHARED_KB],
    since: AMPERE,
    supports: anything,
    configure: |call, knobs| {
        let blocks = items(call).div_ceil(1024 / GROUP_LANES);
        let (configuration, _) = resident_levels::launch(call, knobs, 1024, blocks)?;
        Ok(configuration)
    },
};
