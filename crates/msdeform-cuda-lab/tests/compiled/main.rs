//! Compiles every registered kernel for every architecture and compares its registers, spills and memory
//! with the committed table `crates/msdeform-cuda/resources.csv`. Then it searches the machine code for known faults of
//! compilers, also for the NVRTCs that users have (`MSDEFORM_OTHER_NVRTC`, a list of files).
//!
//! Without NVRTC nothing is compiled: the test prints that it is skipped, or fails if `MSDEFORM_REQUIRE_NVRTC` is
//! set. `BLESS=1` writes the table again.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, also in its shared functions")]

mod cubin;
mod early_reads;
mod early_starts;
mod entries;
mod listing;
mod machine_code;
mod table;

use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use msdeform_cuda::nvrtc::{Compiled, KernelResources, Nvrtc};
use msdeform_cuda::{DiskCache, Recipe};
use rayon::prelude::*;

use entries::{Entry, entries, rare_entries};
use machine_code::{MachineCode, disassembler};
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
    let outcomes = [check(&nvrtc, bless), check_machine_code(&nvrtc, required)];
    let mut failed = false;
    for failures in outcomes.into_iter().filter_map(Result::err) {
        println!("{failures}");
        failed = true;
    }
    if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// The log with the resources is kept with the cubin; unchanged kernels are not compiled again.
fn cubins() -> DiskCache {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target");
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or(folder, Into::into);
    DiskCache::in_folder(target.join("cubins"))
}

/// All kernels by the pinned compiler; by other compilers, those that the dispatcher may choose.
fn check_machine_code(pinned: &Nvrtc, required: bool) -> Result<(), String> {
    let Some(disassembler) = disassembler() else {
        let missing =
            "no nvdisasm: `pip install nvidia-cuda-nvdisasm`, or name it in MSDEFORM_NVDISASM";
        println!("SKIPPED the machine code: {missing}");
        return if required { Err(missing.to_owned()) } else { Ok(()) };
    };
    let files = std::env::var_os("MSDEFORM_OTHER_NVRTC").unwrap_or_default();
    let files = std::env::split_paths(&files).filter(|file| !file.as_os_str().is_empty());
    let others: Vec<Nvrtc> = files
        .map(|file| Nvrtc::open(&file).map_err(|error| error.to_string()))
        .collect::<Result<_, _>>()?;
    let all = || entries().0.into_iter().chain(rare_entries());
    let mut work: Vec<(&Nvrtc, Entry)> = all().map(|entry| (pinned, entry)).collect();
    for other in &others {
        work.extend(all().filter(|entry| entry.is_dispatched).map(|entry| (other, entry)));
    }
    let (cache, started) = (cubins(), Instant::now());
    let compilations = work.len();
    let compiled: Vec<Result<(Entry, String, Compiled), String>> = work
        .into_par_iter()
        .map(|(nvrtc, entry)| {
            let compiled = compile(nvrtc, &cache, &entry.recipe)?;
            let options = entry.recipe.options[3..].join(" ").replace("-DMSDA_", "");
            Ok((entry, format!("NVRTC {}, {options}", nvrtc.version()), compiled))
        })
        .collect();
    let mut code = MachineCode::default();
    for compiled in compiled {
        let (entry, origin, compiled) = compiled?;
        code.add(&entry, &compiled.cubin, &origin)?;
    }
    let compiled_s = started.elapsed().as_secs_f64();
    let findings = code.check(&disassembler)?;
    let versions = std::iter::once(pinned).chain(&others).map(|nvrtc| nvrtc.version().to_string());
    println!(
        "machine code of {} kernels by NVRTC {}: {} late zeros, the first reader {} cycles later, {} read too early; {} that \
         may start early, {} of them wrong ({compilations} compilations in {compiled_s:.0} s, {:.0} s in all)",
        code.kernels,
        versions.collect::<Vec<_>>().join(", "),
        findings.results,
        findings
            .least_cycles
            .iter()
            .map(|(arch, cycles)| format!("{cycles} ({arch})"))
            .collect::<Vec<_>>()
            .join(", "),
        findings.early.len(),
        code.overlapping,
        code.early_starts.len(),
        started.elapsed().as_secs_f64(),
    );
    if !code.early_starts.is_empty() {
        return Err(code.early_starts.join("\n"));
    }
    if findings.early.is_empty() {
        return Ok(());
    }
    Err(format!(
        "{}\nThe compiler waits for an instruction that a predicate may leave out. Write the kernel so that nothing \
         overwrites the zero under a condition; kernels/sample_gradients.cuh has an example.",
        findings.early.join("\n")
    ))
}

fn check(nvrtc: &Nvrtc, bless: bool) -> Result<(), String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../msdeform-cuda");
    let path = folder.join("resources.csv");
    let cache = cubins();
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
            "SKIPPED the comparison: the table is by NVRTC {recorded}, and numbers of compilers differ"
        ),
        Verdict::Compared { same, better, worse } => {
            println!("{same} as in the table, {better} better, {} worse or missing", worse.len());
            if better > 0 {
                println!("`BLESS=1` records the improvements");
            }
            failures.extend(worse);
        }
    }
    if failures.is_empty() {
        return Ok(());
    }
    failures.push(
        "If the change for the worse is intended, run with BLESS=1 and commit the table with its reason."
            .to_owned(),
    );
    Err(failures.join("\n"))
}

fn compile(nvrtc: &Nvrtc, cache: &DiskCache, recipe: &Recipe) -> Result<Compiled, String> {
    let name = recipe.key(nvrtc.version());
    if let Some(compiled) = cache.load(&name) {
        return Ok(compiled);
    }
    let compiled = recipe.compile(nvrtc).map_err(|error| error.to_string())?;
    cache.store(&name, &compiled);
    Ok(compiled)
}

/// The resources of every kernel of a compilation.
fn measure(
    nvrtc: &Nvrtc,
    cache: &DiskCache,
    entry: Entry,
) -> Result<Vec<(Key, KernelResources)>, String> {
    let compiled = compile(nvrtc, cache, &entry.recipe)?;
    let of_kernel = |key: Key| {
        let found = KernelResources::parse(&compiled.log, &key.kernel);
        let missing = || format!("no resources of {key} in the log:\n{}", compiled.log);
        found.ok_or_else(missing).map(|found| (key.clone(), found))
    };
    entry.keys.into_iter().map(of_kernel).collect()
}
