//! Entries of kernels whose text changed and whose machine code did not.
//!
//! A GPU runs machine code, so a change of the text that gives the same binary needs no GPU. For everything that is open
//! now, [`renew`] looks for a commit at which the ledger knew it, compiles both texts with one compiler, and compares the
//! two binaries. A kernel whose binaries differ needs a run on a GPU.

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use msdeform::Operator;
use msdeform_cuda::nvrtc::Nvrtc;
use msdeform_cuda::sources::SourceFile;
use msdeform_cuda::variants::{Unit, Variant};
use msdeform_cuda::{DeviceProps, Recipe};
use msdeform_cuda_lab::REGISTRY;
use rayon::prelude::*;

use super::claim::Claim;
use super::hashes::{Sources, samples};
use super::{Entry, Ledger};

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

/// Renews what it can with the commits of a checkout. `progress` is called with what is compared and the number of its
/// kernels. If git fails, the ledger is as it was.
pub fn renew(
    ledger: &mut Ledger,
    checkout: &Path,
    nvrtc: &Nvrtc,
    progress: &dyn Fn(&str, usize),
) -> Result<Vec<Renewal>> {
    let history = History::of(checkout);
    let (mut entries, mut renewals) = (Vec::new(), Vec::new());
    for operator in Operator::ALL {
        for &variant in REGISTRY {
            let id = variant.spec.id;
            let own = Claim::all(operator).filter(|claim| claim.id() == id);
            let open: Vec<&Claim> = own.filter(|claim| !ledger.is_of_today(claim)).collect();
            if open.is_empty() {
                continue;
            }
            let (operator, count) = (operator.name, open.len());
            let mut renewal = Renewal { operator, variant: id, open: count, ..Renewal::default() };
            if let Some((commit, old)) = verified(ledger, &history, variant, &open)? {
                renewal.commit = Some(commit.to_owned());
                let passed = |claim| Some((claim, ledger.passed(claim, &old)?.clone()));
                let known: Vec<(&Claim, Entry)> = open.into_iter().filter_map(passed).collect();
                entries.extend(compare(known, &old, nvrtc, &mut renewal, progress));
            }
            renewals.push(renewal);
        }
    }
    ledger.0.extend(entries.into_iter().map(|entry| (entry.key(), entry)));
    Ok(renewals)
}

/// The newest texts, other than those of today, of which the ledger has verified something that is open now.
fn verified(
    ledger: &Ledger,
    history: &History,
    variant: &Variant,
    open: &[&Claim],
) -> Result<Option<(&'static str, Sources)>> {
    let mut seen = BTreeSet::from([Sources::of(variant).hash()]);
    for commit in history.commits()? {
        let Some(old) = history.sources(commit, variant)? else { continue };
        let is_known = |claim: &&Claim| ledger.passed(claim, &old).is_some();
        if seen.insert(old.hash()) && open.iter().any(is_known) {
            return Ok(Some((commit, old)));
        }
    }
    Ok(None)
}

impl Ledger {
    fn is_of_today(&self, claim: &Claim) -> bool {
        self.entry_of(claim, claim.hash()).is_some()
    }

    /// The entry of a claim that passed when the variant had these texts. Launches are those of today: one that changed
    /// is not found.
    fn passed(&self, claim: &Claim, old: &Sources) -> Option<&Entry> {
        self.entry_of(claim, &claim.hash_of(old)).filter(|entry| entry.failed == 0)
    }

    fn entry_of(&self, claim: &Claim, hash: &str) -> Option<&Entry> {
        self.0.get(&claim.key(hash)).filter(|entry| entry.hash == hash)
    }
}

