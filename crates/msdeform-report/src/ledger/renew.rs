//! Entries of kernels whose text changed and whose machine code did not.
//!
//! A GPU runs machine code, so a change of the text that gives the same binary needs no GPU. For everything that is open
//! now, [`renew`] looks for a commit at which the ledger knew it, compiles both texts with one compiler, and compares the
//! two binaries. A kernel whose binaries differ needs a run on a GPU.

use std::collections::BTreeSet;

use anyhow::Result;
use msdeform::Operator;
use msdeform_cuda::nvrtc::Nvrtc;
use msdeform_cuda::variants::{Unit, Variant};
use msdeform_cuda::{DeviceProps, Recipe};
use msdeform_cuda_lab::REGISTRY;
use rayon::prelude::*;

use super::claim::Claim;
use super::hashes::{Sources, samples};
use super::{Entry, History, Key, Ledger};

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

/// Renews what it can. `progress` is called with what is compared and the number of its kernels. If git fails, the ledger
/// is as it was.
pub fn renew(
    ledger: &mut Ledger,
    history: &History,
    nvrtc: &Nvrtc,
    progress: &dyn Fn(&str, usize),
) -> Result<Vec<Renewal>> {
    let (mut entries, mut renewals) = (Vec::new(), Vec::new());
    for operator in Operator::ALL {
        for &variant in REGISTRY {
            let id = variant.spec().id;
            let own = Claim::all(operator).iter().filter(|claim| claim.variant.spec().id == id);
            let open: Vec<&Claim> = own.filter(|claim| !ledger.is_of_today(claim)).collect();
            if open.is_empty() {
                continue;
            }
            let (operator, count) = (operator.name, open.len());
            let mut renewal = Renewal { operator, variant: id, open: count, ..Renewal::default() };
            if let Some((commit, old)) = verified(ledger, history, variant, &open)? {
                renewal.commit = Some(commit.to_owned());
                let passed = |claim| Some((claim, ledger.passed(claim, &old)?.clone()));
                let known: Vec<(&Claim, Entry)> = open.into_iter().filter_map(passed).collect();
                let same =
                    compare(known, [&old, Sources::of(variant)], nvrtc, &mut renewal, progress);
                entries.extend(same);
            }
            renewals.push(renewal);
        }
    }
    ledger.0.extend(entries.into_iter().map(|entry: Entry| (Key::of(&entry), entry)));
    Ok(renewals)
}

/// The newest texts, other than those of today, of which the ledger has verified something that is open now.
fn verified(
    ledger: &Ledger,
    history: &History,
    variant: &dyn Variant,
    open: &[&Claim],
) -> Result<Option<(&'static str, Sources)>> {
    let mut seen = BTreeSet::from([Sources::of(variant).hash()]);
    for commit in history.commits()? {
        let Some(old) = history.sources(commit, variant)? else { continue };
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

/// Entries of one variant for the new texts, where these give the same machine code as the old ones.
fn compare(
    known: Vec<(&Claim, Entry)>,
    [old, new]: [&Sources; 2],
    nvrtc: &Nvrtc,
    renewal: &mut Renewal,
    progress: &dyn Fn(&str, usize),
) -> Vec<Entry> {
    let mut units = BTreeSet::new();
    if let Some((Claim { variant, operator, .. }, _)) = known.first() {
        let dtypes = variant.spec().dtypes.iter();
        let samples = dtypes.flat_map(|&dtype| samples(*variant, dtype, operator)).flatten();
        units.extend(samples.flat_map(|(_, units)| units));
    }
    units.extend(known.iter().filter_map(|(claim, _)| Some(claim.unit()?.clone())));
    progress(&format!("{}, {}", renewal.variant, renewal.operator), units.len());
    let is_different = |unit: &&Unit| !has_same_code(nvrtc, old, new, unit);
    let different: BTreeSet<&Unit> = units.par_iter().filter(is_different).collect();
    let same = known.into_iter().filter(|(claim, _)| match claim.unit() {
        Some(unit) => !different.contains(unit),
        None => different.is_empty(),
    });
    let commit = renewal.commit.as_deref().map_or("", |commit| &commit[..9]);
    let by = format!("same machine code as {commit}, NVRTC {}", nvrtc.version());
    let renewed = same.map(|(claim, mut entry)| {
        entry.evidence.hash_mut().clone_from(&claim.hash);
        entry.run.by.clone_from(&by);
        entry
    });
    let renewed: Vec<Entry> = renewed.collect();
    (renewal.compared, renewal.different) = (units.len(), different.len());
    renewal.renewed = renewed.len();
    renewal.open -= renewed.len();
    renewed
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
