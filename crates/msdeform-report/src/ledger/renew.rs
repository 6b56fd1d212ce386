//! Entries of kernels whose text changed and whose machine code did not.
//!
//! A GPU runs machine code, so a change of the text that gives the same binary needs no GPU. For everything that is open
//! now, [`renew`] looks for a commit at which the ledger knew it, compiles both texts with one compiler, and compares the
//! two binaries. A kernel whose binaries differ needs a run on a GPU.

use std::collections::BTreeSet;

use msdeform::Operator;
use msdeform_cuda::nvrtc::Nvrtc;
use msdeform_cuda::variants::{Unit, Variant};
use msdeform_cuda::{DeviceProps, Recipe};
use msdeform_cuda_lab::REGISTRY;
use rayon::prelude::*;

use super::claim::{Claim, What};
use super::hashes::sample_units;
use super::{Entry, History, HistoryError, Ledger, Sources};

/// What became of one variant and operator.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Renewal {
    /// [`Operator::name`].
    pub operator: &'static str,
    /// The variant's id.
    pub variant: &'static str,
    /// The commit whose text the ledger has verified, if there is one.
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

/// Renews what it can. `progress` is called with what is compared and the number of its kernels.
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
        for &variant in REGISTRY {
            let is_own = |claim: &&Claim| claim.variant.spec().id == variant.spec().id;
            let own = Claim::all(operator).iter().filter(is_own);
            let open: Vec<&Claim> = own.filter(|claim| !ledger.is_of_today(claim)).collect();
            if open.is_empty() {
                continue;
            }
            let mut renewal = Renewal {
                operator: operator.name,
                variant: variant.spec().id,
                open: open.len(),
                ..Renewal::default()
            };
            if let Some((commit, old)) = verified(ledger, history, variant, &open)? {
                let compare = Compare { operator, variant, commit: &commit, old: &old, nvrtc };
                compare.renew(&open, &mut renewed, &mut renewal, progress);
                renewal.commit = Some(commit);
            }
            renewals.push(renewal);
        }
    }
    *ledger = renewed;
    Ok(renewals)
}

/// The newest texts, other than those of today, of which the ledger has verified something that is open now.
fn verified(
    ledger: &Ledger,
    history: &History,
    variant: &dyn Variant,
    open: &[&Claim],
) -> Result<Option<(String, Sources)>, HistoryError> {
    let mut seen = BTreeSet::from([Sources::of(variant).hash()]);
    for commit in history.commits()? {
        let Some(old) = history.sources(&commit, variant)? else { continue };
        if seen.insert(old.hash()) && open.iter().any(|claim| ledger.passed(claim, &old).is_some())
        {
            return Ok(Some((commit, old)));
        }
    }
    Ok(None)
}

impl Ledger {
    fn is_of_today(&self, claim: &Claim) -> bool {
        let entry = self.0.get(&claim.key(&claim.hash));
        entry.is_some_and(|entry| *entry.evidence.hash() == claim.hash)
    }

    /// The entry of a claim that passed when the variant had these texts. Launches are those of today: one that changed
    /// is not found.
    fn passed(&self, claim: &Claim, old: &Sources) -> Option<&Entry> {
        let hash = claim.hash_of(old);
        let entry = self.0.get(&claim.key(&hash))?;
        (*entry.evidence.hash() == hash && entry.evidence.passed()).then_some(entry)
    }
}

/// Two texts of a variant.
struct Compare<'a> {
    operator: &'static Operator,
    variant: &'static dyn Variant,
    commit: &'a str,
    old: &'a Sources,
    nvrtc: &'a Nvrtc,
}

impl Compare<'_> {
    fn renew(
        &self,
        open: &[&Claim],
        ledger: &mut Ledger,
        renewal: &mut Renewal,
        progress: &dyn Fn(&str, usize),
    ) {
        let known =
            open.iter().filter_map(|claim| Some((*claim, ledger.passed(claim, self.old)?.clone())));
        let known: Vec<(&Claim, Entry)> = known.collect();
        let (dtypes, new) = (self.variant.spec().dtypes.iter(), Sources::of(self.variant));
        let samples = dtypes.flat_map(|&dtype| sample_units(self.variant, dtype, self.operator));
        let mut units: BTreeSet<Unit> = samples.collect();
        units.extend(known.iter().filter_map(|(claim, _)| match &claim.what {
            What::Kernel(found) => Some(found.unit.clone()),
            _ => None,
        }));
        progress(&format!("{}, {}", renewal.variant, renewal.operator), units.len());
        let is_different = |unit: &&Unit| !has_same_code(self.nvrtc, self.old, &new, unit);
        let different: BTreeSet<&Unit> = units.par_iter().filter(is_different).collect();
        (renewal.compared, renewal.different) = (units.len(), different.len());
        for (claim, mut entry) in known {
            let is_same = match &claim.what {
                What::Kernel(found) => !different.contains(&found.unit),
                _ => different.is_empty(),
            };
            if is_same {
                entry.evidence.hash_mut().clone_from(&claim.hash);
                let (commit, version) = (&self.commit[..9], self.nvrtc.version());
                entry.run.by = format!("same machine code as {commit}, NVRTC {version}");
                ledger.0.insert(entry.key(), entry);
                renewal.renewed += 1;
                renewal.open -= 1;
            }
        }
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
