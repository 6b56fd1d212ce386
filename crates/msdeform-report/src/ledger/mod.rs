//! The verification ledger: which kernels a GPU has verified, and as what.
//!
//! CI has no GPU. So verification on a GPU writes, for every variant and format, a fingerprint of what
//! was verified, and the same for everything that may be compiled for known models ([`models`]). A test compares
//! both with the sources: a kernel cannot change and land unverified, nor a choice of knobs that no GPU has run.
//! What may be chosen for a call must have computed random problems too (`msdeform soak --ledger`).
//! The ledger of a GPU is `records/<gpu>/ledger.json`.

mod compiled;
mod fingerprint;
mod random;
mod update;

use std::collections::BTreeMap;
use std::path::Path;

use msdeform::DType;
use msdeform_bench::models::{self, Specialisation};
use msdeform_cuda::driver::DeviceProps;
use msdeform_cuda::variants::Variant;
use msdeform_cuda_lab::REGISTRY;
use msdeform_files::{Existing, FileError, read_text};
use serde::{Deserialize, Serialize};

use fingerprint::hash_sources;

pub use compiled::{CompiledLedger, CompiledVerification};
pub use fingerprint::fingerprint;
pub use random::RandomRun;
pub use update::{
    TestsError, path, update, update_compiled, update_from_record, update_from_tests, update_random,
};

/// The most that is read of a ledger: tens of thousands of entries.
const LIMIT_BYTES: u64 = 16 << 20;

/// What was verified: one variant with one value format.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Subject {
    /// The variant's id.
    pub variant: String,
    /// `forward` or `backward`.
    pub direction: String,
    /// Format of the values.
    pub dtype: String,
}

/// How it was verified, and how that went.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Verification {
    /// What the sources, options and launches were; see [`fingerprint`].
    pub fingerprint: String,
    /// The GPU.
    pub gpu: String,
    /// What the driver supports.
    pub driver: String,
    /// What compiled the kernel.
    pub nvrtc: String,
    /// What compared it: `verify` (the whole matrix of workloads), `bench` (the timed workloads) or `tests`
    /// (the GPU tests, which hold every case to the bound and write no errors down).
    #[serde(default = "by_verify")]
    pub by: String,
    /// Problems compared with the reference, or tests.
    pub cases: usize,
    /// The largest relative L2 error of any of them; nothing if one was not a number, did not run, or was not
    /// written down.
    pub worst_rel_l2: Option<f64>,
    /// The bound it was held to.
    pub bound: f64,
    /// Whether every case was within the bound.
    pub passed: bool,
}

fn by_verify() -> String {
    "verify".to_owned()
}

/// All verifications on one kind of GPU.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Ledger {
    entries: BTreeMap<Subject, Verification>,
    compiled: CompiledLedger,
    random: random::RandomLedger,
}

/// The file.
#[derive(Deserialize)]
struct Document {
    variants: Vec<Line>,
    compiled: Vec<CompiledVerification>,
    #[serde(default)]
    random: Vec<random::RandomLine>,
}

/// A subject and its verification, as the file holds them.
#[derive(Serialize, Deserialize)]
struct Line {
    #[serde(flatten)]
    subject: Subject,
    #[serde(flatten)]
    verification: Verification,
}

/// Why a ledger could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum LedgerError {
    /// The file.
    #[error("cannot access the ledger: {0}")]
    File(#[from] FileError),
    /// Its contents.
    #[error("the ledger {path} is damaged: {source}; verify again on a GPU to rewrite it")]
    Format {
        /// Its path.
        path: String,
        /// What is wrong.
        source: serde_json::Error,
    },
}

impl Ledger {
    /// Reads a ledger; a file that does not exist is an empty ledger.
    ///
    /// # Errors
    /// [`LedgerError`] with the path.
    pub fn read(path: &Path) -> Result<Self, LedgerError> {
        match read_text(path, LIMIT_BYTES) {
            Err(error) if error.is_not_found() => Ok(Self::default()),
            text => Self::parse(&text?)
                .map_err(|source| LedgerError::Format { path: path.display().to_string(), source }),
        }
    }

