//! From a run on a GPU to the entries of its ledger.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use msdeform::{ATTENTION, DType, Operator};
use msdeform_lab::digits::significant;
use msdeform_lab::models::Specialisation;
use msdeform_lab::record::{Provenance, RecordError};
use msdeform_lab::soak::SoakReport;
use msdeform_lab::verify::Report;
use msdeform_lab::verify_compiled::CompiledCheck;
use msdeform_lab::{Device, workload};

use super::claim::Claim;
use super::hashes::Sources;
use super::{Entry, Ledger, Run, What};

/// The ledger of a device, below the folder of all records.
#[must_use]
pub fn path(records: &Path, device: &dyn Device) -> PathBuf {
    records.join(device.slug()).join("ledger.json")
}

/// Notes what a command found on a device. Other entries stay, unless their variant is not registered any more or `is_known`
/// refuses them. Returns the number of entries written.
fn note(
    path: &Path,
    device: &dyn Device,
    command: &str,
    found: impl Iterator<Item = Entry>,
    is_known: impl Fn(&Entry) -> bool,
) -> Result<usize, RecordError> {
    let mut ledger = Ledger::read(path)?;
    ledger.0.retain(|_, entry| is_known(entry));
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
    let entries = found.map(|entry| Entry { run: run.clone(), ..entry });
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
    let entry = |claim: &'static Claim| {
        let checks = checks.get(&(claim.operator.name, claim.id(), claim.dtype()))?;
        let tensors = checks.iter().flat_map(|check| &check.tensors);
        let of_dtype =
            claim.dtype().parse().ok().map(|dtype: DType| claim.variant.spec.rel_l2_bound(dtype));
        Some(Entry {
            count: checks.len() as u64,
            failed: checks.iter().filter(|check| !check.pass).count() as u64,
            // One error that is not a number makes the worst one so.
            worst_rel_l2: checks.iter().try_fold(0.0f64, |worst, check| {
                let error = check.worst_rel_l2();
                error.is_finite().then(|| worst.max(error))
            }),
            bound: tensors.map(|tensor| tensor.bound).chain(of_dtype).reduce(f64::max),
            ..claim.entry(claim.hash())
        })
    };
    let claims = Operator::ALL.into_iter().flat_map(Claim::all);
    let found = claims.filter(|claim| claim.what == What::Workloads).filter_map(entry);
    note(path, device, "verify", found, |_| true)
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
        Entry {
            what: What::Kernels,
            operator: specialisation.problem.operator().name.to_owned(),
            variant: specialisation.variant.spec.id.to_owned(),
            hash: hash(specialisation),
            count: 1,
            failed: u64::from(!verification.pass),
            // Three digits: there are thousands of them.
            worst_rel_l2: worst.map(|error| significant(error, 3)),
            ..Entry::default()
        }
    };
    let found: Vec<Entry> = checks.iter().map(of_check).collect();
    let name = |entry: &Entry| (entry.operator.clone(), entry.variant.clone());
    let checked: BTreeSet<_> = found.iter().map(name).collect();
    note(path, device, "verify", found.into_iter(), |entry| {
        let is_checked = entry.what == What::Kernels && checked.contains(&name(entry));
        !is_checked || reachable.contains(&entry.hash)
    })
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
    let entry = |claim: &'static Claim| {
        Some(Entry {
            count: counted.get(claim.id())?.get(claim.dtype()).copied().unwrap_or(0),
            failed: report.failed + report.hangs.len() as u64,
            seed: Some(report.seed),
            ..claim.entry(claim.hash())
        })
    };
    let claims = Claim::all(operator).filter(|claim| claim.what == What::Random);
    note(path, device, "soak", claims.filter_map(entry), |_| true)
}
