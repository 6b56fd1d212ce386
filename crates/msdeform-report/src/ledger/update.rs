//! From a run on a GPU to the entries of its ledger.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use msdeform::{ATTENTION, Operator};
use msdeform_lab::digits::significant;
use msdeform_lab::models::Specialisation;
use msdeform_lab::record::{Provenance, RecordError};
use msdeform_lab::soak::SoakReport;
use msdeform_lab::verify::Report;
use msdeform_lab::verify_compiled::CompiledCheck;
use msdeform_lab::{Device, workload};

use super::claim::{Claim, What};
use super::hashes::Sources;
use super::{Entry, Evidence, Ledger, Run, Section};

/// The ledger of a device, below the folder of all records.
#[must_use]
pub fn path(records: &Path, device: &dyn Device) -> PathBuf {
    records.join(device.slug()).join("ledger.json")
}

/// Evidence of an operator and a variant.
type Found = (&'static str, &'static str, Evidence);

/// Notes what a command found on a device, after `prepare` changed the ledger. Other entries stay, unless their variant is
/// not registered any more. Returns the number of entries written.
fn note(
    path: &Path,
    device: &dyn Device,
    command: &str,
    found: Vec<Found>,
    prepare: impl FnOnce(&mut Ledger),
) -> Result<usize, RecordError> {
    let mut ledger = Ledger::read(path)?;
    prepare(&mut ledger);
    ledger.forget_unregistered();
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
    let entries = found.into_iter().map(|(operator, variant, evidence)| {
        let (operator, variant) = (operator.to_owned(), variant.to_owned());
        Entry { operator, variant, evidence, run: run.clone() }
    });
    let written = entries.filter_map(|entry| ledger.note(entry).then_some(())).count();
    ledger.write(path)?;
    Ok(written)
}

/// Notes what a report shows of every CUDA variant and dtype that it covers. Returns the number of entries written.
pub fn update(path: &Path, device: &dyn Device, report: &Report) -> Result<usize, RecordError> {
    let mut checks: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for check in &report.checked {
        let (_, operator) = workload::split_name(&check.label.workload);
        let of = (operator.name, &*check.label.variant, &*check.label.dtype);
        checks.entry(of).or_default().push(check);
    }
    let evidence = |claim: &'static Claim| {
        let What::Workloads(dtype) = claim.what else { return None };
        let checks = checks.get(&(claim.operator.name, claim.id(), dtype.name()))?;
        // One error that is not a number makes the worst one so.
        let worst_rel_l2 = checks.iter().try_fold(0.0f64, |worst, check| {
            let error = check.worst_rel_l2();
            error.is_finite().then(|| worst.max(error))
        });
        let tensors = checks.iter().flat_map(|check| &check.tensors);
        let of_dtype = claim.variant.spec.rel_l2_bound(dtype);
        let evidence = Evidence::Workloads {
            dtype: dtype.name().to_owned(),
            hash: claim.hash().to_owned(),
            cases: checks.len(),
            worst_rel_l2,
            bound: tensors.map(|tensor| tensor.bound).fold(of_dtype, f64::max),
            passed: checks.iter().all(|check| check.pass),
        };
        Some((claim.operator.name, claim.id(), evidence))
    };
    let found = Operator::ALL.into_iter().flat_map(Claim::all).filter_map(evidence).collect();
    note(path, device, "verify", found, |_| ())
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
            worst_rel_l2: worst.map(|error| significant(error, 3)),
            passed: verification.pass,
        };
        (specialisation.problem.operator().name, specialisation.variant.spec.id, evidence)
    };
    let found: Vec<Found> = checks.iter().map(of_check).collect();
    let checked: BTreeSet<_> = found.iter().map(|&(operator, id, _)| (operator, id)).collect();
    let forget = |ledger: &mut Ledger| {
        ledger.0.retain(|(section, operator, id, hash), _| {
            let is_checked = checked.contains(&(&**operator, &**id));
            *section != Section::Kernels || reachable.contains(hash) || !is_checked
        });
    };
    note(path, device, "verify", found, forget)
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
    let evidence = |claim: &'static Claim| {
        let What::Random(dtype) = claim.what else { return None };
        let problems = counted.get(claim.id())?.get(dtype.name()).copied().unwrap_or(0);
        let evidence = Evidence::Random {
            dtype: dtype.name().to_owned(),
            hash: claim.hash().to_owned(),
            seed: report.seed,
            problems,
            failed: report.failed + report.hangs.len() as u64,
        };
        Some((operator.name, claim.id(), evidence))
    };
    note(path, device, "soak", Claim::all(operator).filter_map(evidence).collect(), |_| ())
}
