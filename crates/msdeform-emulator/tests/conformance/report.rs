//! Counts of what ran, what was skipped and why, and what failed.

use std::collections::BTreeMap;
use std::fmt;

/// Failures of a variant that are shown in full, because one mistake tends to fail in every cell.
const FAILURES_SHOWN: usize = 4;

/// The end of a reason that lies in the emulator and not in the variant.
pub const NOT_EMULATED: &str = "which the emulator does not have";

/// The outcome of one variant.
#[derive(Default)]
pub struct Outcome {
    pub id: &'static str,
    pub cells: usize,
    pub kernels: usize,
    pub launches: usize,
    /// Launches that were repeated for another GPU and in other orders, with their bits compared.
    pub repeated: usize,
    /// Largest relative L2 error by dtype, and its bound.
    pub errors: BTreeMap<&'static str, (f64, f64)>,
    pub skipped: Skips,
    pub failures: Vec<String>,
    /// The sum over its parts, even if several ran at once.
    pub seconds: f64,
}

impl Outcome {
    /// Adds what a part of the variant's cases gave.
    pub fn add(&mut self, part: Self) {
        self.launches += part.launches;
        self.repeated += part.repeated;
        self.seconds += part.seconds;
        self.failures.extend(part.failures);
        part.errors.into_iter().for_each(|(dtype, error)| self.note_error(dtype, error));
    }

    pub fn note_error(&mut self, dtype: &'static str, (error, bound): (f64, f64)) {
        let worst = self.errors.entry(dtype).or_insert((0.0, bound));
        worst.0 = if error > worst.0 || error.is_nan() { error } else { worst.0 };
    }
}

/// The reasons of skipped cases. Reasons that differ only in their numbers are counted together.
#[derive(Default)]
pub struct Skips {
    by_kind: BTreeMap<String, (String, usize)>,
}

impl Skips {
    pub fn add(&mut self, reason: String) {
        let kind = reason.chars().filter(|c| !c.is_ascii_digit()).collect();
        self.by_kind.entry(kind).or_insert((reason, 0)).1 += 1;
    }

    /// Whether only limits of the emulator kept a variant from running.
    fn are_beyond_the_emulator(&self) -> bool {
        let mut reasons = self.by_kind.values();
        !self.by_kind.is_empty() && reasons.all(|(reason, _)| reason.ends_with(NOT_EMULATED))
    }

    fn count(&self) -> usize {
        self.by_kind.values().map(|(_, count)| count).sum()
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = if self.failures.is_empty() { "ok    " } else { "FAILED" };
        let Self { id, cells, kernels, launches, repeated, seconds, .. } = self;
        write!(
            f,
            "{verdict} {id}: {launches} launches of {kernels} kernels in {cells} combinations, \
             {seconds:.1} s of work; largest relative error"
        )?;
        for (dtype, (error, bound)) in &self.errors {
            write!(f, " {dtype} {error:.1e} (bound {bound:.0e})")?;
        }
        if *repeated > 0 {
            write!(f, "; {repeated} repeated, bits compared")?;
        }
        for (reason, count) in self.skipped.by_kind.values() {
            write!(f, "\n       {count} skipped: {reason}")?;
        }
        for failure in self.failures.iter().take(FAILURES_SHOWN) {
            write!(f, "\n       FAILED {failure}")?;
        }
        match self.failures.len().checked_sub(FAILURES_SHOWN) {
            Some(more) if more > 0 => write!(f, "\n       FAILED and {more} more"),
            _ => Ok(()),
        }
    }
}

/// The outcomes of all variants.
#[derive(Default)]
pub struct Report {
    variants: usize,
    launches: usize,
    skipped: usize,
    failures: usize,
    idle: Vec<&'static str>,
    /// Variants that only a GPU runs.
    beyond: Vec<&'static str>,
}

impl Report {
    pub fn add(&mut self, outcome: &Outcome) {
        self.variants += 1;
        self.launches += outcome.launches;
        self.skipped += outcome.skipped.count();
        self.failures += outcome.failures.len();
        if outcome.launches == 0 {
            let beyond = outcome.skipped.are_beyond_the_emulator();
            let list = if beyond { &mut self.beyond } else { &mut self.idle };
            list.push(outcome.id);
        }
    }

    /// A variant that never ran is not a pass, unless its instructions have no twins. The ledger then still requires a
    /// run on a GPU.
    pub fn passed(&self) -> bool {
        self.failures == 0 && self.idle.is_empty() && self.variants > 0
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { variants, launches, skipped, failures, idle, beyond } = self;
        write!(
            f,
            "{variants} variants, {launches} launches compared, {skipped} skipped, {failures} failed"
        )?;
        if !beyond.is_empty() {
            write!(f, "; only on a GPU: {}", beyond.join(", "))?;
        }
        if !idle.is_empty() {
            write!(f, "; never ran: {}", idle.join(", "))?;
        }
        Ok(())
    }
}
