//! The verification ledger: which kernels a GPU has verified, and how.
//!
//! CI has no GPU. So `msdeform verify --ledger` and `msdeform soak --ledger` note on a GPU what they verified, by hashes of
//! what was compiled. A test compares these hashes with the sources: a kernel cannot change and land unverified. Nor can a
//! specialisation that dispatch may choose for a known model ([`models`]) and that no GPU has run.
//! The ledger of a GPU is `records/<gpu>/ledger.json`.

mod hashes;
mod history;
mod renew;
mod update;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::OnceLock;

use msdeform::{DType, Operator};
use msdeform_bench::models::{self, Specialisation};
use msdeform_bench::record::{self, RecordError, SCHEMA};
use msdeform_cuda::driver::DeviceProps;
use msdeform_cuda::variants::Variant;
use msdeform_cuda_lab::REGISTRY;
use msdeform_files::read_text;
use serde::{Deserialize, Serialize};

use hashes::takes;

pub use hashes::Sources;
pub use history::{History, HistoryError};
pub use renew::{Renewal, renew};
pub use update::{path, update, update_random, update_specialisations};

/// The most that is read of a ledger.
const LIMIT_BYTES: u64 = 16 << 20;

/// What an entry is about: one variant, operator and dtype.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Subject {
    /// [`Operator::name`].
    pub operator: String,
    /// The variant's id.
    pub variant: String,
    /// Dtype of the values.
    pub dtype: String,
}

/// Where and by what something was verified.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Run {
    /// The GPU.
    pub gpu: String,
    /// CUDA version that the driver supports.
    pub driver: String,
    /// Version of the compiler.
    pub nvrtc: String,
    /// Commit that the program was built from; entries of older programs have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
    /// The command, or the commit whose verified kernel has the same machine code ([`renew`]).
    pub by: String,
}

/// A variant on the whole matrix of workloads.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WorkloadsEntry {
    /// What was verified, by [`Sources::fingerprint`].
    pub fingerprint: String,
    /// Problems that were compared with the reference.
    pub cases: usize,
    /// The largest relative L2 error; nothing if one was not a number or did not run.
    pub worst_rel_l2: Option<f64>,
    /// The bound it was held to.
    pub bound: f64,
    /// Whether every case was within the bound.
    pub passed: bool,
    /// Where and by what.
    #[serde(flatten)]
    pub run: Run,
}

/// Random problems that a variant computed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RandomEntry {
    /// What computed them, by [`Sources::hash`].
    pub sources: String,
    /// Seed of the problems.
    pub seed: u64,
    /// How many the variant computed.
    pub problems: u64,
    /// How many problems of the whole run failed.
    pub failed: u64,
    /// Where and by what.
    #[serde(flatten)]
    pub run: Run,
}

/// One compiled kernel on one problem.
#[derive(Clone, Debug, PartialEq)]
pub struct KernelEntry {
    /// The relative L2 error; nothing if it was not a number or the kernel did not run.
    pub worst_rel_l2: Option<f64>,
    /// Whether it was within the bound.
    pub passed: bool,
    /// Where and by what.
    pub run: Run,
}

/// All verifications on one kind of GPU.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Ledger {
    workloads: BTreeMap<Subject, WorkloadsEntry>,
    random: BTreeMap<Subject, RandomEntry>,
    /// By operator, variant and [`Sources::unit_hash`].
    kernels: BTreeMap<Key, KernelEntry>,
}

/// The file: a line for each entry. Kernels of one run share a line's head.
#[derive(Deserialize)]
struct Document {
    workloads: Vec<Line<WorkloadsEntry>>,
    random: Vec<Line<RandomEntry>>,
    kernels: Vec<Kernels>,
}

#[derive(Serialize, Deserialize)]
struct Line<T> {
    #[serde(flatten)]
    subject: Subject,
    #[serde(flatten)]
    entry: T,
}

#[derive(Serialize, Deserialize)]
struct Kernels {
    #[serde(flatten)]
    head: KernelsHead,
    /// Errors by the kernel's hash.
    worst_rel_l2: BTreeMap<String, Option<f64>>,
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
struct KernelsHead {
    operator: String,
    variant: String,
    passed: bool,
    #[serde(flatten)]
    run: Run,
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
        let mut ledger = Self {
            workloads: workloads.into_iter().map(|line| (line.subject, line.entry)).collect(),
            random: random.into_iter().map(|line| (line.subject, line.entry)).collect(),
            kernels: BTreeMap::new(),
        };
        for Kernels { head: KernelsHead { operator, variant, passed, run }, worst_rel_l2 } in
            kernels
        {
            for (hash, worst_rel_l2) in worst_rel_l2 {
                let entry = KernelEntry { worst_rel_l2, passed, run: run.clone() };
                ledger.kernels.insert((operator.clone(), variant.clone(), hash), entry);
            }
        }
        Ok(ledger)
    }