/// Entries of one variant for the texts of today, where these give the same machine code as the old ones.
fn compare(
    known: Vec<(&Claim, Entry)>,
    old: &Sources,
    nvrtc: &Nvrtc,
    renewal: &mut Renewal,
    progress: &dyn Fn(&str, usize),
) -> Vec<Entry> {
    let Some(&(&Claim { variant, operator, .. }, _)) = known.first() else { return Vec::new() };
    let unit = |claim: &Claim| claim.kernel.as_ref().map(|found| found.unit.clone());
    let dtypes = variant.spec.dtypes.iter();
    let samples = dtypes.flat_map(|&dtype| samples(variant, dtype, operator)).flatten();
    let mut units: BTreeSet<Unit> = samples.flat_map(|(_, units)| units).collect();
    units.extend(known.iter().filter_map(|(claim, _)| unit(claim)));
    progress(&format!("{}, {}", renewal.variant, renewal.operator), units.len());
    let is_different = |unit: &&Unit| !has_same_code(nvrtc, old, Sources::of(variant), unit);
    let different: BTreeSet<&Unit> = units.par_iter().filter(is_different).collect();
    let commit = renewal.commit.as_deref().map_or("", |commit| &commit[..9]);
    let by = format!("same machine code as {commit}, NVRTC {}", nvrtc.version());
    let same = known.into_iter().filter(|(claim, _)| {
        unit(claim).map_or(different.is_empty(), |unit| !different.contains(&unit))
    });
    let renewed = same.map(|(claim, mut entry)| {
        claim.hash().clone_into(&mut entry.hash);
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

/// The folders of kernels. The rest of a path is the file's name in `#include`.
const FOLDERS: [&str; 2] = ["crates/msdeform-cuda/kernels", "crates/msdeform-cuda-lab/kernels"];

/// The commits of a checkout. Texts that it reads live as long as the process, as embedded ones do.
pub(super) struct History {
    checkout: PathBuf,
    /// Answers of git: most commits share most files.
    known: RefCell<HashMap<String, &'static str>>,
}

impl History {
    pub(super) fn of(checkout: &Path) -> Self {
        Self { checkout: checkout.to_owned(), known: RefCell::default() }
    }

    /// Commits that changed a kernel, newest first.
    pub(super) fn commits(&self) -> Result<Vec<&'static str>> {
        Ok(self.git(&[&["log", "--format=%H", "--"][..], &FOLDERS].concat())?.lines().collect())
    }

    /// What a variant was compiled from at a commit; nothing if it did not exist.
    pub(super) fn sources(&self, commit: &str, variant: &Variant) -> Result<Option<Sources>> {
        let listed = self.git(&[&["ls-tree", "-r", commit, "--"][..], &FOLDERS].concat())?;
        let (mut source, mut headers) = (None, Vec::new());
        // `100644 blob <id>\t<path>`
        for line in listed.lines() {
            let Some((head, path)) = line.split_once('\t') else { continue };
            let below = |folder| path.strip_prefix(folder)?.strip_prefix('/');
            let name = FOLDERS.into_iter().find_map(below);
            let (Some(id), Some(name)) = (head.split(' ').nth(2), name) else { continue };
            let text = || self.git(&["cat-file", "blob", id]);
            if name == variant.source.name {
                source = Some(SourceFile { name, text: text()? });
            } else if name.ends_with(".cuh") {
                headers.push(SourceFile { name, text: text()? });
            }
        }
        headers.sort_by_key(|file| file.name);
        Ok(source.map(|source| Sources::new(source, headers)))
    }

    fn git(&self, arguments: &[&str]) -> Result<&'static str> {
        let command = arguments.join(" ");
        if let Some(known) = self.known.borrow().get(&command) {
            return Ok(known);
        }
        let what = || format!("`git {command}` failed in {}", self.checkout.display());
        let output = Command::new("git").arg("-C").arg(&self.checkout).args(arguments).output();
        let output = output.with_context(what)?;
        let errors = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{}: {}", what(), errors.trim());
        let text: &'static str = String::from_utf8(output.stdout).with_context(what)?.leak();
        self.known.borrow_mut().insert(command, text);
        Ok(text)
    }
}
