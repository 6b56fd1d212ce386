//! Entries for kernels whose text changed and whose machine code did not.
//!
//! A reformatted kernel has other hashes and the same machine code. For each kernel that the ledger does not know as it is
//! now, [`renew`] looks for a commit at which the ledger knew it, compiles both texts with one compiler, and compares the
//! two binaries. A kernel whose binaries differ needs a run on a GPU.

use std::collections::BTreeSet;

use msdeform::{DType, Operator};
use msdeform_bench::models::Specialisation;
use msdeform_cuda::driver::DeviceProps;
use msdeform_cuda::jit::Recipe;
use msdeform_cuda::nvrtc::Nvrtc;
use msdeform_cuda::variants::{Unit, Variant};
use msdeform_cuda_lab::REGISTRY;
use rayon::prelude::*;

use super::hashes::sample_units;
use super::{
    History, HistoryError, KernelEntry, Ledger, Run, Sources, is_verified_for, specialisations,
    subject,
};

/// What became of one variant and operator.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Renewal {
    /// [`Operator::name`].
    pub operator: &'static str,
    /// The variant's id.
    pub variant: &'static str,
    /// The commit whose text the ledger has verified; nothing if no commit was found.
    pub commit: Option<String>,
    /// Kernels that were compiled from both texts.
    pub compared: usize,
    /// Those of them whose machine code differs, or whose old text does not compile any more.
    pub different: usize,
    /// Entries that were renewed.
    pub renewed: usize,
    /// Entries that need a run on a GPU.
    pub open: usize,
}

/// Renews what it can; `progress` hears what is compared and how many kernels that is.
///
/// # Errors
/// [`HistoryError`]. The ledger is then as it was.
pub fn renew(
    ledger: &mut Ledger,
    history: &History,
    nvrtc: &Nvrtc,
    progress: &dyn Fn(&str, usize),
) -> Result<Vec<Renewal>, HistoryError> {
    let mut renewed = ledger.clone();
    let mut renewals = Vec::new();
    for operator in Operator::ALL {
        let reachable = specialisations(operator);
        for &variant in REGISTRY.iter().filter(|variant| is_verified_for(**variant, operator)) {
            let stale = Stale::of(ledger, operator, variant, &reachable);
            if !stale.is_empty() {
                renewals.push(stale.renew(&mut renewed, history, nvrtc, progress)?);
            }
        }
    }
    *ledger = renewed;
    Ok(renewals)
}

/// What the ledger does not know of a variant as it is now.
struct Stale<'a> {
    operator: &'static Operator,
    variant: &'static dyn Variant,
    sources: Sources,
    workloads: Vec<DType>,
    random: Vec<DType>,
    kernels: Vec<&'a Unit>,
}

impl<'a> Stale<'a> {
    fn of(
        ledger: &Ledger,
        operator: &'static Operator,
        variant: &'static dyn Variant,
        reachable: &'a [Specialisation],
    ) -> Self {
        let sources = Sources::of(variant);
        let (id, dtypes) = (variant.spec().id, variant.spec().dtypes);
        let of_workloads = |dtype: &DType| {
            let known = ledger.workloads.get(&subject(variant, *dtype, operator));
            let print = || sources.fingerprint(variant, *dtype, operator);
            known.is_none_or(|known| known.fingerprint != print())
        };
        let of_random = |dtype: &DType| {
            let known = ledger.random.get(&subject(variant, *dtype, operator));
            !variant.spec().rung && known.is_none_or(|known| known.sources != sources.hash())
        };
        let of_kernel = |unit: &&Unit| {
            let key = (operator.name.to_owned(), id.to_owned(), sources.unit_hash(unit));
            !ledger.kernels.contains_key(&key)
        };
        let own = reachable.iter().filter(|found| found.variant.spec().id == id);
        Self {
            operator,
            variant,
            workloads: dtypes.iter().copied().filter(of_workloads).collect(),
            random: dtypes.iter().copied().filter(of_random).collect(),
            kernels: own.map(|found| &found.unit).filter(of_kernel).collect(),
            sources,
        }
    }

    const fn is_empty(&self) -> bool {
        self.workloads.is_empty() && self.random.is_empty() && self.kernels.is_empty()
    }

