//! What was launched on a context, to be named when the driver reports that the GPU has faulted.
//!
//! A kernel that reads outside of its memory ends the whole context, and the driver reports that at the next
//! call: a copy, another launch, the call of another library. Every launch therefore leaves a few
//! numbers in a [`Ring`]: no text, no lock, no allocation, some ten nanoseconds. They become words when there
//! is a fault to explain.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use bytemuck::{Pod, Zeroable};
use msdeform::{DType, Problem};

use super::ring::Ring;
use crate::error::{Cause, ContextLost, DriverError};

/// Launches remembered. A backward pass is up to eight, so these are the last few calls.
const REMEMBERED: usize = 32;
const WORDS: usize = 5;

/// The launches of one context, shared by all who have opened its device.
#[derive(Debug)]
pub(crate) struct Launches {
    device: usize,
    ring: Ring<REMEMBERED, WORDS>,
    /// Of the first fault. Later calls only repeat it: nothing runs on a lost context any more.
    cause: OnceLock<Cause>,
}

/// What a launch leaves behind, made once with its plan.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub(crate) struct Label {
    variant: u32,
    entry: u32,
    batch: u32,
    queries: u32,
    heads: u32,
    channels: u32,
    samples: u32,
    levels: u16,
    dtype: u8,
    sampling_dtype: u8,
}

/// A launch as an error names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launched {
    /// The kernel's entry in the variant's file; `zeroing` for memory that is set to zero.
    pub entry: &'static str,
    /// The variant.
    pub variant: &'static str,
    /// Images.
    pub batch: u32,
    /// Queries of an image.
    pub queries: u32,
    /// Heads.
    pub heads: u32,
    /// Channels of a head.
    pub channels: u32,
    /// Levels.
    pub levels: u16,
    /// Samples of a query and head, over all levels.
    pub samples: u32,
    /// Format of the values.
    pub dtype: DType,
    /// Format of locations and weights.
    pub sampling_dtype: DType,
}

impl fmt::Display for Launched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { entry, variant, batch, queries, heads, channels, levels, samples, .. } = self;
        match *entry {
            ZEROING => write!(f, "zeroing for `{variant}`")?,
            _ if entry == variant => write!(f, "`{entry}`")?,
            _ => write!(f, "`{entry}` of `{variant}`")?,
        }
        write!(f, " (N={batch} M={heads} D={channels} Lq={queries} L={levels}, {samples} samples")?;
        write!(f, ", {}", self.dtype)?;
        if self.sampling_dtype != self.dtype {
            write!(f, "+{}", self.sampling_dtype)?;
        }
        f.write_str(")")
    }
}

/// The entry of a step that sets memory to zero.
pub(crate) const ZEROING: &str = "zeroing";

impl Label {
    /// The label of one kernel of a variant, for one problem. Sizes beyond 32 bits are cut off at that.
    pub(crate) fn new(variant: &'static str, entry: &str, problem: &Problem) -> Self {
        let size = |size: usize| u32::try_from(size).unwrap_or(u32::MAX);
        Self {
            variant: number(variant),
            entry: number(entry),
            batch: size(problem.batch()),
            queries: size(problem.queries()),
            heads: size(problem.heads()),
            channels: size(problem.channels()),
            samples: size(problem.samples()),
            levels: u16::try_from(problem.levels().len()).unwrap_or(u16::MAX),
            dtype: code(problem.dtype()),
            sampling_dtype: code(problem.sampling_dtype()),
        }
    }

    fn launched(self) -> Launched {
        let Self { batch, queries, heads, channels, samples, levels, .. } = self;
        Launched {
            entry: name(self.entry),
            variant: name(self.variant),
            batch,
            queries,
            heads,
            channels,
            levels,
            samples,
            dtype: format(self.dtype),
            sampling_dtype: format(self.sampling_dtype),
        }
    }
}

const FORMATS: [DType; 4] = [DType::F32, DType::F16, DType::Bf16, DType::F64];

fn code(dtype: DType) -> u8 {
    FORMATS.iter().position(|&format| format == dtype).unwrap_or(0) as u8
}