    /// A ledger from the text of its file.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(text: &str) -> Result<Self, serde_json::Error> {
        let Document { variants, compiled, random } = serde_json::from_str(text)?;
        let entries = variants.into_iter().map(|line| (line.subject, line.verification));
        Ok(Self {
            entries: entries.collect(),
            compiled: CompiledLedger::new(compiled),
            random: random::RandomLedger::new(random),
        })
    }

    /// Writes it, sorted, a line for each entry, whole or not at all.
    ///
    /// # Errors
    /// [`LedgerError`] with the path.
    pub fn write(&self, path: &Path) -> Result<(), LedgerError> {
        let name = || path.display().to_string();
        let variants = self.entries.iter().map(|(subject, verification)| {
            let (subject, verification) = (subject.clone(), verification.clone());
            serde_json::to_string(&Line { subject, verification })
        });
        let list = |lines: Result<Vec<String>, serde_json::Error>| {
            let lines = lines.map_err(|source| LedgerError::Format { path: name(), source })?;
            Ok::<String, LedgerError>(format!("[\n{}\n]", lines.join(",\n")))
        };
        let variants = list(variants.collect())?;
        let compiled = list(self.compiled.lines().map(serde_json::to_string).collect())?;
        let random = list(self.random.lines().map(|line| serde_json::to_string(&line)).collect())?;
        let text = format!(
            "{{\"variants\": {variants},\n\"compiled\": {compiled},\n\"random\": {random}}}\n"
        );
        msdeform_files::write(path, text.as_bytes(), Existing::Replace)?;
        Ok(())
    }

    /// Notes a verification, instead of an earlier one of the same subject.
    pub fn record(&mut self, variant: &dyn Variant, dtype: DType, verification: Verification) {
        self.entries.insert(subject(variant, dtype), verification);
    }

    /// Notes a verification of something compiled, instead of an earlier one.
    pub fn record_compiled(&mut self, verification: CompiledVerification) {
        self.compiled.record(verification);
    }

    /// Notes random problems that a variant computed in a format, with its sources as they are now.
    pub fn record_random(&mut self, variant: &dyn Variant, dtype: DType, run: RandomRun) {
        self.random.record(variant, dtype, run);
    }

    /// Forgets what the dispatcher no longer chooses.
    pub fn keep_only_compiled(&mut self, reachable: &[Specialisation]) {
        self.compiled.keep_only(reachable);
    }

    /// Forgets variants that are no longer registered.
    pub fn forget_unregistered(&mut self) {
        let known = |id: &str| REGISTRY.iter().any(|variant| variant.spec().id == id);
        self.entries.retain(|subject, _| known(&subject.variant));
        self.random.forget_unregistered();
    }

    /// The verification of a variant with a format.
    #[must_use]
    pub fn get(&self, variant: &dyn Variant, dtype: DType) -> Option<&Verification> {
        self.entries.get(&subject(variant, dtype))
    }

    /// Every registered combination, and everything that may be compiled for known models, that this ledger does not show
    /// as verified, with the reason.
    #[must_use]
    pub fn unverified(&self) -> Vec<String> {
        let mut missing = Vec::new();
        for &variant in REGISTRY {
            for &dtype in variant.spec().dtypes {
                let reason = match self.get(variant, dtype) {
                    None => "never verified",
                    Some(found) if found.fingerprint != fingerprint(variant, dtype) => {
                        "changed since it was verified"
                    }
                    Some(found) if !found.passed => "failed",
                    Some(_) => continue,
                };
                missing.push(format!("{} {dtype}: {reason}", variant.spec().id));
            }
        }
        missing.extend(self.compiled.unverified(&models::specialisations(&DeviceProps::h200())));
        missing.extend(self.random.unverified());
        missing
    }
}

fn subject(variant: &dyn Variant, dtype: DType) -> Subject {
    let spec = variant.spec();
    Subject {
        variant: spec.id.to_owned(),
        direction: spec.direction.name().to_owned(),
        dtype: dtype.name().to_owned(),
    }
}

