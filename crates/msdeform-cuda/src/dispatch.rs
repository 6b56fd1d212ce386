//! Which variant computes a call: a table, first match wins.
//!
//! A row names a variant, when it is the best one, and the evidence. A row whose variant refuses the
//! call is passed over. The last row accepts everything, so that choosing never fails. What was measured
//! on the user's own machine goes before these tables ([`crate::tuning`]).

use msdeform::Direction;

use crate::variants::{
    Call, KnobChoices, Variant,
    bwd_general::BWD_GENERAL,
    bwd_level_sort::{BWD_LEVEL_SORT, USUAL_SAMPLES, level_samples},
    bwd_original::BWD_ORIGINAL,
    bwd_tile_sort::BWD_TILE_SORT,
    fwd_general::FWD_GENERAL,
    fwd_split_gather::FWD_SPLIT_GATHER,
    fwd_tile_gather::FWD_TILE_GATHER,
};

/// One line of the table.
pub struct Rule {
    /// The variant to use.
    pub variant: &'static Variant,
    /// Where it is the best.
    pub applies: fn(&Call<'_>) -> bool,
    /// In words, with the record that shows it.
    pub evidence: &'static str,
}

/// What there is to choose from in one direction.
pub struct Table {
    /// Which way.
    pub direction: Direction,
    /// Best first. The last one takes every valid call, and calls whose pointers are misaligned.
    pub rules: &'static [Rule],
    /// The knobs with which the last one reads pointers that are aligned for their elements alone.
    unaligned: &'static [(&'static str, i64)],
}

/// Every choice that is built in. In deterministic mode variants that cannot keep the promise refuse the call and
/// are passed over like any other that does not fit.
pub static TABLES: [Table; 2] = [
    Table { direction: Direction::Forward, rules: FORWARD, unaligned: &[("VECTOR", 1)] },
    Table { direction: Direction::Backward, rules: BACKWARD, unaligned: &[] },
];

static FORWARD: &[Rule] = &[
    Rule {
        variant: &FWD_SPLIT_GATHER,
        applies: |call| {
            // A warp works out a row's softmax for itself alone here, where tiles share the work.
            let most = if call.problem.offsets().is_some() { 24 } else { 64 };
            call.rows() <= most * u64::from(call.device.multiprocessors)
        },
        evidence: "ddetr_dec N=2 (36 rows per SM): 3.89 us against 4.27 for tiles; \
                   dino_dec (109 rows per SM): 8.11 against 6.88 (f16, local, graph replay; \
                   records/h200/2026-11-15-f77bd53). From offsets ddetr_dec N=1 (18 rows per SM): 3.67 \
                   against 3.85, N=2: 5.23 against 4.34; docs/kernels/fwd_split_gather.md",
    },
    Rule {
        variant: &FWD_TILE_GATHER,
        applies: |_| true,
        evidence: "the fastest on every standard encoder and on dino_dec and rtdetr_dec",
    },
    Rule {
        variant: &FWD_GENERAL,
        applies: |_| true,
        evidence: "accepts everything; the only choice where nothing above fits",
    },
];

static BACKWARD: &[Rule] = &[
    Rule {
        variant: &BWD_LEVEL_SORT,
        applies: |call| level_samples(call) <= USUAL_SAMPLES,
        evidence: "a level that one block sorts in microseconds; ddetr_dec N=2 f16: 20 us a call in a CUDA \
                   graph against 56 for the seven launches of the next; rtdetr_dec N=8: 42 against 69 \
                   (records/h200/2026-11-15-1bb739941)",
    },
    Rule {
        variant: &BWD_TILE_SORT,
        applies: |_| true,
        evidence: "ddetr_enc N=2, local: 416 us in f16, 641 in f32, against 2730 and 2690 with atomics \
                   (records/h200/2026-11-15-1bb739941-5)",
    },
    Rule {
        variant: &BWD_ORIGINAL,
        applies: |_| true,
        evidence: "what the sorting variants refuse (odd channels, strided values): atomics take half the time \
                   of bwd_general on ddetr_enc f16, docs/kernels/bwd_general.md",
    },
    Rule {
        variant: &BWD_GENERAL,
        applies: |_| true,
        evidence: "accepts everything, deterministic; the only choice where nothing above fits",
    },
];

