//! The verification ledger: which kernels a GPU has verified, and as what.
//!
//! CI has no GPU. So verification on a GPU writes, for every variant and format, a fingerprint of what
//! was verified, and the same for everything that may be compiled for known models ([`models`]). A test compares
//! both with the sources: a kernel cannot change and land unverified, nor a choice of knobs that no GPU has run.
//! What may be chosen for a call must have computed random problems too (`msdeform soak --ledger`).
//! What is compiled where samples follow from offsets is other code: it has a section of its own, which must be complete
//! before plans choose for such calls.
//! The ledger of a GPU is `records/<gpu>/ledger.json`.

mod compiled;
mod fingerprint;
mod random;
mod update;

use std::collections::BTreeMap;
use std::path::Path;

use msdeform::{DType, Problem};
use msdeform_bench::models::{self, Specialisation};
use msdeform_cuda::driver::DeviceProps;
use msdeform_cuda::variants::Variant;
use msdeform_cuda_lab::REGISTRY;
use msdeform_devices::case::{self, Label};
use msdeform_files::{Existing, FileError, read_text};
use serde::{Deserialize, Serialize};

use fingerprint::{hash_sources, takes};

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

/// Where the samples of a call come from: kernels are compiled for the one or the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Samples {
    /// They are given.
    Given,
    /// They follow from offsets.
    FromOffsets,
}

impl Samples {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Given, Self::FromOffsets];

    /// Those of a problem.
    #[must_use]
    pub const fn of(problem: &Problem) -> Self {
        if problem.offsets().is_some() { Self::FromOffsets } else { Self::Given }
    }

    /// Those of a case that was verified.
    fn of_label(label: &Label) -> Self {
        if label.workload.ends_with(case::FROM_OFFSETS) { Self::FromOffsets } else { Self::Given }
    }
}

/// All verifications on one kind of GPU.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Ledger {
    given: Section,
    from_offsets: Section,
}

/// Those of one kind of samples.
#[derive(Clone, Debug, Default, PartialEq)]
struct Section {
    entries: BTreeMap<Subject, Verification>,
    compiled: CompiledLedger,
    random: random::RandomLedger,
}

/// The file.
#[derive(Deserialize)]
struct Document {
    #[serde(flatten)]
    given: Lines,
    #[serde(default)]
    from_offsets: Option<Lines>,
}

/// A section of it.
#[derive(Deserialize)]
struct Lines {
    variants: Vec<Line>,
    compiled: Vec<compiled::CompiledLines>,
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
        let Document { given, from_offsets } = serde_json::from_str(text)?;
        let from_offsets = from_offsets.map_or_else(Section::default, Section::new);
        Ok(Self { given: Section::new(given), from_offsets })
    }

    /// Writes it, sorted, a line for each entry, whole or not at all.
    ///
    /// # Errors
    /// [`LedgerError`] with the path.
    pub fn write(&self, path: &Path) -> Result<(), LedgerError> {
        let text = |section: &Section| {
            section
                .text()
                .map_err(|source| LedgerError::Format { path: path.display().to_string(), source })
        };
        let mut whole = text(&self.given)?;
        if self.from_offsets != Section::default() {
            whole += &format!(",\n\"from_offsets\": {{{}}}", text(&self.from_offsets)?);
        }
        msdeform_files::write(path, format!("{{{whole}}}\n").as_bytes(), Existing::Replace)?;
        Ok(())
    }

    const fn section(&self, samples: Samples) -> &Section {
        match samples {
            Samples::Given => &self.given,
            Samples::FromOffsets => &self.from_offsets,
        }
    }

    const fn section_mut(&mut self, samples: Samples) -> &mut Section {
        match samples {
            Samples::Given => &mut self.given,
            Samples::FromOffsets => &mut self.from_offsets,
        }
    }

    /// Notes a verification, instead of an earlier one of the same subject.
    pub fn record(
        &mut self,
        variant: &dyn Variant,
        dtype: DType,
        samples: Samples,
        verification: Verification,
    ) {
        self.section_mut(samples).entries.insert(subject(variant, dtype), verification);
    }

    /// Notes a verification of something compiled, instead of an earlier one.
    pub fn record_compiled(&mut self, samples: Samples, verification: CompiledVerification) {
        self.section_mut(samples).compiled.record(verification);
    }

    /// Notes random problems that a variant computed in a format, with its sources as they are now.
    pub fn record_random(
        &mut self,
        variant: &dyn Variant,
        dtype: DType,
        samples: Samples,
        run: RandomRun,
    ) {
        self.section_mut(samples).random.record(variant, dtype, samples, run);
    }

    /// Forgets what the dispatcher no longer chooses, of the samples that these have.
    pub fn keep_only_compiled(&mut self, reachable: &[Specialisation]) {
        for samples in Samples::ALL {
            let mut met = reachable.iter().map(|found| Samples::of(&found.problem));
            if met.any(|found| found == samples) {
                self.section_mut(samples).compiled.keep_only(reachable);
            }
        }
    }

    /// Forgets variants that are no longer registered.
    pub fn forget_unregistered(&mut self) {
        let known = |id: &str| REGISTRY.iter().any(|variant| variant.spec().id == id);
        for samples in Samples::ALL {
            let section = self.section_mut(samples);
            section.entries.retain(|subject, _| known(&subject.variant));
            section.random.forget_unregistered();
        }
    }

    /// The verification of a variant with a format.
    #[must_use]
    pub fn get(
        &self,
        variant: &dyn Variant,
        dtype: DType,
        samples: Samples,
    ) -> Option<&Verification> {
        self.section(samples).entries.get(&subject(variant, dtype))
    }

    /// Every registered combination, and everything that may be compiled for known models, that this ledger does not show
    /// as verified, with the reason. Of samples that are given: all that plans choose from, whatever else they may.
    #[must_use]
    pub fn unverified(&self) -> Vec<String> {
        self.open(Samples::Given, &models::specialisations(&DeviceProps::h200()))
    }

    /// What plans choose for calls from offsets without having been verified; nothing where they choose for none
    /// (`are_chosen` is [`msdeform_cuda::OFFSETS_ARE_VERIFIED`]).
    #[must_use]
    pub fn unverified_from_offsets(&self, are_chosen: bool) -> Vec<String> {
        if !are_chosen {
            return Vec::new();
        }
        let reachable = models::specialisations_from_offsets(&DeviceProps::h200());
        self.open(Samples::FromOffsets, &reachable)
    }

    fn open(&self, samples: Samples, reachable: &[Specialisation]) -> Vec<String> {
        let mut missing = Vec::new();
        let meant = |variant: &&&'static dyn Variant| {
            samples == Samples::Given || takes(**variant, samples)
        };
        for &variant in REGISTRY.iter().filter(meant) {
            for &dtype in variant.spec().dtypes {
                let reason = match self.get(variant, dtype, samples) {
                    None => "never verified",
                    Some(found) if found.fingerprint != fingerprint(variant, dtype, samples) => {
                        "changed since it was verified"
                    }
                    Some(found) if !found.passed => "failed",
                    Some(_) => continue,
                };
                missing.push(format!("{} {dtype}: {reason}", variant.spec().id));
            }
        }
        let section = self.section(samples);
        missing.extend(section.compiled.unverified(reachable));
        missing.extend(section.random.unverified(samples));
        missing
    }
}

