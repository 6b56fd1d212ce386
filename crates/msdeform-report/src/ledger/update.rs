//! From a run on a GPU to the entries of its ledger.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use msdeform::{ATTENTION, DType, Operator};
use msdeform_cuda::variants::Variant;
use msdeform_cuda_lab::registry;
use msdeform_lab::models::Specialisation;
use msdeform_lab::record::{Provenance, RecordError};
use msdeform_lab::soak::SoakReport;
use msdeform_lab::verify::{Report, Verification};
use msdeform_lab::verify_compiled::CompiledCheck;
use msdeform_lab::{Device, workload};

use super::hashes::Sources;
use super::{Entry, Evidence, Ledger, Run, Section};

/// The ledger of a device, below the folder of all records.
#[must_use]
pub fn path(records: &Path, device: &dyn Device) -> PathBuf {
    records.join(device.slug()).join("ledger.json")
}

/// Evidence of a variant for an operator.
type Found = (&'static Operator, &'static dyn Variant, Evidence);

impl Ledger {
    /// Notes what a command found on a device. Other entries stay, unless their variant is not registered any more.
    /// Returns the number of entries written.
    fn note_run(&mut self, device: &dyn Device, command: &str, found: Vec<Found>) -> usize {
        self.forget_unregistered();
        let facts = device.facts();
        let fact = |name: &str| facts.get(name).cloned().unwrap_or_default();
        let Provenance { commit, dirty, .. } = Provenance::now();
        let run = Run {
            gpu: device.name().to_owned(),
            driver: fact("driver_cuda"),
            nvrtc: fact("nvrtc"),
            commit: Some(if dirty { format!("{commit}-dirty") } else { commit }),
            by: command.to_owned(),
        };
        let entry = |(operator, variant, evidence): Found| {
            let (operator, variant) = (operator.name.to_owned(), variant.spec().id.to_owned());
            Entry { operator, variant, evidence, run: run.clone() }
        };
        found
            .into_iter()
            .map(|found| self.note(entry(found)))
            .filter(|is_written| *is_written)
            .count()
    }
}

/// Notes what a report shows of every CUDA variant and dtype that it covers. Returns the number of entries written.
pub fn update(path: &Path, device: &dyn Device, report: &Report) -> Result<usize, RecordError> {
    type Checks<'a> = (&'static Operator, Vec<&'a Verification>);
    let mut groups: BTreeMap<(&str, &str, &str), Checks<'_>> = BTreeMap::new();
    for check in &report.checked {
        let (_, operator) = workload::split_name(&check.label.workload);
        let group = (operator.name, &*check.label.variant, &*check.label.dtype);
        groups.entry(group).or_insert((operator, Vec::new())).1.push(check);
    }
    let evidence = |((_, id, dtype), (operator, checks)): ((&str, &str, &str), Checks<'_>)| {
        let (variant, dtype) = (registry::find(id).ok()?, dtype.parse::<DType>().ok()?);
        // One error that is not a number makes the worst one so.
        let worst_rel_l2 = checks.iter().try_fold(0.0f64, |worst, check| {
            let error = check.worst_rel_l2();
            error.is_finite().then(|| worst.max(error))
        });
        let tensors = checks.iter().flat_map(|check| &check.tensors);
        let of_dtype = variant.spec().rel_l2_bound(dtype);
        let evidence = Evidence::Workloads {
            dtype: dtype.name().to_owned(),
            hash: Sources::of(variant).fingerprint(variant, dtype, operator),
            cases: checks.len(),
            worst_rel_l2,
            bound: tensors.map(|tensor| tensor.bound).fold(of_dtype, f64::max),
            passed: checks.iter().all(|check| check.pass),
        };
        Some((operator, variant, evidence))
    };
    let mut ledger = Ledger::read(path)?;
    let found = groups.into_iter().filter_map(evidence).collect();
    let written = ledger.note_run(device, "verify", found);
    ledger.write(path)?;
    Ok(written)
}

/// Notes how every kernel went that was compiled for known models, and forgets kernels of the same operator and variant
/// that are not `reachable` any more. Returns the number of entries written.
pub fn update_specialisations(
    path: &Path,
    device: &dyn Device,
    reachable: &[Specialisation],
    checks: &[CompiledCheck],
) -> Result<usize, RecordError> {
    let hash = |found: &Specialisation| Sources::of(found.variant).unit_hash(&found.unit);
    let reachable: BTreeSet<String> = reachable.iter().map(hash).collect();
    let of_check = |CompiledCheck { specialisation, verification }: &CompiledCheck| {
        let worst = Some(verification.worst_rel_l2()).filter(|error| error.is_finite());
        let evidence = Evidence::Kernel {
            hash: hash(specialisation),
            // Three digits: there are thousands of them.
            worst_rel_l2: worst.and_then(|error| format!("{error:.2e}").parse().ok()),
            passed: verification.pass,
        };
        (specialisation.problem.operator(), specialisation.variant, evidence)
    };
    let found: Vec<Found> = checks.iter().map(of_check).collect();
    let checked: BTreeSet<(&str, &str)> =
        found.iter().map(|(operator, variant, _)| (operator.name, variant.spec().id)).collect();
    let mut ledger = Ledger::read(path)?;
    ledger.0.retain(|key, _| {
        let is_checked = checked.contains(&(&*key.operator, &*key.variant));
        key.section != Section::Kernels || reachable.contains(&key.of) || !is_checked
    });
    let written = ledger.note_run(device, "verify", found);
    ledger.write(path)?;
    Ok(written)
}

/// Notes how many random problems of an operator every variant computed in every dtype, and whether any problem of the
/// run failed. A longer run of the same sources stays. Returns the number of entries written.
pub fn update_random(
    path: &Path,
    device: &dyn Device,
    operator: &'static Operator,
    report: &SoakReport,
) -> Result<usize, RecordError> {
    let counted = if *operator == ATTENTION { &report.variants } else { &report.variants_fused };
    let mut found = Vec::new();
    for &variant in registry::REGISTRY {
        let Some(dtypes) = counted.get(variant.spec().id) else { continue };
        found.extend(variant.spec().dtypes.iter().map(|dtype| {
            let evidence = Evidence::Random {
                dtype: dtype.name().to_owned(),
                hash: Sources::of(variant).hash(),
                seed: report.seed,
                problems: dtypes.get(dtype.name()).copied().unwrap_or(0),
                failed: report.failed + report.hangs.len() as u64,
            };
            (operator, variant, evidence)
        }));
    }
    let mut ledger = Ledger::read(path)?;
    let written = ledger.note_run(device, "soak", found);
    ledger.write(path)?;
    Ok(written)
}
