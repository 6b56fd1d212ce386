//! From a run on a GPU to the entries of its ledger.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use msdeform::{ATTENTION, DType, Operator};
use msdeform_bench::models::Specialisation;
use msdeform_bench::record::{Provenance, RecordError};
use msdeform_bench::verify::{Report, Verification};
use msdeform_bench::verify_compiled::CompiledCheck;
use msdeform_cuda::variants::Variant;
use msdeform_cuda_lab::registry;
use msdeform_devices::Device;
use msdeform_devices::soak::SoakReport;
use msdeform_devices::workload;

use super::claim::Hashes;
use super::{Entry, Evidence, Ledger, Run, Section, Sources};

/// The ledger of a device, below the folder of all records.
#[must_use]
pub fn path(records: &Path, device: &dyn Device) -> PathBuf {
    records.join(device.slug()).join("ledger.json")
}

impl Run {
    /// Of this process on a device.
    fn now(device: &dyn Device, by: &str) -> Self {
        let facts = device.facts();
        let fact = |name: &str| facts.get(name).cloned().unwrap_or_default();
        let Provenance { commit, dirty, .. } = Provenance::now();
        Self {
            gpu: device.name().to_owned(),
            driver: fact("driver_cuda"),
            nvrtc: fact("nvrtc"),
            commit: Some(if dirty { format!("{commit}-dirty") } else { commit }),
            by: by.to_owned(),
        }
    }

    fn entry(&self, operator: &Operator, variant: &dyn Variant, evidence: Evidence) -> Entry {
        let (operator, variant) = (operator.name.to_owned(), variant.spec().id.to_owned());
        Entry { operator, variant, evidence, run: self.clone() }
    }
}

/// Notes what a report shows of every CUDA variant and dtype that it covers. Other entries stay. Returns the number of
/// entries written.
///
/// # Errors
/// [`RecordError`] with the path.
pub fn update(path: &Path, device: &dyn Device, report: &Report) -> Result<usize, RecordError> {
    type Checks<'a> = (&'static Operator, Vec<&'a Verification>);
    let mut groups: BTreeMap<(&str, &str, &str), Checks<'_>> = BTreeMap::new();
    for check in &report.checked {
        let (_, operator) = workload::split_name(&check.label.workload);
        let group = (operator.name, &*check.label.variant, &*check.label.dtype);
        groups.entry(group).or_insert((operator, Vec::new())).1.push(check);
    }
    let run = Run::now(device, "verify");
    let mut ledger = Ledger::read(path)?;
    ledger.forget_unregistered();
    let mut written = 0;
    for ((_, id, dtype), (operator, checks)) in groups {
        let (Ok(variant), Ok(dtype)) = (registry::find(id), dtype.parse::<DType>()) else {
            continue;
        };
        // One error that is not a number makes the worst one so.
        let worst_rel_l2 = checks.iter().try_fold(0.0f64, |worst, check| {
            let error = check.worst_rel_l2();
            error.is_finite().then(|| worst.max(error))
        });
        let tensors = checks.iter().flat_map(|check| &check.tensors);
        let of_dtype = variant.spec().rel_l2_bound(dtype);
        let evidence = Evidence::Workloads {
            dtype: dtype.name().to_owned(),
            fingerprint: Sources::of(variant).fingerprint(variant, dtype, operator),
            cases: checks.len(),
            worst_rel_l2,
            bound: tensors.map(|tensor| tensor.bound).fold(of_dtype, f64::max),
            passed: checks.iter().all(|check| check.pass),
        };
        written += usize::from(ledger.note(run.entry(operator, variant, evidence)));
    }
    ledger.write(path)?;
    Ok(written)
}

/// Notes how every kernel went that was compiled for known models, and forgets kernels of the same operator and variant
/// that are not `reachable` any more. Returns the number of entries written.
///
/// # Errors
/// [`RecordError`] with the path.
pub fn update_specialisations(
    path: &Path,
    device: &dyn Device,
    reachable: &[Specialisation],
    checks: &[CompiledCheck],
) -> Result<usize, RecordError> {
    let run = Run::now(device, "verify");
    let mut ledger = Ledger::read(path)?;
    let mut hashes = Hashes::default();
    let mut hash = |found: &Specialisation| hashes.of(found.variant).unit_hash(&found.unit);
    let reachable: BTreeSet<String> = reachable.iter().map(&mut hash).collect();
    let checked = |operator: &str, variant: &str| {
        let mut found = checks.iter().map(|check| &check.specialisation);
        found.any(|found| {
            found.problem.operator().name == operator && found.variant.spec().id == variant
        })
    };
    ledger.0.retain(|key, _| {
        let is_kernel = key.section == Section::Kernels;
        !is_kernel || reachable.contains(&key.of) || !checked(&key.operator, &key.variant)
    });
    for CompiledCheck { specialisation, verification } in checks {
        let worst = Some(verification.worst_rel_l2()).filter(|error| error.is_finite());
        let evidence = Evidence::Kernel {
            hash: hash(specialisation),
            // Three digits: there are thousands of them.
            worst_rel_l2: worst.and_then(|error| format!("{error:.2e}").parse().ok()),
            passed: verification.pass,
        };
        let Specialisation { problem, variant, .. } = specialisation;
        ledger.note(run.entry(problem.operator(), *variant, evidence));
    }
    ledger.write(path)?;
    Ok(checks.len())
}

/// Notes how many random problems of an operator every variant computed in every dtype, and whether any problem of the
/// run failed. A longer run of the same sources stays. Returns the number of entries written.
///
/// # Errors
/// [`RecordError`] with the path.
pub fn update_random(
    path: &Path,
    device: &dyn Device,
    operator: &Operator,
    report: &SoakReport,
) -> Result<usize, RecordError> {
    let run = Run::now(device, "soak");
    let counted = if *operator == ATTENTION { &report.variants } else { &report.variants_fused };
    let mut ledger = Ledger::read(path)?;
    ledger.forget_unregistered();
    let mut written = 0;
    for &variant in registry::REGISTRY {
        let Some(dtypes) = counted.get(variant.spec().id) else { continue };
        let sources = Sources::of(variant).hash();
        for dtype in variant.spec().dtypes {
            let evidence = Evidence::Random {
                dtype: dtype.name().to_owned(),
                sources: sources.clone(),
                seed: report.seed,
                problems: dtypes.get(dtype.name()).copied().unwrap_or(0),
                failed: report.failed + report.hangs.len() as u64,
            };
            written += usize::from(ledger.note(run.entry(operator, variant, evidence)));
        }
    }
    ledger.write(path)?;
    Ok(written)
}
