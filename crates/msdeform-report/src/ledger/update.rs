//! From a verification on a GPU to the ledger that a test compares with the sources.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use msdeform::DType;
use msdeform_bench::Record;
use msdeform_bench::models::Specialisation;
use msdeform_bench::record::Provenance;
use msdeform_bench::verify::Report;
use msdeform_bench::verify_compiled::CompiledCheck;
use msdeform_cases::SoakReport;
use msdeform_cuda_lab::registry;
use msdeform_devices::Device;

use super::{
    CompiledVerification, Ledger, LedgerError, RandomRun, Samples, Verification, fingerprint,
};

/// The ledger of a device, below the folder of all records.
#[must_use]
pub fn path(records: &Path, device: &dyn Device) -> PathBuf {
    records.join(device.slug()).join("ledger.json")
}

/// Why the GPU tests did not make an entry.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TestsError {
    /// No such variant.
    #[error(transparent)]
    Variant(#[from] msdeform::Error),
    /// The ledger.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    /// Nothing that was printed is about the variant.
    #[error("no GPU test is named after `{variant}`")]
    None {
        /// The variant.
        variant: &'static str,
    },
}

/// Where and with what a verification ran.
struct Place {
    gpu: String,
    driver: String,
    nvrtc: String,
}

impl Place {
    fn new(name: &str, facts: &BTreeMap<String, String>) -> Self {
        let fact = |name: &str| facts.get(name).cloned().unwrap_or_default();
        Self { gpu: name.to_owned(), driver: fact("driver_cuda"), nvrtc: fact("nvrtc") }
    }
}

/// Writes what a report says about every CUDA variant and format it covers into the ledger at `path`.
/// What the report does not cover stays as it was. Returns the number of entries written.
///
/// # Errors
/// [`LedgerError`] with the path.
pub fn update(path: &Path, device: &dyn Device, report: &Report) -> Result<usize, LedgerError> {
    note(path, &Place::new(device.name(), &device.facts()), "verify", report)
}

/// Writes how everything went that was compiled for known models, and forgets what is not `reachable`: what the dispatcher
/// no longer chooses. Returns the number of entries written.
///
/// # Errors
/// [`LedgerError`] with the path.
pub fn update_compiled(
    path: &Path,
    device: &dyn Device,
    reachable: &[Specialisation],
    checks: &[CompiledCheck],
) -> Result<usize, LedgerError> {
    let Place { gpu, driver, nvrtc } = Place::new(device.name(), &device.facts());
    let mut ledger = Ledger::read(path)?;
    ledger.keep_only_compiled(reachable);
    for CompiledCheck { specialisation, verification } in checks {
        let worst = Some(verification.worst_rel_l2()).filter(|error| error.is_finite());
        let (gpu, driver, nvrtc) = (gpu.clone(), driver.clone(), nvrtc.clone());
        let entry = CompiledVerification::new(specialisation, verification.pass, worst);
        let samples = Samples::of(&specialisation.problem);
        ledger.record_compiled(samples, CompiledVerification { gpu, driver, nvrtc, ..entry });
    }
    ledger.write(path)?;
    Ok(checks.len())
}

/// Writes how many random problems with such samples every variant computed in every format, and whether any of the run
/// went wrong. A run with samples that follow from offsets speaks for those alone: it has fewer of the others than one of
/// their own. Returns the number of entries written.
///
/// # Errors
/// [`LedgerError`] with the path.
pub fn update_random(
    path: &Path,
    device: &dyn Device,
    samples: Samples,
    report: &SoakReport,
) -> Result<usize, LedgerError> {
    let Place { gpu, driver, nvrtc } = Place::new(device.name(), &device.facts());
    let Provenance { commit, dirty, .. } = Provenance::now();
    let commit = if dirty { format!("{commit}-dirty") } else { commit };
    let counted = match samples {
        Samples::Given => &report.variants,
        Samples::FromOffsets => &report.variants_from_offsets,
    };
    let mut ledger = Ledger::read(path)?;
    ledger.forget_unregistered();
    let mut written = 0;
    for variant in registry::REGISTRY {
        let Some(formats) = counted.get(variant.spec().id) else { continue };
        for &dtype in variant.spec().dtypes {
            let run = RandomRun {
                sources: String::new(),
                gpu: gpu.clone(),
                driver: driver.clone(),
                nvrtc: nvrtc.clone(),
                seed: report.seed,
                problems: formats.get(dtype.name()).copied().unwrap_or(0),
                failed: report.failed + report.hangs.len() as u64,
                commit: Some(commit.clone()),
            };
            ledger.record_random(*variant, dtype, samples, run);
            written += 1;
        }
    }
    ledger.write(path)?;
    Ok(written)
}

/// The same from the comparisons that `bench` makes before it times, as a record holds them. The sources must
/// be those that the record was made from: the caller checks.
///
/// # Errors
/// [`LedgerError`] with the path.
pub fn update_from_record(path: &Path, record: &Record) -> Result<usize, LedgerError> {
    let place = Place::new(&record.device.name, &record.device.facts);
    note(path, &place, "bench", &record.verification)
}