    /// The entry of a kernel, if it passed, when it was compiled from these texts.
    fn known<'l>(&self, ledger: &'l Ledger, old: &Sources, unit: &Unit) -> Option<&'l KernelEntry> {
        let id = self.variant.spec().id.to_owned();
        let entry = ledger.kernels.get(&(self.operator.name.to_owned(), id, old.unit_hash(unit)));
        entry.filter(|entry| entry.passed)
    }

    /// The newest texts, other than those of today, that the ledger has verified.
    fn verified(
        &self,
        ledger: &Ledger,
        history: &History,
    ) -> Result<Option<(String, Sources)>, HistoryError> {
        let mut seen = BTreeSet::from([self.sources.hash()]);
        for commit in history.commits()? {
            let Some(old) = history.sources(&commit, self.variant)? else { continue };
            if !seen.insert(old.hash()) {
                continue;
            }
            let has_kernel =
                self.kernels.iter().any(|unit| self.known(ledger, &old, unit).is_some());
            let has_random = self.random.iter().any(|&dtype| self.has_random(ledger, &old, dtype));
            let has_workloads =
                self.workloads.iter().any(|&dtype| self.has_workloads(ledger, &old, dtype));
            if has_kernel || has_random || has_workloads {
                return Ok(Some((commit, old)));
            }
        }
        Ok(None)
    }

    fn has_random(&self, ledger: &Ledger, old: &Sources, dtype: DType) -> bool {
        let known = ledger.random.get(&subject(self.variant, dtype, self.operator));
        known.is_some_and(|known| known.sources == old.hash())
    }

    /// Today's launches with the old texts: a launch that changed is not found.
    fn has_workloads(&self, ledger: &Ledger, old: &Sources, dtype: DType) -> bool {
        let known = ledger.workloads.get(&subject(self.variant, dtype, self.operator));
        known.is_some_and(|known| {
            known.fingerprint == old.fingerprint(self.variant, dtype, self.operator)
        })
    }

    fn renew(
        &self,
        ledger: &mut Ledger,
        history: &History,
        nvrtc: &Nvrtc,
        progress: &dyn Fn(&str, usize),
    ) -> Result<Renewal, HistoryError> {
        let (operator, id) = (self.operator.name, self.variant.spec().id);
        let entries = self.workloads.len() + self.random.len() + self.kernels.len();
        let nothing = Renewal {
            operator,
            variant: id,
            commit: None,
            compared: 0,
            different: 0,
            renewed: 0,
            open: entries,
        };
        let Some((commit, old)) = self.verified(ledger, history)? else { return Ok(nothing) };
        let own: Vec<&Unit> = self
            .kernels
            .iter()
            .copied()
            .filter(|unit| self.known(ledger, &old, unit).is_some())
            .collect();
        let of_samples: BTreeSet<Unit> = self
            .variant
            .spec()
            .dtypes
            .iter()
            .flat_map(|&dtype| sample_units(self.variant, dtype, self.operator))
            .collect();
        let all: BTreeSet<&Unit> = own.iter().copied().chain(&of_samples).collect();
        progress(&format!("{id}, {operator}"), all.len());
        let all: Vec<&Unit> = all.into_iter().collect();
        let different: BTreeSet<&Unit> = all
            .par_iter()
            .copied()
            .filter(|unit| !has_same_code(nvrtc, &old, &self.sources, unit))
            .collect();
        let same = format!("same machine code as {}, NVRTC {}", &commit[..9], nvrtc.version());
        let by = |run: &Run| Run { by: same.clone(), ..run.clone() };
        let mut renewed = 0;
        for unit in own.into_iter().filter(|unit| !different.contains(unit)) {
            if let Some(entry) = self.known(ledger, &old, unit).cloned() {
                let key = (operator.to_owned(), id.to_owned(), self.sources.unit_hash(unit));
                ledger.kernels.insert(key, KernelEntry { run: by(&entry.run), ..entry });
                renewed += 1;
            }
        }
        if different.is_empty() {
            for &dtype in &self.workloads {
                let is_known = self.has_workloads(ledger, &old, dtype);
                let entry = ledger.workloads.get_mut(&subject(self.variant, dtype, self.operator));
                if let Some(entry) = entry.filter(|entry| is_known && entry.passed) {
                    entry.fingerprint =
                        self.sources.fingerprint(self.variant, dtype, self.operator);
                    entry.run = by(&entry.run);
                    renewed += 1;
                }
            }
            for &dtype in &self.random {
                let is_known = self.has_random(ledger, &old, dtype);
                let entry = ledger.random.get_mut(&subject(self.variant, dtype, self.operator));
                if let Some(entry) = entry.filter(|entry| is_known && entry.failed == 0) {
                    entry.sources = self.sources.hash();
                    entry.run = by(&entry.run);
                    renewed += 1;
                }
            }
        }
        let (compared, different) = (all.len(), different.len());
        let open = entries - renewed;
        Ok(Renewal { commit: Some(commit), compared, different, renewed, open, ..nothing })
    }
}

/// Whether a kernel compiles to the same binary from both texts, for the GPU that the ledger is of.
fn has_same_code(nvrtc: &Nvrtc, old: &Sources, new: &Sources, unit: &Unit) -> bool {
    let arch = DeviceProps::h200().arch();
    let compile = |sources: &Sources| {
        let recipe = Recipe::of_source(sources.source, &sources.headers, &arch, &unit.defines);
        recipe.compile(nvrtc).ok().map(|compiled| compiled.cubin)
    };
    let old = compile(old);
    old.is_some() && old == compile(new)
}
