//! From a run on a GPU to the entries of its ledger.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use msdeform::{ATTENTION, DType, Operator};
use msdeform_bench::models::Specialisation;
use msdeform_bench::record::{Provenance, RecordError};
use msdeform_bench::verify::{Report, Verification};
use msdeform_bench::verify_compiled::CompiledCheck;
use msdeform_cuda_lab::registry;
use msdeform_devices::Device;
use msdeform_devices::soak::SoakReport;
use msdeform_devices::workload;

use super::{Hashes, KernelEntry, Ledger, RandomEntry, Run, Sources, WorkloadsEntry, subject};

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
}

/// Notes what a report shows of every CUDA variant and dtype that it covers. Other entries stay. Returns the number of
/// entries written.
///
/// # Errors
/// [`RecordError`] with the path.
pub fn update(path: &Path, device: &dyn Device, report: &Report) -> Result<usize, RecordError> {
    type Group<'a> = (&'static str, &'a str, &'a str);
    let mut groups: BTreeMap<Group<'_>, Vec<&Verification>> = BTreeMap::new();
    for check in &report.checked {
        let (_, operator) = workload::split_name(&check.label.workload);
        let group = (operator.name, &*check.label.variant, &*check.label.dtype);
        groups.entry(group).or_default().push(check);
    }
    let run = Run::now(device, "verify");
    let mut ledger = Ledger::read(path)?;
    ledger.forget_unregistered();
    let mut written = 0;
    for ((operator, id, dtype), checks) in groups {
        let operator = Operator::ALL.into_iter().find(|known| known.name == operator);
        let (Some(operator), Ok(variant), Ok(dtype)) =
            (operator, registry::find(id), dtype.parse::<DType>())
        else {
            continue;
        };
        // One error that is not a number makes the worst one so.
        let worst_rel_l2 = checks.iter().try_fold(0.0f64, |worst, check| {
            let error = check.worst_rel_l2();
            error.is_finite().then(|| worst.max(error))
        });
        let tensors = checks.iter().flat_map(|check| &check.tensors);
        let of_dtype = variant.spec().rel_l2_bound(dtype);
        let entry = WorkloadsEntry {
            fingerprint: Sources::of(variant).fingerprint(variant, dtype, operator),
            cases: checks.len(),
            worst_rel_l2,
            bound: tensors.map(|tensor| tensor.bound).fold(of_dtype, f64::max),
            passed: checks.iter().all(|check| check.pass),
            run: run.clone(),
        };
        ledger.workloads.insert(subject(variant, dtype, operator), entry);
        written += 1;
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
    let keys: BTreeSet<_> = reachable.iter().map(|found| hashes.key(found)).collect();
    let variants: BTreeSet<_> = checks
        .iter()
        .map(|check| hashes.key(&check.specialisation))
        .map(|(operator, variant, _)| (operator, variant))
        .collect();
    ledger
        .kernels
        .retain(|key, _| keys.contains(key) || !variants.contains(&(key.0.clone(), key.1.clone())));
    for CompiledCheck { specialisation, verification } in checks {
        let worst = Some(verification.worst_rel_l2()).filter(|error| error.is_finite());
        let entry = KernelEntry {
            // Three digits: there are thousands of them.
            worst_rel_l2: worst.and_then(|error| format!("{error:.2e}").parse().ok()),
            passed: verification.pass,
            run: run.clone(),
        };
        ledger.kernels.insert(hashes.key(specialisation), entry);
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
        for &dtype in variant.spec().dtypes {
            let entry = RandomEntry {
                sources: sources.clone(),
                seed: report.seed,
                problems: dtypes.get(dtype.name()).copied().unwrap_or(0),
                failed: report.failed + report.hangs.len() as u64,
                run: run.clone(),
            };
            written += usize::from(ledger.note_random(subject(variant, dtype, operator), entry));
        }
    }
    ledger.write(path)?;
    Ok(written)
}
