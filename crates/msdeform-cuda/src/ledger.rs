//! The verification ledger: which kernels a GPU has verified, and as what.
//!
//! CI has no GPU. So verification on a GPU writes, for every variant and format, a fingerprint of what
//! was verified, and a test compares it with the sources: a kernel cannot change and land unverified.
//! The ledger of a GPU is `records/<gpu>/ledger.json`.

use std::collections::BTreeMap;
use std::path::Path;

use msdeform::{DType, Mode, Problem};
use msdeform_files::{Existing, FileError, read_text};
use serde::{Deserialize, Serialize};

use crate::driver::DeviceProps;
use crate::gradients::Gradients;
use crate::jit::{COMMON_OPTIONS, included_headers};
use crate::registry::REGISTRY;
use crate::variants::{BackwardCall, Call, KnobChoices, Variant};

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
        let lines: Vec<Line> = serde_json::from_str(text)?;
        let entries = lines.into_iter().map(|line| (line.subject, line.verification)).collect();
        Ok(Self { entries })
    }

    /// Writes it, sorted, whole or not at all.
    ///
    /// # Errors
    /// [`LedgerError`] with the path.
    pub fn write(&self, path: &Path) -> Result<(), LedgerError> {
        let name = || path.display().to_string();
        let lines: Vec<Line> = self
            .entries
            .iter()
            .map(|(subject, verification)| Line {
                subject: subject.clone(),
                verification: verification.clone(),
            })
            .collect();
        let text = serde_json::to_string_pretty(&lines)
            .map_err(|source| LedgerError::Format { path: name(), source })?;
        msdeform_files::write(path, (text + "\n").as_bytes(), Existing::Replace)?;
        Ok(())
    }

    /// Notes a verification, instead of an earlier one of the same subject.
    pub fn record(&mut self, variant: &dyn Variant, dtype: DType, verification: Verification) {
        self.entries.insert(subject(variant, dtype), verification);
    }

    /// Forgets variants that are no longer registered.
    pub fn forget_unregistered(&mut self) {
        let known = |id: &str| REGISTRY.iter().any(|variant| variant.spec().id == id);
        self.entries.retain(|subject, _| known(&subject.variant));
    }

    /// The verification of a variant with a format.
    #[must_use]
    pub fn get(&self, variant: &dyn Variant, dtype: DType) -> Option<&Verification> {
        self.entries.get(&subject(variant, dtype))
    }

    /// Every registered combination that this ledger does not show as verified, with the reason.
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

/// Stands for all that a verification depends on: the kernel and the headers it includes (without
/// comments and blank lines, so that words can be improved freely), the compiler's options, and, for a
/// fixed list of problems, the macros and the launch that the variant asks for.
#[must_use]
pub fn fingerprint(variant: &dyn Variant, dtype: DType) -> String {
    let mut hasher = blake3::Hasher::new();
    let mut part = |text: &str| {
        hasher.update(&(text.len() as u64).to_le_bytes());
        hasher.update(text.as_bytes());
    };
    let source = variant.source();
    for file in std::iter::once(source).chain(included_headers(source)) {
        part(file.name);
        part(&without_comments(file.text));
    }
    COMMON_OPTIONS.iter().for_each(|option| part(option));
    part(&format!("{:?}", variant.spec().numerics));
    let device = DeviceProps::h200();
    for problem in sample_problems(variant, dtype) {
        for call in sample_calls(variant, &problem, &device) {
            let asked = match variant.check(&call).map_err(|error| error.to_string()) {
                Ok(()) => variant.configure(&call, &KnobChoices::default()),
                Err(refused) => Err(refused),
            };
            match asked {
                Ok(asked) => part(&format!("{asked:?} {:?}", asked.defines(&call))),
                Err(_) => part("refused"),
            }
        }
    }
    hasher.finalize().to_hex().to_string()
}

/// The ways in which a variant may be asked to do a problem: forward in one, backward in both modes and
/// for gradients that take different steps.
fn sample_calls<'a>(
    variant: &dyn Variant,
    problem: &'a Problem,
    device: &'a DeviceProps,
) -> Vec<Call<'a>> {
    let call = Call::in_direction(variant.spec().direction, problem, device);
    let Some(ordinary) = call.backward else { return vec![call] };
    let of_value = Gradients { value: true, locations: false, weights: false };
    let of_samples = Gradients { value: false, ..Gradients::ALL };
    let mut calls = Vec::new();
    for mode in Mode::ALL {
        for gradients in [Gradients::ALL, of_value, of_samples] {
            let backward = Some(BackwardCall { gradients, mode, ..ordinary });
            calls.push(Call { backward, ..call });
        }
    }
    calls
}

/// Problems that show how a variant launches: few and many queries, common and odd channel counts.
fn sample_problems(variant: &dyn Variant, dtype: DType) -> Vec<Problem> {
    let mut problems = Vec::new();
    for &layout in variant.spec().layouts {
        for sampling in [dtype, DType::F32] {
            for channels in [16, 32, 33, 64] {
                for (queries, points) in [(300, 4), (15_422, 8)] {
                    let built = Problem::builder()
                        .batch(2)
                        .heads(8)
                        .channels(channels)
                        .queries(queries)
                        .levels([(92, 160), (46, 80), (23, 40), (12, 20)])
                        .points(points)
                        .layout(layout)
                        .dtype(dtype)
                        .sampling_dtype(sampling)
                        .build();
                    problems.extend(built);
                }
            }
        }
    }
    problems
}

/// Kernels use line comments only.
fn without_comments(text: &str) -> String {
    text.lines()
        .map(|line| line.split("//").next().unwrap_or("").trim_end())
        .filter(|line| !line.is_empty())
        .collect::<Vec<_>>()
        .join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sources::HEADERS;

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

    fn complete() -> Ledger {
        let mut ledger = Ledger::default();
        for &variant in REGISTRY {
            for &dtype in variant.spec().dtypes {
                ledger.record(variant, dtype, passed(fingerprint(variant, dtype)));
            }
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
    fn the_fingerprint_sees_code_and_not_words() {
        assert_eq!(without_comments("int a; // why\n\n// words\nint b;\n"), "int a;\nint b;");
        let formats = REGISTRY
            .iter()
            .flat_map(|&variant| variant.spec().dtypes.iter().map(move |&dtype| (variant, dtype)));
        let prints: std::collections::BTreeSet<String> =
            formats.clone().map(|(variant, dtype)| fingerprint(variant, dtype)).collect();
        assert_eq!(prints.len(), formats.count());
        let kernels = REGISTRY.iter().map(|variant| variant.source());
        for file in HEADERS.iter().copied().chain(kernels) {
            assert!(!file.text.contains("/*"), "{}: use line comments", file.name);
        }
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
