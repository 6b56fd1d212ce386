//! The verification ledger: a flat list of what a GPU has verified.
//!
//! CI has no GPU. So `msdeform verify --ledger` and `msdeform soak --ledger` note on a GPU what they verified, by hashes of
//! what was compiled. A test compares these hashes with the sources: a kernel cannot change and land unverified. Nor can a
//! specialisation that dispatch may choose for a known model and that no GPU has run.
//! The ledger of a GPU is `records/<gpu>/ledger.json`.

mod claim;
mod hashes;
mod renew;
mod update;

use std::collections::btree_map::Entry::Occupied;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use msdeform::Operator;
use msdeform_cuda_lab::registry;
use msdeform_files::read_text;
use msdeform_lab::models::Specialisation;
use msdeform_lab::record::{self, RecordError, SCHEMA};
use serde::{Deserialize, Serialize};

use claim::{Claim, What};

pub use renew::{Renewal, renew};
pub use update::{path, update, update_random, update_specialisations};

/// The most that is read of a ledger.
const LIMIT_BYTES: u64 = 16 << 20;

/// Where and by what something was verified.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
struct Run {
    gpu: String,
    /// CUDA version that the driver supports.
    driver: String,
    nvrtc: String,
    /// Commit that the program was built from; entries of older programs have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    commit: Option<String>,
    /// The command, or the commit whose verified kernel has the same machine code ([`renew`]).
    by: String,
}

/// What was verified, by its hash, and the result. An error is missing if it was not a number.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
enum Evidence {
    /// A variant on the whole matrix of workloads; [`hashes::Sources::fingerprint`].
    Workloads {
        dtype: String,
        #[serde(rename = "fingerprint")]
        hash: String,
        cases: usize,
        worst_rel_l2: Option<f64>,
        bound: f64,
        passed: bool,
    },
    /// Random problems that a variant computed, and how many of the whole run failed; [`hashes::Sources::hash`].
    Random {
        dtype: String,
        #[serde(rename = "sources")]
        hash: String,
        seed: u64,
        problems: u64,
        failed: u64,
    },
    /// One compiled kernel on one problem; [`hashes::Sources::unit_hash`].
    Kernel { hash: String, worst_rel_l2: Option<f64>, passed: bool },
}

impl Evidence {
    const fn hash(&self) -> &String {
        let (Self::Workloads { hash, .. } | Self::Random { hash, .. } | Self::Kernel { hash, .. }) =
            self;
        hash
    }

    const fn hash_mut(&mut self) -> &mut String {
        let (Self::Workloads { hash, .. } | Self::Random { hash, .. } | Self::Kernel { hash, .. }) =
            self;
        hash
    }

    const fn passed(&self) -> bool {
        match self {
            Self::Workloads { passed, .. } | Self::Kernel { passed, .. } => *passed,
            Self::Random { failed, .. } => *failed == 0,
        }
    }

    /// Whether another run of the same random problems says less: both passed, and the other was not longer.
    fn outweighs(&self, other: &Self) -> bool {
        let count = |evidence: &Self| match evidence {
            Self::Random { problems, failed: 0, .. } => Some(*problems),
            _ => None,
        };
        let is_longer = count(self).zip(count(other)).is_some_and(|(own, new)| own >= new);
        is_longer && self.hash() == other.hash()
    }
}

/// One line of the ledger.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Entry {
    operator: String,
    variant: String,
    #[serde(flatten)]
    evidence: Evidence,
    #[serde(flatten)]
    run: Run,
}

impl Entry {
    fn key(&self) -> Key {
        let (section, of) = match &self.evidence {
            Evidence::Workloads { dtype, .. } => (Section::Workloads, dtype),
            Evidence::Random { dtype, .. } => (Section::Random, dtype),
            Evidence::Kernel { hash, .. } => (Section::Kernels, hash),
        };
        (section, self.operator.clone(), self.variant.clone(), of.clone())
    }
}

/// What tells entries apart: operator, variant, and the dtype or a kernel's hash.
type Key = (Section, String, String, String);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Section {
    Workloads,
    Random,
    Kernels,
}

/// All verifications on one kind of GPU.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Ledger(BTreeMap<Key, Entry>);

/// The file: a line for each entry. Kernels of one run share a line's head.
#[derive(Deserialize)]
struct Document {
    workloads: Vec<Entry>,
    random: Vec<Entry>,
    kernels: Vec<Kernels>,
}

#[derive(Serialize, Deserialize)]
struct Kernels {
    operator: String,
    variant: String,
    passed: bool,
    #[serde(flatten)]
    run: Run,
    /// Errors by the kernel's hash.
    worst_rel_l2: BTreeMap<String, Option<f64>>,
}

impl Ledger {
    /// Reads a ledger; a file that does not exist is an empty ledger.
    ///
    /// # Errors
    /// [`RecordError`] with the path.
    pub fn read(path: &Path) -> Result<Self, RecordError> {
        match read_text(path, LIMIT_BYTES) {
            Err(error) if error.is_not_found() => Ok(Self::default()),
            text => Self::parse(&text?, path),
        }
    }

