//! What a GPU has verified, by what was compiled: one entry for everything that the dispatcher may choose for known
//! models ([`msdeform_bench::models`]).

use std::collections::BTreeMap;

use msdeform_bench::models::Specialisation;
use serde::{Deserialize, Serialize};

use super::Samples;
use super::fingerprint::hash_sources;

/// A verification of one specialisation of a kernel file.
#[derive(Clone, Debug, PartialEq)]
pub struct CompiledVerification {
    /// The variant's id.
    pub variant: String,
    /// The macros that it was compiled with, as [`Specialisation::name`] has them.
    pub defines: String,
    /// What the sources and the common options were.
    pub sources: String,
    /// The GPU.
    pub gpu: String,
    /// What the driver supports.
    pub driver: String,
    /// What compiled it.
    pub nvrtc: String,
    /// The relative L2 error; nothing if it was not a number or the kernel did not run.
    pub worst_rel_l2: Option<f64>,
    /// Whether it was within the bound.
    pub passed: bool,
}

/// All of them, by variant and macros.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CompiledLedger {
    entries: BTreeMap<(String, String), CompiledVerification>,
}

/// What many entries have in common: in the file it stands once, before them.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
struct Circumstances {
    variant: String,
    sources: String,
    gpu: String,
    driver: String,
    nvrtc: String,
    passed: bool,
}

/// Entries as the file holds them: macros and error of each.
#[derive(Deserialize)]
pub(super) struct CompiledLines {
    #[serde(flatten)]
    circumstances: Circumstances,
    specialisations: BTreeMap<String, Option<f64>>,
}

impl CompiledLedger {
    pub(super) fn new(lines: Vec<CompiledLines>) -> Self {
        let mut ledger = Self::default();
        for CompiledLines { circumstances, specialisations } in lines {
            let Circumstances { variant, sources, gpu, driver, nvrtc, passed } = circumstances;
            for (defines, worst_rel_l2) in specialisations {
                ledger.record(CompiledVerification {
                    variant: variant.clone(),
                    defines,
                    sources: sources.clone(),
                    gpu: gpu.clone(),
                    driver: driver.clone(),
                    nvrtc: nvrtc.clone(),
                    worst_rel_l2,
                    passed,
                });
            }
        }
        ledger
    }

    /// As the file holds them, a line for each.
    pub(super) fn texts(&self) -> Result<Vec<String>, serde_json::Error> {
        let mut groups: BTreeMap<Circumstances, Vec<String>> = BTreeMap::new();
        for entry in self.entries.values() {
            let circumstances = Circumstances {
                variant: entry.variant.clone(),
                sources: entry.sources.clone(),
                gpu: entry.gpu.clone(),
                driver: entry.driver.clone(),
                nvrtc: entry.nvrtc.clone(),
                passed: entry.passed,
            };
            let error = serde_json::to_string(&entry.worst_rel_l2)?;
            let line = format!("{}:{error}", serde_json::to_string(&entry.defines)?);
            groups.entry(circumstances).or_default().push(line);
        }
        let text = |(circumstances, lines): (Circumstances, Vec<String>)| {
            let shared = serde_json::to_string(&circumstances)?;
            let shared = shared.trim_end_matches('}');
            Ok(format!("{shared},\"specialisations\":{{\n{}}}}}", lines.join(",\n")))
        };
        groups.into_iter().map(text).collect()
    }

    pub(super) fn record(&mut self, verification: CompiledVerification) {
        let name = (verification.variant.clone(), verification.defines.clone());
        self.entries.insert(name, verification);
    }

    pub(super) fn keep_only(&mut self, reachable: &[Specialisation]) {
        let names: std::collections::BTreeSet<(String, String)> =
            reachable.iter().map(name).collect();
        self.entries.retain(|name, _| names.contains(name));
    }

    /// What is not verified, in words: how many of a variant for a reason, and one of them.
    pub(super) fn unverified(&self, reachable: &[Specialisation]) -> Vec<String> {
        let mut open: BTreeMap<(&str, &str), (usize, String)> = BTreeMap::new();
        for specialisation in reachable {
            let variant = specialisation.variant;
            let id = variant.spec().id;
            let sources = hash_sources(variant, Samples::of(&specialisation.problem));
            let reason = match self.entries.get(&name(specialisation)) {
                None => "never verified",
                Some(found) if found.sources != sources => "changed since they were verified",
                Some(found) if !found.passed => "failed",
                Some(_) => continue,
            };
            let first = || (0, format!("{} ({})", specialisation.problem, specialisation.name()));
            open.entry((id, reason)).or_insert_with(first).0 += 1;
        }
        let words = open.into_iter().map(|((id, reason), (count, first))| {
            format!("{id}: {count} specialisations {reason}, such as that of {first}")
        });
        words.collect()
    }
}

fn name(specialisation: &Specialisation) -> (String, String) {
    (specialisation.variant.spec().id.to_owned(), specialisation.name())
}
