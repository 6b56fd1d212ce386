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

use claim::Claim;

pub use renew::{Renewal, renew};
pub use update::{path, update, update_random, update_specialisations};

/// The most that is read of a ledger.
const LIMIT_BYTES: u64 = 16 << 20;

/// What is verified.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum What {
    /// A variant in one dtype on the whole matrix of workloads.
    #[default]
    Workloads,
    /// A variant in one dtype on random problems.
    Random,
    /// A kernel that dispatch may choose for a known model, on one problem.
    Kernels,
}

/// Where and by what something was verified.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
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

/// What was verified, by its hash, and the result.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Entry {
    what: What,
    operator: String,
    variant: String,
    /// Empty of a kernel.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    dtype: String,
    /// Of what was compiled: [`Claim::hash_of`].
    #[serde(default, skip_serializing_if = "String::is_empty")]
    hash: String,
    /// Problems that were computed, and how many failed: of the whole run, if they are random.
    count: u64,
    failed: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    seed: Option<u64>,
    /// Missing if it was not a number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    worst_rel_l2: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    bound: Option<f64>,
    #[serde(flatten)]
    run: Run,
    /// Errors by hash. The file has the kernels of one variant and run, which agree in all else, as one entry.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    kernels: BTreeMap<String, Option<f64>>,
}

/// What tells entries apart: operator, variant, and the dtype or a kernel's hash.
type Key = (What, String, String, String);

fn key(what: What, operator: &str, variant: &str, dtype: &str, hash: &str) -> Key {
    let of = if what == What::Kernels { hash } else { dtype };
    (what, operator.to_owned(), variant.to_owned(), of.to_owned())
}

impl Entry {
    fn key(&self) -> Key {
        key(self.what, &self.operator, &self.variant, &self.dtype, &self.hash)
    }

    /// Whether another run of the same random problems says less: both passed, and the other was not longer.
    fn outweighs(&self, other: &Self) -> bool {
        let is_same = self.what == What::Random && self.hash == other.hash;
        is_same && self.failed + other.failed == 0 && self.count >= other.count
    }
}

/// All verifications on one kind of GPU.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Ledger(BTreeMap<Key, Entry>);

#[derive(Deserialize)]
struct Document {
    verified: Vec<Entry>,
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
        let Document { verified } = record::parse(text, path)?;
        let entries = verified.into_iter().flat_map(|mut entry| {
            let kernels = std::mem::take(&mut entry.kernels);
            let kernel = |(hash, worst_rel_l2)| Entry { hash, worst_rel_l2, ..entry.clone() };
            let kernels: Vec<Entry> = kernels.into_iter().map(kernel).collect();
            if kernels.is_empty() { vec![entry] } else { kernels }
        });
        Ok(Self(entries.map(|entry| (entry.key(), entry)).collect()))
    }

    /// Writes the ledger, sorted, whole or not at all.
    ///
    /// # Errors
    /// [`RecordError`] with the path.
    pub fn write(&self, path: &Path) -> Result<(), RecordError> {
        record::replace_file(path, &self.text().map_err(RecordError::Serialise)?)
    }

    /// A line for each entry and kernel, so that a change of one is a change of one line.
    fn text(&self) -> Result<String, serde_json::Error> {
        let mut lines = Vec::new();
        let mut groups: BTreeMap<_, Entry> = BTreeMap::new();
        for entry in self.0.values() {
            if entry.what != What::Kernels {
                lines.push(serde_json::to_string(entry)?);
                continue;
            }
            let like = (&entry.operator, &entry.variant, entry.failed, &entry.run);
            let (hash, worst_rel_l2) = (String::new(), None);
            let group = groups.entry(like);
            let group = group.or_insert_with(|| Entry { hash, worst_rel_l2, ..entry.clone() });
            group.kernels.insert(entry.hash.clone(), entry.worst_rel_l2);
        }
        for group in groups.values() {
            lines.push(serde_json::to_string(group)?.replace(",\"", ",\n\""));
        }
        Ok(format!("{{\n\"schema\": {SCHEMA},\n\"verified\": [\n{}\n]}}\n", lines.join(",\n")))
    }

    /// Notes an entry in place of an older one and returns whether it did. A run of random problems does not replace a
    /// longer one of the same sources, unless it failed.
    fn note(&mut self, entry: Entry) -> bool {
        let known = self.0.entry(entry.key());
        let is_weaker = matches!(&known, Occupied(known) if known.get().outweighs(&entry));
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
        self.0.retain(|key, _| key.0 != What::Kernels || reachable.contains(key));
    }

    /// Everything that dispatch may choose for an operator, or that is registered, and that this ledger does not show as
    /// verified, each with the reason. Kernels are counted by variant and reason, with one of them as an example.
    #[must_use]
    pub fn unverified(&self, operator: &'static Operator) -> Vec<String> {
        let mut open = Vec::new();
        let mut kernels: BTreeMap<(&str, &str), (usize, &Specialisation)> = BTreeMap::new();
        for claim in Claim::all(operator) {
            let (Some(reason), id) = (self.reason(claim), claim.id()) else { continue };
            match &claim.kernel {
                None => open.push(format!("{id} {}: {reason}", claim.dtype())),
                Some(found) => kernels.entry((id, reason)).or_insert((0, found)).0 += 1,
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
            What::Workloads => ["never verified", "changed since it was verified", "failed"],
            What::Random => [
                "no random problems",
                "changed since it computed random problems",
                "in a run of random problems that failed",
            ],
            // The key of a kernel's entry is its hash: one that changed is missing.
            What::Kernels => ["never verified as they are now", "", "failed"],
        };
        match self.0.get(&claim.key(claim.hash())) {
            None | Some(Entry { count: 0, failed: 0, .. }) => Some(missing),
            Some(found) if found.hash != claim.hash() => Some(changed),
            Some(found) => (found.failed > 0).then_some(failed),
        }
    }
}

#[cfg(test)]
mod tests;
