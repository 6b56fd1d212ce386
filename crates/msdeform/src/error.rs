//! What can be wrong with a call, and what to do about it.

use crate::{DType, Operator};

/// Everything that can go wrong before or during a call. Nothing in this crate panics on bad input.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Levels or sizes that a problem lacks or that contradict each other.
    #[error("{reason}")]
    Description {
        /// What is wrong, and what to do.
        reason: String,
    },
    /// A list that goes with the levels has another length than the list of levels.
    #[error("`{list}` has {found} entries for {levels} levels; give one per level")]
    LevelCount {
        /// The list that does not fit.
        list: &'static str,
        /// Number of levels.
        levels: usize,
        /// Entries found.
        found: usize,
    },
    /// A size, count or offset below zero.
    #[error("`{name}` is {value}; it must not be negative")]
    Negative {
        /// What is negative.
        name: String,
        /// The number as given.
        value: i128,
    },
    /// A tensor whose element or byte count does not fit the address space.
    #[error("`{tensor}` would have more elements than this machine can address")]
    TooLarge {
        /// The tensor.
        tensor: &'static str,
    },
    /// An unknown name of a dtype.
    #[error("unknown dtype `{name}`; known: f32, f16, bf16 and, in the reference, f64")]
    UnknownDtype {
        /// The name as given.
        name: String,
    },
    /// An unknown name of a layout.
    #[error("unknown layout `{name}`; known: interleaved, head_major, head_major_padded")]
    UnknownLayout {
        /// The name as given.
        name: String,
    },
    /// A tensor of another dtype than the problem says.
    #[error("`{tensor}` is {found}, the problem says {expected}; convert it or change the problem")]
    DtypeMismatch {
        /// The tensor.
        tensor: &'static str,
        /// What the problem says.
        expected: DType,
        /// What was given.
        found: DType,
    },
    /// A flat slice of the wrong length.
    #[error("`{tensor}` has {found} elements, expected {expected}")]
    LengthMismatch {
        /// The tensor.
        tensor: &'static str,
        /// Elements that the problem implies, and what to do.
        expected: String,
        /// Elements given.
        found: usize,
    },
    /// A shaped tensor of the wrong shape.
    #[error("`{tensor}` has shape {found:?}, expected {expected}")]
    ShapeMismatch {
        /// The tensor.
        tensor: &'static str,
        /// The shapes that fit; sizes that may be chosen are words.
        expected: String,
        /// The shape given.
        found: Vec<i64>,
    },
    /// Two tensors that must have one dtype and have two.
    #[error(
        "`{first}` is {first_dtype} and `{second}` is {second_dtype}; give both the same dtype"
    )]
    SamplingDtypes {
        /// Locations or offsets.
        first: &'static str,
        /// Their dtype.
        first_dtype: DType,
        /// Weights or logits.
        second: &'static str,
        /// Their dtype.
        second_dtype: DType,
    },
    /// Levels that follow each other and are not all pixels of the value tensor.
    #[error(
        "`value` has {pixels} pixels, but the levels of `spatial_shapes` {sizes:?} have {levels}; values with gaps between \
         levels need `level_start_index`"
    )]
    LevelPixels {
        /// (height, width) of each level.
        sizes: Vec<(i64, i64)>,
        /// Pixels of all levels, with their borders.
        levels: i64,
        /// Pixels of the value tensor.
        pixels: i64,
    },
    /// Samples that cannot be the same number of points on each level.
    #[error(
        "`{tensor}`: {samples} samples are not the same number of points on each of {levels} levels; give `points=[...]`, \
         the number of points of each level"
    )]
    UnevenSamples {
        /// Locations or offsets.
        tensor: &'static str,
        /// Samples of a query and head.
        samples: i64,
        /// Number of levels.
        levels: usize,
    },
    /// Strides that reach outside of the elements, or that a call cannot follow.
    #[error("{reason}")]
    Strides {
        /// What is wrong, and what to do.
        reason: String,
    },
    /// A variant that cannot compute this problem, or not on this machine.
    #[error("variant `{variant}` cannot do this: {reason}")]
    Unsupported {
        /// Its id in the registry.
        variant: &'static str,
        /// Why not.
        reason: String,
    },
    /// An id that no variant has.
    #[error("unknown variant `{id}`; `msdeform variants` lists them")]
    UnknownVariant {
        /// The id as given.
        id: String,
    },
    /// The system gives no memory.
    #[error(
        "there is no memory for {what} ({bytes} bytes); use a smaller problem or fewer threads"
    )]
    NoMemory {
        /// What it is for.
        what: &'static str,
        /// How much was asked for.
        bytes: usize,
    },
    /// A tensor that a call lacks, or has no use for.
    #[error("`{tensor}` is {reason}")]
    Tensors {
        /// The tensor.
        tensor: &'static str,
        /// What is wrong with it, and what to do.
        reason: &'static str,
    },
    /// Inputs of another operator than the problem's.
    #[error(
        "the call has {found} inputs, but the {} operator of the problem reads {}; pass those in this order, or build the \
         problem {}",
        operator.name, operator.input_names(), operator.otherwise
    )]
    Inputs {
        /// The operator of the problem.
        operator: &'static Operator,
        /// The number of inputs.
        found: usize,
    },
    /// A rule for offsets that cannot be followed.
    #[error("the offsets cannot be followed: {reason}")]
    OffsetRule {
        /// What is wrong with it.
        reason: String,
    },
    /// The worker threads could not be started.
    #[error("cannot start {threads} worker threads: {reason}; ask for fewer")]
    Threads {
        /// Threads asked for.
        threads: usize,
        /// What the system said.
        reason: String,
    },
}
