//! A call as a few numbers, which serve as the key of its plan.
//!
//! Everything that a plan depends on goes into the key, shapes included. A known key was checked when its plan was made,
//! so a repeated call compares numbers and checks nothing again.

use std::cell::RefCell;

use msdeform::{
    ATTENTION, DType, FROM_OFFSETS, LevelLists, OffsetOptions, OffsetRule, Operator, Problem, Role,
    Signature, TensorSignature,
};
use msdeform_cuda::Pointers;

use crate::cpu::SourceStrides;
use crate::error::CallError;

/// A tensor of a call, as its framework describes it.
pub trait Described {
    /// The code of its dtype: its place in [`DTYPES`].
    fn code(&self) -> i64;
    /// The number of its axes.
    fn rank(&self) -> usize;
    /// Appends the sizes of its axes.
    ///
    /// # Errors
    /// A size is no 64-bit integer.
    fn write_shape(&self, numbers: &mut Vec<i64>) -> Result<(), CallError>;
    /// Elements from one index of an axis to the next; 0 for an axis that the tensor does not have.
    ///
    /// # Errors
    /// A stride is no 64-bit integer.
    fn stride(&self, axis: usize) -> Result<i64, CallError>;
    /// The address of its first element.
    ///
    /// # Errors
    /// PyTorch refuses to tell.
    fn address(&self) -> Result<u64, CallError>;
}

/// The operator that a call is of: the fused one has options, the plain one has none.
#[must_use]
pub const fn operator_with(options: Option<&OffsetOptions>) -> &'static Operator {
    match options {
        None => &ATTENTION,
        Some(_) => &FROM_OFFSETS,
    }
}

/// The tensors that an operator reads, in its order. Every path from a framework to a plan goes through here.
pub struct Inputs<'a, T> {
    /// The tensors.
    pub tensors: &'a [T],
    /// The options of the fused operator.
    pub rule: Option<OffsetOptions>,
}

impl<T: Described> Inputs<'_, T> {
    /// The operator that reads them.
    #[must_use]
    pub const fn operator(&self) -> &'static Operator {
        operator_with(self.rule.as_ref())
    }

    /// The addresses of the tensors.
    ///
    /// # Errors
    /// Those of [`Described::address`].
    pub fn pointers(&self) -> Result<Pointers, CallError> {
        let each = self.operator().inputs.iter().zip(self.tensors);
        each.into_iter().try_fold(Pointers::default(), |all, (&role, tensor)| {
            Ok(all.with(role, tensor.address()?))
        })
    }

    /// Strides of images and queries in references, offsets and logits.
    fn rows(&self) -> Result<[(i64, i64); 3], CallError> {
        let mut rows = [(0, 0); 3];
        if self.rule.is_some() {
            for (row, tensor) in rows.iter_mut().zip(self.tensors.iter().skip(1)) {
                *row = (tensor.stride(0)?, tensor.stride(1)?);
            }
        }
        Ok(rows)
    }

    /// The head of a call on a GPU, with the strides of the inputs.
    ///
    /// # Errors
    /// Those of [`Described::stride`].
    pub fn head_of_gpu(&self, ordinal: i64, of_gradients: Head) -> Result<Head, CallError> {
        let of_value = |axis: usize| self.tensors.first().map_or(Ok(0), |value| value.stride(axis));
        Ok(Head {
            place: ordinal,
            value_strides: (of_value(0)?, of_value(2)?, of_value(1)?),
            rule: self.rule,
            source_strides: self.rows()?,
            ..of_gradients
        })
    }

    /// The head of a call on the CPU, and the strides of what may have any there.
    ///
    /// # Errors
    /// Those of [`Described::stride`]; a negative stride.
    pub fn head_of_cpu(&self, threads: i64) -> Result<(Head, Option<SourceStrides>), CallError> {
        let head = Head { place: threads, rule: self.rule, ..Head::default() };
        let [_, references, ..] = self.tensors else { return Ok((head, None)) };
        if self.rule.is_none() {
            return Ok((head, None));
        }
        let size =
            |stride: i64| usize::try_from(stride).map_err(|_| CallError::Size(stride.to_string()));
        let [around, offsets, logits] = self.rows()?;
        let step = size(references.stride(2)?)?;
        let strides = (
            (size(around.0)?, size(around.1)?, step),
            (size(offsets.0)?, size(offsets.1)?),
            (size(logits.0)?, size(logits.1)?),
        );
        Ok((head, Some(strides)))
    }
}

thread_local! {
    /// The key of the last call, written over by the next one: a repeated call allocates nothing.
    static KEY: RefCell<Key> = RefCell::default();
}

/// Encodes a call and runs something with its key. `run` may encode another call: that uses a key of its own.
///
/// # Errors
/// Those of `run`, and sizes that are no 64-bit integers.
pub fn with_key<T>(
    head: Head,
    operands: &[impl Described],
    levels: &[i64],
    run: impl FnOnce(&Key) -> Result<T, CallError>,
) -> Result<T, CallError> {
    let mut key = KEY.take();
    let result = key.encode(head, operands, levels).and_then(|()| run(&key));
    KEY.set(key);
    result
}

/// The numbers that identify a call.
///
/// A [`Head`]; dtypes, ranks and shapes of the operator's inputs; the levels, each as height, width, start and points.
#[derive(Debug, Default)]
pub struct Key {
    head: Head,
    operands: usize,
    numbers: Vec<i64>,
}

