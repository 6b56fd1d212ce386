//! The figures of a comparison, as tables and records have them.

use serde::{Deserialize, Serialize};

use crate::number;

/// How far results are from what they should be. An element that is not finite on one side alone makes every figure NaN,
/// and NaN is within no bound.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    pub elements: usize,
    /// Elements left out, because the reference itself jumps there.
    pub left_out: usize,
    /// Elements that are NaN, or the same infinity, here and in the reference. They agree, and no figure counts them.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub not_finite_in_both: usize,
    /// Elements that are not finite on one side alone, or two different infinities: why the figures are NaN.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub not_finite_in_one: usize,
    #[serde(with = "number::or_null")]
    pub max_abs: f64,
    /// Largest difference relative to the element or, where that is larger, to the root mean square of all elements: an
    /// element near zero must not decide.
    #[serde(with = "number::or_null")]
    pub max_rel: f64,
    /// Euclidean norm of the differences relative to that of the reference.
    #[serde(with = "number::or_null")]
    pub rel_l2: f64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "what serde calls")]
fn is_zero(count: &usize) -> bool {
    *count == 0
}

impl Comparison {
    /// A comparison that failed: no figure is a number.
    pub(super) const FAILED: Self = Self {
        elements: 0,
        left_out: 0,
        not_finite_in_both: 0,
        not_finite_in_one: 0,
        max_abs: f64::NAN,
        max_rel: f64::NAN,
        rel_l2: f64::NAN,
    };
}

/// What a comparison found.
#[derive(Clone, Debug, PartialEq)]
pub struct Verdict {
    pub comparison: Comparison,
    /// The error as a part of what is allowed: up to 1 is within the contract. NaN fails.
    pub of_allowed: f64,
    /// What is wrong, if anything.
    pub fault: Option<String>,
}

/// One tensor of a verified run, as records have it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TensorCheck {
    /// `output`, `grad_value`, `grad_locations`, ...: the role's name in kernels.
    pub tensor: String,
    #[serde(flatten)]
    pub comparison: Comparison,
    pub bound: f64,
    pub pass: bool,
}