impl Section {
    fn new(Lines { variants, compiled, random }: Lines) -> Self {
        let entries = variants.into_iter().map(|line| (line.subject, line.verification));
        Self {
            entries: entries.collect(),
            compiled: CompiledLedger::new(compiled),
            random: random::RandomLedger::new(random),
        }
    }

    /// Its lists, without the braces around them.
    fn text(&self) -> Result<String, serde_json::Error> {
        let variants = self.entries.iter().map(|(subject, verification)| {
            let (subject, verification) = (subject.clone(), verification.clone());
            serde_json::to_string(&Line { subject, verification })
        });
        let list = |lines: Result<Vec<String>, serde_json::Error>| {
            Ok::<String, serde_json::Error>(format!("[\n{}\n]", lines?.join(",\n")))
        };
        let variants = list(variants.collect())?;
        let compiled = list(self.compiled.texts())?;
        let random = list(self.random.lines().map(|line| serde_json::to_string(&line)).collect())?;
        Ok(format!("\"variants\": {variants},\n\"compiled\": {compiled},\n\"random\": {random}"))
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
            sources: hash_sources(specialisation.variant, Samples::of(&specialisation.problem))
                .to_owned(),
            gpu: String::new(),
            driver: String::new(),
            nvrtc: String::new(),
            // What a person reads of it; there are thousands of them.
            worst_rel_l2: worst_rel_l2.and_then(|error| format!("{error:.2e}").parse().ok()),
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
            commit: None,
        }
    }

    fn complete() -> Ledger {
        let mut ledger = Ledger::default();
        for &variant in REGISTRY {
            for &dtype in variant.spec().dtypes {
                ledger.record(
                    variant,
                    dtype,
                    Samples::Given,
                    passed(fingerprint(variant, dtype, Samples::Given)),
                );
                ledger.record_random(variant, dtype, Samples::Given, random(100, 0));
            }
        }
        for specialisation in models::specialisations(&DeviceProps::h200()) {
            let verification = CompiledVerification::new(&specialisation, true, Some(2.5e-4));
            ledger.record_compiled(Samples::Given, verification);
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
        ledger.record(variant, DType::F32, Samples::Given, passed("something else".to_owned()));
        let failed = passed(fingerprint(variant, DType::F16, Samples::Given));
        ledger.record(
            variant,
            DType::F16,
            Samples::Given,
            Verification { passed: false, ..failed },
        );
        ledger.given.entries.remove(&subject(variant, DType::Bf16));
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
        ledger.record_random(variant, DType::F32, Samples::Given, random(0, 0));
        ledger.record_random(variant, DType::F16, Samples::Given, random(100, 1));
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
        ledger.record_compiled(
            Samples::Given,
            CompiledVerification { sources: "other".to_owned(), ..verification },
        );
        let forward = reachable.iter().find(|s| s.backward.is_none()).unwrap();
        ledger.record_compiled(Samples::Given, CompiledVerification::new(forward, false, None));
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

    /// As [`complete`], of calls from offsets, on top of another ledger.
    fn with_offsets(mut ledger: Ledger) -> Ledger {
        let samples = Samples::FromOffsets;
        for &variant in REGISTRY.iter().filter(|variant| takes(**variant, samples)) {
            for &dtype in variant.spec().dtypes {
                let verification = passed(fingerprint(variant, dtype, samples));
                ledger.record(variant, dtype, samples, verification);
                ledger.record_random(variant, dtype, samples, random(100, 0));
            }
        }
        for specialisation in models::specialisations_from_offsets(&DeviceProps::h200()) {
            let verification = CompiledVerification::new(&specialisation, true, Some(2.5e-4));
            ledger.record_compiled(samples, verification);
        }
        ledger
    }

    #[test]
    fn calls_from_offsets_are_chosen_for_only_with_a_complete_section_of_their_own() {
        let plain = complete();
        assert_eq!(plain.unverified_from_offsets(false), Vec::<String>::new());
        let open = plain.unverified_from_offsets(true).join("\n");
        for words in [
            "bwd_level_sort bf16: never verified",
            "fwd_general f32: no random problems",
            "fwd_tile_gather: ",
            "specialisations never verified",
        ] {
            assert!(open.contains(words), "{words}: {open}");
        }
        assert!(!open.contains("_original") && !open.contains("fwd_warp"), "{open}");

        let mut ledger = with_offsets(plain.clone());
        assert_eq!(ledger.unverified_from_offsets(true), Vec::<String>::new());
        assert_eq!(ledger.given, plain.given);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ledger.json");
        ledger.write(&path).unwrap();
        assert_eq!(Ledger::read(&path).unwrap(), ledger);

        // A run with a problem that went wrong is no evidence, a specialisation that failed neither; plain ones are
        // none of their business.
        let variant = REGISTRY[REGISTRY.len() - 1];
        ledger.record_random(variant, DType::F32, Samples::Given, random(100, 1));
        assert_eq!(ledger.unverified_from_offsets(true), Vec::<String>::new());
        let reachable = models::specialisations_from_offsets(&DeviceProps::h200());
        let failed = CompiledVerification::new(&reachable[0], false, None);
        ledger.record_compiled(Samples::FromOffsets, failed);
        let follower = reachable[0].variant;
        ledger.record_random(follower, DType::Bf16, Samples::FromOffsets, random(100, 1));
        let open = ledger.unverified_from_offsets(true);
        assert_eq!(open.len(), 2, "{open:?}");
        assert!(open[0].contains("1 specialisations failed"), "{open:?}");
        assert!(open[1].contains("bf16: in a run of random problems that failed"), "{open:?}");
    }

    #[test]
    fn a_run_of_one_kind_of_samples_forgets_nothing_of_the_other() {
        let mut ledger = with_offsets(complete());
        let whole = ledger.clone();
        ledger.keep_only_compiled(&models::specialisations_from_offsets(&DeviceProps::h200()));
        ledger.keep_only_compiled(&models::specialisations(&DeviceProps::h200()));
        assert_eq!(ledger, whole);
    }

    #[test]
    fn what_is_written_of_given_samples_is_as_it_was() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../records/h200/ledger.json");
        let folder = tempfile::tempdir().unwrap();
        let copy = folder.path().join("ledger.json");
        Ledger::read(&path).unwrap().write(&copy).unwrap();
        let (before, after) = (std::fs::read(path).unwrap(), std::fs::read(copy).unwrap());
        assert!(before == after, "every line of the ledger survives a reading and a writing");
    }

    /// The gate of calls from offsets: the switch may be on only where a GPU has run all that it opens.
    #[test]
    fn what_plans_choose_for_calls_from_offsets_was_verified_on_a_gpu() {
        let ledger = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../records/h200/ledger.json");
        let ledger = Ledger::read(&ledger).unwrap();
        let open = ledger.unverified_from_offsets(msdeform_cuda::OFFSETS_ARE_VERIFIED);
        assert!(
            open.is_empty(),
            "run `msdeform verify --device cuda:0 --from-offsets --ledger` and `msdeform soak --device cuda:0 \
             --from-offsets --ledger` on a GPU, or turn OFFSETS_ARE_VERIFIED off; open:\n{}",
            open.join("\n")
        );
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