    /// A ledger from the text of its file; `path` is for messages.
    ///
    /// # Errors
    /// [`RecordError`] with the path.
    pub fn parse(text: &str, path: &Path) -> Result<Self, RecordError> {
        let Document { workloads, random, kernels } = record::parse(text, path)?;
        let kernels = kernels.into_iter().flat_map(|kernels| {
            let Kernels { operator, variant, passed, run, worst_rel_l2 } = kernels;
            worst_rel_l2.into_iter().map(move |(hash, worst_rel_l2)| {
                let (operator, variant, run) = (operator.clone(), variant.clone(), run.clone());
                let evidence = Evidence::Kernel { hash, worst_rel_l2, passed };
                Entry { operator, variant, evidence, run }
            })
        });
        let entries = workloads.into_iter().chain(random).chain(kernels);
        Ok(Self(entries.map(|entry| (entry.key(), entry)).collect()))
    }

    /// Writes the ledger, sorted, whole or not at all.
    ///
    /// # Errors
    /// [`RecordError`] with the path.
    pub fn write(&self, path: &Path) -> Result<(), RecordError> {
        record::replace_file(path, &self.text().map_err(RecordError::Serialise)?)
    }

    fn text(&self) -> Result<String, serde_json::Error> {
        let (mut workloads, mut random) = (Vec::new(), Vec::new());
        let mut groups: BTreeMap<_, BTreeMap<String, Option<f64>>> = BTreeMap::new();
        for entry in self.0.values() {
            match &entry.evidence {
                Evidence::Workloads { .. } => workloads.push(serde_json::to_string(entry)?),
                Evidence::Random { .. } => random.push(serde_json::to_string(entry)?),
                Evidence::Kernel { hash, worst_rel_l2, passed } => {
                    let Entry { operator, variant, run, .. } = entry;
                    let group = groups.entry((operator, variant, *passed, run)).or_default();
                    group.insert(hash.clone(), *worst_rel_l2);
                }
            }
        }
        let kernels = groups.into_iter().map(|((operator, variant, passed, run), worst_rel_l2)| {
            let (operator, variant, run) = (operator.clone(), variant.clone(), run.clone());
            let kernels = Kernels { operator, variant, passed, run, worst_rel_l2 };
            // A line for each kernel, so that a change of one is a change of one line.
            Ok(serde_json::to_string(&kernels)?.replace(",\"", ",\n\""))
        });
        Ok(format!(
            "{{\n\"schema\": {SCHEMA},\n\"workloads\": [\n{}\n],\n\"random\": [\n{}\n],\n\"kernels\": [\n{}\n]}}\n",
            workloads.join(",\n"),
            random.join(",\n"),
            kernels.collect::<Result<Vec<_>, serde_json::Error>>()?.join(",\n"),
        ))
    }

    /// Notes an entry in place of an older one and returns whether it did. A run of random problems does not replace a
    /// longer one of the same sources, unless it failed.
    fn note(&mut self, entry: Entry) -> bool {
        let known = self.0.entry(entry.key());
        let is_weaker =
            matches!(&known, Occupied(known) if known.get().evidence.outweighs(&entry.evidence));
        if !is_weaker {
            known.insert_entry(entry);
        }
        !is_weaker
    }

    /// Takes the entries of another ledger, such as one that a run on another machine updated.
    pub fn merge(&mut self, other: Self) {
        for entry in other.0.into_values() {
            self.note(entry);
        }
    }

    /// Forgets variants that are no longer registered.
    pub fn forget_unregistered(&mut self) {
        self.0.retain(|(_, _, id, _), _| registry::find(id).is_ok());
    }

    /// Forgets kernels that no dispatch can choose any more.
    pub fn forget_unreachable(&mut self) {
        let claims = Operator::ALL.into_iter().flat_map(Claim::all);
        let reachable: BTreeSet<Key> = claims.map(|claim| claim.key(claim.hash())).collect();
        self.0.retain(|key, _| key.0 != Section::Kernels || reachable.contains(key));
    }

    /// Everything that dispatch may choose for an operator, or that is registered, and that this ledger does not show as
    /// verified, each with the reason. Kernels are counted by variant and reason, with one of them as an example.
    #[must_use]
    pub fn unverified(&self, operator: &'static Operator) -> Vec<String> {
        let mut open = Vec::new();
        let mut kernels: BTreeMap<(&str, &str), (usize, &Specialisation)> = BTreeMap::new();
        for claim in Claim::all(operator) {
            let (Some(reason), id) = (self.reason(claim), claim.id()) else { continue };
            match &claim.what {
                What::Workloads(dtype) | What::Random(dtype) => {
                    open.push(format!("{id} {dtype}: {reason}"));
                }
                What::Kernel(found) => kernels.entry((id, reason)).or_insert((0, found)).0 += 1,
            }
        }
        open.extend(kernels.into_iter().map(|((id, reason), (count, first))| {
            let (problem, name) = (&first.problem, first.name());
            format!("{id}: {count} kernels {reason}, such as that of {problem} ({name})")
        }));
        open
    }

    /// Why a claim is not verified.
    fn reason(&self, claim: &Claim) -> Option<&'static str> {
        let [missing, changed, failed] = match claim.what {
            What::Workloads(_) => ["never verified", "changed since it was verified", "failed"],
            What::Random(_) => [
                "no random problems",
                "changed since it computed random problems",
                "in a run of random problems that failed",
            ],
            // The key of a kernel's entry is its hash: one that changed is missing.
            What::Kernel(_) => ["never verified as they are now", "", "failed"],
        };
        match self.0.get(&claim.key(claim.hash())).map(|entry| &entry.evidence) {
            None | Some(Evidence::Random { problems: 0, failed: 0, .. }) => Some(missing),
            Some(found) if found.hash() != claim.hash() => Some(changed),
            Some(found) if !found.passed() => Some(failed),
            Some(_) => None,
        }
    }
}

#[cfg(test)]
mod tests;