impl CompiledVerification {
    /// Of a specialisation as its sources are now.
    #[must_use]
    pub fn new(specialisation: &Specialisation, passed: bool, worst_rel_l2: Option<f64>) -> Self {
        Self {
            variant: specialisation.variant.spec().id.to_owned(),
            defines: specialisation.name(),
            sources: hash_sources(specialisation.variant).to_owned(),
            gpu: String::new(),
            driver: String::new(),
            nvrtc: String::new(),
            worst_rel_l2,
            passed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passed(fingerprint: String) -> Verification {
        Verification {
            by: by_verify(),
            fingerprint,
            gpu: "NVIDIA H200".to_owned(),
            driver: "13.0".to_owned(),
            nvrtc: "13.0".to_owned(),
            cases: 12,
            worst_rel_l2: Some(2.5e-4),
            bound: 5e-4,
            passed: true,
        }
    }

    fn random(problems: u64, failed: u64) -> RandomRun {
        RandomRun {
            sources: String::new(),
            gpu: "NVIDIA H200".to_owned(),
            driver: "13.0".to_owned(),
            nvrtc: "13.0".to_owned(),
            seed: 7,
            problems,
            failed,
        }
    }

    fn complete() -> Ledger {
        let mut ledger = Ledger::default();
        for &variant in REGISTRY {
            for &dtype in variant.spec().dtypes {
                ledger.record(variant, dtype, passed(fingerprint(variant, dtype)));
                ledger.record_random(variant, dtype, random(100, 0));
            }
        }
        for specialisation in models::specialisations(&DeviceProps::h200()) {
            let verification = CompiledVerification::new(&specialisation, true, Some(2.5e-4));
            ledger.record_compiled(verification);
        }
        ledger
    }

    #[test]
    fn a_complete_ledger_leaves_nothing_open_and_survives_the_disk() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("h200/ledger.json");
        assert_eq!(Ledger::read(&path).unwrap(), Ledger::default());
        let ledger = complete();
        assert_eq!(ledger.unverified(), Vec::<String>::new());
        ledger.write(&path).unwrap();
        assert_eq!(Ledger::read(&path).unwrap(), ledger);
    }

    #[test]
    fn changed_failed_and_missing_are_told_apart() {
        let (variant, mut ledger) = (REGISTRY[0], complete());
        ledger.record(variant, DType::F32, passed("something else".to_owned()));
        let failed = passed(fingerprint(variant, DType::F16));
        ledger.record(variant, DType::F16, Verification { passed: false, ..failed });
        ledger.entries.remove(&subject(variant, DType::Bf16));
        let id = variant.spec().id;
        assert_eq!(
            ledger.unverified(),
            [
                format!("{id} f32: changed since it was verified"),
                format!("{id} f16: failed"),
                format!("{id} bf16: never verified"),
            ]
        );
    }

    #[test]
    fn what_can_be_chosen_must_have_computed_random_problems() {
        let (variant, mut ledger) = (REGISTRY[0], complete());
        ledger.record_random(variant, DType::F32, random(0, 0));
        ledger.record_random(variant, DType::F16, random(100, 1));
        let id = variant.spec().id;
        assert_eq!(
            ledger.unverified(),
            [
                format!("{id} f32: no random problems"),
                format!("{id} f16: in a run of random problems that failed"),
            ]
        );
    }

    #[test]
    fn what_no_gpu_has_compiled_is_open_whatever_its_variant_was_verified_with() {
        let mut ledger = complete();
        let reachable = models::specialisations(&DeviceProps::h200());
        let of = |id: &str| {
            reachable
                .iter()
                .find(|s| s.variant.spec().id == id && s.name().contains("THIN=1"))
                .unwrap()
        };
        let (never, changed) = (of("bwd_level_sort"), of("bwd_tile_sort"));
        let kept: Vec<Specialisation> =
            reachable.iter().filter(|s| s.name() != never.name()).cloned().collect();
        ledger.keep_only_compiled(&kept);
        let verification = CompiledVerification::new(changed, true, None);
        ledger
            .record_compiled(CompiledVerification { sources: "other".to_owned(), ..verification });
        let forward = reachable.iter().find(|s| s.backward.is_none()).unwrap();
        ledger.record_compiled(CompiledVerification::new(forward, false, None));
        let open = ledger.unverified();
        assert_eq!(open.len(), 3, "{open:?}");
        for (line, words) in open.iter().zip([
            "bwd_level_sort: 1 specialisations never verified",
            "bwd_tile_sort: 1 specialisations changed since",
            "1 specialisations failed",
        ]) {
            assert!(line.contains(words), "{line}");
        }
        assert!(open[0].contains("THIN=1"), "{}", open[0]);
    }

    /// The gate itself. A GPU whose folder is in `records/` must have verified everything there is.
    #[test]
    fn every_kernel_in_the_tree_was_verified_on_a_gpu() {
        let records = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../records");
        let ledger = records.join("h200/ledger.json");
        if !records.join("h200").exists() {
            eprintln!("SKIPPED: no record of an H200 yet, so nothing says what was verified on it");
            return;
        }
        let open = Ledger::read(&ledger).unwrap().unverified();
        assert!(
            open.is_empty(),
            "run `msdeform verify --device cuda:0 --ledger` on a GPU; open:\n{}",
            open.join("\n")
        );
    }
}