    /// Writes the ledger, sorted, whole or not at all.
    ///
    /// # Errors
    /// [`RecordError`] with the path.
    pub fn write(&self, path: &Path) -> Result<(), RecordError> {
        record::replace_file(path, &self.text().map_err(RecordError::Serialise)?)
    }

    fn text(&self) -> Result<String, serde_json::Error> {
        fn lines<T: Serialize + Clone>(
            entries: &BTreeMap<Subject, T>,
        ) -> Result<String, serde_json::Error> {
            let line = |(subject, entry): (&Subject, &T)| {
                serde_json::to_string(&Line { subject: subject.clone(), entry: entry.clone() })
            };
            Ok(entries.iter().map(line).collect::<Result<Vec<_>, _>>()?.join(",\n"))
        }
        let mut groups: BTreeMap<KernelsHead, BTreeMap<String, Option<f64>>> = BTreeMap::new();
        for ((operator, variant, hash), KernelEntry { worst_rel_l2, passed, run }) in &self.kernels
        {
            let head = KernelsHead {
                operator: operator.clone(),
                variant: variant.clone(),
                passed: *passed,
                run: run.clone(),
            };
            groups.entry(head).or_default().insert(hash.clone(), *worst_rel_l2);
        }
        let kernels = groups
            .into_iter()
            .map(|(head, worst_rel_l2)| serde_json::to_string(&Kernels { head, worst_rel_l2 }))
            .collect::<Result<Vec<_>, _>>()?;
        // A line for each kernel, so that a change of one is a change of one line.
        let kernels = kernels.join(",\n").replace(",\"", ",\n\"");
        Ok(format!(
            "{{\n\"schema\": {SCHEMA},\n\"workloads\": [\n{}\n],\n\"random\": [\n{}\n],\n\"kernels\": [\n{kernels}\n]}}\n",
            lines(&self.workloads)?,
            lines(&self.random)?,
        ))
    }

    /// The entry of a variant on workloads.
    #[must_use]
    pub fn workloads(&self, subject: &Subject) -> Option<&WorkloadsEntry> {
        self.workloads.get(subject)
    }

    /// Notes a run of random problems, unless the ledger has a longer one of the same sources. A failure is always noted.
    fn note_random(&mut self, subject: Subject, entry: RandomEntry) -> bool {
        let is_weaker = self.random.get(&subject).is_some_and(|known| {
            known.sources == entry.sources
                && known.failed == 0
                && entry.failed == 0
                && known.problems >= entry.problems
        });
        if !is_weaker {
            self.random.insert(subject, entry);
        }
        !is_weaker
    }

    /// Takes the entries of another ledger, such as one that a run on another machine updated. They replace those of the
    /// same subject, but a run of random problems does not replace a longer one.
    pub fn merge(&mut self, other: Self) {
        self.workloads.extend(other.workloads);
        self.kernels.extend(other.kernels);
        for (subject, entry) in other.random {
            self.note_random(subject, entry);
        }
    }

    /// Forgets variants that are no longer registered.
    pub fn forget_unregistered(&mut self) {
        let known = |id: &str| REGISTRY.iter().any(|variant| variant.spec().id == id);
        self.workloads.retain(|subject, _| known(&subject.variant));
        self.random.retain(|subject, _| known(&subject.variant));
        self.kernels.retain(|(_, variant, _), _| known(variant));
    }

    /// Everything that dispatch may choose for an operator, or that is registered, and that this ledger does not show as
    /// verified, each with the reason.
    #[must_use]
    pub fn unverified(&self, operator: &'static Operator) -> Vec<String> {
        let required = Required::of(operator);
        let mut open = Vec::new();
        for RequiredVariant { subject, fingerprint, sources, is_rung } in &required.variants {
            let of_workloads = match self.workloads.get(subject) {
                None => Some("never verified"),
                Some(found) if found.fingerprint != *fingerprint => {
                    Some("changed since it was verified")
                }
                Some(found) if !found.passed => Some("failed"),
                Some(_) => None,
            };
            let of_random = match self.random.get(subject) {
                _ if *is_rung => None,
                None => Some("no random problems"),
                Some(found) if found.sources != *sources => {
                    Some("changed since it computed random problems")
                }
                Some(found) if found.failed > 0 => Some("in a run of random problems that failed"),
                Some(found) if found.problems == 0 => Some("no random problems"),
                Some(_) => None,
            };
            let reasons = of_workloads.into_iter().chain(of_random);
            let Subject { variant, dtype, .. } = subject;
            open.extend(reasons.map(|reason| format!("{variant} {dtype}: {reason}")));
        }
        open.extend(self.unverified_kernels(&required.kernels));
        open
    }