/// The same for a variant from what the GPU tests printed: every test named after it must have passed. Each of
/// them runs every format. `record` says on which GPU.
///
/// # Errors
/// [`TestsError`].
pub fn update_from_tests(
    path: &Path,
    record: &Record,
    variant: &str,
    printed: &str,
) -> Result<usize, TestsError> {
    let variant = registry::find(variant)?;
    let name = format!("::{}::", variant.spec().id);
    let own: Vec<&str> =
        printed.lines().filter(|line| line.starts_with("test ") && line.contains(&name)).collect();
    let passed = own.iter().all(|line| line.trim_end().ends_with("... ok"));
    if own.is_empty() {
        return Err(TestsError::None { variant: variant.spec().id });
    }
    let Place { gpu, driver, nvrtc } = Place::new(&record.device.name, &record.device.facts);
    let mut ledger = Ledger::read(path)?;
    for &dtype in variant.spec().dtypes {
        let verification = Verification {
            fingerprint: fingerprint(variant, dtype, Samples::Given),
            gpu: gpu.clone(),
            driver: driver.clone(),
            nvrtc: nvrtc.clone(),
            by: "tests".to_owned(),
            cases: own.len(),
            worst_rel_l2: None,
            bound: variant.spec().rel_l2_bound(dtype),
            passed,
        };
        ledger.record(variant, dtype, Samples::Given, verification);
    }
    ledger.write(path)?;
    Ok(variant.spec().dtypes.len())
}

fn note(path: &Path, place: &Place, by: &str, report: &Report) -> Result<usize, LedgerError> {
    type Group<'a> = (Samples, &'a str, &'a str);
    let mut groups: BTreeMap<Group<'_>, Vec<&msdeform_bench::verify::Verification>> =
        BTreeMap::new();
    for check in &report.checked {
        let group = (Samples::of_label(&check.label), &*check.label.variant, &*check.label.dtype);
        groups.entry(group).or_default().push(check);
    }
    let mut ledger = Ledger::read(path)?;
    ledger.forget_unregistered();
    let mut written = 0;
    for ((samples, id, dtype), checks) in groups {
        let (Ok(variant), Ok(dtype)) = (registry::find(id), dtype.parse::<DType>()) else {
            continue;
        };
        // One error that is not a number makes the worst one so.
        let worst = checks.iter().try_fold(0.0f64, |worst, check| {
            let error = check.worst_rel_l2();
            error.is_finite().then(|| worst.max(error))
        });
        let of_format = variant.spec().rel_l2_bound(dtype);
        let tensors = checks.iter().flat_map(|check| &check.tensors);
        let verification = Verification {
            fingerprint: fingerprint(variant, dtype, samples),
            gpu: place.gpu.clone(),
            driver: place.driver.clone(),
            nvrtc: place.nvrtc.clone(),
            by: by.to_owned(),
            cases: checks.len(),
            worst_rel_l2: worst,
            bound: tensors.map(|tensor| tensor.bound).fold(of_format, f64::max),
            passed: checks.iter().all(|check| check.pass),
        };
        ledger.record(variant, dtype, samples, verification);
        written += 1;
    }
    ledger.write(path)?;
    Ok(written)
}

#[cfg(test)]
mod tests {
    use msdeform_bench::fixtures::{TestDevice, some_specialisations};
    use msdeform_bench::verify_compiled::verify_compiled;
    use msdeform_devices::STANDARD_SEED;

    use super::*;

    #[test]
    fn what_was_compiled_is_noted_as_it_went() {
        let reachable = some_specialisations();
        let ids: Vec<&str> = reachable.iter().map(|found| found.variant.spec().id).collect();
        let checks =
            verify_compiled(&TestDevice, reachable.clone(), &ids, STANDARD_SEED, |_| (), |_| ());
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ledger.json");
        assert_eq!(update_compiled(&path, &TestDevice, &reachable, &checks).unwrap(), 3);
        let open = Ledger::read(&path).unwrap().unverified().join("\n");
        let failed = checks[1].specialisation.variant.spec().id;
        assert!(open.contains(&format!("{failed}: 1 specialisations failed")), "{open}");
    }

    #[test]
    fn a_case_from_offsets_says_nothing_about_given_samples() {
        let variant = registry::find("fwd_general").unwrap();
        let problem =
            msdeform::Problem::builder().queries(1).channels(8).levels([(4, 4)]).points(1);
        let problem = problem.build().unwrap();
        let case = msdeform_bench::fixtures::case("edge_one_point", problem.layout());
        let case = msdeform_devices::Case { from_offsets: true, ..case };
        let check = msdeform_bench::verify::Verification {
            label: case.label(variant.spec(), &problem),
            tensors: Vec::new(),
            pass: true,
            error: None,
        };
        let report = Report { checked: vec![check], skipped: Vec::new() };
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ledger.json");
        assert_eq!(update(&path, &TestDevice, &report).unwrap(), 1);
        let ledger = Ledger::read(&path).unwrap();
        assert!(ledger.get(variant, DType::F32, Samples::Given).is_none());
        let noted = ledger.get(variant, DType::F32, Samples::FromOffsets).unwrap();
        assert_eq!(noted.fingerprint, fingerprint(variant, DType::F32, Samples::FromOffsets));
    }

    #[test]
    fn random_problems_from_offsets_are_noted_with_seed_and_commit_beside_the_others() {
        let counts = |count: u64| {
            [("fwd_general".to_owned(), [("f16".to_owned(), count)].into_iter().collect())]
        };
        let report = SoakReport {
            seed: 11,
            variants: counts(9).into_iter().collect(),
            variants_from_offsets: counts(4).into_iter().collect(),
            ..SoakReport::default()
        };
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ledger.json");
        assert_eq!(update_random(&path, &TestDevice, Samples::FromOffsets, &report).unwrap(), 3);
        let text = std::fs::read_to_string(&path).unwrap();
        let (given, from_offsets) = text.split_once("\"from_offsets\"").unwrap();
        assert!(!given.contains("fwd_general"), "{given}");
        assert!(
            from_offsets.contains("\"seed\":11,\"problems\":4,\"failed\":0,\"commit\":"),
            "{text}"
        );
    }
}
