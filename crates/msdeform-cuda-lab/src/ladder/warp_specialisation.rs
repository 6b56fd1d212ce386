//! Warp specialisation (003): warps with roles, and what else its document tries with a warp per item.

use std::sync::Arc;

use super::prelude::*;
use super::rounds::{
    MAPS_PER_LEVEL, ROUND_BYTES, Roles, WARPS, configured, maps_per_level, persistent,
    warp_per_item,
};

pub(super) const FWD_WARP_SPEC: Rung = Rung {
    origin: "warp specialisation (003): warp_spec",
    idea: "two producer warps bring tiles, six consumer warps compute; mbarriers between them, in a persistent loop",
    why: "the gain of warps with roles for irregular loads",
    claim: "correct, no figure",
    since: HOPPER,
    supports: maps_per_level,
    configure: |call, _| Ok(Roles { producers: 2, stages: 2 }.configuration(call, 0, Vec::new())),
    ..PLAIN
};

pub(super) const FWD_WARP_SPEC_META: Rung = Rung {
    origin: "warp specialisation (003): warp_spec_meta",
    idea: "warp_spec with metadata computed once, by a producer, and weights in shared memory",
    why: "the cost of redundant metadata, and the best ratio of producers to consumers",
    claim: "+5-10 % expected, hangs",
    knobs: &[Knob {
        name: "PRODUCERS",
        values: &[1, 2, 3, 4],
        meaning: "producer warps of eight; the others consume",
    }],
    since: HOPPER,
    supports: maps_per_level,
    configure: |call, knobs| {
        let producers = knobs.get("PRODUCERS").unwrap_or(2);
        Ok(Roles { producers: producers as u32, stages: 2 }.configuration(
            call,
            0,
            vec![("PRODUCERS", producers)],
        ))
    },
    ..PLAIN
};

/// A word per buffer and sample, and one per consumer.
const FLAG_BYTES: u32 = (6 * 2 * 8 + 6) * 4;

pub(super) const FWD_WARP_SPEC_FLAGS: Rung = Rung {
    origin: "warp specialisation (003): warp_spec_flags",
    idea: "warp_spec_meta with a flag per sample: release and acquire, bounded spins",
    why: "whether correct flags are cheaper than barriers",
    claim: "deadlock, abandoned",
    since: HOPPER,
    supports: maps_per_level,
    configure: |call, _| {
        Ok(Roles { producers: 2, stages: 2 }.configuration(call, FLAG_BYTES, Vec::new()))
    },
    ..PLAIN
};

pub(super) const FWD_WARP_SPEC_DEEP: Rung = Rung {
    origin: "warp specialisation (003): warp_spec_deep",
    idea: "warp_spec_meta with three or four rounds of tiles in flight per consumer",
    why: "whether two stages were too few",
    claim: "+5-15 % expected",
    knobs: &[Knob {
        name: "STAGES",
        values: &[3, 4],
        meaning: "rounds of tiles that a consumer's ring holds",
    }],
    since: HOPPER,
    supports: maps_per_level,
    configure: |call, knobs| {
        let stages = knobs.get("STAGES").unwrap_or(4);
        Ok(Roles { producers: 2, stages: stages as u32 }.configuration(
            call,
            0,
            vec![("STAGES", stages)],
        ))
    },
    ..PLAIN
};

pub(super) const FWD_SHUFFLE_META: Rung = Rung {
    origin: "warp specialisation (003): shuffle_meta",
    idea: "a lane places one sample of its warp's query; shuffles carry offset and weights to the lanes that load it",
    why: "metadata once per warp, without shared memory",
    claim: "+3-8 % expected",
    configure: |call, _| Ok(configured(call, warp_per_item(call, WARPS, 0)?)),
    ..PLAIN
};

/// Four for each lane, for the current query and for the next.
const MOST_SAMPLES: usize = 128;

pub(super) const FWD_PREFETCH_QUERY: Rung = Rung {
    origin: "warp specialisation (003): prefetch_query",
    idea: "shuffle_meta in a persistent loop that loads the next query's locations and weights ahead",
    why: "the cost of the wait for locations",
    claim: "no figure",
    supports: |call| {
        let samples = call.problem.samples();
        if samples > MOST_SAMPLES {
            return Err(format!(
                "{samples} samples in a row; registers hold at most {MOST_SAMPLES}"
            ));
        }
        Ok(())
    },
    configure: |call, _| Ok(configured(call, persistent(call, 0))),
    ..PLAIN
};

pub(super) const FWD_MULTI_QUERY: Rung = Rung {
    origin: "warp specialisation (003): multi_query",
    idea: "a block takes several queries per turn; their warps share the samples and one barrier",
    why: "one query per block leaves half of the warps idle",
    claim: "no figure",
    knobs: &[Knob {
        name: "QUERIES",
        values: &[1, 2, 4],
        meaning: "queries of a block of eight warps",
    }],
    configure: |call, knobs| {
        let queries = knobs.get("QUERIES").unwrap_or(4);
        // Partial sums of eight warps, twice.
        let shared_bytes = 2 * WARPS * 32 * 4;
        Ok(Configuration {
            knobs: vec![("QUERIES", queries)],
            ..configured(call, persistent(call, shared_bytes))
        })
    },
    ..PLAIN
};

pub(super) const FWD_FMA_WEIGHTS: Rung = Rung {
    origin: "warp specialisation (003): fma_weights",
    idea: "bilinear weights with the attention weight folded in, every step an fma",
    why: "the cost of the arithmetic of weights",
    claim: "no figure",
    knobs: &[Knob { name: "FMA", values: &[0, 1], meaning: "0 is the textbook form" }],
    configure: |call, knobs| {
        Ok(Configuration {
            knobs: vec![("FMA", knobs.get("FMA").unwrap_or(1))],
            ..configured(call, warp_per_item(call, WARPS, 0)?)
        })
    },
    ..PLAIN
};

pub(super) const FWD_TMA_MULTILEVEL: Rung = Rung {
    origin: "warp specialisation (003): tma_multilevel",
    idea: "the next level's tiles are in flight while this one computes",
    why: "the gain of overlap without producer and consumer warps",
    claim: "+10-15 % expected",
    since: HOPPER,
    supports: maps_per_level,
    configure: |call, _| {
        // Two buffers of tiles with a barrier each, for every warp.
        let shared_bytes = WARPS * 2 * (ROUND_BYTES + 8);
        Ok(Configuration {
            preamble: Some(Arc::new(MAPS_PER_LEVEL)),
            ..configured(call, warp_per_item(call, WARPS, shared_bytes)?)
        })
    },
    ..PLAIN
};