    /// How many kernels of a variant are not verified and why, with one of them as an example.
    fn unverified_kernels(&self, required: &[(Key, Specialisation)]) -> Vec<String> {
        let mut open: BTreeMap<(&str, &str), (usize, String)> = BTreeMap::new();
        for (key, specialisation) in required {
            let reason = match self.kernels.get(key) {
                None => "never verified as they are now",
                Some(found) if !found.passed => "failed",
                Some(_) => continue,
            };
            let first = || (0, format!("{} ({})", specialisation.problem, specialisation.name()));
            let id = specialisation.variant.spec().id;
            open.entry((id, reason)).or_insert_with(first).0 += 1;
        }
        let words = open.into_iter().map(|((id, reason), (count, first))| {
            format!("{id}: {count} kernels {reason}, such as that of {first}")
        });
        words.collect()
    }
}

/// What a ledger must have entries of for one operator.
struct Required {
    variants: Vec<RequiredVariant>,
    kernels: Vec<(Key, Specialisation)>,
}

/// A variant with one dtype as it is now.
struct RequiredVariant {
    subject: Subject,
    /// [`Sources::fingerprint`].
    fingerprint: String,
    /// [`Sources::hash`].
    sources: String,
    is_rung: bool,
}

impl Required {
    /// Computed once in a process: thousands of kernels are configured and hashed.
    fn of(operator: &'static Operator) -> &'static Self {
        static KNOWN: [OnceLock<Required>; Operator::ALL.len()] =
            [const { OnceLock::new() }; Operator::ALL.len()];
        let place = Operator::ALL.iter().position(|known| *known == operator).unwrap_or(0);
        KNOWN[place].get_or_init(|| Self::computed(operator))
    }

    fn computed(operator: &'static Operator) -> Self {
        let mut hashes = Hashes::default();
        let mut variants = Vec::new();
        for &variant in REGISTRY.iter().filter(|variant| is_verified_for(**variant, operator)) {
            let sources = hashes.sources(variant);
            let required = |&dtype: &DType| RequiredVariant {
                subject: subject(variant, dtype, operator),
                fingerprint: sources.fingerprint(variant, dtype, operator),
                sources: sources.hash(),
                is_rung: variant.spec().rung,
            };
            variants.extend(variant.spec().dtypes.iter().map(required));
        }
        let kernels =
            specialisations(operator).into_iter().map(|found| (hashes.key(&found), found));
        Self { variants, kernels: kernels.collect() }
    }
}

/// Whether an entry is needed. Rungs of the ladder compute the plain operator only.
fn is_verified_for(variant: &dyn Variant, operator: &Operator) -> bool {
    *operator == msdeform::ATTENTION || takes(variant, operator)
}

/// Every kernel that dispatch may choose for known models.
fn specialisations(operator: &'static Operator) -> Vec<Specialisation> {
    models::specialisations(&DeviceProps::h200(), operator)
}

fn subject(variant: &dyn Variant, dtype: DType, operator: &Operator) -> Subject {
    Subject {
        operator: operator.name.to_owned(),
        variant: variant.spec().id.to_owned(),
        dtype: dtype.name().to_owned(),
    }
}

/// Keys of kernels. The texts of a variant are hashed once.
#[derive(Default)]
struct Hashes(BTreeMap<&'static str, Sources>);

impl Hashes {
    fn sources(&mut self, variant: &dyn Variant) -> &Sources {
        self.0.entry(variant.spec().id).or_insert_with(|| Sources::of(variant))
    }

    fn key(&mut self, Specialisation { variant, unit, problem, .. }: &Specialisation) -> Key {
        let id = variant.spec().id.to_owned();
        (problem.operator().name.to_owned(), id, self.sources(*variant).unit_hash(unit))
    }
}

/// Operator, variant and [`Sources::unit_hash`].
type Key = (String, String, String);

#[cfg(test)]
mod tests;
