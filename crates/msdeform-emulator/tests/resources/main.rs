//! Compiles every registered kernel for every architecture and holds its registers, spills and memory
//! against the committed table `crates/msdeform-cuda/resources.csv`.
//!
//! Without NVRTC nothing is compiled: a skip, said so, or a failure where `MSDEFORM_REQUIRE_NVRTC` is
//! set. `BLESS=1` writes the table anew.

mod entries;
mod table;

use std::path::Path;
use std::process::ExitCode;

use msdeform_cuda::DiskCache;
use msdeform_cuda::nvrtc::{KernelResources, Nvrtc};
use rayon::prelude::*;

use entries::{Entry, entries};
use table::{Key, Table, Verdict};

fn main() -> ExitCode {
    let bless = std::env::var_os("BLESS").is_some_and(|value| value == "1");
    let required = bless || std::env::var_os("MSDEFORM_REQUIRE_NVRTC").is_some();
    let nvrtc = match Nvrtc::find(None) {
        Ok(nvrtc) => nvrtc,
        Err(error) if required => {
            println!("{error}");
            return ExitCode::FAILURE;
        }
        Err(error) => {
            println!("SKIPPED: no kernel was compiled for any GPU. {error}");
            return ExitCode::SUCCESS;
        }
    };
    match check(&nvrtc, bless) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failures) => {
            println!("{failures}");
            ExitCode::FAILURE
        }
    }
}

fn check(nvrtc: &Nvrtc, bless: bool) -> Result<(), String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../msdeform-cuda");
    let path = folder.join("resources.csv");
    // The log with the resources is kept with the cubin; unchanged kernels are not compiled again.
    let target =
        std::env::var_os("CARGO_TARGET_DIR").map_or(folder.join("../../target"), Into::into);
    let cache = DiskCache::in_folder(target.join("emulator/cubins"));

    let (entries, refused) = entries();
    let results: Vec<Result<Vec<(Key, KernelResources)>, String>> =
        entries.into_par_iter().map(|entry| measure(nvrtc, &cache, entry)).collect();
    let mut compiled = Vec::new();
    let mut failures = Vec::new();
    for result in results {
        match result {
            Ok(kernels) => compiled.extend(kernels),
            Err(error) => failures.push(error),
        }
    }
    let found = Table::new(nvrtc.version().to_string(), compiled);
    println!(
        "{} kernels compiled by NVRTC {}, {} failed, {} skipped",
        found.len(),
        nvrtc.version(),
        failures.len(),
        refused.values().sum::<usize>(),
    );
    for (reason, count) in refused {
        println!("  {count} skipped: {reason}");
    }
    if bless && failures.is_empty() {
        std::fs::write(&path, found.to_string()).map_err(|error| error.to_string())?;
        println!("wrote {}", path.display());
        return Ok(());
    }
    let text = std::fs::read_to_string(&path).unwrap_or_default();
    match found.compare(&Table::parse(&text)?) {
        Verdict::OtherCompiler { recorded } => println!(
            "SKIPPED the comparison: the table is by NVRTC {recorded}, whose numbers are not this one's"
        ),
        Verdict::Compared { same, better, worse } => {
            println!("{same} as in the table, {better} better, {} worse or missing", worse.len());
            if better > 0 {
                println!("`BLESS=1` records what got better");
            }
            failures.extend(worse);
        }
    }
    if failures.is_empty() {
        return Ok(());
    }
    failures.push(
        "If a change for the worse is meant, run with BLESS=1 and commit the table with its reason."
            .to_owned(),
    );
    Err(failures.join("\n"))
}

/// What every kernel of a compilation takes.
fn measure(
    nvrtc: &Nvrtc,
    cache: &DiskCache,
    entry: Entry,
) -> Result<Vec<(Key, KernelResources)>, String> {
    let name = entry.recipe.key(nvrtc.version());
    let compiled = match cache.load(&name) {
        Some(compiled) => compiled,
        None => {
            let compiled = entry.recipe.compile(nvrtc).map_err(|error| error.to_string())?;
            cache.store(&name, &compiled);
            compiled
        }
    };
    let of_kernel = |key: Key| {
        let found = KernelResources::parse(&compiled.log, &key.kernel);
        let missing = || format!("no resources of {key} in the log:\n{}", compiled.log);
        found.ok_or_else(missing).map(|found| (key.clone(), found))
    };
    entry.keys.into_iter().map(of_kernel).collect()
}