/// What a plan depends on, in addition to tensors and levels. Plans of the CPU take contiguous tensors and any gradients,
/// so only the place counts there.
#[derive(Clone, Copy, Debug, Default)]
pub struct Head {
    /// Threads, or the number of a GPU.
    pub place: i64,
    /// The gradients that are wanted: 1 value, 2 locations or offsets, 4 weights or logits, 8 references; 0 in a forward
    /// call.
    pub gradients: i64,
    /// The gradients that will be wanted of a forward call, likewise; a GPU's kernels for them are compiled meanwhile.
    pub expected: i64,
    /// Whether gradients must be bitwise reproducible.
    pub deterministic: bool,
    /// Strides of images, heads and pixels in the value tensor.
    pub value_strides: (i64, i64, i64),
    /// Strides of images, queries and channels in the gradient of the output.
    pub grad_strides: (i64, i64, i64),
    /// The options of the fused operator.
    pub rule: Option<OffsetOptions>,
    /// Strides of images and queries in references, offsets and logits.
    pub source_strides: [(i64, i64); 3],
}

/// The gradients that are wanted, one flag for each input, as [`Head::gradients`] has them.
pub fn gradient_bits(operator: &Operator, wanted: impl IntoIterator<Item = bool>) -> i64 {
    let bit = |role: &Role| match role {
        Role::Value => 1,
        Role::Locations | Role::Offsets => 2,
        Role::Weights | Role::Logits => 4,
        _ => 8,
    };
    operator.inputs.iter().zip(wanted).map(|(role, is)| bit(role) * i64::from(is)).sum()
}

fn rule_numbers(rule: &OffsetOptions) -> [i64; 4] {
    let [anchors, softmax, nearest] = [rule.anchors, rule.softmax, rule.nearest].map(i64::from);
    [1 + anchors, i64::from(rule.scale.to_bits()), softmax, nearest]
}

/// Numbers before those of the tensors.
const HEAD_NUMBERS: usize = 20;

/// Numbers of one level in a key.
pub const LEVEL_NUMBERS: usize = 4;

impl Key {
    /// Writes the key of a call over the last one, keeping its memory.
    ///
    /// # Errors
    /// A size is no 64-bit integer.
    pub fn encode(
        &mut self,
        head: Head,
        operands: &[impl Described],
        levels: &[i64],
    ) -> Result<(), CallError> {
        self.head = head;
        self.operands = operands.len();
        let (value, grad) = (head.value_strides, head.grad_strides);
        let numbers = &mut self.numbers;
        numbers.clear();
        numbers.extend([head.place, head.gradients, head.expected]);
        numbers.push(i64::from(head.deterministic));
        numbers.extend([value.0, value.1, value.2, grad.0, grad.1, grad.2]);
        numbers.extend(head.rule.as_ref().map_or([0; 4], rule_numbers));
        numbers.extend(head.source_strides.iter().flat_map(|&(image, query)| [image, query]));
        numbers.extend(operands.iter().map(Described::code));
        numbers.extend(operands.iter().map(|operand| operand.rank() as i64));
        for operand in operands {
            operand.write_shape(numbers)?;
        }
        numbers.extend_from_slice(levels);
        Ok(())
    }

    /// The numbers, to look a plan up.
    #[must_use]
    pub fn numbers(&self) -> &[i64] {
        &self.numbers
    }

    /// The part that is not about tensors and levels.
    #[must_use]
    pub const fn head(&self) -> &Head {
        &self.head
    }

    /// The problem that the numbers describe.
    ///
    /// # Errors
    /// The tensors or the levels do not fit each other.
    pub fn problem(&self) -> Result<Problem, CallError> {
        let (codes, rest) = self.numbers[HEAD_NUMBERS..].split_at(self.operands);
        let (ranks, mut rest) = rest.split_at(self.operands);
        let mut tensors = Vec::with_capacity(self.operands);
        for (&code, &rank) in codes.iter().zip(ranks) {
            let (shape, after) = rest.split_at(usize::try_from(rank).unwrap_or(0).min(rest.len()));
            rest = after;
            tensors.push(TensorSignature { dtype: dtype(code)?, shape });
        }
        let (levels, []) = rest.as_chunks::<LEVEL_NUMBERS>() else {
            return Err(CallError::LevelNumbers(rest.len()));
        };
        let sizes: Vec<[i64; 2]> =
            levels.iter().map(|&[height, width, ..]| [height, width]).collect();
        let starts: Vec<i64> = levels.iter().map(|&[_, _, start, _]| start).collect();
        let points: Vec<i64> = levels.iter().map(|&[.., points]| points).collect();
        let levels = LevelLists { sizes: &sizes, starts: Some(&starts), points: Some(&points) };
        let rule = self.head.rule.map(OffsetRule::OfReferences);
        Ok(Signature { rule, ..Signature::new(&tensors, levels) }.problem()?)
    }
}

/// The codes that the Python half sends, in the order of [`DTYPES`].
fn dtype(code: i64) -> Result<DType, CallError> {
    let index = usize::try_from(code).ok();
    index.and_then(|index| DTYPES.get(index)).copied().ok_or(CallError::DtypeCode(code))
}

/// Dtypes by code.
pub const DTYPES: [DType; 4] = [DType::F32, DType::F16, DType::Bf16, DType::F64];
