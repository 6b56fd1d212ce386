//! A call as whoever has its tensors describes it: a few numbers that serve as the key of its plan.
//!
//! Everything that a plan depends on goes into the key, shapes included. A key that is known was
//! checked when its plan was made, so a repeated call compares numbers and checks nothing again.

use std::cell::RefCell;

use msdeform::{DType, Offsets, Operator, Problem, Role};

use crate::error::CallError;

/// What the key of a call says about a tensor.
pub trait Described {
    /// The code of its format: its place in [`DTYPES`].
    fn code(&self) -> i64;
    /// The number of its axes.
    fn rank(&self) -> usize;
    /// Appends the sizes of its axes.
    ///
    /// # Errors
    /// A size is no 64-bit integer.
    fn write_shape(&self, numbers: &mut Vec<i64>) -> Result<(), CallError>;
}

thread_local! {
    /// The key of the last call, written over by the next one: a repeated call allocates nothing.
    static KEY: RefCell<Key> = RefCell::default();
}

/// Encodes a call and runs something with its key, which may call us again: the next key is then another one.
///
/// # Errors
/// Those of what runs, and sizes that are no 64-bit integers.
pub fn with_key<T>(
    head: Head,
    operands: &[&dyn Described],
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
/// A [`Head`]; formats and ranks of value, locations and weights, or of value, references, offsets and logits; their
/// shapes; the levels, each as height, width, start and points.
#[derive(Debug, Default)]
pub struct Key {
    head: Head,
    operands: usize,
    numbers: Vec<i64>,
}

/// What a plan depends on beside tensors and levels. The processor's plans take contiguous tensors and
/// any gradients: only the place counts there.
#[derive(Clone, Copy, Debug, Default)]
pub struct Head {
    /// Threads, or the number of a GPU.
    pub place: i64,
    /// The gradients that are wanted: 1 value, 2 locations or offsets, 4 weights or logits, 8 references; 0 in a forward
    /// call.
    pub gradients: i64,
    /// Those that will be wanted of a forward call, likewise; a GPU's kernels for them are compiled meanwhile.
    pub expected: i64,
    /// Whether they must have the same bits in every run.
    pub deterministic: bool,
    /// Strides of images, heads and pixels in the value tensor.
    pub value_strides: (i64, i64, i64),
    /// Strides of images, queries and channels in the gradient of the output.
    pub grad_strides: (i64, i64, i64),
    /// How samples follow from offsets, if they do.
    pub rule: Option<Rule>,
    /// Strides of images and queries in references, offsets and logits.
    pub source_strides: [(i64, i64); 3],
}

/// What the gradients of an operator's inputs that are wanted are in [`Head::gradients`].
pub fn gradient_bits(operator: &Operator, wanted: impl IntoIterator<Item = bool>) -> i64 {
    let bit = |role: &Role| match role {
        Role::Value => 1,
        Role::Locations | Role::Offsets => 2,
        Role::Weights | Role::Logits => 4,
        _ => 8,
    };
    operator.inputs.iter().zip(wanted).map(|(role, is)| bit(role) * i64::from(is)).sum()
}

/// How samples follow from offsets, beside what the shape of the references says.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    /// Whether the points of a level take a query's references in turn.
    pub anchors: bool,
    /// The part of a box that an offset of one is.
    pub scale: f32,
    /// Whether the weights are the softmax of the logits.
    pub softmax: bool,
    /// Whether nearest pixels are taken.
    pub nearest: bool,
}

impl Rule {
    fn numbers(&self) -> [i64; 4] {
        let flags = [self.softmax, self.nearest].map(i64::from);
        [1 + i64::from(self.anchors), i64::from(self.scale.to_bits()), flags[0], flags[1]]
    }

    /// The rule for references of this shape, `[N, Lq, references, 2 or 4]`.
    fn offsets(&self, references: &[i64], levels: usize) -> Result<Offsets, CallError> {
        let wrong = || CallError::Shape {
            tensor: "reference_points",
            found: references.to_vec(),
            expected: if self.anchors {
                "[batch, queries, anchors, 2] or [batch, queries, anchors, 4]".to_owned()
            } else {
                format!("[batch, queries, {levels} or 1, 2 or 4]")
            },
        };
        let &[_, _, count, components] = references else { return Err(wrong()) };
        let rule = match components {
            2 => Offsets::from_points(),
            4 => Offsets::from_boxes(),
            _ => return Err(wrong()),
        };
        let count = usize::try_from(count).map_err(|_| wrong())?;
        let rule = match count {
            _ if self.anchors => rule.anchors(count),
            _ if count == levels => rule,
            1 => rule.one_for_all_levels(),
            _ => return Err(wrong()),
        };
        let rule = rule.offset_scale(self.scale);
        let rule = if self.softmax { rule } else { rule.raw_weights() };
        Ok(if self.nearest { rule.nearest() } else { rule })
    }
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
        operands: &[&dyn Described],
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
        numbers.extend(head.rule.map_or([0; 4], |rule| rule.numbers()));
        numbers.extend(head.source_strides.iter().flat_map(|&(image, query)| [image, query]));
        numbers.extend(operands.iter().map(|operand| operand.code()));
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

    /// What is not about tensors and levels.
    #[must_use]
    pub const fn head(&self) -> &Head {
        &self.head
    }