fn format(code: u8) -> DType {
    FORMATS[usize::from(code) % FORMATS.len()]
}

/// Names of variants and kernels by number. There are as many as kernels were ever loaded, so none is
/// forgotten.
fn names() -> MutexGuard<'static, Vec<&'static str>> {
    static NAMES: Mutex<Vec<&'static str>> = Mutex::new(Vec::new());
    NAMES.lock().unwrap_or_else(PoisonError::into_inner)
}

fn number(name: &str) -> u32 {
    let mut known = names();
    let place = known.iter().position(|known| *known == name);
    place.unwrap_or_else(|| {
        known.push(Box::leak(name.into()));
        known.len() - 1
    }) as u32
}

fn name(number: u32) -> &'static str {
    names().get(number as usize).copied().unwrap_or("unknown")
}

impl Launches {
    fn new(device: usize) -> Self {
        Self { device, ring: Ring::new(), cause: OnceLock::new() }
    }

    /// Those of a context that is being opened, by the driver's address of it.
    pub(super) fn of_context(context: usize, device: usize) -> Arc<Self> {
        let mut opened = opened();
        opened.retain(|(_, launches)| launches.strong_count() > 0);
        let known = opened.iter().find(|(known, _)| *known == context);
        if let Some(launches) = known.and_then(|(_, launches)| launches.upgrade()) {
            return launches;
        }
        let launches = Arc::new(Self::new(device));
        opened.push((context, Arc::downgrade(&launches)));
        launches
    }

    /// Notes a launch that is about to be queued. Before and not after: another thread may hear of its fault
    /// first.
    pub(crate) fn note(&self, label: Label, stream: usize) -> u64 {
        let mut words = [stream as u64; WORDS];
        words[..WORDS - 1].copy_from_slice(bytemuck::cast_slice(&[label]));
        self.ring.push(words)
    }

    /// Takes back what was noted of a launch that the driver refused.
    pub(crate) fn forget(&self, ticket: u64) {
        self.ring.remove(ticket);
    }

    /// How many launches there have been: what is waited for from here on includes them.
    pub(super) fn so_far(&self) -> u64 {
        self.ring.last()
    }

    /// Forgets launches that are done: those up to a ticket, of one stream or of all.
    pub(super) fn are_done(&self, up_to: u64, stream: Option<usize>) {
        for (ticket, [.., on]) in self.ring.entries() {
            if ticket <= up_to && stream.is_none_or(|stream| stream as u64 == on) {
                self.ring.remove(ticket);
            }
        }
    }

    /// What a fault is put down to. `exact` is the launch that was waited for alone.
    pub(crate) fn lost(&self, source: DriverError, exact: Option<Label>) -> ContextLost {
        let cause = self.cause.get_or_init(|| match exact {
            Some(label) => Cause::Exactly(label.launched()),
            None => {
                let launched = |(_, [label @ .., _]): (u64, [u64; WORDS])| {
                    bytemuck::cast::<_, Label>(label).launched()
                };
                Cause::OneOf(self.ring.entries().into_iter().map(launched).collect())
            }
        });
        ContextLost { source, device: Some(self.device), cause: cause.clone() }
    }
}

type Opened = Vec<(usize, Weak<Launches>)>;

fn opened() -> MutexGuard<'static, Opened> {
    static OPENED: Mutex<Opened> = Mutex::new(Vec::new());
    OPENED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a fault is put down to that some driver call has reported: the launches of the thread's current
