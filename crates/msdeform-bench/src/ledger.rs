//! From a verification on a GPU to the ledger that a test compares with the sources.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use msdeform::DType;
use msdeform_cuda::ledger::{Ledger, LedgerError, Verification, fingerprint};
use msdeform_cuda::registry;

use crate::device::Device;
use crate::verify::Report;

/// The ledger of a device, below the folder of all records.
#[must_use]
pub fn path(records: &Path, device: &dyn Device) -> PathBuf {
    records.join(device.slug()).join("ledger.json")
}

/// Writes what a report says about every CUDA variant and format it covers into the ledger at `path`.
/// What the report does not cover stays as it was. Returns the number of entries written.
///
/// # Errors
/// [`LedgerError`] with the path.
pub fn update(path: &Path, device: &dyn Device, report: &Report) -> Result<usize, LedgerError> {
    let facts = device.facts();
    let fact = |name: &str| facts.get(name).cloned().unwrap_or_default();
    let mut groups: BTreeMap<(&str, &str), Vec<&crate::verify::Verification>> = BTreeMap::new();
    for check in &report.checked {
        groups.entry((&check.label.variant, &check.label.dtype)).or_default().push(check);
    }
    let mut ledger = Ledger::read(path)?;
    ledger.forget_unregistered();
    let mut written = 0;
    for ((id, dtype), checks) in groups {
        let (Ok(variant), Ok(dtype)) = (registry::find(id), dtype.parse::<DType>()) else {
            continue;
        };
        // One error that is not a number makes the worst one so.
        let worst = checks.iter().try_fold(0.0f64, |worst, check| {
            let error = check.worst_rel_l2();
            error.is_finite().then(|| worst.max(error))
        });
        let verification = Verification {
            fingerprint: fingerprint(variant, dtype),
            gpu: device.name().to_owned(),
            driver: fact("driver_cuda"),
            nvrtc: fact("nvrtc"),
            cases: checks.len(),
            worst_rel_l2: worst,
            bound: variant.spec().rel_l2_bound(dtype),
            passed: checks.iter().all(|check| check.pass),
        };
        ledger.record(variant, dtype, verification);
        written += 1;
    }
    ledger.write(path)?;
    Ok(written)
}