    /// Checks what the numbers say and makes the problem of it.
    ///
    /// # Errors
    /// They make no sense.
    pub fn problem(&self) -> Result<Problem, CallError> {
        let (codes, rest) = self.numbers[HEAD_NUMBERS..].split_at(self.operands);
        let (ranks, mut rest) = rest.split_at(self.operands);
        let mut next = |place: usize| {
            let rank = ranks.get(place).and_then(|&rank| usize::try_from(rank).ok()).unwrap_or(0);
            let (shape, after) = rest.split_at(rank.min(rest.len()));
            rest = after;
            shape
        };
        let value = next(0);
        // Of four the second are references, and the others offsets and logits.
        let references = if self.operands == 4 { next(1) } else { &[] };
        let (locations, weights) = (next(self.operands - 2), next(self.operands - 1));
        let levels = rest;
        if !levels.len().is_multiple_of(LEVEL_NUMBERS) {
            return Err(CallError::LevelNumbers(levels.len()));
        }
        let &[batch, spatial, heads, channels] = value else {
            let expected = "[batch, pixels, heads, channels]".to_owned();
            return Err(CallError::Shape { tensor: "value", found: value.to_vec(), expected });
        };
        let names = match self.head.rule {
            None => ("sampling_locations", "attention_weights"),
            Some(_) => ("sampling_offsets", "attention_logits"),
        };
        let sampling = Sampling { batch, heads, levels };
        let queries = sampling.check(names.0, locations, true)?;
        let weight_queries = sampling.check(names.1, weights, false)?;
        if queries != weight_queries {
            let expected = format!("{queries} queries like `{}`", names.0);
            return Err(CallError::Shape { tensor: names.1, found: weights.to_vec(), expected });
        }
        let dtype_of = |place: usize| dtype(codes[place]);
        let (locations, weights) = (dtype_of(self.operands - 2)?, dtype_of(self.operands - 1)?);
        if locations != weights {
            return Err(CallError::SamplingDtypes { names, locations, weights });
        }
        let points: Vec<usize> = levels
            .chunks_exact(LEVEL_NUMBERS)
            .map(|level| size("points", level[3]))
            .collect::<Result<_, _>>()?;
        let mut builder = Problem::builder()
            .batch(size("batch", batch)?)
            .heads(size("heads", heads)?)
            .channels(size("channels", channels)?)
            .queries(size("queries", queries)?)
            .levels(levels.chunks_exact(LEVEL_NUMBERS).map(|level| (level[0], level[1])))
            .level_starts(levels.chunks_exact(LEVEL_NUMBERS).map(|level| level[2]))
            .spatial(size("pixels", spatial)?)
            .points_per_level(points)
            .dtype(dtype_of(0)?)
            .sampling_dtype(locations);
        if let Some(rule) = &self.head.rule {
            let offsets = rule.offsets(references, levels.len() / LEVEL_NUMBERS)?;
            if references[..2] != [batch, queries] {
                let expected = format!("[{batch}, {queries}, references, 2 or 4]");
                let (tensor, found) = ("reference_points", references.to_vec());
                return Err(CallError::Shape { tensor, found, expected });
            }
            builder = builder.offsets(offsets).reference_dtype(dtype_of(1)?);
        }
        Ok(builder.build()?)
    }
}

/// What the shapes of locations and weights must agree with.
struct Sampling<'a> {
    batch: i64,
    heads: i64,
    levels: &'a [i64],
}

impl Sampling<'_> {
    /// Returns the number of queries. The samples of a head may be one axis, or two (levels, points)
    /// where all levels have the same number of points.
    fn check(&self, tensor: &'static str, shape: &[i64], pairs: bool) -> Result<i64, CallError> {
        let Self { batch, heads, levels } = self;
        let points = || levels.chunks_exact(LEVEL_NUMBERS).map(|level| level[3]);
        let level_count = (levels.len() / LEVEL_NUMBERS) as i64;
        let samples: i64 = points().fold(0, i64::saturating_add);
        let first = points().next().unwrap_or(0);
        let uniform = points().all(|count| count == first);
        let (sizes, pair) = match shape.split_last() {
            Some((&2, rest)) if pairs => (rest, true),
            _ => (shape, false),
        };
        if pair == pairs && sizes.len() >= 4 && sizes[0] == *batch && sizes[2] == *heads {
            match sizes[3..] {
                [found] if found == samples => return Ok(sizes[1]),
                // Without levels nobody can know the points: any number of none.
                [found_levels, found_points]
                    if found_levels == level_count
                        && uniform
                        && (found_points == first || level_count == 0) =>
                {
                    return Ok(sizes[1]);
                }
                _ => {}
            }
        }
        let pair = if pairs { ", 2" } else { "" };
        let mut expected = format!("[{batch}, queries, {heads}, {samples}{pair}]");
        if uniform {
            expected =
                format!("[{batch}, queries, {heads}, {level_count}, {first}{pair}] or {expected}");
        }
        Err(CallError::Shape { tensor, found: shape.to_vec(), expected })
    }
}

fn size(name: &str, value: i64) -> Result<usize, CallError> {
    usize::try_from(value).map_err(|_| {
        msdeform::Error::Negative { name: name.to_owned(), value: i128::from(value) }.into()
    })
}

/// The codes that the Python half sends, in the order of [`DTYPES`].
fn dtype(code: i64) -> Result<DType, CallError> {
    let index = usize::try_from(code).ok();
    index.and_then(|index| DTYPES.get(index)).copied().ok_or(CallError::DtypeCode(code))
}

/// Formats by code.
pub const DTYPES: [DType; 4] = [DType::F32, DType::F16, DType::Bf16, DType::F64];
