//! The same kernel with part of L2 set aside for the values.

use std::sync::Arc;

use super::lane_groups::{self, GROUP_LANES, THREADS};
use super::prelude::*;
use crate::persisting::PersistingValue;

/// See `kernels/ladder/fwd_l2_policy.cu`.
pub(super) const RUNG: Rung = Rung {
    origin: "guide (002), suite 1: L2 cache optimization",
    idea: "vector loads, launched with a persisting L2 window over the values",
    why: "whether streams push values out of L2",
    claim: "no figure",
    knobs: &[THREADS],
    configure: |call, knobs| {
        let configuration = lane_groups::launch(call, knobs, GROUP_LANES)?;
        Ok(Configuration { preamble: Some(Arc::new(PersistingValue)), ..configuration })
    },
    ..PLAIN
};
