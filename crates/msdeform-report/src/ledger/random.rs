//! Random problems that a GPU has computed, by variant and format.

use std::collections::BTreeMap;

use msdeform::DType;
use msdeform_cuda::variants::Variant;
use msdeform_cuda_lab::REGISTRY;
use serde::{Deserialize, Serialize};

use super::fingerprint::{hash_sources, takes};
use super::{Samples, Subject, subject};

/// One run of random problems, as far as it concerns a variant and a format.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RandomRun {
    /// What the sources and the common options were.
    pub sources: String,
    /// The GPU.
    pub gpu: String,
    /// What the driver supports.
    pub driver: String,
    /// What compiled them.
    pub nvrtc: String,
    /// Which problems.
    pub seed: u64,
    /// How many it computed.
    pub problems: u64,
    /// How many of the whole run went wrong.
    pub failed: u64,
    /// Of which commit the program was, where that was noted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
}

/// A subject and its run, as the file holds them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct RandomLine {
    #[serde(flatten)]
    subject: Subject,
    #[serde(flatten)]
    run: RandomRun,
}

/// All of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct RandomLedger {
    entries: BTreeMap<Subject, RandomRun>,
}

impl RandomLedger {
    pub(super) fn new(lines: Vec<RandomLine>) -> Self {
        Self { entries: lines.into_iter().map(|line| (line.subject, line.run)).collect() }
    }

    pub(super) fn lines(&self) -> impl Iterator<Item = RandomLine> {
        let line = |(subject, run): (&Subject, &RandomRun)| RandomLine {
            subject: subject.clone(),
            run: run.clone(),
        };
        self.entries.iter().map(line)
    }

    /// Notes a run, with the sources as they are now.
    pub(super) fn record(
        &mut self,
        variant: &dyn Variant,
        dtype: DType,
        samples: Samples,
        run: RandomRun,
    ) {
        let sources = hash_sources(variant, samples).to_owned();
        self.entries.insert(subject(variant, dtype), RandomRun { sources, ..run });
    }

    /// Forgets variants that are no longer registered.
    pub(super) fn forget_unregistered(&mut self) {
        let known = |id: &str| REGISTRY.iter().any(|variant| variant.spec().id == id);
        self.entries.retain(|subject, _| known(&subject.variant));
    }

    /// What may be chosen for a call and has not computed random problems, with the reason.
    pub(super) fn unverified(&self, samples: Samples) -> Vec<String> {
        let mut missing = Vec::new();
        let chosen = |variant: &&&'static dyn Variant| {
            !variant.spec().rung && (samples == Samples::Given || takes(**variant, samples))
        };
        for &variant in REGISTRY.iter().filter(chosen) {
            for &dtype in variant.spec().dtypes {
                let reason = match self.entries.get(&subject(variant, dtype)) {
                    None => "no random problems",
                    Some(found) if found.sources != hash_sources(variant, samples) => {
                        "changed since it computed random problems"
                    }
                    Some(found) if found.failed > 0 => "in a run of random problems that failed",
                    Some(found) if found.problems == 0 => "no random problems",
                    Some(_) => continue,
                };
                missing.push(format!("{} {dtype}: {reason}", variant.spec().id));
            }
        }
        missing
    }
}