fn table(call: &Call<'_>) -> &'static Table {
    // Every direction has one; a test holds that.
    TABLES.iter().find(|table| table.direction == call.direction()).unwrap_or(&TABLES[0])
}

/// What computes a call whose pointers are not aligned as its variant needs them, and how.
pub fn unaligned(call: &Call<'_>) -> (&'static Variant, KnobChoices) {
    let Table { rules, unaligned, .. } = table(call);
    (rules[rules.len() - 1].variant, KnobChoices::of(unaligned))
}

/// The best variant for a call, by these tables alone.
///
/// # Errors
/// The refusal of the last variant: a dtype that no kernel stores, an axis that does not fit 31 bits.
pub fn builtin(call: &Call<'_>) -> Result<&'static Variant, msdeform::Error> {
    let mut refused = Ok(());
    for rule in table(call).rules.iter().filter(|rule| (rule.applies)(call)) {
        refused = rule.variant.check(call);
        if refused.is_ok() {
            return Ok(rule.variant);
        }
    }
    let (last, _) = unaligned(call);
    refused.map(|()| last)
}

#[cfg(test)]
mod tests {
    use msdeform::{BackwardCall, DType, Mode, Problem, ValueLayout};

    use super::*;
    use crate::driver::DeviceProps;
    use crate::registry::REGISTRY;

    #[test]
    fn every_row_is_registered_and_the_last_takes_everything() {
        for direction in Direction::ALL {
            assert_eq!(TABLES.iter().filter(|table| table.direction == direction).count(), 1);
        }
        for rule in TABLES.iter().flat_map(|table| table.rules) {
            assert!(REGISTRY.iter().any(|variant| variant.spec.id == rule.variant.spec.id));
            assert!(!rule.evidence.is_empty());
        }
    }

    #[test]
    fn no_valid_problem_is_without_a_variant() {
        let device = DeviceProps::h200();
        let levels: Vec<(i64, i64)> = (1..40).map(|size| (size, 2 * size)).collect();
        for (format, dtype) in DType::FAST.into_iter().enumerate() {
            for (order, layout) in ValueLayout::ALL.into_iter().enumerate() {
                // Miri, thousands of times slower, takes every format and every layout, not every pair.
                if cfg!(miri) && format != order {
                    continue;
                }
                for (batch, heads, channels, queries, level_count, points) in [
                    (2, 8, 32, 300, 4, 4),
                    (1, 1, 1, 1, 1, 1),
                    (1, 3, 33, 7, 39, 5),
                    (0, 8, 32, 300, 4, 4),
                    (2, 8, 32, 0, 4, 4),
                    (2, 8, 32, 5, 4, 0),
                    (2, 8, 32, 5, 0, 4),
                    (64, 16, 256, 1 << 18, 3, 8),
                ] {
                    let problem = Problem::builder().batch(batch).heads(heads).channels(channels);
                    let problem = problem.queries(queries).points(points).layout(layout);
                    let problem = problem.levels(levels[..level_count].iter().copied());
                    let problem = problem.dtype(dtype).build().unwrap();
                    let call = Call::new(&problem, &device);
                    let variant = builtin(&call).unwrap();
                    variant.configure(&call, &KnobChoices::default()).unwrap();
                    for mode in Mode::ALL {
                        let backward = BackwardCall { mode, ..BackwardCall::new(&problem) };
                        let call = Call { backward: Some(backward), ..call };
                        let variant = builtin(&call).unwrap();
                        assert!(mode == Mode::Fast || variant.is_deterministic);
                        variant.configure(&call, &KnobChoices::default()).unwrap();
                        unaligned(&call).0.check(&call).unwrap();
                    }
                }
            }
        }
    }
}