/// context.
pub(crate) fn lost_context(source: DriverError) -> ContextLost {
    // Only where a context was opened is there a driver to ask.
    let current = if opened().is_empty() { None } else { super::context::current() };
    let is_current = |&&(context, _): &&(usize, Weak<Launches>)| Some(context) == current;
    let launches = opened().iter().find(is_current).and_then(|(_, launches)| launches.upgrade());
    match launches {
        Some(launches) => launches.lost(source, None),
        None => ContextLost { source, device: None, cause: Cause::OneOf(Vec::new()) },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(queries: usize) -> Problem {
        let builder = Problem::builder().batch(2).heads(8).channels(32).queries(queries).points(4);
        let builder = builder.levels([(10, 10), (5, 5)]).dtype(DType::F16);
        builder.sampling_dtype(DType::F32).build().unwrap()
    }

    fn fault() -> DriverError {
        DriverError {
            call: "cuStreamSynchronize",
            code: 700,
            name: "CUDA_ERROR_ILLEGAL_ADDRESS".to_owned(),
            description: "an illegal memory access was encountered".to_owned(),
        }
    }

    fn suspects(lost: &ContextLost) -> Vec<u32> {
        match &lost.cause {
            Cause::Exactly(launched) => vec![launched.queries],
            Cause::OneOf(launched) => launched.iter().map(|launched| launched.queries).collect(),
        }
    }

    #[test]
    fn a_label_says_what_was_launched() {
        let label = Label::new("bwd_level_sort", "bwd_level_sort_gather", &problem(300));
        let launched = label.launched();
        assert_eq!(
            launched.to_string(),
            "`bwd_level_sort_gather` of `bwd_level_sort` (N=2 M=8 D=32 Lq=300 L=2, 8 samples, f16+f32)"
        );
        let label = Label::new("fwd_general", "fwd_general", &problem(1));
        assert!(label.launched().to_string().starts_with("`fwd_general` (N=2"));
        let label = Label::new("bwd_original", ZEROING, &problem(1));
        assert!(label.launched().to_string().starts_with("zeroing for `bwd_original` (N=2"));
    }

    #[test]
    fn every_launch_that_was_not_waited_for_is_a_suspect_newest_first() {
        let launches = Launches::new(3);
        let note = |queries, stream| {
            launches.note(Label::new("fwd_general", "fwd_general", &problem(queries)), stream)
        };
        note(1, 7);
        note(2, 8);
        let so_far = launches.so_far();
        note(3, 7);
        // The stream was waited for while the third launch was queued: it may still be under way.
        launches.are_done(so_far, Some(7));
        let refused = note(4, 8);
        launches.forget(refused);
        let lost = launches.lost(fault(), None);
        assert_eq!(lost.device, Some(3));
        assert_eq!(suspects(&lost), [3, 2]);
    }

    #[test]
    fn after_everything_was_waited_for_nobody_is_suspected() {
        let launches = Launches::new(0);
        launches.note(Label::new("fwd_general", "fwd_general", &problem(1)), 7);
        launches.are_done(launches.so_far(), None);
        assert_eq!(suspects(&launches.lost(fault(), None)), [0; 0]);
    }

    #[test]
    fn the_first_report_decides_and_later_ones_repeat_it() {
        let launches = Launches::new(0);
        let label = |queries| Label::new("fwd_general", "fwd_general", &problem(queries));
        launches.note(label(1), 7);
        assert_eq!(suspects(&launches.lost(fault(), Some(label(1)))), [1]);
        // Refused, since the context is lost; it is not to blame even though it was waited for.
        launches.note(label(2), 7);
        let later = launches.lost(fault(), Some(label(2)));
        assert!(matches!(later.cause, Cause::Exactly(_)));
        assert_eq!(suspects(&later), [1]);
    }

    #[test]
    fn who_opens_a_device_twice_shares_its_launches() {
        let first = Launches::of_context(0x1000, 0);
        let second = Launches::of_context(0x1000, 0);
        let other = Launches::of_context(0x2000, 1);
        assert!(Arc::ptr_eq(&first, &second) && !Arc::ptr_eq(&first, &other));
        drop((first, second));
        assert!(Launches::of_context(0x1000, 0).cause.get().is_none());
    }

    #[test]
    fn sizes_beyond_32_bits_are_cut_off_and_formats_come_back() {
        for dtype in FORMATS {
            assert_eq!(format(code(dtype)), dtype);
        }
        let huge = Problem::builder().queries(1 << 40).levels([(1, 1)]).build().unwrap();
        assert_eq!(Label::new("a", "a", &huge).launched().queries, u32::MAX);
    }
}
